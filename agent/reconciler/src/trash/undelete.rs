//! A volume in the trash becomes a volume again.

use std::{collections::BTreeMap, path::Path};

use drumlin_crd::{ObjectKey, names};
use drumlin_proto::drumlin::v1::{
    InventoryObject, ObjectKind, SetOwnerRequest, UndeleteVolumeRequest,
};
use serde::Serialize;

use super::{Row, Trash};
use crate::{
    Error,
    client::{PATIENCE, call},
    inventory::owner,
    kept::{failed, whose},
    requests::{AdminRequest, Requests},
};

/// A volume that was in the trash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Undeleted {
    /// Its handle.
    pub handle: String,
    /// The owner, as before; empty if it has none.
    pub owner: String,
    /// The handle of another volume of this owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// True if the owner is an object, not a claim.
    #[serde(skip)]
    is_of_object: bool,
}

impl Undeleted {
    /// What was done, and who gets the volume, for people.
    pub fn render(&self) -> String {
        let Self { handle, owner, .. } = self;
        let next = match &self.other {
            _ if owner.is_empty() => String::new(),
            _ if !self.is_of_object => format!(
                "; it belonged to {owner}: a PersistentVolume with `volumeHandle: {handle}` gives it to one"
            ),
            Some(other) => format!(
                "; it belongs to {owner}, and so does {other}: an object that has that one keeps it. `drumlin adopt {handle} NAMESPACE/NAME` gives this one to another object"
            ),
            None => {
                format!("; it belongs to {owner}: the object gets it when it is declared again")
            }
        };
        format!("{handle} is a volume again{next}\n")
    }
}

impl Trash {
    /// Makes a volume in the trash a volume again, under its CSI name or another one. Idempotent.
    ///
    /// # Errors
    /// The error of the agent: there is a volume of that name; or that the reconciler cannot be told.
    pub async fn undelete(
        &self,
        row: &Row,
        name: Option<&str>,
        state_dir: &Path,
    ) -> Result<Undeleted, Error> {
        let request = UndeleteVolumeRequest {
            trash_id: row.id.clone(),
            name: name.unwrap_or_default().to_owned(),
        };
        let mut trash = self.client.trash();
        let answer = call("UndeleteVolume", PATIENCE, trash.undelete_volume(request)).await;
        let handle = answer.map_err(failed)?.volume_id;
        let inventory = self.client.inventory().await.map_err(failed)?;
        let volume = inventory.get(&handle);
        let key = volume.and_then(owner);
        let mut undeleted = Undeleted {
            owner: volume.map(whose).unwrap_or_default(),
            is_of_object: key.is_some(),
            handle,
            other: None,
        };
        if let (Some(volume), Some(key)) = (volume, key) {
            self.tell_released(volume).await?;
            tell_reconciler(state_dir, &key, &undeleted.handle)?;
            let others = inventory.named(&key).iter();
            let mut others = others.filter(|one| one.kind() == ObjectKind::Volume);
            let other = others.find(|one| one.object_id != undeleted.handle);
            undeleted.other = other.map(|other| other.object_id.clone());
        }
        Ok(undeleted)
    }

    /// Records that no object has it: a manifest that still asks for the deletion does not mean this volume.
    async fn tell_released(&self, volume: &InventoryObject) -> Result<(), Error> {
        let of_owner = format!("{}/", names::GROUP);
        let mut owner: BTreeMap<String, String> = volume.parameters.clone().into_iter().collect();
        owner.retain(|word, _| word.starts_with(&of_owner));
        owner.insert(names::RELEASED.to_owned(), "true".to_owned());
        let request = SetOwnerRequest {
            kind: volume.kind,
            object_id: volume.object_id.clone(),
            owner,
        };
        self.client.set_owner(request).await.map_err(failed)
    }
}

/// Has the reconciler, if there is one, look for the volume in a new list: it would make an empty one while its list is older.
fn tell_reconciler(state_dir: &Path, key: &ObjectKey, handle: &str) -> Result<(), Error> {
    if !state_dir.exists() {
        return Ok(());
    }
    Requests::new(state_dir).write(&AdminRequest::look_again(key, handle))
}
