//! An administrator assigns a resource of another object, or of none, to an object.

use std::{collections::BTreeMap, path::Path};

use drumlin_crd::{ObjectKey, names};
use drumlin_proto::drumlin::v1::SetOwnerRequest;
use serde::Serialize;

use super::{BothSides, failed, is_live, kind};
use crate::{
    Error,
    record::Record,
    requests::{AdminRequest, Requests},
    store::{self, DIRECTORY},
};

/// A resource that an object may adopt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Assigned {
    /// Its handle.
    pub handle: String,
    /// The object.
    pub object: ObjectKey,
}

/// Assigns the resource with this handle to the object of this name, whether from a file or an API server: the object
/// adopts it in its next pass.
///
/// # Errors
/// When it belongs to another object, the object already has a resource, the handle does not exist, or the agent does
/// not answer.
pub async fn adopt(
    socket: &Path,
    state_dir: &Path,
    handle: &str,
    (namespace, name): (&str, &str),
) -> Result<Assigned, Error> {
    let both = BothSides::new(socket, state_dir).await?;
    let object = both.find(handle)?;
    let key = ObjectKey {
        kind: kind(object).to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    check_names(&key)?;
    both.check_all_is_known()?;
    if let Some(holder) = both.live(handle)
        && holder.key() != key
    {
        return Err(Error::Kept(format!(
            "{handle} belongs to {}, {}",
            holder.key(),
            origin(holder)
        )));
    }
    let mut records = both.records.iter();
    let own = records.find(|record| record.key() == key && is_live(record));
    if let Some(has) = own.and_then(Record::handle)
        && has != handle
    {
        return Err(Error::Kept(format!("{key} already has {has}")));
    }
    // Without a source, so that an object of this name from either source adopts it.
    let owner = [
        (names::OWNER_KIND, &key.kind),
        (names::OWNER_NAMESPACE, &key.namespace),
        (names::OWNER_NAME, &key.name),
    ];
    let owner = owner.map(|(word, value)| (word.to_owned(), value.clone()));
    let request = SetOwnerRequest {
        kind: object.kind().into(),
        object_id: handle.to_owned(),
        owner: BTreeMap::from(owner),
    };
    both.client.set_owner(request).await.map_err(failed)?;
    Requests::new(state_dir).write(&AdminRequest::adopt(&key, handle))?;
    Ok(Assigned {
        handle: handle.to_owned(),
        object: key,
    })
}

/// Permits the next object of this name to adopt the retained resource of an orphan: from a file to an object of an API
/// server, or back.
///
/// # Errors
/// When there is no such object, or it still has a manifest.
pub fn hand_over(state_dir: &Path, key: &ObjectKey) -> Result<Assigned, Error> {
    check_names(key)?;
    let (records, _) = store::load(&state_dir.join(DIRECTORY))?;
    let record = records.iter().find(|record| record.key() == *key);
    let record = record.ok_or_else(|| {
        Error::Kept(format!(
            "{key}: no record of it on this node; `drumlin kept` lists retained resources, and `drumlin adopt` assigns one to an object"
        ))
    })?;
    if record.drumlin.orphan_since.is_none() {
        return Err(Error::Kept(format!(
            "{key} is no orphan: it is an object {}",
            origin(record)
        )));
    }
    let Some(handle) = record.handle() else {
        return Err(Error::Kept(format!(
            "{key}: nothing was created for it yet"
        )));
    };
    Requests::new(state_dir).write(&AdminRequest::adopt(key, handle))?;
    Ok(Assigned {
        handle: handle.to_owned(),
        object: key.clone(),
    })
}

/// Where an object is, and how it leaves that with its data kept.
fn origin(record: &Record) -> String {
    match &record.drumlin.schedule {
        Some(schedule) => format!(
            "which schedule {schedule} has taken; a manifest of this name and source takes it from there"
        ),
        None => format!(
            "whose manifest is in {}; remove it from there first, without deleting its data",
            record.drumlin.file
        ),
    }
}

pub(super) fn check_names(key: &ObjectKey) -> Result<(), Error> {
    if names::is_label(&key.namespace) && names::is_subdomain(&key.name) {
        return Ok(());
    }
    Err(Error::Kept(format!(
        "{}/{} is not a valid NAMESPACE/NAME",
        key.namespace, key.name
    )))
}
