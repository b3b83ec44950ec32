//! Checks that the policies are in force that restrict agents to their own nodes, and the controller to volumes of ours.
//!
//! Without them, a stolen token of one node's agent can destroy the data of all nodes: the agents of those nodes carry
//! out its changes, because they cannot see who made them. An applied manifest is no proof: a binding may be missing,
//! or the server may not support policies. So a dry run is sent that they must refuse.

use std::{collections::HashMap, time::Duration};

use drumlin_crd::names;
use futures::future;
use kube::{
    api::{Api, ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{ControllerSettings, lease};
use crate::source::kubernetes::server::{EventNote, Refusal, Server};

/// The object name that the policies refuse to the controller. No such object exists.
const PROBE: &str = "drumlin-policy-probe";
/// The end of the user name of the controller's service account.
const ACCOUNT: &str = ":drumlin-controller";
/// Interval between checks.
const ROUND: Duration = Duration::from_mins(10);
/// Interval between checks while a policy is not in force or unknown.
const SOON: Duration = Duration::from_mins(1);

/// How long a policy, or its role, may take to come into force after it is applied.
const MOMENT: Duration = Duration::from_secs(5);

/// A policy, and the probe object that it refuses.
struct Policy {
    name: &'static str,
    /// The risk while it is not in force.
    risk: &'static str,
    objects: Api<DynamicObject>,
    probe: Value,
}

/// The known state of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PolicyStatus {
    InForce,
    Absent,
    Unknown,
}

/// Checks the policies forever, and reports changes.
pub(super) async fn watch(server: &Server, settings: &ControllerSettings) {
    let account = loop {
        match server.account().await {
            Ok(account) => break account,
            Err(refusal) => {
                tracing::debug!(error = %refusal, "own account could not be determined");
                sleep(SOON).await;
            }
        }
    };
    if !account.ends_with(ACCOUNT) {
        // The policies match the controller's account, and ignore all others.
        tracing::info!(
            account,
            "policies not checked, because this account is not the controller's"
        );
        return std::future::pending().await;
    }
    let policies = policies(server, settings);
    let mut known = HashMap::new();
    loop {
        let mut found = ask(server, &policies).await;
        let is_trouble = |(policy, found): (&Policy, &Result<bool, Refusal>)| {
            let standing = standing(found);
            standing != PolicyStatus::InForce && known.get(policy.name) != Some(&standing)
        };
        if policies.iter().zip(&found).any(is_trouble) {
            sleep(MOMENT).await;
            found = ask(server, &policies).await;
        }
        for (policy, found) in policies.iter().zip(found) {
            let standing = standing(&found);
            let before = known.insert(policy.name, standing);
            if before != Some(standing) {
                policy.say(&found, before);
                policy.tell(server, settings, standing, before).await;
            }
        }
        let is_well = known.values().all(|one| *one == PolicyStatus::InForce);
        sleep(if is_well { ROUND } else { SOON }).await;
    }
}

fn policies(server: &Server, settings: &ControllerSettings) -> [Policy; 2] {
    let kind = GroupVersionKind::gvk("", "v1", "PersistentVolume");
    let volumes = ApiResource::from_gvk_with_plural(&kind, "persistentvolumes");
    [
        Policy {
            name: "drumlin-agent-own-node",
            risk: "a stolen token of one node's agent can destroy the data of all nodes",
            objects: server.of(&settings.namespace, "Volume"),
            probe: json!({
                "apiVersion": names::API_VERSION,
                "kind": "Volume",
                "metadata": {"name": PROBE, "namespace": settings.namespace},
                "spec": {"capacity": "1Gi"},
            }),
        },
        Policy {
            name: "drumlin-controller-own-volumes",
            risk: "a stolen token of the controller can read Secrets of the cluster by way of a volume",
            objects: Api::all_with(server.client(), &volumes),
            probe: json!({
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": PROBE},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "csi": {"driver": settings.driver, "volumeHandle": PROBE},
                },
            }),
        },
    ]
}

/// Checks each policy.
async fn ask(server: &Server, policies: &[Policy]) -> Vec<Result<bool, Refusal>> {
    let asked = policies
        .iter()
        .map(|policy| server.is_refused_by(policy.name, &policy.objects, &policy.probe));
    future::join_all(asked).await
}

