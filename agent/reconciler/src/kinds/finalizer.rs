//! Finalizers: an object of an API server is kept there until none of its resources is left on this node.

use drumlin_crd::Object;
use kube::api::DynamicObject;

use super::{Halt, Pass, waiting};
use crate::{api_object::Served, record::Record, source::kubernetes::ingest::ours};

impl Pass<'_> {
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
        let Some(cluster) = self.shared.server() else {
            return Err(pending(
                "object comes from an API server, but this agent does not follow one".to_owned(),
            ));
        };
        let key = self.record.key();
        let added = cluster.add_finalizer(&key, &served.uid).await;
        added.map_err(|refusal| pending(format!("could not add the finalizer: {refusal}")))?;
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
        let Some(served) = self.record.served() else {
            return Ok(());
        };
        if !self.record.is_absent() || !self.record.is_begun() || self.record.is_destroyed() {
            return Ok(());
        }
        let pending = |why: String| waiting("DeletionPending", why);
        let Some(cluster) = self.shared.server() else {
            return Err(pending(
                "object comes from an API server, but this agent does not follow one".to_owned(),
            ));
        };
        let found = cluster.find(&self.record.key()).await;
        let found = found.map_err(|refusal| {
            pending(format!(
                "could not confirm the deletion with the API server: {refusal}"
            ))
        })?;
        if found.is_some_and(|now| is_to_end(&self.record, served, &now)) {
            return Ok(());
        }
        Err(pending(
            "the API server no longer requests this deletion; waiting for the updated object"
                .to_owned(),
        ))
    }
}

/// Returns true if an object whose known state requests its deletion is still to be destroyed according to the server,
/// with the same policy.
fn is_to_end(known: &Record, served: &Served, now: &DynamicObject) -> bool {
    if now.metadata.uid.as_deref() != Some(served.uid.as_str()) {
        return false;
    }
    let spec = now.data.get("spec").cloned().unwrap_or_default();
    let served = Served {
        is_deleting: now.metadata.deletion_timestamp.is_some(),
        ..served.clone()
    };
    // A spec that needs a newer version is destroyed by the policy that was read last.
    let Ok(parsed) = Object::served(&known.kind, ours(&now.metadata), spec) else {
        return served.is_deleting;
    };
    let now = Record::of_server(&parsed, served);
    now.is_absent() && !now.is_paused() && now.deletion_policy() == known.deletion_policy()
}
