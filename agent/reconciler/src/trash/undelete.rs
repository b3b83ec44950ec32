//! A volume in the trash becomes a volume again.

use std::path::Path;

use drumlin_crd::ObjectKey;
use drumlin_proto::drumlin::v1::{ObjectKind, UndeleteVolumeRequest};
use serde::Serialize;
use tonic::Code;

use super::{Row, Trash, object};
use crate::{
    Error,
    client::{Failure, PATIENCE, call},
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
    /// The object that is the owner; a claim is none.
    #[serde(skip)]
    object: Option<ObjectKey>,
}

impl Undeleted {
    /// What was done, and who gets the volume, for people.
    pub fn render(&self) -> String {
        let Self { handle, owner, .. } = self;
        let next = match &self.other {
            _ if owner.is_empty() => String::new(),
            _ if self.object.is_none() => format!(
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
    /// Makes the volume that is meant a volume again, under its CSI name or another one. With its id in the trash a repeat
    /// succeeds.
    ///
    /// # Errors
    /// When there is none, or several; the error of the agent: there is a volume of that name; or that the reconciler cannot
    /// be told.
    pub async fn undelete(
        &self,
        which: &str,
        name: Option<&str>,
        state_dir: &Path,
    ) -> Result<Undeleted, Error> {
        let row = match self.find(which) {
            Ok(row) => row,
            Err(why) => return self.undeleted_before(which, why).await,
        };
        let key = self.owner_of(&row);
        if let Some(key) = &key {
            look_again(state_dir, key)?;
        }
        let handle = self.call_undelete(&row.id, name).await.map_err(failed)?;
        let mut undeleted = Undeleted {
            handle,
            owner: row.owner,
            other: None,
            object: key,
        };
        // It is done; what else there is, is only said.
        if let Ok(inventory) = self.client.inventory().await
            && let Some(key) = &undeleted.object
        {
            let mut others = inventory.named(key).iter();
            let other = others
                .find(|one| one.kind() == ObjectKind::Volume && one.object_id != undeleted.handle);
            undeleted.other = other.map(|other| other.object_id.clone());
        }
        Ok(undeleted)
    }

    /// The volume that an earlier call has undeleted.
    async fn undeleted_before(&self, id: &str, why: Error) -> Result<Undeleted, Error> {
        let handle = match self.call_undelete(id, None).await {
            Ok(handle) => handle,
            Err(failure) if matches!(failure.code, Code::NotFound | Code::InvalidArgument) => {
                return Err(why);
            }
            Err(failure) => return Err(failed(failure)),
        };
        let volume = self.client.object(&handle).await.map_err(failed)?;
        Ok(Undeleted {
            handle,
            owner: volume.as_ref().map(whose).unwrap_or_default(),
            other: None,
            object: volume.as_ref().and_then(owner),
        })
    }

    async fn call_undelete(&self, trash_id: &str, name: Option<&str>) -> Result<String, Failure> {
        let request = UndeleteVolumeRequest {
            trash_id: trash_id.to_owned(),
            name: name.unwrap_or_default().to_owned(),
        };
        let mut trash = self.client.trash();
        let answer = call("UndeleteVolume", PATIENCE, trash.undelete_volume(request)).await;
        Ok(answer?.volume_id)
    }

    fn owner_of(&self, row: &Row) -> Option<ObjectKey> {
        let mut volumes = self.volumes.iter();
        let volume = volumes.find(|volume| volume.trash_id == row.id)?;
        owner(&object(volume))
    }
}

/// Has the reconciler, if there is one, look for the volume in a new list: it would make an empty one while its list is older.
fn look_again(state_dir: &Path, key: &ObjectKey) -> Result<(), Error> {
    if !state_dir.exists() {
        return Ok(());
    }
    Requests::new(state_dir).write(&AdminRequest::look_again(key))
}