fn standing(found: &Result<bool, Refusal>) -> PolicyStatus {
    match found {
        Ok(true) => PolicyStatus::InForce,
        Ok(false) => PolicyStatus::Absent,
        Err(_) => PolicyStatus::Unknown,
    }
}

impl Policy {
    fn say(&self, found: &Result<bool, Refusal>, before: Option<PolicyStatus>) {
        let policy = self.name;
        match found {
            Ok(true) if before.is_none() => tracing::info!(policy, "policy is in force"),
            Ok(true) => tracing::info!(policy, "policy is in force again"),
            Ok(false) => tracing::error!(policy, risk = self.risk, "policy is not in force"),
            Err(refusal) => {
                tracing::warn!(policy, error = %refusal, "policy check failed");
            }
        }
    }

    /// Publishes an event of the lease; not if the policy is in force at the start.
    async fn tell(
        &self,
        server: &Server,
        settings: &ControllerSettings,
        standing: PolicyStatus,
        before: Option<PolicyStatus>,
    ) {
        let (name, risk) = (self.name, self.risk);
        let told = match standing {
            PolicyStatus::Absent => EventNote {
                is_trouble: true,
                reason: "PolicyNotInForce".to_owned(),
                message: format!(
                    "ValidatingAdmissionPolicy {name} is not in force: {risk}; apply it and its binding"
                ),
            },
            PolicyStatus::InForce if before == Some(PolicyStatus::Absent) => EventNote {
                is_trouble: false,
                reason: "PolicyInForce".to_owned(),
                message: format!("ValidatingAdmissionPolicy {name} is in force again"),
            },
            _ => return,
        };
        let lease = (settings.namespace.as_str(), lease::NAME);
        if let Err(refusal) = server.tell_of_lease(lease, &settings.identity, told).await {
            tracing::debug!(policy = name, error = %refusal, "event could not be published");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::kubernetes::fake_api_server::{Answer, Fake};

    fn settings() -> ControllerSettings {
        ControllerSettings {
            kubeconfig: None,
            driver: "csi.drumlin.dev".to_owned(),
            namespace: "drumlin-system".to_owned(),
            identity: "one".to_owned(),
            claims_all: false,
            node_grace: Duration::ZERO,
        }
    }

    /// The changes that a controller with this account requests, from a server that answers every dry run so.
    async fn changes(account: &'static str, answer: Answer) -> Vec<(String, String)> {
        let fake = Fake::willing();
        fake.follow(move |asked| {
            if asked.path.ends_with("/selfsubjectreviews") {
                let user = json!({"status": {"userInfo": {"username": account}}});
                return Some(Answer::Says(201, user));
            }
            if asked.path.ends_with("/leases/drumlin-controller") {
                let lease = json!({"metadata": {"name": lease::NAME, "uid": "1"}});
                return Some(Answer::Says(200, lease));
            }
            asked.path.ends_with(PROBE).then(|| answer.clone())
        });
        let server = Server::known_by(fake.client());
        let settings = settings();
        let watching = watch(&server, &settings);
        let _ = tokio::time::timeout(SOON + SOON / 2, watching).await;
        let asked = fake.asked().into_iter();
        let asked = asked.filter(|asked| !asked.path.ends_with("/selfsubjectreviews"));
        let asked = asked.filter(|asked| asked.method != "GET");
        asked.map(|asked| (asked.path, asked.query)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_tried_is_a_dry_run_and_what_is_not_in_force_is_told_once() {
        let account = "system:serviceaccount:drumlin-system:drumlin-controller";
        let allowed = Answer::Says(200, json!({"metadata": {"name": PROBE}}));
        let changes = changes(account, allowed).await;
        let (tries, events): (Vec<_>, Vec<_>) =
            changes.iter().partition(|(path, _)| path.ends_with(PROBE));
        // Each policy twice before it is reported, and then once per round.
        assert_eq!(tries.len(), 6, "{changes:?}");
        assert!(tries.iter().all(|(_, query)| query.contains("dryRun=All")));
        assert_eq!(events.len(), 2, "{changes:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_that_the_policies_do_not_know_tries_nothing() {
        let allowed = Answer::Says(200, json!({"metadata": {"name": PROBE}}));
        assert_eq!(changes("admin", allowed).await, []);
    }
}
