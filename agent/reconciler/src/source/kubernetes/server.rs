//! Requests to the API server.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use drumlin_crd::{ObjectKey, names};
use k8s_openapi::{
    api::{
        authentication::v1::SelfSubjectReview,
        coordination::v1::Lease,
        core::v1::{Namespace, ObjectReference, PersistentVolumeClaim},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Client, Resource,
    api::{
        Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams,
        PostParams, Preconditions,
    },
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use serde_json::{Value, json};

use super::reach;
use crate::{Error, state::lock};

/// The field manager of the finalizer and the status.
const AGENT: &str = "drumlin-agent";
/// The field manager of the node assignment, so that an apply of the finalizer alone does not remove the node.
const CLAIM: &str = "drumlin-agent-claim";
/// The field manager of the controller.
const CONTROLLER: &str = "drumlin-controller";
/// Maximum number of attempts after conflicts.
const CONFLICTS: u32 = 5;
/// Timeout for a request.
const PATIENCE: Duration = Duration::from_secs(20);

/// All kinds, each with its plural.
pub(crate) const KINDS: [(&str, &str); 5] = [
    ("Volume", "volumes"),
    ("VolumeGroup", "volumegroups"),
    ("Snapshot", "snapshots"),
    ("GroupSnapshot", "groupsnapshots"),
    ("SnapshotSchedule", "snapshotschedules"),
];

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The object does not exist, or another one has its name.
    #[error("object no longer exists")]
    Gone,
    /// The server refused, or could not be reached.
    #[error("{0}")]
    Other(String),
}

impl From<kube::Error> for Refusal {
    fn from(error: kube::Error) -> Self {
        match error {
            // Applying to a missing object is a conflict, because the UID is given; so is an assignment that another
            // client made first.
            kube::Error::Api(status) if matches!(status.code, 404 | 409) => Self::Gone,
            // Another object has the name, and a UID is immutable.
            kube::Error::Api(status)
                if status.code == 422 && status.message.contains("metadata.uid") =>
            {
                Self::Gone
            }
            kube::Error::Api(status) => Self::Other(status.message),
            other => Self::Other(other.to_string()),
        }
    }
}

/// The field manager of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldManager {
    /// The agent of a node.
    Agent,
    /// The controller of the cluster.
    Controller,
}

/// An API server.
#[derive(Clone)]
pub(crate) struct Server {
    client: Client,
    /// After a timeout, requests of passes fail immediately until then.
    silent: Arc<Mutex<Option<Instant>>>,
}

impl Server {
    /// Connects to the server of a kubeconfig file, or of the in-cluster configuration of this pod.
    ///
    /// # Errors
    /// When there is no configuration, or it cannot be read. The server is not contacted yet.
    pub(crate) async fn new(kubeconfig: Option<&Path>) -> Result<Self, Error> {
        Ok(Self {
            client: reach::client(kubeconfig).await?,
            silent: Arc::default(),
        })
    }

    /// A server with a client of the test.
    #[cfg(test)]
    pub(crate) fn known_by(client: Client) -> Self {
        Self {
            client,
            silent: Arc::default(),
        }
    }

