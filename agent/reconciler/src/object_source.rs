//! What a pass asks of the source that keeps its object: of an API server, whose store is not this host's.

use async_trait::async_trait;
use drumlin_crd::ObjectKey;
use serde_json::Value;

use crate::record::{Record, Verdict};

/// A request that the source refused or could not answer, as text for a condition.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct SourceError(pub(crate) String);

/// A source that keeps objects in a store of its own and permits several clients to change them.
#[async_trait]
pub(crate) trait ObjectSource: Send + Sync {
    /// Adds the finalizer of this node to the object that has this UID.
    ///
    /// # Errors
    /// When the source refuses it, keeps another object under this name, or does not answer.
    async fn add_finalizer(&self, key: &ObjectKey, uid: &str) -> Result<(), SourceError>;

    /// Reads the store itself, past every cache, and returns true if it still requests the deletion that `known`
    /// requests, with the same deletion policy.
    ///
    /// # Errors
    /// When the source does not answer.
    async fn confirms_deletion(&self, known: &Record) -> Result<bool, SourceError>;

    /// Creates an object, unless one of its name exists.
    ///
    /// # Errors
    /// When the source refuses it, or does not answer.
    async fn create(&self, key: &ObjectKey, object: &Value) -> Result<(), SourceError>;

    /// Returns true if an object of this name exists, in the store itself.
    ///
    /// # Errors
    /// When the source does not answer.
    async fn exists(&self, key: &ObjectKey) -> Result<bool, SourceError>;

    /// Requests the deletion of the object that has this UID, unless it is gone.
    ///
    /// # Errors
    /// When the source refuses it, or does not answer.
    async fn delete(&self, key: &ObjectKey, uid: &str) -> Result<(), SourceError>;

    /// Publishes an event about an object, beside those of its condition.
    ///
    /// # Errors
    /// When the source refuses it, or does not answer.
    async fn publish(&self, known: &Record, event: &Verdict) -> Result<(), SourceError>;

    /// Returns true if only administrators may set the annotation that adopts a foreign resource.
    ///
    /// # Errors
    /// When that cannot be found out.
    async fn restricts_adoption(&self, key: &ObjectKey) -> Result<bool, SourceError>;
}
