//! Objects that name no node: this node assigns those to itself whose source it has.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use drumlin_crd::{Object, ObjectKey};
use futures::future;
use kube::{api::DynamicObject, runtime::watcher::Event};
use tokio::{sync::mpsc, time::Instant};

use super::{
    AGAIN,
    ingest::key_of,
    server::{FieldManager, Server},
};
use crate::{
    queue::{Lane, Queue},
    record::Record,
    state::{Shared, lock},
};

/// Maximum number of assignments at once: a slow request must not delay the others.
const AT_ONCE: usize = 4;

/// The objects without a node that could be assigned to this one.
pub(crate) struct NodeAssignment {
    shared: Arc<Shared>,
    server: Server,
    node: String,
    waiting: Mutex<HashMap<ObjectKey, UnassignedObject>>,
    queue: Queue,
}

/// The data that decides about an object without a node. There may be very many of them, each with much more data, on
/// every node.
struct UnassignedObject {
    uid: String,
    /// Its sources, by name.
    sources: Vec<ObjectKey>,
    /// The record of a group, without its annotations and labels: its selector can match volumes by label.
    group: Option<Box<Record>>,
}

impl UnassignedObject {
    /// The data to remember of an object; `None` for one that no agent can assign to itself.
    fn of(kind: &str, object: &DynamicObject) -> Option<Self> {
        let metadata = &object.metadata;
        if metadata.deletion_timestamp.is_some() {
            return None;
        }
        let spec = object.data.get("spec").cloned().unwrap_or_default();
        let parsed = Object::served(kind, super::ingest::ours(metadata), spec).ok()?;
        let mut record = Record::new(&parsed, "", 0);
        record.metadata.annotations = None;
        record.metadata.labels = None;
        let unclaimed = Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            sources: record.sources(),
            group: (kind == "VolumeGroup").then(|| Box::new(record)),
        };
        let is_of_something = !unclaimed.sources.is_empty() || unclaimed.group.is_some();
        is_of_something.then_some(unclaimed)
    }

    fn wants(&self, volume: &Record) -> bool {
        self.group.as_ref().is_some_and(|group| group.wants(volume))
    }
}

impl NodeAssignment {
    pub(crate) fn new(shared: Arc<Shared>, server: Server, node: String) -> Self {
        Self {
            shared,
            server,
            node,
            waiting: Mutex::default(),
            queue: Queue::default(),
        }
    }

    /// Assigns objects to this node, forever; checks objects again when their source has changed.
    pub(crate) async fn run(&self, mut changed: mpsc::UnboundedReceiver<ObjectKey>) {
        let listening = async {
            while let Some(key) = changed.recv().await {
                self.wake(&key);
            }
        };
        let claiming = (0..AT_ONCE).map(async |_| {
            loop {
                let key = self.queue.next(|_| Lane::Making).await;
                self.one(&key).await;
                self.queue.done(&key);
            }
        });
        future::join(listening, future::join_all(claiming)).await;
    }

    /// Applies a watch event about objects of `kind` that name no node.
    pub(crate) fn follow(&self, kind: &'static str, event: Event<DynamicObject>) {
        match event {
            Event::Init => lock(&self.waiting).retain(|key, _| key.kind != kind),
            Event::InitDone => {}
            Event::Apply(object) | Event::InitApply(object) => {
                let key = key_of(kind, &object);
                let Some(unclaimed) = UnassignedObject::of(kind, &object) else {
                    lock(&self.waiting).remove(&key);
                    return;
                };
                lock(&self.waiting).insert(key.clone(), unclaimed);
                self.queue.add(&key, Instant::now());
            }
            // It has a node now, or is deleted.
            Event::Delete(object) => {
                lock(&self.waiting).remove(&key_of(kind, &object));
            }
        }
    }

    /// An object of this node has changed: objects that have it as their source may belong to this node.
    fn wake(&self, source: &ObjectKey) {
        let waiting = lock(&self.waiting);
        for (key, unclaimed) in &*waiting {
            let is_wanted = |record: &Record| unclaimed.wants(record);
            if unclaimed.sources.contains(source)
                || self.shared.with(source, is_wanted) == Some(true)
            {
                self.queue.add(key, Instant::now());
            }
        }
    }

