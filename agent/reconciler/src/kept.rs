//! Resources of the agent that belong to no object: listed, assigned to an object, or deleted by an administrator.

mod deletion;
mod foreign;
mod giving;
mod release;

use std::{collections::HashMap, fmt::Write, path::Path};

use drumlin_crd::{ObjectKey, Quantity, names};
use drumlin_proto::drumlin::v1::{InventoryObject, ObjectKind};
use serde::Serialize;

use crate::{
    Error,
    client::{Cause, Client, Failure},
    inventory::rfc3339,
    inventory::{Inventory, label, owner},
    record::{Body, Of, Record},
    status::{Form, align, shown},
    store::{self, DIRECTORY},
};

pub use deletion::{Deleted, Deletion};
pub use foreign::{AdoptionOf, Candidate, Candidates, ForeignAdoption, list_foreign};
pub use giving::{Assigned, adopt, hand_over};
pub use release::{Release, Released};

/// A resource that belongs to no object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The handle.
    pub handle: String,
    /// The kind, as in manifests.
    pub kind: String,
    /// The size; of a group snapshot, the sum of its members.
    pub size: String,
    /// The former owner; of what a rollback has kept, the group snapshot that was rolled back to.
    pub owner: String,
    /// `Orphan` (its manifest was removed), `Released` (its object released it), `Left` (its object has no record
    /// here), `Given` (assigned by an administrator to an object that does not exist yet), `BeforeRollback` (it keeps
    /// what volumes contained before a rollback), or `Unowned` (created by other callers).
    pub state: String,
    /// The time of its creation, or of a snapshot its point in time.
    pub created: String,
    /// The UUID of a snapshot.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uuid: String,
    /// The problem that the agent reports, if any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// All resources that belong to no object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// Sorted by owner and handle.
    pub objects: Vec<Row>,
    /// Classes and state files that could not be read, with the error.
    pub unreadable: Vec<String>,
}

/// The inventory of the agent and the records of the reconciler.
struct BothSides {
    client: Client,
    inventory: std::sync::Arc<Inventory>,
    records: Vec<Record>,
    /// The state files that cannot be read: their objects are unknown.
    unreadable: Vec<String>,
}

impl BothSides {
    async fn new(socket: &Path, state_dir: &Path) -> Result<Self, Error> {
        let (records, unreadable) = store::load(&state_dir.join(DIRECTORY))?;
        let client = Client::new(socket)?;
        let inventory = client.inventory().await.map_err(failed)?;
        let unreadable = unreadable.iter();
        Ok(Self {
            client,
            inventory,
            records,
            unreadable: unreadable.map(ToString::to_string).collect(),
        })
    }

    /// The live object that the resource with this handle belongs to.
    fn live(&self, handle: &str) -> Option<&Record> {
        self.holder(handle).filter(|record| is_live(record))
    }

    /// The object whose record names this handle.
    fn holder(&self, handle: &str) -> Option<&Record> {
        let mut records = self.records.iter();
        records.find(|record| has(record, handle))
    }

    fn find(&self, handle: &str) -> Result<&InventoryObject, Error> {
        self.inventory.get(handle).ok_or_else(|| {
            let mut why = format!("{handle}: not found; `drumlin kept --all` lists all resources");
            for class in self.inventory.classes_unreadable() {
                let _ = write!(why, "\n{class}");
            }
            Error::Kept(why)
        })
    }

    /// Fails if a state file cannot be read, because an owner could be unknown.
    fn check_all_is_known(&self) -> Result<(), Error> {
        match self.unreadable.first() {
            None => Ok(()),
            Some(one) => Err(Error::Kept(format!(
                "could not determine the owner: a state file cannot be read: {one}"
            ))),
        }
    }
}

/// Returns true if an object still owns the resource that its record names.
fn is_live(record: &Record) -> bool {
    record.drumlin.orphan_since.is_none() && !(record.is_absent() && record.is_destroyed())
}

fn has(record: &Record, handle: &str) -> bool {
    let is_member = match &record.body {
        Body::GroupSnapshot(Of { status, .. }) => {
            let mut members = status.members.iter();
            members.any(|member| member.snapshot_handle.as_deref() == Some(handle))
        }
        _ => false,
    };
    is_member || record.handle() == Some(handle)
}

pub(crate) fn failed(failure: Failure) -> Error {
    let Failure {
        rpc,
        message,
        cause,
        ..
    } = failure;
    match cause {
        Cause::Transport => Error::Unreachable(format!(
            "{rpc}: {message}; start it, or name its socket with --endpoint; drumlin doctor says more"
        )),
        Cause::Answer | Cause::Deadline => Error::Kept(format!("{rpc}: {message}")),
    }
}

/// Which resources are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those that belonged to an object, and those that rollbacks have kept.
    Manifests,
    /// Also those that other callers of the agent created.
    All,
}

