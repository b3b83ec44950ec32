//! The controller's cache of the cluster, and the objects to check after a change.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use drumlin_crd::{Candidate, Object, ObjectKey, names};
use futures::{
    StreamExt,
    stream::{BoxStream, SelectAll},
};
use k8s_openapi::{
    api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    ResourceExt,
    api::{Api, DynamicObject},
    core::PartialObjectMeta,
    runtime::watcher,
};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{
    ControllerSettings, debounce::Changed, lost_nodes::Missing, namespaced_store::Index,
    pvc_resolver::ours, status_cache::StatusCache, work::Work,
};
use crate::{
    record::Record,
    source::kubernetes::{
        server::{KINDS, Server},
        watch::watch,
    },
};

/// Interval at which missing nodes and refused requests are checked again.
const ROUND: Duration = Duration::from_secs(10);

/// The cached state of the cluster.
pub(super) struct View {
    pub(super) server: Server,
    pub(super) settings: Arc<ControllerSettings>,
    pub(super) objects: HashMap<&'static str, Index<CachedObject>>,
    pub(super) claims: Index<CachedClaim>,
    pub(super) volumes: Index<Option<Bound>>,
    pub(super) nodes: Index<()>,
    /// The missing nodes that objects name.
    pub(super) missing: HashMap<String, Missing>,
    /// The status written to each object.
    pub(super) told: StatusCache,
    /// The objects to check in the next round: those with refused requests, and those without a node.
    pub(super) again: BTreeSet<ObjectKey>,
    /// The writes in flight, and the objects still to be checked.
    pub(super) work: Work,
    /// The objects without a node, by UID, each with the time of its discovery.
    pub(super) homeless: HashMap<String, Instant>,
}

/// A Drumlin object.
#[derive(Debug)]
pub(super) struct CachedObject {
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) is_deleting: bool,
    pub(super) has_finalizer: bool,
    /// True if its condition says that its node is lost.
    pub(super) is_lost: bool,
    /// The conditions that a controller has set while it had no node.
    pub(super) said: Vec<Condition>,
    /// Its spec; `None` if a newer version is needed to read it.
    pub(super) record: Option<Record>,
    pub(super) candidates: Vec<Candidate>,
}

/// A `PersistentVolumeClaim`.
#[derive(Debug)]
pub(super) struct CachedClaim {
    pub(super) uid: String,
    pub(super) labels: std::collections::BTreeMap<String, String>,
    pub(super) volume: Option<String>,
    /// True if Kubernetes has marked the claim as bound, which it does after it has bound the volume.
    pub(super) is_bound: bool,
    pub(super) is_deleting: bool,
}

/// A `PersistentVolume` of this driver.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) handle: String,
    pub(super) namespace: String,
    pub(super) claim: String,
    /// The UID of the claim; `None` if a user has reserved the volume by name and Kubernetes has not bound it yet.
    pub(super) claim_uid: Option<String>,
}

/// An event of one of the watches.
pub(super) enum WatchEvent {
    Object(&'static str, Box<watcher::Event<DynamicObject>>),
    CachedClaim(Box<watcher::Event<PersistentVolumeClaim>>),
    Volume(Box<watcher::Event<PersistentVolume>>),
    Node(Box<watcher::Event<PartialObjectMeta<Node>>>),
    Failed(String),
}

impl View {
    pub(super) fn new(server: Server, settings: Arc<ControllerSettings>) -> Self {
        Self {
            server,
            settings,
            objects: KINDS
                .iter()
                .map(|(kind, _)| (*kind, Index::default()))
                .collect(),
            claims: Index::default(),
            volumes: Index::default(),
            nodes: Index::default(),
            missing: HashMap::new(),
            told: StatusCache::default(),
            again: BTreeSet::new(),
            work: Work::default(),
            homeless: HashMap::new(),
        }
    }

    /// Follows the cluster, forever.
    pub(super) async fn follow(&mut self) {
        let mut said = self.watches();
        let mut round = interval(ROUND);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut changed = Changed::default();
        loop {
            tokio::select! {
                Some(said) = said.next() => changed.add(self.hear(said)),
                () = changed.settled(), if self.is_complete() => {
                    for namespace in changed.take() {
                        self.look_at_claims(&namespace);
                    }
                }
                () = self.work() => {}
                _ = round.tick(), if self.is_complete() => {
                    self.look_at_nodes();
                    self.look_for_homeless();
                    self.look_again();
                }
            }
        }
    }

    fn watches(&self) -> SelectAll<BoxStream<'static, WatchEvent>> {
        let mut all = SelectAll::new();
        let config = watcher::Config::default;
        for (kind, _) in KINDS {
            let events = watch(self.server.all(kind), config());
            let said = events.map(move |event| match event {
                Ok(event) => WatchEvent::Object(kind, Box::new(event)),
                Err(error) => WatchEvent::Failed(error.to_string()),
            });
            all.push(said.boxed());
        }
        let claims = watch(Api::all(self.server.client()), config());
        all.push(
            claims
                .map(|event| heard(event, WatchEvent::CachedClaim))
                .boxed(),
        );
        let volumes = watch(Api::all(self.server.client()), config());
        all.push(
            volumes
                .map(|event| heard(event, WatchEvent::Volume))
                .boxed(),
        );
        let nodes = watch(Api::all(self.server.client()), config());
        all.push(nodes.map(|event| heard(event, WatchEvent::Node)).boxed());
        all
    }