    /// The client, for requests about foreign kinds.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// All objects of a kind.
    pub(crate) fn all(&self, kind: &str) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource(kind))
    }

    /// The objects of a kind that are in a namespace.
    pub(crate) fn of(&self, namespace: &str, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &resource(kind))
    }

    fn beside(&self, key: &ObjectKey) -> Api<DynamicObject> {
        self.of(&key.namespace, &key.kind)
    }

    /// Reads an object from the server's store (quorum read), not from a cache; `None` if it does not exist.
    pub(crate) async fn find(&self, key: &ObjectKey) -> Result<Option<DynamicObject>, Refusal> {
        let objects = self.beside(key);
        self.unless_silent(objects.get_opt(&key.name)).await
    }

    /// Sends a request of a pass. There are few of those at a time, and objects of manifest files wait behind them:
    /// only one request waits for a server that does not answer.
    async fn unless_silent<T>(
        &self,
        asked: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Refusal> {
        let now = Instant::now();
        if lock(&self.silent).is_some_and(|until| now < until) {
            return Err(silence());
        }
        let answer = answer(asked).await;
        if answer.is_err() && now.elapsed() >= PATIENCE {
            *lock(&self.silent) = Some(Instant::now() + PATIENCE);
        }
        answer
    }

    /// Adds our finalizer, which keeps the object until [`Server::let_go`]. Finalizers are a set to an apply: those of
    /// others stay.
    pub(crate) async fn add_finalizer(&self, key: &ObjectKey, uid: &str) -> Result<(), Refusal> {
        let mut body = head(key, uid);
        set(
            &mut body,
            "/metadata",
            "finalizers",
            json!([names::FINALIZER]),
        );
        let how = PatchParams::apply(AGENT).force();
        let objects = self.beside(key);
        let patch = Patch::Apply(&body);
        let added = self.unless_silent(objects.patch(&key.name, &how, &patch));
        added.await.map(drop)
    }

    /// Removes our finalizer, whichever field manager has added it: an apply would leave it if others own it, too.
    pub(crate) async fn let_go(&self, key: &ObjectKey, uid: &str) -> Result<(), Refusal> {
        self.let_go_if(key, uid, |_| true).await
    }

    /// The same, if the stored metadata satisfies `may_go`.
    pub(crate) async fn let_go_if(
        &self,
        key: &ObjectKey,
        uid: &str,
        may_go: impl Fn(&ObjectMeta) -> bool,
    ) -> Result<(), Refusal> {
        let objects = self.beside(key);
        for _ in 0..CONFLICTS {
            let metadata = answer(objects.get_metadata(&key.name)).await?.metadata;
            if metadata.uid.as_deref() != Some(uid) {
                return Err(Refusal::Gone);
            }
            if !may_go(&metadata) {
                return Err(Refusal::Other(
                    "object no longer allows its finalizer to be removed".to_owned(),
                ));
            }
            let before = metadata.finalizers.unwrap_or_default();
            let others: Vec<&String> = before
                .iter()
                .filter(|one| *one != names::FINALIZER)
                .collect();
            if others.len() == before.len() {
                return Ok(());
            }
            let body = json!({"metadata": {
                "resourceVersion": metadata.resource_version,
                "finalizers": others,
            }});
            let how = PatchParams {
                field_manager: Some(AGENT.to_owned()),
                ..PatchParams::default()
            };
            let patch = Patch::Merge(&body);
            match within(objects.patch(&key.name, &how, &patch)).await {
                // It was changed or deleted meanwhile: the next read shows which.
                Err(Refusal::Gone) => {}
                answer => return answer,
            }
        }
        Err(Refusal::Other(
            "object changed during every attempt".to_owned(),
        ))
    }

    /// Creates an object, unless one of its name exists. Not by an apply, which would change that one.
    pub(crate) async fn create(&self, key: &ObjectKey, object: &Value) -> Result<(), Refusal> {
        let objects = self.beside(key);
        let object: DynamicObject = serde_json::from_value(object.clone())
            .map_err(|error| Refusal::Other(error.to_string()))?;
        let how = PostParams {
            field_manager: Some(AGENT.to_owned()),
            ..PostParams::default()
        };
        let made = within_patience(objects.create(&how, &object)).await?;
        match made {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// Requests the deletion of the object that has this UID; one that is gone is deleted.
    pub(crate) async fn delete(&self, key: &ObjectKey, uid: &str) -> Result<(), Refusal> {
        let how = DeleteParams::default().preconditions(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        });
        let objects = self.beside(key);
        match within(objects.delete(&key.name, &how)).await {
            Err(Refusal::Gone) => Ok(()),
            other => other,
        }
    }

    /// Assigns an object to a node, unless it has another one by now.
    pub(crate) async fn claim(
        &self,
        key: &ObjectKey,
        uid: &str,
        node: &str,
        by: FieldManager,
    ) -> Result<(), Refusal> {
        let mut body = head(key, uid);
        set(&mut body, "", "spec", json!({ "nodeName": node }));
        let how = PatchParams::apply(match by {
            FieldManager::Agent => CLAIM,
            FieldManager::Controller => CONTROLLER,
        });
        let objects = self.beside(key);
        let patch = Patch::Apply(&body);
        within(objects.patch(&key.name, &how, &patch)).await
    }

    /// Applies the status of an object; fields that the same field manager no longer sets are removed.
    pub(crate) async fn write_status(
        &self,
        key: &ObjectKey,
        uid: &str,
        status: &Value,
        by: FieldManager,
    ) -> Result<(), Refusal> {
        let mut body = head(key, uid);
        set(&mut body, "", "status", status.clone());
        let how = PatchParams::apply(match by {
            FieldManager::Agent => AGENT,
            FieldManager::Controller => CONTROLLER,
        });
        let objects = self.beside(key);
        let patch = Patch::Apply(&body);
        within(objects.patch_status(&key.name, &how.force(), &patch)).await
    }

    /// The UID of a namespace; a recreated one has another.
    pub(crate) async fn namespace_uid(&self, namespace: &str) -> Result<String, Refusal> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let found = answer(namespaces.get_metadata(namespace)).await?;
        Ok(found.metadata.uid.unwrap_or_default())
    }

    /// The UID of a claim, read from the server and not from a watch.
    pub(crate) async fn claim_uid(&self, namespace: &str, name: &str) -> Result<String, Refusal> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let found = answer(claims.get_metadata(name)).await?;
        Ok(found.metadata.uid.unwrap_or_default())
    }

    /// Returns true if the `CustomResourceDefinition` of a kind is being deleted, and with it all its objects, without a
    /// request to destroy their data.
    pub(crate) async fn is_kind_leaving(&self, kind: &str) -> Result<bool, Refusal> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let name = format!("{}.{}", plural(kind), names::GROUP);
        match answer(definitions.get_metadata(&name)).await {
            Ok(found) => Ok(found.metadata.deletion_timestamp.is_some()),
            Err(Refusal::Gone) => Ok(true),
            Err(other) => Err(other),
        }
    }

    /// Publishes an event of an object.
    pub(crate) async fn tell(
        &self,
        key: &ObjectKey,
        uid: &str,
        node: &str,
        told: EventNote,
    ) -> Result<(), Refusal> {
        let event = told.event("Reconcile");
        let object = ObjectReference {
            api_version: Some(names::API_VERSION.to_owned()),
            kind: Some(key.kind.clone()),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.publish(AGENT, node, &event, &object).await
    }

    /// Publishes an event of the controller's lease.
    pub(crate) async fn tell_of_lease(
        &self,
        (namespace, name): (&str, &str),
        identity: &str,
        told: EventNote,
    ) -> Result<(), Refusal> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        let lease = answer(leases.get(name)).await?.object_ref(&());
        let event = told.event("Check");
        self.publish(CONTROLLER, identity, &event, &lease).await
    }

    async fn publish(
        &self,
        controller: &str,
        instance: &str,
        event: &Event,
        object: &ObjectReference,
    ) -> Result<(), Refusal> {
        let reporter = Reporter {
            controller: controller.to_owned(),
            instance: Some(instance.to_owned()),
        };
        // A reused recorder repeats the first note of a reason forever; events are published at transitions only.
        let recorder = Recorder::new(self.client.clone(), reporter);
        within(recorder.publish(event, object)).await
    }

    /// The user name that the server has authenticated.
    pub(crate) async fn account(&self) -> Result<String, Refusal> {
        let reviews: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let asked = SelfSubjectReview::default();
        let found = answer(reviews.create(&PostParams::default(), &asked)).await?;
        let user = found.status.and_then(|status| status.user_info);
        Ok(user.and_then(|user| user.username).unwrap_or_default())
    }

    /// Tries by a dry run whether a policy refuses an object of the controller.
    pub(crate) async fn probe(
        &self,
        policy: &str,
        objects: &Api<DynamicObject>,
        object: &Value,
    ) -> Result<Probed, Refusal> {
        let name = object.pointer("/metadata/name").and_then(Value::as_str);
        let mut how = PatchParams::apply(CONTROLLER);
        how.dry_run = true;
        let patch = Patch::Apply(object);
        let asked = objects.patch(name.unwrap_or_default(), &how, &patch);
        match within_patience(asked).await? {
            Err(error) if is_by_policy(&error, policy) => Ok(Probed::Refused),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                Ok(Probed::NotPermitted(status.message))
            }
            Err(error) => Err(error.into()),
            Ok(_) => Ok(Probed::Allowed),
        }
    }

    /// Returns true if a policy restricts the adoption annotation to administrators: a dry run of this agent, which is
    /// none, must be refused.
    pub(crate) async fn restricts_adoption(&self, key: &ObjectKey) -> Result<bool, Refusal> {
        let how = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let asked = json!({"metadata": {"annotations": {names::ADOPT: AGENT}}});
        let patch = Patch::Merge(&asked);
        let objects = self.beside(key);
        refused(names::ADOPT_POLICY, objects.patch(&key.name, &how, &patch)).await
    }
}