    async fn one(&self, key: &ObjectKey) {
        let Some(uid) = self.found(key) else {
            return;
        };
        let by = FieldManager::Agent;
        match self.server.claim(key, &uid, &self.node, by).await {
            Ok(()) => {
                tracing::info!(object = %key, "object assigned to this node");
                let mut waiting = lock(&self.waiting);
                // Unless it was recreated meanwhile.
                if waiting.get(key).is_some_and(|one| one.uid == uid) {
                    waiting.remove(key);
                }
            }
            Err(refusal) => {
                tracing::warn!(object = %key, error = %refusal, "object could not be assigned to this node");
                self.queue.add(key, Instant::now() + AGAIN);
            }
        }
    }

    /// The UID of an object, if its source is on this node.
    fn found(&self, key: &ObjectKey) -> Option<String> {
        let waiting = lock(&self.waiting);
        let unclaimed = waiting.get(key)?;
        // An object of a manifest file is no source for objects of a namespace.
        let is_ours =
            |record: &Record| record.served().is_some() && record.drumlin.orphan_since.is_none();
        let mut sources = unclaimed.sources.iter();
        let is_member = |volume: &Record| unclaimed.wants(volume) && is_ours(volume);
        let is_here = sources.any(|source| self.shared.with(source, is_ours) == Some(true))
            || unclaimed.group.is_some() && !self.shared.keys_of(is_member).is_empty();
        is_here.then(|| unclaimed.uid.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::{
        Hooks,
        record::Served,
        source::kubernetes::fake_api_server::{Answer, Fake},
        store::Store,
    };

    fn shared(state: &Path) -> Arc<Shared> {
        let store = Store::open(state).unwrap();
        Arc::new(Shared::new(store, state.to_owned(), Hooks::default()).unwrap())
    }

    /// A snapshot of a volume, with as much other data as a server accepts.
    fn large(name: &str) -> DynamicObject {
        let annotation = name.repeat(200 * 1024 / name.len());
        let object = json!({
            "apiVersion": "drumlin.dev/v1alpha1",
            "kind": "Snapshot",
            "metadata": {
                "name": name, "namespace": "db", "uid": name,
                "annotations": {"example.com/large": annotation},
            },
            "spec": {"source": {"volumeName": "data"}},
        });
        serde_json::from_value(object).unwrap()
    }

    /// A volume of this node.
    fn volume(name: &str) -> Record {
        let metadata = serde_json::from_value(json!({"name": name, "namespace": "db"}));
        let spec = json!({"nodeName": "node-a", "capacity": "1Gi"});
        let object = Object::served("Volume", metadata.unwrap(), spec).unwrap();
        Record::of_server(&object, Served::default())
    }

    /// The memory of this process, in bytes.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages = status.split(' ').nth(1).unwrap();
        pages.parse::<usize>().unwrap() * 4096
    }

    #[tokio::test]
    async fn of_objects_that_name_no_node_only_what_decides_is_held() {
        let state = tempfile::tempdir().unwrap();
        let server = Server::known_by(Fake::willing().client());
        let claims = NodeAssignment::new(shared(state.path()), server, "node-a".to_owned());
        let before = resident();
        // 200 MB of them.
        for number in 0..1000 {
            let object = large(&format!("one-{number:04}"));
            claims.follow("Snapshot", Event::InitApply(object));
        }
        assert_eq!(lock(&claims.waiting).len(), 1000);
        let held = resident().saturating_sub(before);
        assert!(held < 50 << 20, "{} MiB are held", held >> 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_not_answered_holds_up_no_other() {
        let state = tempfile::tempdir().unwrap();
        let shared = shared(state.path());
        shared.put(&volume("data")).unwrap();
        let fake = Fake::willing();
        fake.follow(|asked| asked.path.ends_with("/slow").then_some(Answer::Hangs));
        let server = Server::known_by(fake.client());
        let claims = NodeAssignment::new(shared, server, "node-a".to_owned());
        for name in ["slow", "other"] {
            claims.follow("Snapshot", Event::Apply(large(name)));
        }
        let (_changes, changed) = mpsc::unbounded_channel();
        let second = std::time::Duration::from_secs(1);
        let _ = tokio::time::timeout(second, claims.run(changed)).await;
        let asked = fake.asked();
        assert!(
            asked.iter().any(|one| one.path.ends_with("/other")),
            "{asked:?}"
        );
    }
}
