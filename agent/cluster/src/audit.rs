//! The audit of the nodes: volumes that no PersistentVolume is about.
//!
//! A create whose provisioner died before it wrote the volume down, and whose claim is gone, leaves such a volume; so does a
//! create that went to another node after all. One that was never used is deleted; all others are listed in the storage of
//! the node, for an administrator to decide.

use std::{
    collections::BTreeSet,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use drumlin_crd::names;
use drumlin_proto::{
    csi::v1::DeleteVolumeRequest,
    drumlin::v1::{InventoryObject, ListObjectsRequest, ListObjectsResponse, ObjectKind},
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Client, ResourceExt,
    api::{Api, ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tonic::Code;

use crate::{
    front::Front,
    method::LIST_OBJECTS,
    node_call::CONTROLLER,
    node_storage::{NodeStorage, UnclaimedVolume},
    refusal::Refusal,
};

/// Interval between two audits of a node.
const ROUND: Duration = Duration::from_hours(6);
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

/// What is to be done about a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Something is about it, or may be soon.
    Keep,
    /// Nothing is about it, and it holds no data.
    Delete,
    /// Nothing is about it, and it may hold data.
    List,
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
            let mut nodes = self.front.view.storages();
            nodes.sort();
            for node in nodes {
                if self.front.view.is_away(&node) {
                    continue;
                }
                if let Err(refusal) = self.look_at(&node).await {
                    tracing::warn!(node, error = %refusal, "node could not be audited");
                }
                sleep((self.time_lapse)(APART)).await;
            }
        }
    }

    async fn look_at(&self, node: &str) -> Result<(), Refusal> {
        let mut volumes = self.volumes_of(node).await?;
        volumes.retain(|volume| self.is_suspect(volume));
        let handles = if volumes.is_empty() {
            BTreeSet::new()
        } else {
            self.handles().await?
        };
        let mut listed = Vec::new();
        for volume in volumes {
            match self.judge(&volume, &handles).await? {
                Verdict::Keep => {}
                Verdict::Delete => {
                    let request = DeleteVolumeRequest {
                        volume_id: volume.object_id.clone(),
                        ..DeleteVolumeRequest::default()
                    };
                    self.front.delete_volume(request, PATIENCE).await?;
                    tracing::warn!(
                        volume.id = volume.object_id,
                        volume.name = volume.name,
                        "unused volume without PersistentVolume deleted"
                    );
                }
                Verdict::List => listed.push(unclaimed(&volume)),
            }
        }
        self.tell(node, listed).await
    }

    /// All volumes of a node.
    async fn volumes_of(&self, node: &str) -> Result<Vec<InventoryObject>, Refusal> {
        let mut request = ListObjectsRequest {
            max_entries: PAGE,
            ..ListObjectsRequest::default()
        };
        let mut volumes = Vec::new();
        for _ in 0..PAGES {
            let key = format!("{node} {}", request.starting_token);
            let about = (node, &LIST_OBJECTS, key.as_str());
            let page = self.front.ask_owner(about, &request, PATIENCE);
            let page: ListObjectsResponse = page.await?;
            let objects = page.objects.into_iter();
            volumes.extend(objects.filter(|object| {
                object.kind == i32::from(ObjectKind::Volume)
                    && names::node_of(&object.object_id) == Some(node)
            }));
            if page.next_token.is_empty() {
                return Ok(volumes);
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

    /// The handles of all PersistentVolumes of the driver, from the server's store.
    async fn handles(&self) -> Result<BTreeSet<String>, Refusal> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let mut how = ListParams::default().limit(500);
        let mut handles = BTreeSet::new();
        loop {
            let page = volumes.list(&how).await.map_err(|error| silence(&error))?;
            let sources = page.items.into_iter().filter_map(|volume| volume.spec?.csi);
            let own = sources.filter(|source| source.driver == self.driver);
            handles.extend(own.map(|source| source.volume_handle));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => how.continue_token = Some(token),
                None => return Ok(handles),
            }
        }
    }

    async fn judge(
        &self,
        volume: &InventoryObject,
        handles: &BTreeSet<String>,
    ) -> Result<Verdict, Refusal> {
        if handles.contains(&volume.object_id) {
            return Ok(Verdict::Keep);
        }
        let parameter = |key: &str| volume.parameters.get(key);
        let claim = parameter(names::CLAIM_NAMESPACE).zip(parameter(names::CLAIM));
        let Some((uid, (namespace, name))) = uid_of(&volume.name).zip(claim) else {
            return Ok(Verdict::List);
        };
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let claim = claims
            .get_opt(name)
            .await
            .map_err(|error| silence(&error))?;
        let claim = claim.filter(|claim| claim.uid().as_deref() == Some(uid));
        // A claim that is bound has another volume; one that is not may still get this one.
        let is_waiting = |claim: PersistentVolumeClaim| {
            let bound = claim.spec.and_then(|spec| spec.volume_name);
            bound.is_none_or(|bound| bound.is_empty())
        };
        if claim.is_some_and(is_waiting) {
            return Ok(Verdict::Keep);
        }
        Ok(if volume.blank {
            Verdict::Delete
        } else {
            Verdict::List
        })
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

/// The UID of the claim for which a provisioner has named a volume: `pvc-<UID>`.
fn uid_of(name: &str) -> Option<&str> {
    let uid = name.strip_prefix("pvc-")?;
    let is_digit = |(index, byte): (usize, u8)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    (uid.len() == 36 && uid.bytes().enumerate().all(is_digit)).then_some(uid)
}

fn unclaimed(volume: &InventoryObject) -> UnclaimedVolume {
    let parameter = |key: &str| volume.parameters.get(key).cloned();
    let claim = parameter(names::CLAIM_NAMESPACE).zip(parameter(names::CLAIM));
    UnclaimedVolume {
        volume_handle: volume.object_id.clone(),
        capacity: volume.size_bytes,
        claim: claim
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
