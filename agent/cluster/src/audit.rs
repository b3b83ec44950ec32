//! The audit of the nodes: volumes that no PersistentVolume is about, and PersistentVolumes without a volume.
//!
//! A create whose provisioner died before it wrote the volume down, and whose claim is gone, leaves such a volume; so does a
//! create that went to another node after all. One that was never used is deleted; all others are listed in the storage of
//! the node, for an administrator to decide. A PersistentVolume whose volume is not on its node any more is told by an event.

use std::{
    collections::BTreeSet,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use drumlin_crd::names;
use drumlin_proto::drumlin::v1::{
    DeleteBlankVolumeRequest, DeleteBlankVolumeResponse, InventoryObject, ListObjectsRequest,
    ListObjectsResponse, ObjectKind,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Client, ResourceExt,
    api::{Api, Patch, PatchParams},
};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tonic::Code;

use crate::{
    front::Front,
    method::{DELETE_BLANK_VOLUME, LIST_OBJECTS},
    node_call::CONTROLLER,
    node_storage::{NodeStorage, UnclaimedVolume},
    persistent_volumes::{KnownVolume, PersistentVolumes},
    refusal::Refusal,
};

/// Interval between two audits of a node.
const ROUND: Duration = Duration::from_hours(6);
/// Pause before the server is asked again for all PersistentVolumes.
const AGAIN: Duration = Duration::from_mins(1);
/// Pause between the audits of two nodes.
const APART: Duration = Duration::from_secs(5);
/// Minimum age of a volume that the audit looks at.
const AGE: Duration = Duration::from_hours(1);
/// Number of objects of a page.
const PAGE: i32 = 500;
/// Maximum number of pages of a node: an agent that never ends its list holds up no other node's audit.
const PAGES: usize = 1000;
/// Time for a call to a node.
const PATIENCE: Duration = Duration::from_mins(1);
/// Maximum number of volumes that are listed in the storage of a node.
const LISTED: usize = 1000;
/// Maximum number of PersistentVolumes of a node that an audit publishes an event about.
const TOLD: usize = 100;

/// Audits the nodes.
pub(crate) struct Audit {
    front: Arc<Front>,
    client: Client,
    driver: String,
    time_lapse: fn(Duration) -> Duration,
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit").finish_non_exhaustive()
    }
}

/// What a node has.
#[derive(Default)]
struct Inventory {
    volumes: Vec<InventoryObject>,
    /// The names of the classes that could not be read.
    unreadable: BTreeSet<String>,
}

impl Audit {
    pub(crate) fn new(
        front: &Arc<Front>,
        driver: &str,
        time_lapse: fn(Duration) -> Duration,
    ) -> Self {
        Self {
            client: front.client.clone(),
            front: Arc::clone(front),
            driver: driver.to_owned(),
            time_lapse,
        }
    }

    /// Audits all nodes, again and again.
    pub(crate) async fn run(&self) {
        let mut rounds = interval((self.time_lapse)(ROUND));
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Not at once: a controller may be started anew many times.
        rounds.tick().await;
        loop {
            rounds.tick().await;
            let known = self.known().await;
            let mut nodes = self.front.view.storages();
            nodes.sort();
            for node in nodes {
                if self.front.view.is_away(&node) {
                    continue;
                }
                if let Err(refusal) = self.look_at(&node, &known).await {
                    tracing::warn!(node, error = %refusal, "node could not be audited");
                }
                sleep((self.time_lapse)(APART)).await;
            }
        }
    }

    /// The PersistentVolumes of the driver, as soon as the server tells them.
    async fn known(&self) -> PersistentVolumes {
        loop {
            match self.persistent_volumes().await {
                Ok(known) => return known,
                Err(refusal) => {
                    tracing::warn!(error = %refusal, "nodes cannot be audited");
                    sleep((self.time_lapse)(AGAIN)).await;
                }
            }
        }
    }

    /// Audits a node. `known` may be hours old: what it has spares the server questions, and nothing is done by it alone.
    async fn look_at(&self, node: &str, known: &PersistentVolumes) -> Result<(), Refusal> {
        let inventory = self.inventory_of(node).await?;
        let unclaimed = self.unclaimed(&inventory.volumes, known).await?;
        let mut listed = Vec::new();
        for volume in unclaimed {
            let is_deleted = claim_of(volume).is_some() && volume.blank;
            if !(is_deleted && self.delete(node, volume).await) {
                listed.push(described(volume));
            }
        }
        self.tell(node, listed).await?;
        self.tell_missing(node, known, &inventory).await;
        Ok(())
    }

