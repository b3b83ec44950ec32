//! What there is of an object of which nothing is known here: its record was lost, its disk comes from another host, or an
//! administrator has given it what another object had. Nothing is made in its place.

use drumlin_crd::{MemberKind, MemberSnapshot, ObjectKey, names};
use drumlin_proto::drumlin::v1::{InventoryObject, SetOwnerRequest};
use tonic::Code;

use super::{Halt, Pass, snapshot::moment, stalled, volume::size, waiting};
use crate::{
    blocking::blocking,
    inventory::{Inventory, kind_of, label, owner},
    record::{Body, Record, State, Verdict},
};

/// So often what is found may be another one by the time it is asked for again.
const CHANGES: u32 = 3;

/// Whether an object may have what was made for one of its name.
enum Ownership {
    /// It is its own.
    Own,
    /// It is none of its business.
    Nothing,
    /// It is somebody else's, which a person must decide.
    Taken(&'static str, String),
}

impl Pass<'_> {
    /// Finds what there is of the object and makes it its own.
    ///
    /// # Errors
    /// What stands in the way: it is somebody else's, or there are several.
    pub(super) async fn take_up(&mut self) -> Result<(), Halt> {
        let word = blocking(|| self.shared.words.get(&self.record.key()));
        if word.is_some() || self.record.annotation(names::ADOPT).is_some() {
            // What an administrator gives it may be in no list yet.
            self.client.forget_inventory().await;
        }
        for _ in 0..CHANGES {
            let inventory = self.client.inventory().await?;
            let Some(former) = self.former(word.as_deref(), &inventory)? else {
                return Ok(());
            };
            let now = self.client.object(&former.object_id).await?;
            if now.as_ref() == Some(&former) {
                return self.make_own(&former, &inventory).await;
            }
            self.client.forget_inventory().await;
        }
        Err(waiting(
            "Reconciling",
            "resources found for this object changed while they were read; retrying".to_owned(),
        ))
    }

