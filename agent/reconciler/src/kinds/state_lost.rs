//! Adopts the existing resource of an object without a record: the state was lost, the disk comes from another host, or
//! an administrator has assigned it the resource of another object. No new resource is created in its place.

use drumlin_crd::{ObjectKey, names};
use drumlin_proto::drumlin::v1::{InventoryObject, SetOwnerRequest};
use tonic::Code;

use super::{Halt, Pass, stalled, waiting};
use crate::{
    blocking::blocking,
    inventory::{Inventory, kind_of, label},
    record::{Record, State, Verdict},
};

/// Maximum number of attempts when a found resource changes before it is read again.
const CHANGES: u32 = 3;

/// Whether an object may adopt a resource of its name.
enum Ownership {
    /// It belongs to the object.
    Own,
    /// It does not concern the object.
    Nothing,
    /// It belongs to another owner, and a person must decide.
    Taken(&'static str, String),
}

impl Pass<'_> {
    /// Finds an existing resource of the object and adopts it.
    ///
    /// # Errors
    /// When the resource belongs to another owner, or there are several.
    pub(super) async fn take_up(&mut self) -> Result<(), Halt> {
        // One look for a name that is rarely there: handing the other tasks of this thread over takes longer.
        let request = self.shared.requests.get(&self.record.key());
        if request.is_some() || self.record.annotation(names::ADOPT).is_some() {
            // A resource that an administrator assigned or undeleted may not be in the cached list yet.
            self.client.forget_inventory().await;
        }
        for _ in 0..CHANGES {
            let inventory = self.client.inventory().await?;
            let requested = request
                .as_ref()
                .and_then(|request| request.handle.as_deref());
            let Some(former) = self.former(requested, &inventory)? else {
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
        requested: Option<&str>,
        inventory: &Inventory,
    ) -> Result<Option<InventoryObject>, Halt> {
        if let Some(object) = requested.and_then(|handle| inventory.get(handle)) {
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

    /// The resource that the annotation names, whoever owned it.
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
        // A recreated Volume or VolumeGroup of the same name means the same one; a recreated snapshot means a new point
        // in time.
        if is_released && (is_moment || self.record.is_absent()) {
            return Ownership::Nothing;
        }
        let id = &object.object_id;
        match label(object, names::OWNER) {
            // An administrator assigned it to this name.
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

    /// The source of the object: a manifest file or an API server.
    pub(super) fn side(&self) -> &'static str {
        match self.record.served() {
            Some(_) => names::OF_CLUSTER,
            None => names::OF_DIRECTORY,
        }
    }

    /// Write access to an API server object does not permit the adoption of a foreign resource: an admission policy
    /// restricts that.
    async fn check_adoption(&self, object: &InventoryObject) -> Result<(), Halt> {
        if self.record.is_of_file() || matches!(self.standing(object), Ownership::Own) {
            return Ok(());
        }
        let pending = |why: String| waiting("FinalizerPending", why);
        let source = self.object_source().map_err(pending)?;
        match source.restricts_adoption(&self.record.key()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Halt::Waiting(without_policy())),
            Err(error) => Err(pending(format!(
                "could not check whether its annotation is restricted to administrators: {error}"
            ))),
        }
    }

    /// Records that the resource belongs to the object, here and at the agent.
    async fn make_own(
        &mut self,
        object: &InventoryObject,
        inventory: &Inventory,
    ) -> Result<(), Halt> {
        self.check_adoption(object).await?;
        self.add_finalizer().await?;
        let body = self.record.body.kind_mut();
        body.take_resource(object, inventory);
        self.is_doubted = true;
        self.record.is_found();
        self.record.drumlin.owner_unset = true;
        self.save("state-lost.recorded")?;
        self.shared.requests.forget(&self.record.key());
        tracing::info!(object = %self.record.key(), handle = %object.object_id, "object recovered from existing resources");
        self.tell_owner().await
    }

    /// Updates the owner at the agent, unless the object is absent.
    pub(crate) async fn tell_wanted(&mut self) -> Result<(), Halt> {
        if self.record.is_absent() {
            return Ok(());
        }
        self.tell_owner().await
    }

    /// Records the owner at the agent, if it has changed.
    async fn tell_owner(&mut self) -> Result<(), Halt> {
        if !self.record.drumlin.owner_unset {
            return Ok(());
        }
        self.set_owner(self.owner()).await?;
        self.record.drumlin.owner_unset = false;
        self.save("owner.set")
    }

    /// Records at the agent that the object released its resource.
    pub(super) async fn tell_released(&mut self) -> Result<(), Halt> {
        // The deletion of a CustomResourceDefinition deletes its objects, but releases no resource.
        if self.record.served().is_some_and(|served| served.is_kept) {
            return Ok(());
        }
        let mut owner = self.owner();
        owner.insert(names::RELEASED.to_owned(), "true".to_owned());
        self.set_owner(owner).await?;
        // The next object of its name must find it, and the cached list may be older.
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
            // A resource that does not exist has no owner, and CSI drivers other than our agent record none.
            Err(failure) if !matches!(failure.code, Code::NotFound | Code::Unimplemented) => {
                Err(failure.into())
            }
            _ => Ok(()),
        }
    }

    /// Before a volume is created: its class could be read, and, if it names no class and the state may have been lost,
    /// all classes could.
    pub(super) async fn check_class(&self) -> Result<(), Halt> {
        let inventory = self.client.inventory().await?;
        let class = self.spec().device_class.as_deref();
        let hidden = match class {
            Some(class) => inventory.unreadable(class).map(|why| (class, why)),
            None if self.shared.store().marker().is_new() => inventory.first_unreadable(),
            None => None,
        };
        if let Some((named, why)) = hidden {
            let hint = match class {
                Some(_) => "",
                None => "; mend that class or remove it, or name another one in spec.deviceClass",
            };
            return Err(unseen(named, &format!("{why}{hint}")));
        }
        if inventory.first_unreadable().is_none() {
            blocking(|| self.shared.store().marker().has_seen_all());
        }
        Ok(())
    }

    /// Before a resource is created that may exist already: the class of its source could be read by the inventory.
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

/// Why the adoption annotation is ignored while every tenant may write it.
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

/// The commands with which an administrator can resolve a foreign ownership.
fn ways(id: &str, key: &ObjectKey) -> String {
    format!(
        "to adopt it, annotate this object with {}: {id}, or run `drumlin adopt {id} {}/{}` on its node; to destroy it, run `drumlin delete {id}`",
        names::ADOPT,
        key.namespace,
        key.name
    )
}

/// The reason for an object whose name belongs to a resource of a deleted namespace.
pub(crate) fn retained(kind: &str) -> &'static str {
    match kind {
        "Volume" => "RetainedVolumeExists",
        "VolumeGroup" => "RetainedGroupExists",
        _ => "RetainedSnapshotExists",
    }
}

/// Returns true if an object waits for a decision about a foreign resource.
pub(crate) fn is_held(reason: &str) -> bool {
    const REASONS: [&str; 4] = ["Retained", "OwnedBy", "Ambiguous", "Adoption"];
    REASONS.iter().any(|held| reason.starts_with(held))
}
