//! Checks that the policies are in force that restrict agents to their own nodes, and the controller to what is ours.
//!
//! Without them, a stolen token of one node's agent can destroy the data of all nodes: the agents of those nodes carry
//! out its changes, because they cannot see who made them. One of the controller, which is that of the sidecars, too, can
//! have claims and volumes of all drivers deleted, and Secrets read. An applied manifest is no proof: a binding may be missing,
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

use super::{ControllerObserver, ControllerSettings, lease};
use crate::source::kubernetes::server::{EventNote, Probed, Refusal, Server};

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
    applies: Applies,
}

/// Where a policy has to be in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applies {
    Everywhere,
    /// Where the rights are granted that it restricts: then the probe is not refused for want of rights.
    WithItsRights,
}

/// The known state of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyStatus {
    InForce,
    Absent,
    /// What it restricts is not installed.
    NotNeeded,
    Unknown,
}

impl PolicyStatus {
    /// Returns true if nothing has to be done about it.
    fn is_well(self) -> bool {
        matches!(self, Self::InForce | Self::NotNeeded)
    }
}

/// Checks the policies forever, and reports changes.
pub(super) async fn watch(
    server: &Server,
    settings: &ControllerSettings,
    observer: &ControllerObserver,
) {
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
        let is_trouble = |(policy, found): (&Policy, &Result<Probed, Refusal>)| {
            let standing = policy.standing(found);
            !standing.is_well() && known.get(policy.name) != Some(&standing)
        };
        if policies.iter().zip(&found).any(is_trouble) {
            sleep(MOMENT).await;
            found = ask(server, &policies).await;
        }
        for (policy, found) in policies.iter().zip(found) {
            let standing = policy.standing(&found);
            let before = known.insert(policy.name, standing);
            observer.note_policy(policy.name, standing);
            if before != Some(standing) {
                policy.say(&found, standing, before);
                policy.tell(server, settings, standing, before).await;
            }
        }
        let is_well = known.values().all(|one| one.is_well());
        sleep(if is_well { ROUND } else { SOON }).await;
    }
}

fn policies(server: &Server, settings: &ControllerSettings) -> Vec<Policy> {
    let all = |group, kind, plural| {
        let kind = GroupVersionKind::gvk(group, "v1", kind);
        Api::all_with(
            server.client(),
            &ApiResource::from_gvk_with_plural(&kind, plural),
        )
    };
    let near = |kind, plural| {
        let kind = GroupVersionKind::gvk("", "v1", kind);
        let kind = ApiResource::from_gvk_with_plural(&kind, plural);
        Api::namespaced_with(server.client(), &settings.namespace, &kind)
    };
    let ours = |kind: &str, spec: Value| {
        json!({
            "apiVersion": names::API_VERSION,
            "kind": kind,
            "metadata": {"name": PROBE, "namespace": settings.namespace},
            "spec": spec,
        })
    };
    let (agents, fields) = ("Volume", "VolumeGroup");
    vec![
        Policy {
            name: "drumlin-agent-own-node",
            risk: "a stolen token of one node's agent can destroy the data of all nodes",
            objects: server.of(&settings.namespace, agents),
            probe: ours(agents, json!({"capacity": "1Gi"})),
            applies: Applies::Everywhere,
        },
        Policy {
            name: "drumlin-controller-own-volumes",
            risk: "a stolen token of the controller can read Secrets of the cluster by way of a volume",
            objects: all("", "PersistentVolume", "persistentvolumes"),
            probe: probe_volume(&settings.driver),
            applies: Applies::Everywhere,
        },
        Policy {
            name: "drumlin-controller-own-fields",
            risk: "a stolen token of the controller can make any object destroy its data",
            objects: server.of(&settings.namespace, fields),
            probe: ours(fields, json!({"selector": {}})),
            applies: Applies::Everywhere,
        },
        Policy {
            name: "drumlin-controller-tenants-objects",
            risk: "a stolen token of the controller can have claims and snapshots of all drivers deleted",
            objects: near("PersistentVolumeClaim", "persistentvolumeclaims"),
            probe: probe_claim(&settings.namespace),
            applies: Applies::Everywhere,
        },
        Policy {
            name: "drumlin-controller-own-contents",
            risk: "a stolen token of the controller can have snapshots of all drivers deleted",
            objects: all(
                "snapshot.storage.k8s.io",
                "VolumeSnapshotContent",
                "volumesnapshotcontents",
            ),
            probe: probe_content(settings),
            applies: Applies::WithItsRights,
        },
    ]
}

