//! Nodes, the front of the cluster and the stock sidecars, started as the manifests say, each with the rights that they give
//! it.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    node_client::NodeClient,
};
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE, eventually},
    cluster::{Cluster, Namespace},
    daemon::Daemon,
    programs::{drumlin, output, workspace},
    requests::{mounted, publish, stage, unpublish, unstage},
    storage::{Kind, Scratch},
};
use serde_json::{Value, json};
use tonic::{Code, Response, Status, transport::Channel};

use crate::{
    installed::{define_snapshots, sidecars},
    kustomize::Rendered,
    rbac::SYSTEM,
};

/// The name of the node.
pub(crate) const NODE: &str = "node-a";

/// All that a cluster has of ours, and what of Kubernetes it takes to use it.
pub(crate) struct Stack {
    /// That of the first node.
    pub(crate) agent: Agent,
    /// Those of the other nodes.
    pub(crate) others: Vec<Agent>,
    /// By the names of their containers, and those of Kubernetes itself.
    pub(crate) daemons: BTreeMap<String, Daemon>,
    pub(crate) cluster: Cluster,
    scratch: Scratch,
}

impl Stack {
    /// A cluster of one node.
    pub(crate) async fn start() -> Self {
        Self::of_nodes(&[NODE]).await
    }

    /// A cluster of these nodes.
    pub(crate) async fn of_nodes(nodes: &[&str]) -> Self {
        Self::with(nodes, &[]).await
    }

    /// A cluster of these nodes, with more in the environment of its controller.
    pub(crate) async fn with(nodes: &[&str], environment: &[(&str, &str)]) -> Self {
        let (cluster, scratch) = (Cluster::own(), Scratch::new());
        define_snapshots(&cluster);
        let rendered = Rendered::of(&cluster, "base", &["upstream-snapshots"]);
        rendered.apply(&cluster);
        for node in nodes {
            register(&cluster, &rendered, node);
        }
        let pod = pod_of_the_controller(&cluster, &rendered);
        let mut agents = Vec::new();
        for node in nodes {
            let of_node = cluster.as_account(&scratch, "drumlin-agent", Some(node));
            // Mounted volumes have one moment where their images can share blocks.
            let disk = Scratch::new();
            disk.file_system("state", Kind::Xfs, 4 << 10);
            agents.push(Agent::with(disk, options(&of_node, &rendered, node)).await);
        }
        let mut stack = Self {
            agent: agents.remove(0),
            others: agents,
            daemons: BTreeMap::new(),
            cluster,
            scratch,
        };
        stack.start_of_kubernetes();
        stack.start_controller(&rendered, &pod, environment).await;
        stack
    }

    /// The pod of the controller: the front, and the sidecars that call it.
    async fn start_controller(
        &mut self,
        rendered: &Rendered,
        pod: &str,
        environment: &[(&str, &str)],
    ) {
        let socket = self.front();
        let own = self
            .start_front("controller", rendered, pod, environment)
            .await;
        let environment = [
            ("NAMESPACE", SYSTEM),
            ("POD_NAME", pod),
            // In a pod they read that from a file.
            ("POD_NAMESPACE", SYSTEM),
        ];
        for name in ["provisioner", "resizer", "snapshotter"] {
            self.start_sidecar(rendered, name, (&own, &socket), &environment);
        }
    }

    /// A controller, which serves the cluster on the socket of its name.
    async fn start_front(
        &mut self,
        name: &str,
        rendered: &Rendered,
        pod: &str,
        environment: &[(&str, &str)],
    ) -> Cluster {
        let account = "drumlin-controller";
        let own = self.cluster.as_account(&self.scratch, account, None);
        let container = rendered.container("controller");
        let mut arguments = vec!["controller".to_owned()];
        arguments.extend(container.arguments.clone());
        arguments.extend(own.arguments());
        let socket = self.socket_of(name);
        let endpoint = format!("unix://{}", socket.display());
        let own_environment = [
            ("DRUMLIN_IDENTITY", pod),
            ("DRUMLIN_NAMESPACE", SYSTEM),
            ("CSI_ENDPOINT", &endpoint),
            ("DRUMLIN_LOG", "info,drumlin_cluster=debug"),
        ];
        let environment = [&own_environment[..], environment].concat();
        self.run(name, drumlin(), &arguments, &environment);
        eventually(|| socket.exists(), |there| *there).await;
        own
    }

