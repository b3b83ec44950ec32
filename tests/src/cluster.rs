//! A Kubernetes API server, by `kubectl`: that of the lab, or one of the test's own.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::{
    agent::PATIENCE,
    lookup::{self, Lookup},
    programs::{printed, program, within, workspace},
    storage::Scratch,
};

/// An API server that has the definitions of our kinds.
#[derive(Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
    /// The server, where it is the test's own; it ends with its input.
    own: Option<(Child, ChildStdin)>,
    lookup: Lookup,
}

/// Whether the lab's server has the definitions: all tests of a process run beside one.
static DEFINED: Once = Once::new();
/// How long `kubectl` may take, in seconds.
const LONGEST: u32 = 300;
/// So many namespaces and nodes were made up.
static NAMES: AtomicUsize = AtomicUsize::new(0);

impl Cluster {
    /// The one that this test runs beside.
    pub fn of_the_lab() -> Self {
        let kubeconfig = std::env::var_os("KUBECONFIG");
        let kubeconfig = kubeconfig.expect("tests/lab/apiserver/run is the runner of this test");
        let cluster = Self::at(kubeconfig.into(), None);
        DEFINED.call_once(|| cluster.define());
        cluster
    }

    /// One of the test's own, for what others would not survive.
    pub fn own() -> Self {
        let run = workspace().join("tests/lab/apiserver/run");
        let mut child = program(run)
            .args(["--", "bash", "-c", "echo \"$KUBECONFIG\"; cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server can be started");
        let output = child.stdout.take().expect("it has an output");
        let mut path = String::new();
        let read = BufReader::new(output).read_line(&mut path);
        read.expect("it says where it is");
        let input = child.stdin.take().expect("it has an input");
        let cluster = Self::at(path.trim().into(), Some((child, input)));
        cluster.define();
        cluster
    }

    /// The one that a file says how to reach, and as whom.
    pub fn known_by(kubeconfig: &Path) -> Self {
        Self::at(kubeconfig.to_owned(), None)
    }

    fn at(kubeconfig: PathBuf, own: Option<(Child, ChildStdin)>) -> Self {
        Self {
            kubeconfig,
            own,
            lookup: Lookup::default(),
        }
    }

    fn define(&self) {
        let crds = workspace().join("manifests/base/crds");
        self.kubectl(&["apply", "--server-side", "-f", &crds.to_string_lossy()]);
        let kinds = || {
            let listed = self.kubectl(&["api-resources", "--api-group=drumlin.dev", "-o", "name"]);
            listed.lines().count()
        };
        let begun = Instant::now();
        while kinds() < 6 {
            assert!(begun.elapsed() < PATIENCE, "the kinds are not served");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Applies what every cluster needs to have of ours.
    pub fn install(&self) {
        let base = workspace().join("manifests/base");
        let base = base.to_string_lossy();
        // The namespace is there a moment before what is in it may be.
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-k", &base]);
    }

    /// The same server for a service account of ours, with a token that may be bound to a node.
    #[must_use]
    pub fn as_account(&self, scratch: &Scratch, account: &str, node: Option<&str>) -> Self {
        self.as_account_in(scratch, ("drumlin-system", account), node)
    }

    /// The same for an account of any namespace.
    #[must_use]
    pub fn as_account_in(
        &self,
        scratch: &Scratch,
        (namespace, account): (&str, &str),
        node: Option<&str>,
    ) -> Self {
        let mut words = vec!["-n", namespace, "create", "token", account];
        let node = node.map(|node| format!("--bound-object-name={node}"));
        if let Some(node) = &node {
            words.extend(["--bound-object-kind=Node", node]);
        }
        let token = self.kubectl(&words);
        let mut config = self.config();
        let users = format!("[{{name: admin, user: {{token: {}}}}}]", token.trim());
        let users = serde_yaml::from_str(&users).expect("that is YAML");
        let users = config.get_mut("users").map(|own| *own = users);
        users.expect("it has users");
        self.with_config(scratch, account, &config)
    }

    /// The same server for a user of this name.
    #[must_use]
    pub fn as_user(&self, scratch: &Scratch, user: &str) -> Self {
        let mut config = self.config();
        let own = config.get_mut("users").and_then(|users| users.get_mut(0));
        let own = own.and_then(|own| own.get_mut("user"));
        let own = own.and_then(serde_yaml::Value::as_mapping_mut);
        let own = own.expect("it has a user");
        own.insert("as".into(), user.into());
        self.with_config(scratch, user, &config)
    }

    fn config(&self) -> serde_yaml::Value {
        let text = std::fs::read_to_string(&self.kubeconfig).expect("it can be read");
        serde_yaml::from_str(&text).expect("it is YAML")
    }

    fn with_config(&self, scratch: &Scratch, account: &str, config: &serde_yaml::Value) -> Self {
        let path = format!("{}.kubeconfig", self.name(account));
        let path = scratch.path().join(path);
        let text = serde_yaml::to_string(config).expect("it can be written");
        std::fs::write(&path, text).expect("it can be written");
        Self::known_by(&path)
    }

    /// Where its configuration is.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// What an agent is told to follow it.
    pub fn arguments(&self) -> Vec<String> {
        vec![
            "--kubeconfig".to_owned(),
            self.kubeconfig.to_string_lossy().into_owned(),
        ]
    }

    /// A client that asks it without a program.
    pub async fn client(&self) -> kube::Client {
        client(self.kubeconfig.clone()).await
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = within(LONGEST, "kubectl");
        command.env("KUBECONFIG", &self.kubeconfig).args(arguments);
        command
    }

    /// `kubectl`, whatever becomes of it. Its status is 124 if it takes longer than five minutes.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.output().expect("kubectl can be started")
    }

    /// `kubectl`, which must succeed, and what it printed.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(arguments);
        printed(&output, ("kubectl", arguments))
    }

    /// `kubectl` with something to read, whatever becomes of it.
    pub fn try_with_input(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl can be started");
        let mut pipe = child.stdin.take().expect("it has an input");
        let _ = pipe.write_all(input.as_bytes());
        drop(pipe);
        child.wait_with_output().expect("kubectl ends")
    }

    /// A name that nothing else in this run has.
    pub fn name(&self, of: &str) -> String {
        format!(
            "{of}-{}-{}",
            std::process::id(),
            NAMES.fetch_add(1, Ordering::Relaxed)
        )
    }

    /// Posts an object to a path of the API; says what the server has made of it.
    ///
    /// # Errors
    /// What the server says that refuses it.
    pub fn post(&self, path: &str, object: &Value) -> Result<Value, String> {
        let posted = self.lookup.post(|| self.lookup_client(), path, object);
        posted.map_err(|status| status.expect("the server answers").message.clone())
    }

    /// The client that looks things up, where there is none yet.
    fn lookup_client(&self) -> kube::Client {
        lookup::wait_for(client(self.kubeconfig.clone()))
    }

    /// A namespace of the test's own.
    pub fn namespace(&self) -> Namespace<'_> {
        let name = self.name("ns");
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let made = self.post("/api/v1/namespaces", &namespace);
        made.expect("a namespace can be made");
        Namespace {
            cluster: self,
            name,
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some((mut child, input)) = self.own.take() {
            drop(input);
            let _ = child.wait();
        }
    }
}

/// A client of the server that a file names.
async fn client(kubeconfig: PathBuf) -> kube::Client {
    let told = Kubeconfig::read_from(kubeconfig).expect("it can be read");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(told, &options).await;
    let mut config = config.expect("it names a server");
    // Watches are silent.
    config.read_timeout = None;
    kube::Client::try_from(config).expect("a client can be made")
}

/// A namespace.
#[derive(Debug)]
pub struct Namespace<'a> {
    /// The cluster that it is in.
    pub cluster: &'a Cluster,
    /// Its name.
    pub name: String,
}