/// A volume that is valid, but for the policy.
fn probe_volume(driver: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": PROBE},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": driver, "volumeHandle": PROBE},
        },
    })
}

/// The same of a claim.
fn probe_claim(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": PROBE, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// The same of the content of a snapshot.
fn probe_content(settings: &ControllerSettings) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": PROBE},
        "spec": {
            "deletionPolicy": "Retain",
            "driver": settings.driver,
            "source": {"snapshotHandle": PROBE},
            "volumeSnapshotRef": {"name": PROBE, "namespace": settings.namespace},
        },
    })
}

/// Checks each policy.
async fn ask(server: &Server, policies: &[Policy]) -> Vec<Result<Probed, Refusal>> {
    let asked = policies
        .iter()
        .map(|policy| server.probe(policy.name, &policy.objects, &policy.probe));
    future::join_all(asked).await
}

impl Policy {
    fn standing(&self, found: &Result<Probed, Refusal>) -> PolicyStatus {
        match found {
            Ok(Probed::Refused) => PolicyStatus::InForce,
            Ok(Probed::Allowed) => PolicyStatus::Absent,
            Ok(Probed::NotPermitted(_)) if self.applies == Applies::WithItsRights => {
                PolicyStatus::NotNeeded
            }
            Ok(Probed::NotPermitted(_)) | Err(_) => PolicyStatus::Unknown,
        }
    }

    fn say(
        &self,
        found: &Result<Probed, Refusal>,
        standing: PolicyStatus,
        before: Option<PolicyStatus>,
    ) {
        let policy = self.name;
        match found {
            Ok(Probed::Refused) if before.is_none() => tracing::info!(policy, "policy is in force"),
            Ok(Probed::Refused) => tracing::info!(policy, "policy is in force again"),
            Ok(Probed::Allowed) => {
                tracing::error!(policy, risk = self.risk, "policy is not in force");
            }
            Ok(Probed::NotPermitted(why)) if standing == PolicyStatus::NotNeeded => {
                tracing::debug!(policy, why, "policy is not needed");
            }
            Ok(Probed::NotPermitted(why)) => {
                tracing::warn!(policy, error = why, "policy check failed");
            }
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
    use std::collections::BTreeMap;

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

    /// The changes that a controller with this account requests, from a server that answers every dry run so, and which
    /// policies it found in force.
    async fn found(
        account: &'static str,
        answer: Answer,
    ) -> (Vec<(String, String)>, BTreeMap<&'static str, bool>) {
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
        let observer = ControllerObserver::default();
        observer.note_lead();
        let watching = watch(&server, &settings, &observer);
        let _ = tokio::time::timeout(SOON + SOON / 2, watching).await;
        let asked = fake.asked().into_iter();
        let asked = asked.filter(|asked| !asked.path.ends_with("/selfsubjectreviews"));
        let asked = asked.filter(|asked| asked.method != "GET");
        let changes = asked.map(|asked| (asked.path, asked.query)).collect();
        (changes, observer.policies().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_tried_is_a_dry_run_and_what_is_not_in_force_is_told_once() {
        let account = "system:serviceaccount:drumlin-system:drumlin-controller";
        let allowed = Answer::Says(200, json!({"metadata": {"name": PROBE}}));
        let (changes, policies) = found(account, allowed).await;
        assert_eq!(policies.len(), 5, "{policies:?}");
        assert!(policies.values().all(|is_in_force| !is_in_force));
        let (tries, events): (Vec<_>, Vec<_>) =
            changes.iter().partition(|(path, _)| path.ends_with(PROBE));
        // Each policy twice before it is reported, and then once per round.
        assert_eq!(tries.len(), 15, "{changes:?}");
        assert!(tries.iter().all(|(_, query)| query.contains("dryRun=All")));
        assert_eq!(events.len(), 5, "{changes:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_of_rights_that_are_not_granted_is_not_needed() {
        let fake = Fake::willing();
        let server = Server::known_by(fake.client());
        for policy in policies(&server, &settings()) {
            let standing = policy.standing(&Ok(Probed::NotPermitted("forbidden".to_owned())));
            let is_needed = policy.name != "drumlin-controller-own-contents";
            assert_eq!(
                standing == PolicyStatus::Unknown,
                is_needed,
                "{}",
                policy.name
            );
            assert_eq!(standing.is_well(), !is_needed, "{}", policy.name);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_that_the_policies_do_not_know_tries_nothing() {
        let allowed = Answer::Says(200, json!({"metadata": {"name": PROBE}}));
        assert_eq!(found("admin", allowed).await, (vec![], BTreeMap::new()));
    }
}