    /// The volumes that no PersistentVolume is about, and no claim can get.
    ///
    /// First the claims, then the PersistentVolumes: one that a claim is bound to was there before the claim said so, whatever
    /// happens between the two.
    async fn unclaimed<'a>(
        &self,
        volumes: &'a [InventoryObject],
        known: &PersistentVolumes,
    ) -> Result<Vec<&'a InventoryObject>, Refusal> {
        let mut suspects = Vec::new();
        for volume in volumes {
            if self.is_suspect(volume) && !known.have(&volume.object_id) {
                if let Some((uid, namespace, name)) = claim_of(volume)
                    && self.is_waiting(uid, namespace, name).await?
                {
                    continue;
                }
                suspects.push(volume);
            }
        }
        if !suspects.is_empty() {
            let now = self.persistent_volumes().await?;
            suspects.retain(|volume| !now.have(&volume.object_id));
        }
        Ok(suspects)
    }

    /// Deletes a volume that is still blank; returns false if it stays, whatever the reason is.
    async fn delete(&self, node: &str, volume: &InventoryObject) -> bool {
        let (id, name) = (&volume.object_id, &volume.name);
        let request = DeleteBlankVolumeRequest {
            volume_id: id.clone(),
        };
        let about = (node, &DELETE_BLANK_VOLUME, id.as_str());
        let deleted: Result<DeleteBlankVolumeResponse, Refusal> =
            self.front.ask_owner(about, &request, PATIENCE).await;
        match deleted {
            Ok(_) => {
                tracing::warn!(
                    volume.id = id,
                    volume.name = name,
                    "unused volume without PersistentVolume deleted"
                );
                true
            }
            Err(refusal) => {
                tracing::warn!(volume.id = id, error = %refusal, "volume without PersistentVolume not deleted");
                false
            }
        }
    }

    /// Publishes an event of each PersistentVolume whose volume is not on the node. What cannot be found out is left to the
    /// next audit.
    async fn tell_missing(&self, node: &str, known: &PersistentVolumes, inventory: &Inventory) {
        let volumes = inventory.volumes.iter();
        let there: BTreeSet<&str> = volumes.map(|volume| volume.object_id.as_str()).collect();
        let may_be_missing = |handle: &str| {
            let class = names::class_of(handle);
            let is_readable = class.is_some_and(|name| !inventory.unreadable.contains(name));
            is_readable && !there.contains(handle)
        };
        let mut told = 0;
        for (handle, volume) in known.of_node(node, (self.time_lapse)(AGE)) {
            if !may_be_missing(handle) {
                continue;
            }
            match self.tell_if_missing(node, handle, volume).await {
                Ok(false) => {}
                Ok(true) => told += 1,
                Err(refusal) => {
                    tracing::warn!(volume.id = handle, error = %refusal, "volume of a PersistentVolume could not be looked for");
                }
            }
            if told == TOLD {
                tracing::warn!(node, told, "more volumes may be missing; no more events");
                return;
            }
        }
    }

    /// Publishes the event if the PersistentVolume is still there, and its volume is not; returns true if it did.
    async fn tell_if_missing(
        &self,
        node: &str,
        handle: &str,
        volume: &KnownVolume,
    ) -> Result<bool, Refusal> {
        if !volume.is_still_there(&self.client).await? {
            return Ok(false);
        }
        // By itself: it may have been made, or come back, since all were listed.
        let request = ListObjectsRequest {
            object_id: handle.to_owned(),
            ..ListObjectsRequest::default()
        };
        let about = (node, &LIST_OBJECTS, handle);
        let found: ListObjectsResponse = self.front.ask_owner(about, &request, PATIENCE).await?;
        if !found.objects.is_empty() {
            return Ok(false);
        }
        tracing::warn!(volume.id = handle, "volume of a PersistentVolume not found");
        volume.tell_missing(&self.client, handle).await?;
        Ok(true)
    }

    /// All volumes of a node, and its classes that cannot be read.
    async fn inventory_of(&self, node: &str) -> Result<Inventory, Refusal> {
        let mut request = ListObjectsRequest {
            max_entries: PAGE,
            ..ListObjectsRequest::default()
        };
        let mut inventory = Inventory::default();
        for _ in 0..PAGES {
            let key = format!("{node} {}", request.starting_token);
            let about = (node, &LIST_OBJECTS, key.as_str());
            let page = self.front.ask_owner(about, &request, PATIENCE);
            let page: ListObjectsResponse = page.await?;
            let objects = page.objects.into_iter();
            let unreadable = page.unreadable.into_iter().map(|class| class.name);
            inventory.unreadable.extend(unreadable);
            inventory.volumes.extend(objects.filter(|object| {
                object.kind == i32::from(ObjectKind::Volume)
                    && names::node_of(&object.object_id) == Some(node)
            }));
            if page.next_token.is_empty() {
                return Ok(inventory);
            }
            request.starting_token = page.next_token;
        }
        Err(Refusal::new(
            Code::Internal,
            format!("the agent of node {node} does not end its list of objects"),
        ))
    }

    /// Returns true for a volume that a PersistentVolume should be about: it was created for no object of ours, and not just
    /// now.
    fn is_suspect(&self, volume: &InventoryObject) -> bool {
        let created = volume
            .creation_time
            .and_then(|time| SystemTime::try_from(time).ok());
        let age = created.and_then(|created| created.elapsed().ok());
        !volume.parameters.contains_key(names::OWNER)
            && age.is_some_and(|age| age > (self.time_lapse)(AGE))
    }

    /// The PersistentVolumes of the driver, from the server's store.
    async fn persistent_volumes(&self) -> Result<PersistentVolumes, Refusal> {
        PersistentVolumes::list(&self.client, &self.driver).await
    }

    /// Returns true while the claim with this UID is there and bound to no volume: it may still get one.
    async fn is_waiting(&self, uid: &str, namespace: &str, name: &str) -> Result<bool, Refusal> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let claim = claims
            .get_opt(name)
            .await
            .map_err(|error| silence(&error))?;
        let claim = claim.filter(|claim| claim.uid().as_deref() == Some(uid));
        Ok(claim.is_some_and(|claim| {
            let bound = claim.spec.and_then(|spec| spec.volume_name);
            bound.is_none_or(|bound| bound.is_empty())
        }))
    }

    /// Lists volumes in the storage of their node, if they are others than before: as the server's store says, for a watch
    /// may not show yet what the audit before this one has written.
    async fn tell(&self, node: &str, mut listed: Vec<UnclaimedVolume>) -> Result<(), Refusal> {
        listed.truncate(LISTED);
        let storages: Api<NodeStorage> = Api::all(self.client.clone());
        let storage = storages.get_opt(node).await;
        let storage = storage.map_err(|error| silence(&error))?;
        let before = storage.and_then(|storage| storage.status);
        if before.unwrap_or_default().unclaimed == listed {
            return Ok(());
        }
        let how = PatchParams {
            field_manager: Some(CONTROLLER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"status": {"unclaimed": listed}}));
        let told = storages.patch_status(node, &how, &patch).await;
        told.map(drop).map_err(|error| silence(&error))
    }
}

