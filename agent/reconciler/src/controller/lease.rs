//! Which of several controllers works: whoever holds a lease (coordination.k8s.io/v1), and renews it.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease as Kept, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::api::{Api, PostParams};
use tokio::time::{Instant, sleep};

use crate::source::kubernetes::server::Server;

/// What it is called.
const NAME: &str = "drumlin-controller";
/// So long it holds after it was renewed last.
const HOLDS: Duration = Duration::from_secs(15);
/// How often it is renewed, or looked at by those who wait for it.
const ROUND: Duration = Duration::from_secs(3);

/// A lease as one of several candidates sees it.
pub(super) struct Lease {
    leases: Api<Kept>,
    namespace: String,
    identity: String,
    /// What another holder wrote last, and when that was seen: clocks of two machines may differ.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Lease {
    pub(super) fn new(server: &Server, namespace: &str, identity: &str) -> Self {
        Self {
            leases: Api::namespaced(server.client(), namespace),
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            seen: None,
        }
    }

    /// Waits until it is ours.
    pub(super) async fn acquire(&mut self) {
        loop {
            match self.try_once().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(lease = NAME, namespace = self.namespace, error = %error, "lease could not be looked at");
                }
            }
            sleep(ROUND).await;
        }
    }

    /// Renews it until it is not ours any more.
    pub(super) async fn keep(&mut self) {
        let mut renewed = Instant::now();
        loop {
            sleep(ROUND).await;
            match self.try_once().await {
                Ok(true) => renewed = Instant::now(),
                Ok(false) => return,
                // Well before another one may take it.
                Err(_) if renewed.elapsed() + 2 * ROUND >= HOLDS => return,
                Err(_) => {}
            }
        }
    }

    /// Takes it or renews it, unless it is another one's; says whether it is ours.
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
        // With the version that was read: of two who take it at once one is refused.
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

    /// Lets the next one have it at once.
    pub(super) async fn give_back(&self) {
        let Ok(Some(mut found)) = self.leases.get_opt(NAME).await else {
            return;
        };
        let spec = found.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(self.identity.as_str()) {
            spec.holder_identity = Some(String::new());
            let _ = self
                .leases
                .replace(NAME, &PostParams::default(), &found)
                .await;
        }
    }
}

/// Somebody else may have been first.
fn settled(answer: kube::Result<Kept>) -> kube::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