/// Lists resources that belong to no object.
///
/// # Errors
/// When the agent does not answer, or the state cannot be read.
pub async fn list(socket: &Path, state_dir: &Path, scope: Scope) -> Result<Kept, Error> {
    let both = BothSides::new(socket, state_dir).await?;
    let holders: HashMap<&str, &Record> = both
        .records
        .iter()
        .filter_map(|record| Some((record.handle()?, record)))
        .collect();
    let mut objects = Vec::new();
    for object in both.inventory.iter() {
        // A member is listed with its group snapshot.
        if !object.group_snapshot_id.is_empty() {
            continue;
        }
        let holder = holders.get(&*object.object_id);
        if holder.is_some_and(|record| is_live(record)) {
            continue;
        }
        let state = state(object, holder.copied());
        if state != "Unowned" || scope == Scope::All {
            objects.push(row(object, state, &both.inventory));
        }
    }
    objects.sort_by(|one, other| (&one.owner, &one.handle).cmp(&(&other.owner, &other.handle)));
    let unreadable = both.unreadable.iter().cloned();
    Ok(Kept {
        objects,
        unreadable: both
            .inventory
            .classes_unreadable()
            .chain(unreadable)
            .collect(),
    })
}

fn state(object: &InventoryObject, holder: Option<&Record>) -> &'static str {
    let is_orphan = |record: &Record| record.drumlin.orphan_since.is_some();
    match label(object, names::OWNER) {
        _ if holder.is_some_and(is_orphan) => "Orphan",
        _ if label(object, names::RELEASED).is_some() => "Released",
        Some(_) => "Left",
        None if owner(object).is_some() => "Given",
        None if !object.before_rollback_to.is_empty() => "BeforeRollback",
        None => "Unowned",
    }
}

fn row(object: &InventoryObject, state: &str, inventory: &Inventory) -> Row {
    let created = object.creation_time.as_ref().and_then(rfc3339);
    Row {
        handle: object.object_id.clone(),
        kind: kind(object).to_owned(),
        size: size(object, inventory),
        owner: if state == "BeforeRollback" {
            before_rollback(object, inventory)
        } else {
            whose(object)
        },
        state: state.to_owned(),
        created: created.unwrap_or_default(),
        uuid: object.uuid.clone(),
        problem: object.problem.clone(),
    }
}

/// What a group snapshot keeps that a rollback has made, for display.
fn before_rollback(object: &InventoryObject, inventory: &Inventory) -> String {
    let to = &object.before_rollback_to;
    let owner = inventory.get(to).map(whose).unwrap_or_default();
    let to = if owner.is_empty() { to } else { &owner };
    format!("before the rollback to {to}")
}

fn kind(object: &InventoryObject) -> &'static str {
    match object.kind() {
        ObjectKind::Volume => "Volume",
        ObjectKind::Snapshot => "Snapshot",
        ObjectKind::VolumeGroup => "VolumeGroup",
        ObjectKind::VolumeGroupSnapshot => "GroupSnapshot",
        ObjectKind::Unknown => "",
    }
}

fn size(object: &InventoryObject, inventory: &Inventory) -> String {
    let members = inventory
        .iter()
        .filter(|member| member.group_snapshot_id == object.object_id);
    let members: i64 = members.map(|member| member.size_bytes).sum();
    match object.size_bytes.saturating_add(members) {
        0 => String::new(),
        bytes => Quantity::from_bytes(bytes.unsigned_abs()).to_string(),
    }
}

/// The former owner, for display.
pub(crate) fn whose(object: &InventoryObject) -> String {
    let Some(ObjectKey {
        namespace, name, ..
    }) = owner(object)
    else {
        let claim = label(object, names::CLAIM);
        let namespace = label(object, names::CLAIM_NAMESPACE).unwrap_or_default();
        return claim.map_or_else(String::new, |name| format!("claim {namespace}/{name}"));
    };
    match label(object, names::OWNER) {
        Some(names::OF_DIRECTORY) => format!("file {namespace}/{name}"),
        Some(_) => format!("cluster {namespace}/{name}"),
        None => format!("{namespace}/{name}"),
    }
}

impl Kept {
    /// The table as text.
    pub fn render(&self, form: Form) -> String {
        if let Some(data) = form.data(self) {
            return data;
        }
        let heads = [
            "KIND", "SIZE", "OWNER", "STATE", "CREATED", "HANDLE", "PROBLEM",
        ];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        lines.extend(self.objects.iter().map(|row| {
            let cells = [
                &row.kind,
                &row.size,
                &row.owner,
                &row.state,
                &row.created,
                &row.handle,
                &row.problem,
            ];
            cells.map(|cell| shown(cell)).to_vec()
        }));
        let mut text = String::new();
        if self.objects.is_empty() {
            text.push_str("no orphan, released or untracked resources\n");
        } else {
            align(&mut text, &lines);
        }
        for one in &self.unreadable {
            let _ = writeln!(text, "UNREADABLE {one}");
        }
        text
    }
}