    /// Starts one more controller, of another pod, which serves the cluster on the socket of its name.
    pub(crate) async fn start_another_front(&mut self, name: &str) {
        let rendered = Rendered::of(&self.cluster, "base", &["upstream-snapshots"]);
        self.start_front(name, &rendered, name, &[]).await;
    }

    /// The socket of a controller.
    pub(crate) fn socket_of(&self, controller: &str) -> PathBuf {
        self.scratch.path().join(format!("{controller}.sock"))
    }

    /// The socket that the sidecars call.
    pub(crate) fn front(&self) -> PathBuf {
        self.socket_of("controller")
    }

    /// What binds claims to volumes, keeps those that are used, and makes contents of snapshots: with all rights, for it
    /// is none of ours.
    fn start_of_kubernetes(&mut self) {
        let kubeconfig = self.cluster.kubeconfig().display().to_string();
        let manager = [
            "--controllers=persistentvolume-binder-controller,persistentvolumeclaim-protection-controller,persistentvolume-protection-controller".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            // Claims wait for it.
            "--pvclaimbinder-sync-period=1s".to_owned(),
            format!("--kubeconfig={kubeconfig}"),
        ];
        self.run("manager", "kube-controller-manager", &manager, &[]);
        let snapshots = [
            "--feature-gates=CSIVolumeGroupSnapshot=true".to_owned(),
            "--retry-interval-max=10s".to_owned(),
            format!("--kubeconfig={kubeconfig}"),
        ];
        let program = sidecars().join("snapshot-controller");
        self.run("snapshot-controller", program, &snapshots, &[]);
    }

    fn start_sidecar(
        &mut self,
        rendered: &Rendered,
        name: &str,
        (own, socket): (&Cluster, &PathBuf),
        environment: &[(&str, &str)],
    ) {
        // The provisioner takes this before it looks at its arguments.
        let kubeconfig = own.kubeconfig().to_string_lossy();
        let environment = [environment, &[("KUBECONFIG", &*kubeconfig)]].concat();
        let container = rendered.container(name);
        let arguments = container.arguments_with(socket, own);
        let image = container.image.rsplit('/').next().unwrap();
        let program = sidecars().join(image.split(':').next().unwrap());
        self.run(name, program, &arguments, &environment);
    }

    fn run(
        &mut self,
        name: &str,
        program: impl AsRef<std::ffi::OsStr>,
        arguments: &[String],
        environment: &[(&str, &str)],
    ) {
        let daemon = Daemon::start(program, arguments, environment);
        self.daemons.insert(name.to_owned(), daemon);
    }

    /// Nobody was refused anything: the rights that the manifests give are enough.
    pub(crate) fn needed_no_more_rights(&self) {
        let daemons = self.daemons.iter();
        let daemons = daemons.map(|(name, daemon)| (name.as_str(), daemon.log()));
        let agents = [&self.agent].into_iter().chain(&self.others);
        let agents = agents.map(|agent| ("agent", agent.log()));
        for (name, log) in daemons.chain(agents) {
            let refused = log.lines().find(|line| line.contains("forbidden"));
            assert_eq!(refused, None, "{name}");
        }
    }

    /// The last lines of all.
    pub(crate) fn logs(&self) -> String {
        let logs = self.daemons.iter().map(|(name, daemon)| {
            let log = daemon.log();
            let lines: Vec<&str> = log.lines().rev().take(15).collect();
            let lines: Vec<&str> = lines.into_iter().rev().collect();
            format!("== {name}\n{}\n", lines.join("\n"))
        });
        logs.collect()
    }

    /// Waits until an object is as it should be; if it never is, all that was printed says why.
    pub(crate) fn until(
        &self,
        space: &Namespace<'_>,
        object: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        let now = || space.find(object).unwrap_or_default();
        self.eventually(now, holds)
    }

