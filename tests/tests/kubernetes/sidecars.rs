//! A node with the stock sidecars, started as the manifests say, each with the rights that they give it.

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
use serde_json::Value;
use tonic::{Code, Response, Status, transport::Channel};

use crate::{
    installed::{define_snapshots, sidecars},
    kustomize::Rendered,
};

/// The name of the node.
pub(crate) const NODE: &str = "node-a";

/// All that a cluster of one node has of ours, and what of Kubernetes it takes to use it.
pub(crate) struct Stack {
    pub(crate) agent: Agent,
    /// By the names of their containers, and those of Kubernetes itself.
    pub(crate) daemons: BTreeMap<String, Daemon>,
    pub(crate) cluster: Cluster,
    scratch: Scratch,
}

impl Stack {
    pub(crate) async fn start() -> Self {
        let (cluster, scratch) = (Cluster::own(), Scratch::new());
        define_snapshots(&cluster);
        let rendered = Rendered::of(&cluster, "base", &["upstream-snapshots"]);
        rendered.apply(&cluster);
        register(&cluster, &rendered);

        let of_node = cluster.as_account(&scratch, "drumlin-agent", Some(NODE));
        // Mounted volumes have one moment where their images can share blocks.
        let disk = Scratch::new();
        disk.file_system("state", Kind::Xfs, 4 << 10);
        let agent = Agent::with(disk, options(&of_node, &rendered)).await;
        let mut stack = Self {
            agent,
            daemons: BTreeMap::new(),
            cluster,
            scratch,
        };
        stack.start_of_kubernetes();
        let account = "drumlin-provisioner";
        let socket = stack.agent.socket();
        let environment = [
            ("NODE_NAME", NODE),
            ("NAMESPACE", "drumlin-system"),
            ("POD_NAME", "drumlin-provisioner-of-node-a"),
        ];
        for name in ["provisioner", "snapshotter"] {
            // Their pod is on the node.
            let own = stack
                .cluster
                .as_account(&stack.scratch, account, Some(NODE));
            stack.start_sidecar(&rendered, name, (&own, &socket), &environment);
        }
        let info = stack.scratch.path().join("info.sock");
        let container = rendered.container("driver-info");
        let told = format!("--endpoint=unix://{}", info.display());
        let arguments = ["driver-info".to_owned(), told];
        stack.run(&container.name, drumlin(), &arguments, &[]);
        eventually(|| info.exists(), |there| *there).await;
        let own = stack
            .cluster
            .as_account(&stack.scratch, "drumlin-resizer", None);
        // In a pod it reads that from a file.
        let environment = [("POD_NAMESPACE", "drumlin-system")];
        stack.start_sidecar(&rendered, "resizer", (&own, &info), &environment);
        let controller = stack
            .cluster
            .as_account(&stack.scratch, "drumlin-controller", None);
        let container = rendered.container("controller");
        let mut arguments = vec!["controller".to_owned()];
        arguments.extend(container.arguments.clone());
        arguments.extend(controller.arguments());
        let environment = [("DRUMLIN_IDENTITY", "one")];
        stack.run("controller", drumlin(), &arguments, &environment);
        stack
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
            "--enable-distributed-snapshotting".to_owned(),
            "--feature-gates=CSIVolumeGroupSnapshot=false".to_owned(),
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
        for (name, log) in daemons.chain([("agent", self.agent.log())]) {
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
            std::thread::sleep(Duration::from_millis(100));
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
fn options(cluster: &Cluster, rendered: &Rendered) -> Options {
    let config = workspace().join("manifests/base/agent-config.yaml");
    let command = rendered.container("agent").command;
    let within = command.into_iter().take_while(|word| word != "drumlin");
    Options {
        config: Some(std::fs::read_to_string(config).unwrap()),
        node: Some(NODE.to_owned()),
        arguments: cluster.arguments(),
        within: within.collect(),
        ..Options::default()
    }
}

/// What kubelet writes of its node, and of the driver that has introduced itself; and the pod that makes volumes.
fn register(cluster: &Cluster, rendered: &Rendered) {
    let mut workloads = rendered.workloads();
    let provisioner =
        workloads.find(|(workload, _)| workload["metadata"]["name"] == "drumlin-provisioner");
    let mut pod = provisioner.unwrap().1.clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["namespace"] = "drumlin-system".into();
    pod["metadata"]["name"] = "drumlin-provisioner-of-node-a".into();
    pod["spec"]["nodeName"] = NODE.into();
    let node = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {NODE}, labels: {{topology.drumlin.dev/node: {NODE}}}}}\n---\napiVersion: storage.k8s.io/v1\nkind: CSINode\nmetadata: {{name: {NODE}}}\nspec: {{drivers: [{{name: csi.drumlin.dev, nodeID: {NODE}, topologyKeys: [topology.drumlin.dev/node]}}]}}\n---\n{pod}\n"
    );
    let made = cluster.try_with_input(&["create", "-f", "-"], &node);
    assert!(made.status.success(), "{made:?}");
    // The agent's programs are those of the host here.
    assert!(output("setpriv", &["--version"]).status.success());
}
