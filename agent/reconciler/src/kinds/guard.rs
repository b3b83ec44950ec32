//! An object of an API server is kept there until nothing is left of it here.

use super::{Halt, Pass, waiting};

impl Pass<'_> {
    /// Has the server keep the object: before the first call that changes something.
    pub(super) async fn guard(&mut self) -> Result<(), Halt> {
        let Some(served) = self.record.served() else {
            return Ok(());
        };
        // What is leaving takes no more guards.
        if served.is_guarded || served.is_leaving {
            return Ok(());
        }
        let pending = |why: String| waiting("GuardPending", why);
        let Some(cluster) = self.shared.server() else {
            return Err(pending(
                "comes from an API server, and none is followed".to_owned(),
            ));
        };
        let key = self.record.key();
        let guarded = cluster.guard(&key, &served.uid).await;
        guarded
            .map_err(|refusal| pending(format!("its finalizer could not be added: {refusal}")))?;
        self.point("guard.added");
        self.shared.edit(&key, |record| {
            let is_same = record.drumlin.incarnation == self.record.drumlin.incarnation;
            if is_same {
                record.is_guarded_now();
            }
            is_same
        })?;
        self.record.is_guarded_now();
        Ok(())
    }

    /// Somebody may have taken the guard away while there is something to be kept.
    pub(crate) async fn keep_guard(&mut self) -> Result<(), Halt> {
        if self.record.lacks_guard() {
            return self.guard().await;
        }
        Ok(())
    }
}
