//! The controller's cache of the cluster, and the objects to check after a change.

use std::{collections::BTreeSet, time::Duration};

use drumlin_crd::{Object, ObjectKey, names};
use futures::{
    StreamExt,
    stream::{BoxStream, SelectAll},
};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::{
    ResourceExt,
    api::{Api, DynamicObject},
    core::PartialObjectMeta,
    runtime::watcher,
};
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};

use super::{
    debounce::Changed,
    findings::ours,
    namespaced_store::Index,
    view::{Bound, CachedClaim, CachedObject, View},
};
use crate::{
    record::Record,
    source::kubernetes::{server::KINDS, watch::watch},
};

/// Interval at which missing nodes and refused requests are checked again.
const ROUND: Duration = Duration::from_secs(10);

/// An event of one of the watches.
pub(super) enum WatchEvent {
    Object(&'static str, Box<watcher::Event<DynamicObject>>),
    CachedClaim(Box<watcher::Event<PersistentVolumeClaim>>),
    Volume(Box<watcher::Event<PersistentVolume>>),
    Node(Box<watcher::Event<PartialObjectMeta<Node>>>),
}

impl View {
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
            let said = events.map(move |event| WatchEvent::Object(kind, Box::new(event)));
            all.push(said.boxed());
        }
        let claims = watch(Api::all(self.server.client()), config());
        let claims = claims.map(|event| WatchEvent::CachedClaim(Box::new(event)));
        let volumes = watch(Api::all(self.server.client()), config());
        let volumes = volumes.map(|event| WatchEvent::Volume(Box::new(event)));
        let nodes = watch(Api::all(self.server.client()), config());
        let nodes = nodes.map(|event| WatchEvent::Node(Box::new(event)));
        all.extend([claims.boxed(), volumes.boxed(), nodes.boxed()]);
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
