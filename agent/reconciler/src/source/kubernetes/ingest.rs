//! Turns this node's objects of an API server into records.

mod ownership;

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use drumlin_crd::{Candidate, Object, ObjectKey, names, validate::FieldError};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{api::DynamicObject, runtime::watcher::Event};
use tokio::time::Instant;

use super::{
    AGAIN,
    server::{Refusal, Server},
    status_writer::{StatusWriter, refusal},
};
use crate::{
    Error,
    engine::Engine,
    kinds::without_policy,
    record::{Body, Record, Served, Verdict, now},
};

use ownership::{Ownership, standing};

/// Timeout for a request of the API server; events of all other objects wait behind it.
const SLOW: Duration = Duration::from_secs(2);
/// Timeout for a retried request.
const SLOWER: Duration = Duration::from_secs(10);

/// Keeps the records in step with the server's objects.
pub(crate) struct Catalog<'a> {
    engine: &'a Engine,
    server: &'a Server,
    mirror: &'a StatusWriter,
    node: String,
    /// The last ingested resource version of each object, because a cache may be stale.
    seen: HashMap<ObjectKey, u64>,
    /// The present timeout for a request.
    patience: Duration,
    /// After a timeout, no request is sent until then.
    silent: Option<Instant>,
    /// The objects of a list that is being read, for each kind.
    listed: HashMap<&'static str, HashSet<ObjectKey>>,
    /// The rejected objects, as the server had them: the conflict may be resolved later.
    refused: HashMap<ObjectKey, DynamicObject>,
    /// The objects that could not be read or saved, to be retried soon.
    again: HashMap<ObjectKey, DynamicObject>,
    /// The objects that seem to be deleted, which could not be confirmed or saved.
    vanished: HashSet<ObjectKey>,
}