    fn former(
        &self,
        word: Option<&str>,
        inventory: &Inventory,
    ) -> Result<Option<InventoryObject>, Halt> {
        if let Some(object) = word.and_then(|handle| inventory.get(handle)) {
            return Ok(Some(object.clone()));
        }
        if let Some(handle) = self.record.annotation(names::ADOPT) {
            return self.asked_for(handle, inventory).map(Some);
        }
        let mut own = Vec::new();
        for object in inventory.named(&self.record.key()) {
            match self.standing(object) {
                Ownership::Own => own.push(object),
                Ownership::Taken(reason, message) if !self.record.is_absent() => {
                    return Err(stalled(reason, message));
                }
                Ownership::Taken(..) | Ownership::Nothing => {}
            }
        }
        match own.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some((*one).clone())),
            several => {
                let mut ids: Vec<&str> = several.iter().map(|one| &*one.object_id).collect();
                ids.sort_unstable();
                Err(stalled(
                    "Ambiguous",
                    format!(
                        "more than one resource matches this object: {}; select one with the annotation {}",
                        ids.join(", "),
                        names::ADOPT
                    ),
                ))
            }
        }
    }

    /// What the annotation names, whosever it was.
    fn asked_for(&self, handle: &str, inventory: &Inventory) -> Result<InventoryObject, Halt> {
        let wrong = |why: String| {
            let annotation = names::ADOPT;
            let message = format!("metadata.annotations.{annotation}: {handle} {why}");
            Err(stalled("InvalidArgument", message))
        };
        let key = self.record.key();
        let Some(object) = inventory.get(handle) else {
            return wrong("does not exist".to_owned());
        };
        if object.kind() != kind_of(&key.kind) {
            return wrong(format!("is not a {}", key.kind));
        }
        let has = |record: &Record| record.handle() == Some(handle) && record.key() != key;
        match self.shared.keys_of(has).first() {
            Some(other) => wrong(format!("belongs to {other}")),
            None => Ok(object.clone()),
        }
    }

    fn standing(&self, object: &InventoryObject) -> Ownership {
        let key = self.record.key();
        let tenant = self.record.served().map(|served| &*served.namespace_uid);
        let is_released = label(object, names::RELEASED).is_some();
        let is_moment = matches!(&*key.kind, "Snapshot" | "GroupSnapshot");
        // The same name means the same volume again; another moment is another one.
        if is_released && (is_moment || self.record.is_absent()) {
            return Ownership::Nothing;
        }
        let id = &object.object_id;
        match label(object, names::OWNER) {
            // An administrator has given it to this name.
            None => Ownership::Own,
            Some(side) if side != self.side() => {
                let (reason, whose) = match side {
                    names::OF_DIRECTORY => ("OwnedByDirectory", "a manifest file of this node"),
                    _ => ("OwnedByCluster", "an object of an API server"),
                };
                Ownership::Taken(
                    reason,
                    format!(
                        "{id} has the name of this object but belongs to {whose}; {}",
                        ways(id, &key)
                    ),
                )
            }
            Some(_) if label(object, names::TENANT) == tenant => Ownership::Own,
            Some(_) => Ownership::Taken(
                retained(&key.kind),
                format!(
                    "{id} has the name of this object but belongs to a deleted namespace {}; {}",
                    key.namespace,
                    ways(id, &key)
                ),
            ),
        }
    }

    /// Whether it comes from a file or from an API server.
    pub(super) fn side(&self) -> &'static str {
        match self.record.served() {
            Some(_) => names::OF_CLUSTER,
            None => names::OF_DIRECTORY,
        }
    }

    /// Who may write an object of an API server may not have what is another one's by that: its policy says who may.
    async fn check_adoption(&self, object: &InventoryObject) -> Result<(), Halt> {
        if self.record.served().is_none() || matches!(self.standing(object), Ownership::Own) {
            return Ok(());
        }
        let pending = |why: String| waiting("FinalizerPending", why);
        let Some(cluster) = self.shared.server() else {
            return Err(pending(
                "object comes from an API server, but this agent does not follow one".to_owned(),
            ));
        };
        match cluster.restricts_adoption(&self.record.key()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Halt::Waiting(without_policy())),
            Err(refusal) => Err(pending(format!(
                "could not check whether its annotation is restricted to administrators: {refusal}"
            ))),
        }
    }

    /// Writes down that this is the object's own, and tells the agent.
    async fn make_own(
        &mut self,
        object: &InventoryObject,
        inventory: &Inventory,
    ) -> Result<(), Halt> {
        self.check_adoption(object).await?;
        self.add_finalizer().await?;
        let (id, name) = (Some(object.object_id.clone()), Some(object.name.clone()));
        let size = size(object.size_bytes);
        let created = object.creation_time.as_ref().and_then(moment);
        let is_well = object.problem.is_empty();
        match &mut self.record.body {
            Body::Volume { status, .. } => {
                status.volume_handle = id;
                status.csi_name = name;
                status.capacity = Some(size);
            }
            Body::Snapshot { status, .. } => {
                status.snapshot_handle = id;
                status.csi_name = name;
                status.restore_size = Some(size);
                status.creation_time = created;
                status.ready_to_use = is_well;
                let source = object.volume_ids.first();
                status.source_volume_handle = Some(source.cloned().unwrap_or_default());
            }
            Body::Group { status, .. } => {
                status.group_handle = id;
                status.csi_name = name;
            }
            Body::GroupSnapshot { status, .. } => {
                status.members = members(object, inventory);
                status.member_count = u32::try_from(status.members.len()).unwrap_or(u32::MAX);
                status.group_snapshot_handle = id;
                status.csi_name = name;
                status.creation_time = created;
                // Whether all of it is there is asked next.
                status.ready_to_use = true;
            }
        }
        self.is_doubted = true;
        self.record.is_found();
        self.record.drumlin.owner_unset = true;
        self.save("state-lost.recorded")?;
        self.shared.words.forget(&self.record.key());
        tracing::info!(object = %self.record.key(), handle = %object.object_id, "object recovered from existing resources");
        self.tell_owner().await
    }

    /// The same, but for what has been let go of and stays so.
    pub(crate) async fn tell_wanted(&mut self) -> Result<(), Halt> {
        if self.record.is_absent() {
            return Ok(());
        }
        self.tell_owner().await
    }

    /// Has the agent know whose it is, where that is another one than it was.
    async fn tell_owner(&mut self) -> Result<(), Halt> {
        if !self.record.drumlin.owner_unset {
            return Ok(());
        }
        self.set_owner(self.owner()).await?;
        self.record.drumlin.owner_unset = false;
        self.save("owner.set")
    }

    /// Has the agent know that the object has let go of it.
    pub(super) async fn tell_released(&mut self) -> Result<(), Halt> {
        // A kind that goes takes its objects with it, and nobody has let go of anything.
        if self.record.served().is_some_and(|served| served.is_kept) {
            return Ok(());
        }
        let mut owner = self.owner();
        owner.insert(names::RELEASED.to_owned(), "true".to_owned());
        self.set_owner(owner).await?;
        // Who has its name next must find it, and the list may be older than it is.
        self.client.forget_inventory().await;
        self.record.drumlin.owner_unset = true;
        Ok(())
    }

    async fn set_owner(
        &self,
        owner: std::collections::BTreeMap<String, String>,
    ) -> Result<(), Halt> {
        let Some(handle) = self.record.handle() else {
            return Ok(());
        };
        let request = SetOwnerRequest {
            kind: kind_of(&self.record.kind).into(),
            object_id: handle.to_owned(),
            owner,
        };
        match self.client.set_owner(request).await {
            // What is gone is nobody's, and an agent that is not ours knows of no owners.
            Err(failure) if !matches!(failure.code, Code::NotFound | Code::Unimplemented) => {
                Err(failure.into())
            }
            _ => Ok(()),
        }
    }

    /// The same of a volume: its class could be read, and, where it names none and the state may have been lost, all could.
    pub(super) async fn check_class(&self) -> Result<(), Halt> {
        let inventory = self.client.inventory().await?;
        let class = self.spec().device_class.as_deref();
        let hidden = match class {
            Some(class) => inventory.unreadable(class).map(|why| (class, why)),
            None if self.shared.store().is_new() => inventory.first_unreadable(),
            None => None,
        };
        if let Some((class, why)) = hidden {
            return Err(unseen(class, why));
        }
        if inventory.first_unreadable().is_none() {
            blocking(|| self.shared.store().has_seen_all());
        }
        Ok(())
    }

    /// Before something is made that must not be there already: the class of what it is made from could be read when what
    /// there is was listed.
    pub(super) async fn check_looked(&self, source: &str) -> Result<(), Halt> {
        let inventory = self.client.inventory().await?;
        let Some(class) = names::class_of(source) else {
            return Ok(());
        };
        match inventory.unreadable(class) {
            None => Ok(()),
            Some(why) => Err(unseen(class, why)),
        }
    }
}

