//! A pass over one object: what it has, why it stops early, and what it ends with.

use std::collections::BTreeMap;

use drumlin_crd::{ObjectKey, VolumeDeletionPolicy, names};
use k8s_openapi::jiff::Timestamp;
use tonic::Code;

use crate::{
    Error,
    client::{Agent, Client, Failure},
    record::{Record, State, Verdict},
    state::Shared,
};

/// Why a pass over one object stopped early.
#[derive(Debug)]
pub(crate) enum Halt {
    /// A call failed.
    Failed(Failure),
    /// Another change is needed first; an object that waits is queued again when its dependency changes.
    Waiting(Verdict),
    /// The state could not be written; no further call is permitted.
    State(Error),
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::State(error)
    }
}

/// The context of a pass over one object.
pub(crate) struct Pass<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) client: &'a Client,
    pub(crate) agent: &'a Agent,
    pub(crate) record: Record,
    /// True if the resource is suspected to be missing, so that the pass looks for it.
    pub(crate) is_doubted: bool,
    /// When the object needs its next pass, whatever else happens.
    pub(crate) wake: Option<Timestamp>,
}

impl Pass<'_> {
    /// Saves the record before the next call; `point` is a fail point.
    pub(crate) fn save(&self, point: &'static str) -> Result<(), Halt> {
        self.shared.save(&self.record)?;
        self.shared.fail(point);
        Ok(())
    }

    /// Takes over the record in memory, where a kill only has the call repeated that was answered; what follows in the
    /// pass saves it before the next call that changes something.
    pub(crate) fn remember(&self, point: &'static str) -> Result<(), Halt> {
        self.shared.remember(&self.record)?;
        self.shared.fail(point);
        Ok(())
    }

    /// Takes over the intent of a call in memory, if the record may be lost anyway, and the agent records the owner of what it
    /// creates: it is found again by that.
    pub(crate) async fn remember_intent(&self, point: &'static str) -> Result<(), Halt> {
        let is_found_again = self.client.inventory().await?.is_known();
        if is_found_again && self.shared.behind.is_fresh(&self.record.key()) {
            self.remember(point)
        } else {
            self.save(point)
        }
    }

    /// A fail point between two steps.
    pub(crate) fn point(&self, point: &'static str) {
        self.shared.fail(point);
    }

    /// Returns true if the deletion that `state: absent` requests is not complete.
    pub(crate) fn is_to_be_destroyed(&mut self) -> bool {
        // A released object may have to be deleted now, which can take several passes.
        self.record.drumlin.destroyed = self.record.is_destroyed();
        !self.record.drumlin.destroyed
    }

    /// Returns another object of the same namespace, if this one may use it.
    pub(crate) fn sibling(&self, kind: &str, name: &str) -> Option<Record> {
        let other = self.shared.record(&ObjectKey {
            kind: kind.to_owned(),
            namespace: self.record.key().namespace,
            name: name.to_owned(),
        });
        other.filter(|other| self.record.may_use(other))
    }

    /// The labels that record the owner with a volume.
    pub(crate) fn owner(&self) -> BTreeMap<String, String> {
        let key = self.record.key();
        let served = self.record.served();
        let tenant = served.map(|served| (names::TENANT, served.namespace_uid.clone()));
        [
            (names::OWNER, self.side().to_owned()),
            (names::OWNER_KIND, key.kind),
            (names::OWNER_NAMESPACE, key.namespace),
            (names::OWNER_NAME, key.name),
            (names::INCARNATION, self.record.drumlin.incarnation.clone()),
        ]
        .into_iter()
        .chain(tenant)
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }
}

/// A resource in use cannot be deleted; the deletion is retried.
pub(crate) fn blocked(failure: Failure) -> Halt {
    if failure.code == Code::FailedPrecondition {
        return waiting(
            "DeletionBlocked",
            format!("{}: {}", failure.rpc, failure.message),
        );
    }
    Halt::Failed(failure)
}

/// Waits for another object.
pub(crate) fn waiting(reason: &'static str, message: String) -> Halt {
    Halt::Waiting(Verdict {
        state: State::Reconciling,
        reason,
        message,
    })
}

/// Stalls: the object cannot become ready without a change.
pub(crate) fn stalled(reason: &'static str, message: String) -> Halt {
    Halt::Waiting(Verdict {
        state: State::Stalled,
        reason,
        message,
    })
}

/// The object is ready.
pub(crate) fn ready(reason: &'static str, message: String) -> Verdict {
    Verdict {
        state: State::Ready,
        reason,
        message,
    }
}

/// The requested deletion or release is complete.
pub(crate) fn gone(policy: VolumeDeletionPolicy) -> Verdict {
    let (reason, message) = if policy.deletes() {
        ("Deleted", "deleted; its manifest can be removed")
    } else {
        (
            "Released",
            "released, data retained; its manifest can be removed",
        )
    };
    Verdict {
        state: State::Gone,
        reason,
        message: message.to_owned(),
    }
}
