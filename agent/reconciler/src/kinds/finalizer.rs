//! Finalizers: an object of an API server is kept there until none of its resources is left on this node.

use super::{Halt, Pass, waiting};
use crate::object_source::ObjectSource;

impl Pass<'_> {
    /// The source that keeps the object, or why there is none.
    pub(super) fn object_source(&self) -> Result<&dyn ObjectSource, String> {
        let source = self.shared.object_source();
        source.ok_or_else(|| {
            "object comes from an API server, but this agent does not follow one".to_owned()
        })
    }

    /// Adds the finalizer, before the first call that changes anything.
    pub(super) async fn add_finalizer(&mut self) -> Result<(), Halt> {
        let Some(served) = self.record.served() else {
            return Ok(());
        };
        // A deleting object accepts no new finalizers.
        if served.has_finalizer || served.is_deleting {
            return Ok(());
        }
        let pending = |why: String| waiting("FinalizerPending", why);
        let source = self.object_source().map_err(pending)?;
        let key = self.record.key();
        let added = source.add_finalizer(&key, &served.uid).await;
        added.map_err(|error| pending(format!("could not add the finalizer: {error}")))?;
        self.point("finalizer.added");
        self.shared.edit(&key, |record| {
            let is_same = record.drumlin.incarnation == self.record.drumlin.incarnation;
            if is_same {
                record.has_finalizer_now();
            }
            is_same
        })?;
        self.record.has_finalizer_now();
        Ok(())
    }

    /// Adds the finalizer again if another client removed it while the object has resources.
    pub(crate) async fn keep_finalizer(&mut self) -> Result<(), Halt> {
        if self.record.lacks_finalizer() {
            return self.add_finalizer().await;
        }
        Ok(())
    }

    /// Confirms with the server's store (a quorum read) that the object shall be destroyed, before anything is
    /// destroyed. The known state of the object may come from a stale cache.
    pub(crate) async fn confirm_end(&mut self) -> Result<(), Halt> {
        if self.record.is_of_file() {
            return Ok(());
        }
        if !self.record.is_absent() || !self.record.is_begun() || self.record.is_destroyed() {
            return Ok(());
        }
        let pending = |why: String| waiting("DeletionPending", why);
        let source = self.object_source().map_err(pending)?;
        let confirmed = source.confirms_deletion(&self.record).await;
        let is_confirmed = confirmed.map_err(|error| {
            pending(format!(
                "could not confirm the deletion with the API server: {error}"
            ))
        })?;
        if is_confirmed {
            return Ok(());
        }
        Err(pending(
            "the API server no longer requests this deletion; waiting for the updated object"
                .to_owned(),
        ))
    }
}