    /// True if everything has been listed once.
    fn is_complete(&self) -> bool {
        self.objects.values().all(Index::is_complete)
            && self.claims.is_complete()
            && self.volumes.is_complete()
            && self.nodes.is_complete()
    }

    /// Applies a watch event; returns the affected namespaces.
    pub(super) fn hear(&mut self, said: WatchEvent) -> Vec<String> {
        match said {
            WatchEvent::Object(kind, event) => self.hear_object(kind, *event),
            WatchEvent::CachedClaim(event) => {
                self.claims
                    .follow(*event, |claim| &claim.metadata, read_claim)
            }
            WatchEvent::Volume(event) => {
                let event = *event;
                let driver = self.settings.driver.clone();
                let mut about = BTreeSet::new();
                let namespaces = |volume: &PersistentVolume| {
                    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
                    claim.namespace.clone()
                };
                if let watcher::Event::Apply(volume) | watcher::Event::Delete(volume) = &event {
                    about.extend(namespaces(volume));
                }
                let is_list = matches!(event, watcher::Event::InitDone);
                self.volumes.follow(
                    event,
                    |volume| &volume.metadata,
                    |volume| read_volume(&driver, &volume),
                );
                if is_list {
                    let bound = self
                        .volumes
                        .all()
                        .filter_map(|(_, _, bound)| bound.as_ref());
                    about.extend(bound.map(|bound| bound.namespace.clone()));
                }
                about.into_iter().collect()
            }
            WatchEvent::Node(event) => {
                // A node that disappears again starts a new grace period.
                if let watcher::Event::Apply(node) | watcher::Event::InitApply(node) = &*event {
                    self.missing.remove(&node.name_any());
                }
                self.nodes.follow(*event, |node| &node.metadata, drop);
                Vec::new()
            }
            WatchEvent::Failed(why) => {
                tracing::warn!(error = %why, "watch of the API server failed");
                Vec::new()
            }
        }
    }

    fn hear_object(
        &mut self,
        kind: &'static str,
        event: watcher::Event<DynamicObject>,
    ) -> Vec<String> {
        let Some(index) = self.objects.get_mut(kind) else {
            return Vec::new();
        };
        let is_list = matches!(event, watcher::Event::InitDone);
        if let watcher::Event::Delete(object) = &event {
            self.told.forget(&ObjectKey {
                kind: kind.to_owned(),
                namespace: object.namespace().unwrap_or_default(),
                name: object.name_any(),
            });
        }
        let about = index.follow(
            event,
            |object| &object.metadata,
            |object| CachedObject::of(kind, &object),
        );
        if is_list {
            // Objects that were deleted without a watch are found by the list.
            self.told
                .retain(|key| key.kind != kind || index.get(&key.namespace, &key.name).is_some());
        }
        about
    }

    /// A Drumlin object.
    pub(super) fn seen(&self, key: &ObjectKey) -> Option<&CachedObject> {
        self.objects
            .get(key.kind.as_str())?
            .get(&key.namespace, &key.name)
    }
}

impl CachedObject {
    fn of(kind: &str, object: &DynamicObject) -> Self {
        let metadata = &object.metadata;
        let spec = object.data.get("spec").cloned().unwrap_or_default();
        let parsed = Object::served(kind, metadata.clone(), spec);
        let candidates = object.data.pointer("/status/candidates").cloned();
        let conditions = object.data.pointer("/status/conditions");
        let mut conditions = conditions.and_then(Value::as_array).into_iter().flatten();
        let mut finalizers = metadata.finalizers.iter().flatten();
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or(1),
            is_deleting: metadata.deletion_timestamp.is_some(),
            has_finalizer: finalizers.any(|one| one == names::FINALIZER),
            is_lost: conditions.any(|condition| {
                condition
                    .get("reason")
                    .is_some_and(|reason| reason == "NodeLost")
            }),
            said: object.data.get("status").map(ours).unwrap_or_default(),
            record: parsed.ok().map(|object| Record::new(&object, "", 0)),
            candidates: serde_json::from_value(candidates.unwrap_or_default()).unwrap_or_default(),
        }
    }

    /// The node that the object names.
    pub(super) fn node(&self) -> Option<&str> {
        self.record.as_ref()?.node()
    }
}

fn read_claim(claim: PersistentVolumeClaim) -> CachedClaim {
    let phase = claim.status.and_then(|status| status.phase);
    CachedClaim {
        uid: claim.metadata.uid.unwrap_or_default(),
        is_bound: phase.as_deref() == Some("Bound"),
        is_deleting: claim.metadata.deletion_timestamp.is_some(),
        labels: claim.metadata.labels.unwrap_or_default(),
        volume: claim.spec.and_then(|spec| spec.volume_name),
    }
}

/// A `PersistentVolume`, if it belongs to this driver and is bound.
fn read_volume(driver: &str, volume: &PersistentVolume) -> Option<Bound> {
    let spec = volume.spec.as_ref()?;
    let source = spec.csi.as_ref().filter(|source| source.driver == driver)?;
    let claim = spec.claim_ref.as_ref()?;
    Some(Bound {
        handle: source.volume_handle.clone(),
        namespace: claim.namespace.clone()?,
        claim: claim.name.clone()?,
        claim_uid: claim.uid.clone().filter(|uid| !uid.is_empty()),
    })
}

fn heard<K>(
    event: watcher::Result<watcher::Event<K>>,
    said: fn(Box<watcher::Event<K>>) -> WatchEvent,
) -> WatchEvent {
    match event {
        Ok(event) => said(Box::new(event)),
        Err(error) => WatchEvent::Failed(error.to_string()),
    }
}