impl Namespace<'_> {
    /// `kubectl` in it, which must succeed, and what it printed.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let arguments: Vec<&str> = ["-n", &self.name]
            .iter()
            .chain(arguments)
            .copied()
            .collect();
        self.cluster.kubectl(&arguments)
    }

    /// Applies manifests.
    pub fn apply(&self, text: &str) {
        let arguments = ["-n", &self.name, "apply", "-f", "-"];
        let output = self.cluster.try_with_input(&arguments, text);
        printed(&output, ("kubectl", arguments));
    }

    /// An object such as `dv/data`, if it is there.
    pub fn find(&self, object: &str) -> Option<Value> {
        if let Some(path) = lookup::path(&self.name, object) {
            let cluster = self.cluster;
            // Otherwise kubectl reads the file anew, and says why.
            if let Ok(found) = cluster.lookup.get(|| cluster.lookup_client(), &path) {
                return found;
            }
        }
        let text = self.kubectl(&["get", object, "-o", "json", "--ignore-not-found"]);
        (!text.is_empty()).then(|| serde_json::from_str(&text).expect("kubectl prints JSON"))
    }

    /// An object that is there.
    pub fn get(&self, object: &str) -> Value {
        self.find(object)
            .unwrap_or_else(|| panic!("{object} is not there"))
    }

    /// Waits until an object is as it should be, and says what it was in vain.
    pub fn until(&self, object: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let now = self.find(object).unwrap_or_default();
            if holds(&now) {
                return now;
            }
            assert!(
                begun.elapsed() < 2 * PATIENCE,
                "{object} never came to be so: {now:#}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until an object is ready in its newest form.
    pub fn until_ready(&self, object: &str) -> Value {
        self.until(object, is_ready)
    }

    /// Waits until an object says this of itself.
    pub fn until_reason(&self, object: &str, reason: &str) -> Value {
        self.until(object, |now| {
            let ready = condition(now, "Ready").and_then(|ready| ready.get("reason"));
            ready.is_some_and(|own| own == reason)
        })
    }

    /// Waits until an object is deleted.
    pub fn until_gone(&self, object: &str) {
        self.until(object, Value::is_null);
    }
}

/// One condition of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let mut conditions = object.pointer("/status/conditions")?.as_array()?.iter();
    conditions.find(|condition| condition.get("type").is_some_and(|own| own == kind))
}

/// Whether an object is ready in its newest form.
pub fn is_ready(object: &Value) -> bool {
    let generation = object.pointer("/metadata/generation");
    let ready = condition(object, "Ready").and_then(|ready| ready.get("status"));
    generation.is_some()
        && object.pointer("/status/observedGeneration") == generation
        && ready.is_some_and(|status| status == "True")
}
