//! An agent that keeps a directory of manifests, and the manifests that tests write there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use drumlin_proto::csi::v1::{ListSnapshotsRequest, ListVolumesRequest};
use drumlin_tests::{
    agent::{Agent, Options, eventually, write},
    programs::printed,
    storage::Scratch,
};
use serde_json::Value;

use crate::helpers::{ok, text};

/// An agent with an empty directory of manifests.
pub(crate) struct Host {
    pub(crate) agent: Agent,
    pub(crate) manifests: PathBuf,
}

impl Host {
    pub(crate) async fn start() -> Self {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        Self::over(Scratch::new(), options).await
    }

    pub(crate) async fn over(scratch: Scratch, options: Options) -> Self {
        let manifests = scratch.directory("manifests");
        let options = with_manifests(options, &manifests);
        Self {
            agent: Agent::with(scratch, options).await,
            manifests,
        }
    }

    /// Starts the agent again; with a fail point, it is killed there.
    pub(crate) async fn restart(&mut self, point: Option<&str>) {
        self.agent.kill();
        let options = Options::default().perhaps_killed_at(point);
        let options = with_manifests(options, &self.manifests);
        self.agent.restart_with(options).await;
    }

    /// Starts the agent again with other options.
    pub(crate) async fn restart_with(&mut self, options: Options) {
        self.agent.kill();
        let options = with_manifests(options, &self.manifests);
        self.agent.restart_with(options).await;
    }

    /// The same where it may come to a fail point before it answers: whether it answers.
    pub(crate) async fn try_restart_with(&mut self, options: Options) -> bool {
        self.agent.kill();
        let options = with_manifests(options, &self.manifests);
        self.agent.try_restart_with(options).await
    }

    /// An object as the reconciler keeps it: what `kubectl get -o json` shows.
    pub(crate) fn object(&self, kind: &str, name: &str) -> Value {
        self.find(kind, name).unwrap()
    }

    /// The same, if there is one.
    pub(crate) fn find(&self, kind: &str, name: &str) -> Option<Value> {
        let path = format!("state/reconciler/objects/{kind}/default/{name}.json");
        let text = fs::read(self.agent.path(&path)).ok()?;
        Some(serde_json::from_slice(&text).unwrap())
    }

    pub(crate) fn write(&self, file: &str, documents: &[String]) {
        write(&self.manifests.join(file), &documents.join("---\n"));
    }

    pub(crate) fn path(&self, name: &str) -> String {
        text(self.agent.path("mnt").join(name))
    }

    /// The last event of an object, which may be gone.
    pub(crate) fn last_event(&self, object: &str) -> Value {
        let state = text(self.agent.path("state"));
        let arguments = ["events", object, "-o", "json", "--state-dir", &state];
        let output = self.agent.command(&arguments);
        let events = printed(&output, arguments);
        let mut events: Vec<Value> = serde_json::from_str(&events).unwrap();
        events.pop().unwrap()
    }

    /// Waits until the status table has all of these words in the line of the object.
    pub(crate) async fn until(&self, object: &str, words: &[&str]) -> String {
        let shown = |(table, _): &(String, i32)| {
            let line = table
                .lines()
                .find(|line| line.split_whitespace().nth(2) == Some(object))?;
            words
                .iter()
                .all(|word| line.contains(word))
                .then(|| line.to_owned())
        };
        let status = eventually(|| self.agent.status(), |status| shown(status).is_some()).await;
        shown(&status).unwrap()
    }

    /// Waits until the agent is stopped at its fail point.
    pub(crate) async fn until_stopped(&self) {
        eventually(|| self.agent.is_stopped(), |stopped| *stopped).await;
    }

    pub(crate) async fn counts(&self) -> (usize, usize) {
        let volumes = ok(self
            .agent
            .controller()
            .list_volumes(ListVolumesRequest::default())
            .await);
        let snapshots = ok(self
            .agent
            .controller()
            .list_snapshots(ListSnapshotsRequest::default())
            .await);
        (volumes.entries.len(), snapshots.entries.len())
    }
}

fn with_manifests(options: Options, manifests: &Path) -> Options {
    let arguments = ["--manifests".to_owned(), text(manifests.to_owned())];
    Options {
        arguments: arguments.into_iter().chain(options.arguments).collect(),
        ..options
    }
}

/// A volume's manifest with more lines in its spec.
pub(crate) fn volume(name: &str, capacity: &str, spec: &str) -> String {
    let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    format!(
        "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata:\n  name: {name}\nspec:\n  capacity: {capacity}\n{spec}"
    )
}

/// The manifest with the word that has its object destroyed.
pub(crate) fn absent(manifest: &str) -> String {
    annotated(manifest, "drumlin.dev/state: absent")
}

/// The manifest with an annotation.
pub(crate) fn annotated(manifest: &str, annotation: &str) -> String {
    manifest.replace(
        "metadata:\n",
        &format!("metadata:\n  annotations: {{{annotation}}}\n"),
    )
}

/// Any of our objects, with what belongs into its braces.
pub(crate) fn object(kind: &str, name: &str, metadata: &str, spec: &str) -> String {
    format!(
        "apiVersion: drumlin.dev/v1alpha1\nkind: {kind}\nmetadata:\n  name: {name}\n{metadata}spec: {{{spec}}}\n"
    )
}

/// A group of the volumes with these names.
pub(crate) fn group(name: &str, members: &str) -> String {
    let members = members.split_whitespace();
    let members: Vec<String> = members
        .map(|name| format!("{{kind: Volume, name: {name}}}"))
        .collect();
    let spec = format!("members: [{}]", members.join(", "));
    object("VolumeGroup", name, "", &spec)
}

/// A small volume that is deleted when that is asked for.
pub(crate) fn small(name: &str) -> String {
    volume(name, "16Mi", "deletionPolicy: Delete")
}
