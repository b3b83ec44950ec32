//! Leader election: the controller that holds and renews a lease (coordination.k8s.io/v1) is active.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease as Kept, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Client,
    api::{Api, PostParams},
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The name of the lease.
pub(super) const NAME: &str = "drumlin-controller";
/// Duration of the lease after its last renewal.
const HOLDS: Duration = Duration::from_secs(15);
/// Interval at which the lease is renewed, or checked by candidates.
const ROUND: Duration = Duration::from_secs(3);

/// Timeout for a renewal: a silent server must not be waited for while another candidate acquires the lease.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Safety margin: the leader stops this long before another candidate may acquire the lease.
const MARGIN: Duration = Duration::from_secs(3);

/// A lease as one of several candidates sees it.
pub(super) struct Lease {
    leases: Api<Kept>,
    namespace: String,
    identity: String,
    /// The last record of another holder, and when it was first seen here: clocks of two machines may differ.
    seen: Option<(LeaseSpec, Instant)>,
    /// The start of the last successful renewal.
    renewed: Instant,
}

impl Lease {
    pub(super) fn new(client: Client, namespace: &str, identity: &str) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            seen: None,
            renewed: Instant::now(),
        }
    }

    /// Waits until the lease is acquired.
    pub(super) async fn acquire(&mut self) {
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(lease = NAME, namespace = self.namespace, error = %error, "lease could not be acquired");
                }
            }
            sleep(ROUND).await;
        }
    }

    /// Renews the lease until it is lost, or may be lost soon, whatever the server does.
    pub(super) async fn keep(&mut self) {
        loop {
            let end = self.renewed + HOLDS - MARGIN;
            let round = async {
                sleep(ROUND).await;
                self.attempt().await
            };
            match timeout_at(end, round).await {
                Ok(Ok(true) | Err(_)) => {}
                Ok(Ok(false)) | Err(_) => return,
            }
        }
    }

    /// Tries once, with a timeout. A late effect of the request is harmless: the lease is held longer than known, or
    /// the request is refused.
    async fn attempt(&mut self) -> Result<bool, String> {
        let begun = Instant::now();
        let answer = timeout(ATTEMPT, self.try_once()).await;
        let answer = answer.map_err(|_| "the API server does not answer".to_owned())?;
        let is_ours = answer.map_err(|error| error.to_string())?;
        if is_ours {
            self.renewed = begun;
        }
        Ok(is_ours)
    }

    /// Acquires or renews the lease, unless another candidate holds it; returns true if it is ours.
    async fn try_once(&mut self) -> kube::Result<bool> {
        let now = MicroTime(Timestamp::now());
        let Some(found) = self.leases.get_opt(NAME).await? else {
            let new = Kept {
                metadata: ObjectMeta {
                    name: Some(NAME.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.held(&now, &now, 0)),
            };
            return settled(self.leases.create(&PostParams::default(), &new).await);
        };
        let spec = found.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let is_ours = holder == self.identity;
        if !is_ours && !holder.is_empty() {
            let seen = self.seen.take().filter(|(before, _)| *before == spec);
            let (_, since) = self
                .seen
                .insert(seen.unwrap_or((spec.clone(), Instant::now())));
            if since.elapsed() < HOLDS {
                return Ok(false);
            }
        }
        let since = spec.acquire_time.filter(|_| is_ours);
        let since = since.as_ref().unwrap_or(&now);
        let turns = spec.lease_transitions.unwrap_or(0);
        let turns = if is_ours {
            turns
        } else {
            turns.saturating_add(1)
        };
        // With the resource version that was read: of two concurrent candidates one is refused.
        let taken = Kept {
            spec: Some(self.held(since, &now, turns)),
            ..found
        };
        settled(
            self.leases
                .replace(NAME, &PostParams::default(), &taken)
                .await,
        )
    }

    fn held(&self, since: &MicroTime, now: &MicroTime, turns: i32) -> LeaseSpec {
        LeaseSpec {
            acquire_time: Some(since.clone()),
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(HOLDS.as_secs()).ok(),
            lease_transitions: Some(turns),
            renew_time: Some(now.clone()),
            ..LeaseSpec::default()
        }
    }

    /// Releases the lease, so that the next candidate need not wait; best effort.
    pub(super) async fn release(&self) {
        let giving = async {
            let Ok(Some(mut found)) = self.leases.get_opt(NAME).await else {
                return;
            };
            let spec = found.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(self.identity.as_str()) {
                spec.holder_identity = Some(String::new());
                let how = PostParams::default();
                let _ = self.leases.replace(NAME, &how, &found).await;
            }
        };
        let _ = timeout(ATTEMPT, giving).await;
    }
}

/// Another candidate may have been first.
fn settled(answer: kube::Result<Kept>) -> kube::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::kubernetes::fake_api_server::{Answer, Fake};

    #[tokio::test(start_paused = true)]
    async fn leading_ends_before_another_one_may_begin() {
        for answer in [Answer::Hangs, Answer::refusal()] {
            let fake = Fake::new(answer.clone());
            let mut lease = Lease::new(fake.client(), "default", "one");
            let begun = Instant::now();
            let kept = timeout(2 * HOLDS, lease.keep()).await;
            assert!(kept.is_ok(), "{answer:?}");
            let elapsed = begun.elapsed();
            assert!(elapsed + MARGIN <= HOLDS, "{answer:?}: {elapsed:?}");
            // A single failed call does not lose the lease.
            assert!(fake.asked().len() > 1, "{answer:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_asked_again() {
        let fake = Fake::new(Answer::Hangs);
        let mut lease = Lease::new(fake.client(), "default", "one");
        let waited = timeout(3 * (ATTEMPT + ROUND), lease.acquire()).await;
        assert!(waited.is_err());
        assert_eq!(fake.asked().len(), 3);
        let begun = Instant::now();
        lease.release().await;
        assert!(begun.elapsed() <= ATTEMPT);
    }
}
