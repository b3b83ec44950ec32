//! An API server as the source of objects.

use async_trait::async_trait;
use drumlin_crd::{Object, ObjectKey};
use kube::api::DynamicObject;
use serde_json::Value;

use super::{
    ingest::ours,
    server::{EventNote, Refusal, Server},
};
use crate::{
    object_source::{ObjectSource, SourceError},
    record::{Record, Served, Verdict},
};

#[async_trait]
impl ObjectSource for Server {
    async fn add_finalizer(&self, key: &ObjectKey, uid: &str) -> Result<(), SourceError> {
        Ok(Self::add_finalizer(self, key, uid).await?)
    }

    async fn confirms_deletion(&self, known: &Record) -> Result<bool, SourceError> {
        let found = self.find(&known.key()).await?;
        Ok(found.is_some_and(|now| is_to_be_deleted(known, &now)))
    }

    async fn create(&self, key: &ObjectKey, object: &Value) -> Result<(), SourceError> {
        Ok(Self::create(self, key, object).await?)
    }

    async fn exists(&self, key: &ObjectKey) -> Result<bool, SourceError> {
        Ok(self.find(key).await?.is_some())
    }

    async fn delete(&self, key: &ObjectKey, uid: &str) -> Result<(), SourceError> {
        Ok(Self::delete(self, key, uid).await?)
    }

    async fn publish(&self, known: &Record, event: &Verdict) -> Result<(), SourceError> {
        let Some(served) = known.served() else {
            return Ok(());
        };
        let told = EventNote {
            is_trouble: false,
            reason: event.reason.to_owned(),
            message: event.message.clone(),
        };
        let node = known.node().unwrap_or_default();
        Ok(self.tell(&known.key(), &served.uid, node, told).await?)
    }

    async fn restricts_adoption(&self, key: &ObjectKey) -> Result<bool, SourceError> {
        Ok(Self::restricts_adoption(self, key).await?)
    }
}

impl From<Refusal> for SourceError {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.to_string())
    }
}

/// Returns true if an object whose known state requests its deletion is still to be deleted according to the server,
/// with the same policy.
fn is_to_be_deleted(known: &Record, now: &DynamicObject) -> bool {
    let Some(served) = known.served() else {
        return false;
    };
    if now.metadata.uid.as_deref() != Some(served.uid.as_str()) {
        return false;
    }
    let spec = now.data.get("spec").cloned().unwrap_or_default();
    let served = Served {
        is_deleting: now.metadata.deletion_timestamp.is_some(),
        ..served.clone()
    };
    // A spec that needs a newer version is deleted by the policy that was read last.
    let Ok(parsed) = Object::served(&known.kind, ours(&now.metadata), spec) else {
        return served.is_deleting;
    };
    let now = Record::of_server(&parsed, served);
    now.is_absent() && !now.is_paused() && now.deletion_policy() == known.deletion_policy()
}
