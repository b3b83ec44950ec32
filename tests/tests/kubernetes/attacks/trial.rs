//! Deeds that are tried with a stolen token, beside an administrator to whom they must be possible.

use std::collections::BTreeMap;

use drumlin_tests::cluster::Cluster;
use kube::{
    Client, ResourceExt,
    api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::Value;

/// An object, or where one is to be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    kind: &'static str,
    space: Option<String>,
    name: String,
}

impl Target {
    pub(super) fn of_the_cluster(kind: &'static str, name: &str) -> Self {
        let (space, name) = (None, name.to_owned());
        Self { kind, space, name }
    }

    pub(super) fn inside(space: &str, kind: &'static str, name: &str) -> Self {
        let (space, name) = (Some(space.to_owned()), name.to_owned());
        Self { kind, space, name }
    }

    /// An object of this kind and name, as it is created.
    pub(super) fn with(&self, spec: &Value, metadata: &Value) -> Value {
        let kind = self.resource();
        let mut object = serde_json::json!({
            "apiVersion": kind.api_version,
            "kind": self.kind,
            "metadata": {"name": self.name},
            "spec": spec,
        });
        merge(&mut object["metadata"], metadata);
        object
    }

    fn resource(&self) -> ApiResource {
        let (group, version) = match self.kind {
            "PersistentVolume" | "PersistentVolumeClaim" | "Secret" => ("", "v1"),
            "VolumeSnapshot" | "VolumeSnapshotContent" => ("snapshot.storage.k8s.io", "v1"),
            "VolumeGroupSnapshotContent" => ("groupsnapshot.storage.k8s.io", "v1"),
            _ => ("drumlin.dev", "v1alpha1"),
        };
        let kind = GroupVersionKind::gvk(group, version, self.kind);
        let plural = format!("{}s", self.kind.to_lowercase());
        ApiResource::from_gvk_with_plural(&kind, &plural)
    }

    fn api(&self, client: &Client) -> Api<DynamicObject> {
        let (client, kind) = (client.clone(), self.resource());
        match &self.space {
            Some(space) => Api::namespaced_with(client, space, &kind),
            None => Api::all_with(client, &kind),
        }
    }
}

/// What somebody does to an object.
#[derive(Debug, Clone)]
pub(super) enum Deed {
    Read,
    Create(Value),
    /// A merge patch.
    Patch(Value),
    /// The same of the status, or by way of it.
    PatchStatus(Value),
    /// The same, written as a whole.
    Update(Value),
    Delete,
}

/// Whether anything comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Run {
    Real,
    Dry,
}

/// Somebody with a token, and an administrator.
pub(super) struct Trial {
    admin: Client,
    thief: Client,
    wrong: Vec<String>,
}

impl Trial {
    pub(super) async fn of(admin: &Cluster, thief: &Cluster) -> Self {
        Self {
            admin: admin.client().await,
            thief: thief.client().await,
            wrong: Vec::new(),
        }
    }

    /// A deed is refused to the thief for this reason, though the object and the request are as they must be: an administrator
    /// may do the same.
    pub(super) async fn refused(&mut self, target: &Target, deed: Deed, by: &str) {
        if let Err(error) = self.act(&self.admin, target, &deed, Run::Dry).await {
            self.note(target, &deed, &format!("is no attack: {error}"));
        }
        match self.act(&self.thief, target, &deed, Run::Real).await {
            Ok(_) => self.note(target, &deed, "succeeds"),
            Err(error) if error.to_string().contains(by) => {}
            Err(error) => self.note(target, &deed, &format!("is refused otherwise: {error}")),
        }
    }

    /// A deed is refused to everybody, because it is not valid.
    pub(super) async fn impossible(&mut self, target: &Target, deed: Deed) {
        for (who, client) in [
            ("administrator", self.admin.clone()),
            ("thief", self.thief.clone()),
        ] {
            if self.act(&client, target, &deed, Run::Dry).await.is_ok() {
                self.note(target, &deed, &format!("is possible for the {who}"));
                return;
            }
        }
    }

