//! The trash of the agent, for an administrator: listed, undeleted, destroyed.

mod undelete;

use std::{fmt::Write, path::Path};

use drumlin_crd::Quantity;
use drumlin_proto::drumlin::v1::{
    DestroyTrashedVolumeRequest, InventoryObject, ListTrashRequest, TrashedVolume,
};
use serde::Serialize;

use crate::{
    Error, Incomplete,
    client::{Client, LIST, PATIENCE, call},
    inventory::{self, rfc3339},
    kept::{failed, whose},
    status::{Form, align, shown},
};

pub use undelete::Undeleted;

/// A volume in the trash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Its id in the trash.
    pub id: String,
    /// Its CSI name.
    pub name: String,
    /// The size.
    pub size: String,
    /// The former owner.
    pub owner: String,
    /// The time of its deletion.
    pub deleted: String,
    /// The time from which it is destroyed.
    pub expires: String,
    /// The problem that the agent reports, if any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// The trash of an agent.
#[derive(Debug)]
pub struct Trash {
    client: Client,
    /// Those that go next first.
    volumes: Vec<TrashedVolume>,
    unreadable: Vec<String>,
}

/// What is in the trash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    /// Those that go next first.
    volumes: Vec<Row>,
    /// Classes that could not be read, with the error.
    unreadable: Vec<String>,
}

impl Trash {
    /// Reads the trash of the agent behind a socket.
    ///
    /// # Errors
    /// When the agent does not answer.
    pub async fn read(socket: &Path) -> Result<Self, Error> {
        let client = Client::new(socket)?;
        let (mut volumes, mut request) = (Vec::new(), ListTrashRequest::default());
        let unreadable = loop {
            let mut trash = client.trash();
            let answer = call("ListTrash", LIST, trash.list_trash(request.clone())).await;
            let answer = answer.map_err(failed)?;
            volumes.extend(answer.volumes);
            if answer.next_token.is_empty() {
                break answer.unreadable;
            }
            request.starting_token = answer.next_token;
        };
        volumes.sort_by_key(|volume| {
            let time = volume.expiration_time.unwrap_or_default();
            (time.seconds, time.nanos, volume.trash_id.clone())
        });
        let unreadable = unreadable.into_iter();
        Ok(Self {
            client,
            volumes,
            unreadable: unreadable
                .map(|class| format!("class {}: {}", class.name, class.problem))
                .collect(),
        })
    }

    /// The volumes as text.
    pub fn render(&self, form: Form) -> String {
        let listed = Listed {
            volumes: self.volumes.iter().map(row).collect(),
            unreadable: self.unreadable.clone(),
        };
        if let Some(data) = form.data(&listed) {
            return data;
        }
        let heads = [
            "OWNER", "SIZE", "DELETED", "EXPIRES", "NAME", "ID", "PROBLEM",
        ];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        lines.extend(listed.volumes.iter().map(|row| {
            let cells = [
                &row.owner,
                &row.size,
                &row.deleted,
                &row.expires,
                &row.name,
                &row.id,
                &row.problem,
            ];
            cells.map(|cell| shown(cell)).to_vec()
        }));
        let mut text = String::new();
        if listed.volumes.is_empty() {
            text.push_str("the trash is empty\n");
        } else {
            align(&mut text, &lines);
        }
        for one in &listed.unreadable {
            let _ = writeln!(text, "UNREADABLE {one}");
        }
        text
    }

    /// The one volume that is meant by its id, its CSI name, or the `NAMESPACE/NAME` of its object or claim (`NAME` in the namespace `default`).
    ///
    /// # Errors
    /// When there is none, or several.
    pub fn find(&self, which: &str) -> Result<Row, Error> {
        let in_default = format!("default/{which}");
        let is_meant = |volume: &&TrashedVolume| {
            let row = row(volume);
            let object = owned_by(volume);
            let of_claim = row.owner.rsplit_once(' ').map(|(_, name)| name);
            [row.id.as_str(), row.name.as_str()].contains(&which)
                || of_claim == Some(which)
                || object.is_some_and(|object| [which, &in_default].contains(&object.as_str()))
        };
        let found: Vec<Row> = self.volumes.iter().filter(is_meant).map(row).collect();
        match found.as_slice() {
            [one] => Ok(one.clone()),
            [] => {
                let mut why = format!("{which}: not in the trash; `drumlin trash` lists what is");
                for one in &self.unreadable {
                    let _ = write!(why, "\n{one}");
                }
                Err(Error::Kept(why))
            }
            several => {
                let mut why = format!("{which}: several volumes in the trash; give the id of one:");
                for one in several {
                    let _ = write!(why, "\n{} (deleted {}, {})", one.id, one.deleted, one.size);
                }
                Err(Error::Kept(why))
            }
        }
    }

    /// Destroys a volume in the trash for good. Repeated, it goes on.
    ///
    /// # Errors
    /// The error of the agent: it has snapshots; or that it is not done yet.
    pub async fn destroy(&self, row: &Row) -> Result<(), Incomplete> {
        let request = DestroyTrashedVolumeRequest {
            trash_id: row.id.clone(),
        };
        let mut trash = self.client.trash();
        let answer = trash.destroy_trashed_volume(request);
        let answer = call("DestroyTrashedVolume", PATIENCE, answer).await;
        Ok(answer.map(drop)?)
    }
}

/// The volume as the inventory shows others.
fn object(volume: &TrashedVolume) -> InventoryObject {
    InventoryObject {
        object_id: volume.trash_id.clone(),
        name: volume.name.clone(),
        parameters: volume.parameters.clone(),
        ..InventoryObject::default()
    }
}

fn owned_by(volume: &TrashedVolume) -> Option<String> {
    let key = inventory::owner(&object(volume))?;
    Some(format!("{}/{}", key.namespace, key.name))
}

fn row(volume: &TrashedVolume) -> Row {
    let time = |time: &Option<prost_types::Timestamp>| {
        let time = time.as_ref().and_then(rfc3339);
        time.unwrap_or_default()
    };
    Row {
        id: volume.trash_id.clone(),
        name: volume.name.clone(),
        size: Quantity::from_bytes(volume.size_bytes.unsigned_abs()).to_string(),
        owner: whose(&object(volume)),
        deleted: time(&volume.deletion_time),
        expires: time(&volume.expiration_time),
        problem: volume.problem.clone(),
    }
}