fn unseen(class: &str, why: &str) -> Halt {
    let message = "could not check whether it already exists";
    waiting("Unavailable", format!("{message}: class {class}: {why}"))
}

/// Why an annotation is not obeyed that anybody may write.
pub(crate) fn without_policy() -> Verdict {
    Verdict {
        state: State::Stalled,
        reason: "AdoptionUnguarded",
        message: format!(
            "ValidatingAdmissionPolicy {} is not in force, so any tenant who can write this object could adopt the data of another tenant; apply the policy, or run `drumlin adopt` on the node",
            names::ADOPT_POLICY
        ),
    }
}

/// What a person can do about something that is another one's.
fn ways(id: &str, key: &ObjectKey) -> String {
    format!(
        "to adopt it, annotate this object with {}: {id}, or run `drumlin adopt {id} {}/{}` on its node; to destroy it, run `drumlin delete {id}`",
        names::ADOPT,
        key.namespace,
        key.name
    )
}

/// Why an object waits whose name something of a former namespace has.
pub(crate) fn retained(kind: &str) -> &'static str {
    match kind {
        "Volume" => "RetainedVolumeExists",
        "VolumeGroup" => "RetainedGroupExists",
        _ => "RetainedSnapshotExists",
    }
}

/// Whether an object waits for what is another one's.
pub(crate) fn is_held(reason: &str) -> bool {
    const REASONS: [&str; 4] = ["Retained", "OwnedBy", "Ambiguous", "Adoption"];
    REASONS.iter().any(|held| reason.starts_with(held))
}

/// The members of a group snapshot, each called by what its volume belongs to.
fn members(object: &InventoryObject, inventory: &Inventory) -> Vec<MemberSnapshot> {
    let member = |volume: &String| {
        let of_it = |found: &&InventoryObject| {
            found.group_snapshot_id == object.object_id && found.volume_ids.contains(volume)
        };
        let snapshot = inventory.iter().find(of_it);
        let (kind, name) = inventory.get(volume).map_or_else(
            || (MemberKind::Volume, String::new()),
            |volume| match owner(volume) {
                Some(owner) => (MemberKind::Volume, owner.name),
                None => claim_of(volume),
            },
        );
        MemberSnapshot {
            kind: kind.to_string(),
            name,
            volume_handle: volume.clone(),
            snapshot_handle: snapshot.map(|found| found.object_id.clone()),
            restore_size: snapshot.map(|found| size(found.size_bytes)),
            ready_to_use: snapshot.is_some_and(|found| found.problem.is_empty()),
        }
    };
    let mut members: Vec<MemberSnapshot> = object.volume_ids.iter().map(member).collect();
    members.sort_by(|one, other| (&one.kind, &one.name).cmp(&(&other.kind, &other.name)));
    members
}

/// The claim that a volume was made for by a provisioner.
fn claim_of(volume: &InventoryObject) -> (MemberKind, String) {
    match label(volume, names::CLAIM) {
        Some(claim) => (MemberKind::PersistentVolumeClaim, claim.to_owned()),
        None => (MemberKind::Volume, String::new()),
    }
}
