//! What can be measured of a reconciler while it runs.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::engine::Engine;

/// Reads numbers of a reconciler.
#[derive(Clone)]
pub struct Observer(Arc<Engine>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl Observer {
    pub(crate) fn of(engine: &Arc<Engine>) -> Self {
        Self(Arc::clone(engine))
    }

    /// Number of objects by their kind and the reason of their `Ready` condition; `Pending` before the first pass.
    pub fn conditions(&self) -> BTreeMap<(String, String), usize> {
        self.0.shared.count_by(|key, record| {
            let ready = record.condition("Ready");
            let reason = ready.map_or("Pending", |ready| ready.reason.as_str());
            (key.kind.clone(), reason.to_owned())
        })
    }

    /// Number of passes since the start that are tried again after a pause, by the gRPC code of the failure.
    pub fn retries(&self) -> BTreeMap<String, u64> {
        self.0.retried()
    }
}