/// The outcome of a dry run of what a policy should refuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Probed {
    /// The policy is in force.
    Refused,
    /// The policy is not in force.
    Allowed,
    /// The kind is not served, or its rights are not granted.
    NotPermitted(String),
}

/// Returns true if a policy refuses a change.
async fn refused<T>(
    policy: &str,
    asked: impl Future<Output = kube::Result<T>>,
) -> Result<bool, Refusal> {
    match within_patience(asked).await? {
        Ok(_) => Ok(false),
        Err(error) if is_by_policy(&error, policy) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

async fn within_patience<T>(asked: impl Future<Output = T>) -> Result<T, Refusal> {
    let answer = tokio::time::timeout(PATIENCE, asked).await;
    answer.map_err(|_| silence())
}

fn is_by_policy(error: &kube::Error, policy: &str) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.message.contains("ValidatingAdmissionPolicy") && status.message.contains(policy))
}

/// The contents of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventNote {
    pub(crate) is_trouble: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl EventNote {
    fn event(self, action: &str) -> Event {
        Event {
            type_: if self.is_trouble {
                EventType::Warning
            } else {
                EventType::Normal
            },
            action: action.to_owned(),
            reason: self.reason,
            note: Some(self.message.chars().take(1000).collect()),
            secondary: None,
        }
    }
}

fn plural(kind: &str) -> &'static str {
    let found = KINDS.iter().find(|(known, _)| *known == kind);
    found.map_or("", |(_, plural)| plural)
}

fn resource(kind: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk(names::GROUP, names::VERSION, kind);
    ApiResource::from_gvk_with_plural(&kind, plural(&kind.kind))
}

/// The head of every apply: the object by name and by UID, so that a recreated one is not changed.
fn head(key: &ObjectKey, uid: &str) -> Value {
    json!({
        "apiVersion": names::API_VERSION,
        "kind": key.kind,
        "metadata": { "name": key.name, "namespace": key.namespace, "uid": uid },
    })
}

fn set(body: &mut Value, at: &str, field: &str, value: Value) {
    if let Some(Value::Object(map)) = body.pointer_mut(at) {
        map.insert(field.to_owned(), value);
    }
}

async fn within<T>(asked: impl Future<Output = kube::Result<T>>) -> Result<(), Refusal> {
    answer(asked).await.map(drop)
}

async fn answer<T>(asked: impl Future<Output = kube::Result<T>>) -> Result<T, Refusal> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(silence()),
    }
}

fn silence() -> Refusal {
    Refusal::Other("the API server does not answer".to_owned())
}