    /// A deed is possible, because it is what the account is for.
    pub(super) async fn allowed(&mut self, target: &Target, deed: Deed) {
        if let Err(error) = self.act(&self.thief, target, &deed, Run::Dry).await {
            self.note(target, &deed, &format!("is refused: {error}"));
        }
    }

    /// A deed by the status of an object is possible, and changes no annotation: nothing but the status is written.
    pub(super) async fn sets_no_annotation(&mut self, target: &Target, key: &str) {
        let deed =
            Deed::PatchStatus(serde_json::json!({"metadata": {"annotations": {key: "absent"}}}));
        match self.act(&self.thief, target, &deed, Run::Dry).await {
            Ok(now) if now.annotations().contains_key(key) => self.note(target, &deed, "succeeds"),
            Ok(_) => {}
            Err(error) => self.note(target, &deed, &format!("is refused: {error}")),
        }
    }

    fn note(&mut self, target: &Target, deed: &Deed, what: &str) {
        self.wrong.push(format!("{deed:?} of {target:?} {what}"));
    }

    /// Fails if any of them ended otherwise.
    pub(super) fn end(self) {
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
    }

    async fn act(
        &self,
        who: &Client,
        target: &Target,
        deed: &Deed,
        run: Run,
    ) -> kube::Result<DynamicObject> {
        let (objects, name) = (target.api(who), target.name.as_str());
        let dry_run = run == Run::Dry;
        let patching = PatchParams {
            dry_run,
            ..PatchParams::default()
        };
        let posting = PostParams {
            dry_run,
            ..PostParams::default()
        };
        match deed {
            Deed::Read => objects.get(name).await,
            Deed::Create(object) => objects.create(&posting, &parsed(object.clone())).await,
            Deed::Patch(patch) => objects.patch(name, &patching, &Patch::Merge(patch)).await,
            Deed::PatchStatus(patch) => {
                let patch = Patch::Merge(patch);
                objects.patch_status(name, &patching, &patch).await
            }
            Deed::Update(patch) => {
                let now = target.api(&self.admin).get(name).await?;
                let mut object = serde_json::to_value(&now).unwrap();
                merge(&mut object, patch);
                objects.replace(name, &posting, &parsed(object)).await
            }
            Deed::Delete => {
                let deleting = DeleteParams {
                    dry_run,
                    ..DeleteParams::default()
                };
                let was = target.api(&self.admin).get(name).await?;
                objects.delete(name, &deleting).await.map(|_| was)
            }
        }
    }
}

fn parsed(object: Value) -> DynamicObject {
    serde_json::from_value(object).unwrap()
}

/// What a merge patch makes of an object.
pub(super) fn merge(object: &mut Value, patch: &Value) {
    let Some(members) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(serde_json::Map::new());
    }
    for (key, value) in members {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut object[key.as_str()], value);
        }
    }
}

/// Creates objects, as an administrator.
pub(super) async fn create(admin: &Cluster, objects: &[(Target, Value)]) {
    let client = admin.client().await;
    for (target, object) in objects {
        let objects = target.api(&client);
        let (how, object) = (PostParams::default(), parsed(object.clone()));
        objects.create(&how, &object).await.unwrap();
    }
}

/// The versions of objects that are there.
pub(super) async fn versions(
    admin: &Cluster,
    targets: impl Iterator<Item = &Target>,
) -> BTreeMap<Target, String> {
    let client = admin.client().await;
    let mut versions = BTreeMap::new();
    for target in targets {
        let now = target.api(&client).get(&target.name).await.unwrap();
        assert!(now.metadata.deletion_timestamp.is_none(), "{target:?}");
        versions.insert(target.clone(), now.resource_version().unwrap());
    }
    versions
}