    /// The same of whatever can be asked for.
    pub(crate) fn eventually<T: Debug>(
        &self,
        now: impl Fn() -> T,
        holds: impl Fn(&T) -> bool,
    ) -> T {
        let begun = Instant::now();
        loop {
            let now = now();
            if holds(&now) {
                return now;
            }
            let logs = || format!("{}\n{}", self.logs(), self.agent.log());
            assert!(begun.elapsed() < 3 * PATIENCE, "{now:#?}\n{}", logs());
            // Most ask with kubectl, which takes a processor for as long.
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// The volume that a claim is bound to, once it is.
    pub(crate) fn volume_of(&self, space: &Namespace<'_>, claim: &str) -> Value {
        let is_bound = |now: &Value| now.pointer("/status/phase") == Some(&Value::from("Bound"));
        let claim = self.until(space, &format!("pvc/{claim}"), is_bound);
        let volume = claim["spec"]["volumeName"].as_str().unwrap();
        space.get(&format!("pv/{volume}"))
    }

    /// The kubelet of the node.
    pub(crate) fn kubelet(&self) -> Kubelet {
        Kubelet {
            channel: self.agent.channel(),
            directory: self.agent.scratch.path().to_owned(),
        }
    }
}

/// What of kubelet it takes: it asks the agent, and asks again.
#[derive(Clone)]
pub(crate) struct Kubelet {
    channel: Channel,
    directory: PathBuf,
}

impl Kubelet {
    /// What it does for the first pod that uses a volume; says where the files are.
    pub(crate) async fn mount(&self, volume: &Value) -> PathBuf {
        let source = &volume["spec"]["csi"];
        let id = handle(volume);
        let context: BTreeMap<String, String> =
            serde_json::from_value(source["volumeAttributes"].clone()).unwrap_or_default();
        let capability = mounted(source["fsType"].as_str().unwrap_or_default());
        let (staging, target) = self.paths(volume);
        std::fs::create_dir_all(&staging).unwrap();
        std::fs::create_dir_all(Path::new(&target).parent().unwrap()).unwrap();
        let staged = NodeStageVolumeRequest {
            volume_context: context.clone().into_iter().collect(),
            ..stage(&id, &staging, &capability)
        };
        again(async || self.node().node_stage_volume(staged.clone()).await).await;
        let published = NodePublishVolumeRequest {
            volume_context: context.into_iter().collect(),
            ..publish(&id, (&staging, &target), &capability)
        };
        again(async || self.node().node_publish_volume(published.clone()).await).await;
        target.into()
    }

    /// What it does when the last pod is gone.
    pub(crate) async fn unmount(&self, volume: &Value) {
        let id = handle(volume);
        let (staging, target) = self.paths(volume);
        again(async || {
            self.node()
                .node_unpublish_volume(unpublish(&id, &target))
                .await
        })
        .await;
        again(async || {
            self.node()
                .node_unstage_volume(unstage(&id, &staging))
                .await
        })
        .await;
    }

    /// What it does when a volume that is used is to grow; says how large it is.
    pub(crate) async fn grow(&self, volume: &Value, bytes: i64) -> i64 {
        let (staging, target) = self.paths(volume);
        let request = NodeExpandVolumeRequest {
            volume_id: handle(volume),
            volume_path: target,
            staging_target_path: staging,
            capacity_range: Some(CapacityRange {
                required_bytes: bytes,
                limit_bytes: 0,
            }),
            ..NodeExpandVolumeRequest::default()
        };
        let grown = again(async || self.node().node_expand_volume(request.clone()).await).await;
        grown.capacity_bytes
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    fn paths(&self, volume: &Value) -> (String, String) {
        let of = |kind| {
            self.directory
                .join(kind)
                .join(text(&volume["metadata"]["name"]))
        };
        let text = |path: PathBuf| path.into_os_string().into_string().unwrap();
        (text(of("staging")), text(of("targets")))
    }
}

/// Calls until it is done: an agent that dies meanwhile is back soon.
async fn again<T>(call: impl AsyncFn() -> Result<Response<T>, Status>) -> T {
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer.into_inner(),
            Err(status) => {
                let is_passing =
                    [Code::Unavailable, Code::Aborted, Code::Unknown].contains(&status.code());
                assert!(is_passing && begun.elapsed() < 3 * PATIENCE, "{status:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The agent's id of a volume of Kubernetes.
pub(crate) fn handle(volume: &Value) -> String {
    text(&volume["spec"]["csi"]["volumeHandle"])
}

/// A text of an object.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// How the agent is started: as its container is, but for the paths.
fn options(cluster: &Cluster, rendered: &Rendered, node: &str) -> Options {
    let config = workspace().join("manifests/base/agent-config.yaml");
    let container = rendered.container("agent");
    let within = container.command.into_iter();
    let within = within.take_while(|word| word != "drumlin");
    // Paths are the test's, and nobody waits for others.
    let others = ["--config=", "--kubernetes", "--start-jitter="];
    let arguments = container.arguments.into_iter();
    let arguments = arguments.filter(|one| !others.iter().any(|other| one.starts_with(other)));
    Options {
        config: Some(std::fs::read_to_string(config).unwrap()),
        node: Some(node.to_owned()),
        arguments: arguments.chain(cluster.arguments()).collect(),
        within: within.collect(),
        ..Options::default()
    }
}

/// What kubelet writes of a node, and of the driver that has introduced itself; and the pod of the agent, which is ready.
fn register(cluster: &Cluster, rendered: &Rendered, node: &str) {
    let objects = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {node}, labels: {{topology.drumlin.dev/node: {node}}}}}\n---\napiVersion: storage.k8s.io/v1\nkind: CSINode\nmetadata: {{name: {node}}}\nspec: {{drivers: [{{name: csi.drumlin.dev, nodeID: {node}, topologyKeys: [topology.drumlin.dev/node]}}]}}\n"
    );
    let made = cluster.try_with_input(&["create", "-f", "-"], &objects);
    assert!(made.status.success(), "{made:?}");
    let name = format!("drumlin-agent-of-{node}");
    let mut pod = pod_of(rendered, "drumlin-agent", &name);
    pod["spec"]["nodeName"] = node.into();
    create(cluster, &pod);
    agent_is_ready(cluster, node, true);
    // The agent's programs are those of the host here.
    assert!(output("setpriv", &["--version"]).status.success());
}

/// What kubelet says of the pod of a node's agent.
pub(crate) fn agent_is_ready(cluster: &Cluster, node: &str, is_ready: bool) {
    let status = if is_ready { "True" } else { "False" };
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    let (name, status) = (format!("drumlin-agent-of-{node}"), status.to_string());
    let patch = ["-n", SYSTEM, "patch", "pod", &name, "--subresource=status"];
    cluster.kubectl(&[&patch[..], &["--type=merge", "-p", &status]].concat());
}

/// A pod of the controller, with what owns it; says how it is called.
fn pod_of_the_controller(cluster: &Cluster, rendered: &Rendered) -> String {
    let owned = |pod: &mut Value, kind: &str, owner: &str| {
        let found = [
            "-n",
            SYSTEM,
            "get",
            kind,
            owner,
            "-o",
            "jsonpath={.metadata.uid}",
        ];
        let uid = cluster.kubectl(&found);
        pod["metadata"]["ownerReferences"] = json!([
            {"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": uid, "controller": true}
        ]);
    };
    let name = "drumlin-controller-1";
    let template = pod_of(rendered, "drumlin-controller", name);
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": SYSTEM},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": template["metadata"]["labels"]},
            "template": {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]},
        },
    });
    owned(&mut set, "Deployment", "drumlin-controller");
    create(cluster, &set);
    let mut pod = template;
    owned(&mut pod, "ReplicaSet", name);
    create(cluster, &pod);
    name.to_owned()
}

/// A pod of a workload.
pub(crate) fn pod_of(rendered: &Rendered, workload: &str, name: &str) -> Value {
    let mut workloads = rendered.workloads();
    let found = workloads.find(|(found, _)| found["metadata"]["name"] == workload);
    let mut pod = found.unwrap().1.clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["namespace"] = SYSTEM.into();
    pod["metadata"]["name"] = name.into();
    pod
}

fn create(cluster: &Cluster, object: &Value) {
    let made = cluster.try_with_input(&["create", "-f", "-"], &object.to_string());
    assert!(made.status.success(), "{made:?}");
}