fn silence(error: &kube::Error) -> Refusal {
    Refusal::unavailable(error.to_string())
}

/// The claim that a provisioner has made a volume for: its UID, namespace and name.
fn claim_of(volume: &InventoryObject) -> Option<(&str, &str, &str)> {
    let (namespace, name) = named_claim(volume)?;
    Some((uid_of(&volume.name)?, namespace, name))
}

/// The namespace and name of the claim that the parameters of a volume name.
fn named_claim(volume: &InventoryObject) -> Option<(&str, &str)> {
    let parameter = |key: &str| volume.parameters.get(key).map(String::as_str);
    parameter(names::CLAIM_NAMESPACE).zip(parameter(names::CLAIM))
}

/// The UID of the claim for which a provisioner has named a volume: `pvc-<UID>`.
fn uid_of(name: &str) -> Option<&str> {
    let uid = name.strip_prefix("pvc-")?;
    let is_digit = |(index, byte): (usize, u8)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    (uid.len() == 36 && uid.bytes().enumerate().all(is_digit)).then_some(uid)
}

fn described(volume: &InventoryObject) -> UnclaimedVolume {
    UnclaimedVolume {
        volume_handle: volume.object_id.clone(),
        capacity: volume.size_bytes,
        claim: named_claim(volume)
            .map(|(namespace, name)| format!("{namespace}/{name}"))
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_of_a_provisioner_is_named_by_the_uid_of_its_claim() {
        let uid = "0f3c1c52-7d8e-5a2b-9d57-3b1c86d6e0a4";
        assert_eq!(uid_of(&format!("pvc-{uid}")), Some(uid));
        for other in [
            uid,
            "pvc-",
            "pvc-1",
            "pvc-0f3c1c52-7d8e-5a2b-9d57-3b1c86d6e0a",
            "pvc-0f3c1c52-7d8e-5a2b-9d57-3b1c86d6e0ag",
            "pvc-0f3c1c5247d8e-5a2b-9d57-3b1c86d6e0a4",
        ] {
            assert_eq!(uid_of(other), None, "{other}");
        }
    }
}
