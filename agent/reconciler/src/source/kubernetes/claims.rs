//! Objects that name no node: this one makes those its own whose source it holds.

use std::collections::{HashMap, HashSet};

use drumlin_crd::{Object, ObjectKey};
use kube::{api::DynamicObject, runtime::watcher::Event};

use super::{
    catalog::key_of,
    server::{Server, Speaker},
};
use crate::{record::Record, shared::Shared};

/// The objects of no node, as far as this one could have them.
pub(crate) struct Claims<'a> {
    shared: &'a Shared,
    server: &'a Server,
    node: String,
    waiting: HashMap<ObjectKey, Unclaimed>,
    failed: HashSet<ObjectKey>,
}

struct Unclaimed {
    uid: String,
    record: Record,
}

impl<'a> Claims<'a> {
    pub(crate) fn new(shared: &'a Shared, server: &'a Server, node: String) -> Self {
        Self {
            shared,
            server,
            node,
            waiting: HashMap::new(),
            failed: HashSet::new(),
        }
    }

    /// Takes over what a watch says of objects of `kind` that name no node.
    pub(crate) async fn follow(&mut self, kind: &'static str, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.waiting.retain(|key, _| key.kind != kind),
            Event::InitDone => {}
            Event::Apply(object) | Event::InitApply(object) => {
                let key = key_of(kind, &object);
                let metadata = &object.metadata;
                let spec = object.data.get("spec").cloned().unwrap_or_default();
                let parsed = Object::served(kind, super::catalog::ours(metadata), spec);
                let (Ok(parsed), None) = (parsed, &metadata.deletion_timestamp) else {
                    self.waiting.remove(&key);
                    return;
                };
                let unclaimed = Unclaimed {
                    uid: metadata.uid.clone().unwrap_or_default(),
                    record: Record::new(&parsed, "", 0),
                };
                self.waiting.insert(key.clone(), unclaimed);
                self.try_one(&key).await;
            }
            // It is somebody's now, or gone.
            Event::Delete(object) => {
                self.waiting.remove(&key_of(kind, &object));
            }
        }
    }

    /// An object of this node has changed: those that are made of it can be this node's.
    pub(crate) async fn wake(&mut self, source: &ObjectKey) {
        let about = |unclaimed: &Unclaimed| {
            unclaimed.record.sources().contains(source)
                || self
                    .shared
                    .with(source, |record| unclaimed.record.wants(record))
                    == Some(true)
        };
        let waiting = self.waiting.iter().filter(|(_, one)| about(one));
        let keys: Vec<ObjectKey> = waiting.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.try_one(&key).await;
        }
    }

    /// Claims again what could not be claimed.
    pub(crate) async fn try_again(&mut self) {
        for key in std::mem::take(&mut self.failed) {
            self.try_one(&key).await;
        }
    }

    async fn try_one(&mut self, key: &ObjectKey) {
        let Some(unclaimed) = self.waiting.get(key) else {
            return;
        };
        if !self.is_here(&unclaimed.record) {
            return;
        }
        match self
            .server
            .claim(key, &unclaimed.uid, &self.node, Speaker::Agent)
            .await
        {
            Ok(()) => tracing::info!(object = %key, "claimed: its source is here"),
            Err(refusal) => {
                tracing::warn!(object = %key, error = %refusal, "could not be claimed");
                self.failed.insert(key.clone());
            }
        }
    }

    /// Whether what an object is made of is on this node.
    fn is_here(&self, record: &Record) -> bool {
        // What is of a file of this host is none of a namespace's business.
        let is_ours =
            |record: &Record| record.served().is_some() && record.drumlin.orphan_since.is_none();
        let mut sources = record.sources().into_iter();
        if sources.any(|source| self.shared.with(&source, is_ours) == Some(true)) {
            return true;
        }
        let is_member = |volume: &Record| record.wants(volume) && is_ours(volume);
        !self.shared.keys_of(is_member).is_empty()
    }
}