impl<'a> Catalog<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        server: &'a Server,
        mirror: &'a StatusWriter,
        node: String,
    ) -> Self {
        Self {
            engine,
            server,
            mirror,
            node,
            seen: HashMap::new(),
            patience: SLOW,
            silent: None,
            listed: HashMap::new(),
            refused: HashMap::new(),
            again: HashMap::new(),
            vanished: HashSet::new(),
        }
    }

    /// Applies a watch event about objects of `kind`.
    pub(crate) async fn follow(&mut self, kind: &'static str, event: Event<DynamicObject>) {
        match event {
            Event::Init => {
                self.listed.insert(kind, HashSet::new());
            }
            Event::InitApply(object) => {
                let listed = self.listed.entry(kind).or_default();
                listed.insert(key_of(kind, &object));
                // On the heap: it is far larger than the rest of this.
                Box::pin(self.there_or_later(kind, object)).await;
            }
            Event::InitDone => self.list_ended(kind).await,
            Event::Apply(object) => Box::pin(self.there_or_later(kind, object)).await,
            // `nodeName` is immutable: an object that leaves this filter is deleted.
            Event::Delete(object) => {
                let key = key_of(kind, &object);
                let is_former = |known: &Served| Some(&known.uid) != object.metadata.uid.as_ref();
                let is_former = |record: &Record| record.served().is_some_and(is_former);
                if self.engine.shared.with(&key, is_former) == Some(true) {
                    self.missing(kind, &key).await;
                } else {
                    self.gone_or_later(&key);
                }
            }
        }
    }

    /// Checks the rejected objects again: something that they may have waited for has changed.
    pub(crate) async fn look_again(&mut self, key: &ObjectKey) {
        let known = self.again.get(key).or_else(|| self.refused.get(key));
        let object = known.cloned();
        let Some(object) = object else {
            return;
        };
        if let Some(kind) = known_kind(key) {
            self.there_or_later(kind, object).await;
        }
    }

    /// Retries the objects that could not be read or saved.
    pub(crate) async fn try_again(&mut self) {
        self.silent = None;
        self.patience = SLOWER;
        for key in std::mem::take(&mut self.vanished) {
            match known_kind(&key) {
                Some(kind) => self.missing(kind, &key).await,
                None => self.gone_or_later(&key),
            }
        }
        let keys: Vec<ObjectKey> = self.again.keys().cloned().collect();
        for key in keys {
            if self.silent.is_some() {
                // The others would fail as well.
                break;
            }
            self.look_again(&key).await;
        }
        self.patience = SLOW;
    }

    /// Sends a request, unless the server just timed out.
    async fn ask<T>(
        &mut self,
        asked: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        let silence = || Refusal::Other("the API server does not answer".to_owned());
        if self.silent.is_some_and(|until| Instant::now() < until) {
            return Err(silence());
        }
        self.silent = None;
        if let Ok(answer) = tokio::time::timeout(self.patience, asked).await {
            return answer;
        }
        self.silent = Some(Instant::now() + AGAIN);
        Err(silence())
    }

    /// Reads an object of this node from the server's store (quorum read).
    async fn current(&mut self, key: &ObjectKey) -> Result<Option<DynamicObject>, Refusal> {
        let found = self.ask(self.server.find(key)).await?;
        // A recreated object may belong to another node.
        Ok(found.filter(|object| {
            let node = object.data.pointer("/spec/nodeName");
            node.is_some_and(|node| *node == *self.node)
        }))
    }

    /// Handles an object that seems to be deleted: confirmed by the server's store first.
    async fn missing(&mut self, kind: &'static str, key: &ObjectKey) {
        match self.current(key).await {
            Ok(Some(object)) => self.take_over(kind, object).await,
            Ok(None) => self.gone_or_later(key),
            Err(refusal) => {
                tracing::warn!(object = %key, error = %refusal, "object could not be read");
                self.vanished.insert(key.clone());
            }
        }
    }

    /// Returns true if an object may be older than the known version of it, or than the version that an agent with a
    /// lost state knew.
    fn may_be_behind(&self, key: &ObjectKey, object: &DynamicObject) -> bool {
        let metadata = &object.metadata;
        let is_older = self
            .seen
            .get(key)
            .is_some_and(|seen| version(object).is_some_and(|version| version < *seen));
        let may_be = |record: &Record| {
            let known = record.served()?;
            let is_same = Some(&known.uid) == metadata.uid.as_ref();
            Some(!is_same || metadata.generation < record.metadata.generation)
        };
        let has_finalizer = || has_finalizer(metadata);
        is_older
            || (self.engine.shared.with(key, may_be).flatten()).unwrap_or_else(|| !has_finalizer())
    }

    fn gone_or_later(&mut self, key: &ObjectKey) {
        if let Err(error) = self.gone(key) {
            tracing::error!(object = %key, error = %error, "state could not be written");
            self.vanished.insert(key.clone());
        }
    }

    /// Ingests an object, or its present version on the server; retries later if that fails.
    async fn there_or_later(&mut self, kind: &'static str, object: DynamicObject) {
        let key = key_of(kind, &object);
        if !self.may_be_behind(&key, &object) {
            self.take_over(kind, object).await;
            return;
        }
        match self.current(&key).await {
            Ok(Some(now)) => self.take_over(kind, now).await,
            Ok(None) => self.gone_or_later(&key),
            Err(refusal) => {
                tracing::warn!(object = %key, error = %refusal, "object could not be read");
                self.again.insert(key, object);
            }
        }
    }

    async fn take_over(&mut self, kind: &'static str, object: DynamicObject) {
        let key = key_of(kind, &object);
        // This version is newer than the ones to be retried.
        self.vanished.remove(&key);
        self.again.remove(&key);
        if let Some(version) = version(&object) {
            self.seen.insert(key.clone(), version);
        }
        if let Err(error) = self.there(kind, object.clone()).await {
            tracing::error!(object = %key, error = %error, "state could not be written");
            self.again.insert(key, object);
        }
    }

    async fn there(&mut self, kind: &'static str, object: DynamicObject) -> Result<(), Error> {
        let key = key_of(kind, &object);
        let metadata = &object.metadata;
        let uid = metadata.uid.clone().unwrap_or_default();
        let status = object.data.get("status").cloned().unwrap_or_default();
        self.mirror.saw(&key, &uid, status);
        let spec = object.data.get("spec").cloned().unwrap_or_default();
        let before = self.engine.shared.record(&key);
        let Some(served) = self.served(&key, &object, before.as_ref()).await else {
            // Retried when the server answers: no resource may be created for an unknown tenant.
            self.again.insert(key, object);
            return Ok(());
        };
        let parsed = match Object::served(kind, ours(metadata), spec) {
            Ok(parsed) => parsed,
            Err(wrong) => return self.unreadable(key, object, before.as_ref(), served, &wrong),
        };
        let standing = match standing(&parsed, before.as_ref(), &served) {
            Ownership::Held(verdict) => self.held(&parsed, before.as_ref(), verdict).await,
            other => other,
        };
        match standing {
            Ownership::Taken(verdict) | Ownership::Held(verdict) => {
                if served.is_deleting && served.has_finalizer {
                    // The resources of this name belong to another object and stay.
                    self.mirror.release(&key);
                }
                self.refuse(key, object, &verdict);
                return Ok(());
            }
            Ownership::Own => self.update(&parsed, &object, before.as_ref(), served)?,
            Ownership::Free => self.begin(&parsed, &object, before.as_ref(), served)?,
        }
        self.refused.remove(&key);
        self.mirror.accept(&key);
        Ok(())
    }

    /// Rejects an object that cannot be read. Its last valid spec still applies, and so does its deletion.
    fn unreadable(
        &mut self,
        key: ObjectKey,
        object: DynamicObject,
        before: Option<&Record>,
        served: Served,
        wrong: &[FieldError],
    ) -> Result<(), Error> {
        let uid = served.uid.clone();
        let is_own = |record: &Record| record.served().is_some_and(|before| before.uid == uid);
        if before.is_some_and(is_own) {
            let changed = self.engine.shared.edit(&key, |record| {
                is_own(record) && record.follow_unreadable(object.metadata.generation, served)
            })?;
            if changed {
                self.engine.reset(&key);
            }
        }
        let wrong: Vec<String> = wrong
            .iter()
            .map(|wrong| format!("{}: {}", wrong.field, wrong.message))
            .collect();
        let verdict = refusal("InvalidArgument", wrong.join("; "));
        self.refuse(key, object, &verdict);
        Ok(())
    }

    /// Brings the record of an object up to date.
    fn update(
        &self,
        parsed: &Object,
        object: &DynamicObject,
        before: Option<&Record>,
        served: Served,
    ) -> Result<(), Error> {
        let key = parsed.key();
        let is_new = self
            .engine
            .shared
            .edit(&key, |record| record.follow_server(parsed, served))?;
        if is_new {
            self.engine.forget_taken_over(&key);
        }
        let is_asked = before.is_some_and(|before| {
            parsed.annotation(names::RECONCILE_AT) != before.annotation(names::RECONCILE_AT)
                || candidates(object) != before.candidates()
        });
        if is_asked {
            self.engine.shared.doubt(&key);
        }
        if is_new {
            self.engine.reset(&key);
            self.engine.shared.wake_groups(&key);
        }
        Ok(())
    }

    /// Begins the record of an object.
    fn begin(
        &self,
        parsed: &Object,
        object: &DynamicObject,
        before: Option<&Record>,
        mut served: Served,
    ) -> Result<(), Error> {
        let key = parsed.key();
        if let Some(before) = before.filter(|before| before.is_begun()) {
            tracing::warn!(object = %key, former_status = %before.status(), "object recreated with a new UID; resources of the old one are retained, untracked");
        }
        // A finalizer without a record was added by an agent that has lost its state since.
        let is_state_lost = served.has_finalizer;
        served.is_state_lost = is_state_lost;
        let mut record = Record::of_server(parsed, served);
        if is_state_lost {
            record.recall(&object.data.get("status").cloned().unwrap_or_default());
        } else if matches!(record.body, Body::Schedule(_)) {
            // It has no resources that a finalizer would tell of: the slots that it served are in its status.
            let status = object.data.get("status").cloned().unwrap_or_default();
            let body = record.body.kind_mut();
            body.recall(&status, &mut record.drumlin);
        }
        self.engine.shared.put_ingested(&record)?;
        self.engine.shared.fail("ingest.finalizer-added");
        if is_state_lost {
            self.engine.shared.doubt(&key);
        }
        self.engine.reset(&key);
        self.engine.shared.wake_groups(&key);
        Ok(())
    }

    /// Returns whether an object may take over the record of an orphan: only if an administrator has permitted it, on
    /// this node or with the annotation of the object.
    async fn held(
        &mut self,
        object: &Object,
        before: Option<&Record>,
        verdict: Verdict,
    ) -> Ownership {
        let Some(before) = before else {
            return Ownership::Held(verdict);
        };
        let (key, handle) = (before.key(), before.handle());
        if !self.engine.shared.requests.allow(&key, handle) {
            if handle.is_none() || object.annotation(names::ADOPT) != handle {
                return Ownership::Held(verdict);
            }
            match self.ask(self.server.restricts_adoption(&key)).await {
                Ok(true) => {}
                Ok(false) => return Ownership::Held(without_policy()),
                Err(why) => {
                    let message = format!(
                        "could not check whether its annotation is restricted to administrators: {why}"
                    );
                    return Ownership::Held(refusal("FinalizerPending", message));
                }
            }
        }
        Ownership::of_retained(object, before)
    }

    fn refuse(&mut self, key: ObjectKey, object: DynamicObject, verdict: &Verdict) {
        let generation = object.metadata.generation.unwrap_or(1);
        self.mirror.refuse(&key, generation, verdict);
        self.refused.insert(key, object);
    }

    /// The metadata of an object; `None` while the UID of its namespace cannot be read.
    async fn served(
        &mut self,
        key: &ObjectKey,
        object: &DynamicObject,
        before: Option<&Record>,
    ) -> Option<Served> {
        let metadata = &object.metadata;
        let uid = metadata.uid.clone().unwrap_or_default();
        let known = before
            .and_then(Record::served)
            .filter(|known| known.uid == uid);
        let namespace_uid = match known {
            Some(known) => known.namespace_uid.clone(),
            None => match self.ask(self.server.namespace_uid(&key.namespace)).await {
                Ok(uid) => uid,
                Err(refusal) => {
                    tracing::warn!(object = %key, error = %refusal, "namespace could not be read");
                    return None;
                }
            },
        };
        let is_deleting = metadata.deletion_timestamp.is_some();
        let is_kept = match known.filter(|known| known.is_deleting) {
            Some(known) => known.is_kept,
            None if !is_deleting => false,
            // Without an answer, nothing is destroyed.
            None => match self.ask(self.server.is_kind_leaving(&key.kind)).await {
                Ok(is_kept) => is_kept,
                Err(Refusal::Gone) => true,
                Err(Refusal::Other(why)) => {
                    tracing::warn!(object = %key, error = %why, "CustomResourceDefinition could not be read");
                    return None;
                }
            },
        };
        Some(Served {
            uid,
            namespace_uid,
            has_finalizer: has_finalizer(metadata),
            is_deleting,
            is_kept,
            is_state_lost: false,
            candidates: candidates(object),
        })
    }

    async fn list_ended(&mut self, kind: &'static str) {
        let listed = self.listed.remove(kind).unwrap_or_default();
        let is_missing = |record: &Record| {
            record.kind == kind && record.served().is_some() && !listed.contains(&record.key())
        };
        for key in self.engine.shared.keys_of(is_missing) {
            self.missing(kind, &key).await;
        }
        // Deleting objects have waited until the list confirmed their deletion.
        self.engine.shared.has_listed(kind);
        self.refused
            .retain(|key, _| key.kind != kind || listed.contains(key));
        self.again
            .retain(|key, _| key.kind != kind || listed.contains(key));
        let shared = &self.engine.shared;
        self.seen.retain(|key, _| {
            key.kind != kind || listed.contains(key) || shared.with(key, |_| ()).is_some()
        });
    }

    /// Handles an object that the server has deleted.
    fn gone(&mut self, key: &ObjectKey) -> Result<(), Error> {
        self.refused.remove(key);
        self.again.remove(key);
        self.vanished.remove(key);
        self.seen.remove(key);
        self.mirror.lost(key);
        let shared = &self.engine.shared;
        let of_us = |record: &Record| record.served().is_some();
        if shared.with(key, of_us) != Some(true) {
            return Ok(());
        }
        if shared.with(key, Record::is_nothing) == Some(true) {
            shared.forget(key)?;
            shared.look_at_directory();
            return Ok(());
        }
        // Another client removed our finalizer. Without a requested deletion, nothing is destroyed.
        let is_new = shared.edit(key, |record| {
            let is_new = record.drumlin.orphan_since.is_none();
            record.drumlin.orphan_since.get_or_insert_with(now);
            is_new
        })?;
        if is_new {
            shared.wake_groups(key);
            shared.look_at_directory();
            tracing::warn!(object = %key, "object removed from the API server without its finalizer; resources retained as an orphan");
        }
        Ok(())
    }
}

