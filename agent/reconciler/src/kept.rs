//! What the agent has and no object asks for: shown, given to an object, deleted by hand.

mod deletion;
mod giving;

use std::{collections::HashMap, fmt::Write, path::Path};

use drumlin_crd::{ObjectKey, Quantity, names};
use drumlin_proto::drumlin::v1::{InventoryObject, ObjectKind};
use serde::Serialize;

use crate::{
    Error,
    client::{Client, Failure},
    inventory::{Inventory, label, owner},
    kinds::moment,
    record::{Body, Record},
    status::{Form, align, shown},
    store::{self, DIRECTORY},
};

pub use deletion::Deletion;
pub use giving::{adopt, hand_over};

/// Something that no object asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The agent's id of it.
    pub handle: String,
    /// What it is, as manifests call that.
    pub kind: String,
    /// How large it is; of a group snapshot, all members together.
    pub size: String,
    /// Whose it was.
    pub owner: String,
    /// `Orphan` (its manifest is away), `Released` (its object let go of it), `Left` (nothing is known of an object),
    /// `Given` (by an administrator, to an object that is not there), or `Unowned` (other callers have made it).
    pub state: String,
    /// When it was made, or the moment that it shows.
    pub created: String,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// All that no object asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// By owner and handle.
    pub objects: Vec<Row>,
    /// Where nobody could look, with why.
    pub unreadable: Vec<String>,
}

/// What is known on both sides.
struct BothSides {
    client: Client,
    inventory: std::sync::Arc<Inventory>,
    records: Vec<Record>,
    /// The state files that cannot be read: what they hold is not known.
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
            unreadable: unreadable
                .map(|one| format!("{}: {}", one.path.display(), one.why))
                .collect(),
        })
    }

    /// The object that asks for what has this id.
    fn live(&self, handle: &str) -> Option<&Record> {
        self.holder(handle).filter(|record| is_live(record))
    }

    /// The object of which a record says that this is its.
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

    /// Refuses to judge whose something is while not all is known.
    fn check_all_is_known(&self) -> Result<(), Error> {
        match self.unreadable.first() {
            None => Ok(()),
            Some(one) => Err(Error::Kept(format!(
                "could not determine the owner: a state file cannot be read: {one}"
            ))),
        }
    }
}

/// Whether an object still asks for what its record says is its.
fn is_live(record: &Record) -> bool {
    record.drumlin.orphan_since.is_none() && !(record.is_absent() && record.is_destroyed())
}

fn has(record: &Record, handle: &str) -> bool {
    let is_member = match &record.body {
        Body::GroupSnapshot { status, .. } => {
            let mut members = status.members.iter();
            members.any(|member| member.snapshot_handle.as_deref() == Some(handle))
        }
        _ => false,
    };
    is_member || record.handle() == Some(handle)
}

fn failed(failure: Failure) -> Error {
    let Failure { rpc, message, .. } = failure;
    Error::Kept(format!("{rpc}: {message}"))
}

/// What no object asks for; with `all`, also what other callers of the agent have made.
///
/// # Errors
/// When the agent does not answer, or the state cannot be read.
pub async fn list(socket: &Path, state_dir: &Path, all: bool) -> Result<Kept, Error> {
    let both = BothSides::new(socket, state_dir).await?;
    let holders: HashMap<&str, &Record> = both
        .records
        .iter()
        .filter_map(|record| Some((record.handle()?, record)))
        .collect();
    let mut objects = Vec::new();
    for object in both.inventory.iter() {
        // A member goes with its group snapshot.
        if !object.group_snapshot_id.is_empty() {
            continue;
        }
        let holder = holders.get(&*object.object_id);
        if holder.is_some_and(|record| is_live(record)) {
            continue;
        }
        let state = state(object, holder.copied());
        if state != "Unowned" || all {
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
        None => "Unowned",
    }
}

fn row(object: &InventoryObject, state: &str, inventory: &Inventory) -> Row {
    let created = object.creation_time.as_ref().and_then(moment);
    Row {
        handle: object.object_id.clone(),
        kind: kind(object).to_owned(),
        size: size(object, inventory),
        owner: whose(object),
        state: state.to_owned(),
        created: created.unwrap_or_default(),
        problem: object.problem.clone(),
    }
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

/// Whose something was, for people.
fn whose(object: &InventoryObject) -> String {
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
        if form == Form::Json {
            return serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
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