/// The claims of an object, as resolved by the controller.
fn candidates(object: &DynamicObject) -> Vec<Candidate> {
    let told = object.data.pointer("/status/candidates").cloned();
    serde_json::from_value(told.unwrap_or_default()).unwrap_or_default()
}

/// The part of the metadata that manifests have, too.
pub(crate) fn ours(metadata: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        labels: metadata.labels.clone(),
        annotations: metadata.annotations.clone(),
        generation: metadata.generation,
        ..ObjectMeta::default()
    }
}

/// The resource version of an object; within a kind they are increasing numbers.
fn version(object: &DynamicObject) -> Option<u64> {
    object.metadata.resource_version.as_ref()?.parse().ok()
}

fn has_finalizer(metadata: &ObjectMeta) -> bool {
    let mut finalizers = metadata.finalizers.iter().flatten();
    finalizers.any(|one| one == names::FINALIZER)
}

fn known_kind(key: &ObjectKey) -> Option<&'static str> {
    let mut kinds = super::server::KINDS.iter().map(|(kind, _)| *kind);
    kinds.find(|kind| *kind == key.kind)
}

/// The key of the object.
pub(crate) fn key_of(kind: &str, object: &DynamicObject) -> ObjectKey {
    ObjectKey {
        kind: kind.to_owned(),
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
