//! What the tests share: the cluster of the lab with the driver in it, its nodes, and pods that write.

use std::{
    ops::Deref,
    path::Path,
    process::Output,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use drumlin_tests::{
    cluster::{Cluster, Namespace},
    programs::{self, printed, within, workspace},
};
use serde_json::Value;

/// How long pods may take on a machine that others use too.
const PATIENCE: Duration = Duration::from_secs(90);

/// The cluster that `tests/lab/cluster/run` started this test in.
#[derive(Debug)]
pub(crate) struct Lab {
    /// Its API server.
    pub(crate) cluster: Cluster,
    /// The names of its nodes.
    pub(crate) nodes: Vec<String>,
}

/// Waits until something holds.
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    programs::until(what, PATIENCE, holds);
}

/// The directory of manifests of that name.
pub(crate) fn manifests(name: &str) -> String {
    let path = workspace().join("manifests").join(name);
    path.to_string_lossy().into_owned()
}

impl Lab {
    /// As it was started, with whatever is installed in it.
    pub(crate) fn started() -> Self {
        let told = |name: &str| {
            let value = std::env::var(name);
            value.expect("tests/lab/cluster/run is the runner of this test")
        };
        // Whoever runs this beside another API server by mistake shall know.
        told("CLUSTER");
        Self {
            cluster: Cluster::known_by(told("KUBECONFIG").as_ref()),
            nodes: told("NODES").split(' ').map(str::to_owned).collect(),
        }
    }

    /// With `manifests/base` installed, by the first test that asks.
    pub(crate) fn installed() -> &'static Self {
        static LAB: OnceLock<Lab> = OnceLock::new();
        LAB.get_or_init(|| {
            let lab = Self::started();
            lab.install("base");
            lab
        })
    }

    /// Installs manifests as the documents say, and waits until all that they start is ready.
    pub(crate) fn install(&self, name: &str) {
        self.install_from(manifests(name).as_ref());
    }

    /// The same from any directory.
    pub(crate) fn install_from(&self, directory: &Path) {
        let path = directory.to_string_lossy();
        self.cluster
            .kubectl(&["apply", "--server-side", "-k", &path]);
        self.until_rolled_out();
    }

    /// Waits until everything of ours runs in its newest version, and kubelet knows the driver on every node.
    pub(crate) fn until_rolled_out(&self) {
        let own = ["-n", "drumlin-system"];
        let ask = |words: &[&str]| self.cluster.kubectl(&[&own, words].concat());
        for workload in ask(&["get", "daemonset,deployment", "-o", "name"]).lines() {
            ask(&["rollout", "status", workload, "--timeout=180s"]);
        }
        for node in &self.nodes {
            until("kubelet knows the driver", || self.is_registered(node));
        }
    }

    /// Whether kubelet of the node knows the driver.
    pub(crate) fn is_registered(&self, node: &str) -> bool {
        let drivers = "jsonpath={.spec.drivers[*].name}";
        let words = ["get", "csinode", node, "--ignore-not-found", "-o", drivers];
        self.cluster.kubectl(&words).contains("csi.drumlin.dev")
    }

    /// A namespace of the test's own, which a failed test leaves to no other.
    pub(crate) fn namespace(&self) -> Own<'_> {
        Own {
            lab: self,
            namespace: self.cluster.namespace(),
        }
    }

    /// Waits until kubelet of a node answers, has heard from the API server which pods it has, and is ready.
    pub(crate) fn until_kubelet_answers(&self, node: &str) {
        let pods = format!("/api/v1/nodes/{node}/proxy/pods");
        let is_ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        until("kubelet answers", || {
            let answer = self.cluster.try_kubectl(&["get", "--raw", &pods]);
            let knows = String::from_utf8_lossy(&answer.stdout).contains("drumlin-agent");
            let ready = self.cluster.kubectl(&["get", "node", node, "-o", is_ready]);
            knows && ready == "True"
        });
    }

    /// `tests/lab/cluster/node`, which must succeed, and what it printed.
    pub(crate) fn node(&self, name: &str, words: &[&str]) -> String {
        printed(&self.try_node(name, words), words)
    }

    /// The same, which may fail.
    fn try_node(&self, name: &str, words: &[&str]) -> Output {
        assert!(self.nodes.iter().any(|own| own == name), "{name}");
        let mut command = within(300, workspace().join("tests/lab/cluster/node"));
        let output = command.arg(name).args(words).output();
        output.expect("it can be started")
    }

    /// Cuts off a node's power.
    pub(crate) fn without_power<'a>(&'a self, node: &'a str) -> WithoutPower<'a> {
        let without = WithoutPower { lab: self, node };
        self.node(node, &["stop"]);
        without
    }

    /// The pod of the agent on a node.
    pub(crate) fn agent_of(&self, node: &str) -> String {
        let on = format!("spec.nodeName={node}");
        let labels = "app.kubernetes.io/component=agent";
        let words = ["-n", "drumlin-system", "get", "pod", "-l", labels];
        let output = ["--field-selector", &on, "-o", "name"];
        let listed = self.cluster.kubectl(&[&words[..], &output].concat());
        let mut pods = listed.lines();
        let pod = pods.next().expect("there is an agent").to_owned();
        assert_eq!(pods.next(), None, "{listed}");
        pod
    }

    /// The volumes of a namespace's claims.
    pub(crate) fn volumes(&self, namespace: &Namespace<'_>) -> Vec<Volume> {
        let listed = self.cluster.kubectl(&["get", "pv", "-o", "json"]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let own = |volume: &&Value| volume["spec"]["claimRef"]["namespace"] == *namespace.name;
        let volumes = listed["items"].as_array().unwrap().iter().filter(own);
        volumes.map(Volume::of).collect()
    }

    /// Whether the image of a volume is on its node's disk.
    pub(crate) fn has(&self, volume: &Volume) -> bool {
        let image = format!("/var/lib/drumlin/images/volumes/{}/image", volume.key);
        let look = [
            "exec",
            "sh",
            "-c",
            "if [ -e $0 ]; then echo yes; fi",
            &image,
        ];
        !self.node(&volume.node, &look).is_empty()
    }

    /// Deletes objects of a namespace, and waits until nothing is left of the volumes of its claims: neither in the
    /// cluster nor on the disks.
    pub(crate) fn delete(&self, namespace: &Namespace<'_>, objects: &[&str]) {
        let volumes = self.volumes(namespace);
        assert!(!volumes.is_empty(), "there is something to delete");
        for volume in &volumes {
            assert!(self.has(volume), "{volume:?}");
        }
        namespace.kubectl(&[&["delete"], objects].concat());
        until("the PersistentVolumes are deleted", || {
            self.volumes(namespace).is_empty()
        });
        for volume in &volumes {
            until("the image is deleted", || !self.has(volume));
        }
    }
}

/// A namespace that is deleted with all that is in it.
#[derive(Debug)]
pub(crate) struct Own<'a> {
    lab: &'a Lab,
    namespace: Namespace<'a>,
}

impl<'a> Deref for Own<'a> {
    type Target = Namespace<'a>;

    fn deref(&self) -> &Namespace<'a> {
        &self.namespace
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        let words = ["delete", "namespace", "--wait=false", &self.namespace.name];
        self.lab.cluster.try_kubectl(&words);
        // What a failed test cordoned.
        self.lab
            .cluster
            .try_kubectl(&["uncordon", "-l", "kubernetes.io/os"]);
    }
}

/// A node without power, which has it again when this is dropped: a test that fails leaves the others their node.
#[derive(Debug)]
pub(crate) struct WithoutPower<'a> {
    lab: &'a Lab,
    node: &'a str,
}

impl Drop for WithoutPower<'_> {
    #[expect(
        clippy::print_stderr,
        reason = "a panic while another one unwinds would end the whole run"
    )]
    fn drop(&mut self) {
        let started = self.lab.try_node(self.node, &["start"]);
        if !started.status.success() {
            let complaint = String::from_utf8_lossy(&started.stderr);
            eprintln!("{} does not start: {complaint}", self.node);
            return;
        }
        let begun = Instant::now();
        while thread::panicking()
            && begun.elapsed() < PATIENCE
            && !self.lab.is_registered(self.node)
        {
            thread::sleep(Duration::from_millis(300));
        }
    }
}

/// A volume of a claim.
#[derive(Debug)]
pub(crate) struct Volume {
    /// The name of its PersistentVolume.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) node: String,
    key: String,
    /// Where its pods may run.
    pub(crate) affinity: String,
}

impl Volume {
    fn of(volume: &Value) -> Self {
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap();
        let parts: Vec<_> = handle.split('/').collect();
        let [node, _class, key] = parts[..] else {
            panic!("{handle}");
        };
        Self {
            name: volume["metadata"]["name"].as_str().unwrap().to_owned(),
            node: node.to_owned(),
            key: key.to_owned(),
            affinity: volume["spec"]["nodeAffinity"].to_string(),
        }
    }
}

/// A claim of the class `drumlin`.
pub(crate) fn claim(name: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  storageClassName: drumlin
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: 64Mi}}}}
---
"
    )
}

/// A pod that counts upwards in a file on a claim of its name, and says each number when it is on the disk.
pub(crate) fn writer(name: &str, node: &str) -> String {
    let pod = pod_on(name, node);
    format!(
        "{}{pod}
    command:
    - sh
    - -c
    - |
      number=$(tail -n 1 /data/numbers 2>/dev/null || echo 0)
      while number=$((number + 1)) && echo $number >> /data/numbers && sync /data/numbers; do
        echo $number
        usleep 20000
      done
",
        claim(name)
    )
}

/// A pod of that node with a claim of its name, up to its command.
pub(crate) fn pod_on(name: &str, node: &str) -> String {
    let selector = if node.is_empty() {
        String::new()
    } else {
        format!("nodeSelector: {{kubernetes.io/hostname: {node}}}")
    };
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  {selector}
  volumes:
  - {{name: data, persistentVolumeClaim: {{claimName: {name}}}}}
  containers:
  - name: main
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-1
    volumeMounts: [{{name: data, mountPath: /data}}]"
    )
}

/// Waits until a pod is ready.
pub(crate) fn until_running(namespace: &Namespace<'_>, pod: &str) {
    let timeout = format!("--timeout={}s", PATIENCE.as_secs());
    let pod = format!("pod/{pod}");
    namespace.kubectl(&["wait", "--for=condition=Ready", &pod, &timeout]);
}

/// A pod that writes, as it was at one moment.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    namespace: &'a Namespace<'a>,
    name: String,
    container: String,
    mount: String,
}

impl<'a> Writer<'a> {
    /// Starts one on a node, and waits until it writes.
    pub(crate) fn start(namespace: &'a Namespace<'a>, name: &str, node: &str) -> Self {
        Self::start_with(namespace, name, &writer(name, node))
    }

    /// Starts the one of these manifests, and waits until it writes.
    pub(crate) fn start_with(namespace: &'a Namespace<'a>, name: &str, manifests: &str) -> Self {
        namespace.apply(manifests);
        until_running(namespace, name);
        let mut writer = Self {
            namespace,
            name: name.to_owned(),
            container: String::new(),
            mount: String::new(),
        };
        writer.container = writer.container();
        writer.mount = writer.mount();
        writer.goes_on();
        writer
    }

    fn container(&self) -> String {
        let id = "jsonpath={.status.containerStatuses[0].containerID}";
        self.namespace
            .kubectl(&["get", "pod", &self.name, "-o", id])
    }

    /// What is mounted there, with the id that the kernel gave this mount; without its options, of which ext4 tells others
    /// when it has grown.
    fn mount(&self) -> String {
        let line = self.shell("grep ' /data ' /proc/self/mountinfo | cut -d ' ' -f 1-5");
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }

    /// A command in the pod, which must succeed, and what it printed.
    pub(crate) fn shell(&self, command: &str) -> String {
        let words = ["exec", &self.name, "--", "sh", "-c", command];
        self.namespace.kubectl(&words)
    }

    /// The last number of the file. All before it are there once, in their order.
    pub(crate) fn count(&self) -> u64 {
        let counted =
            self.shell("awk '$1 != NR { exit 1 } END { print NR }' /data/numbers || exit 1");
        counted.trim().parse().unwrap()
    }

    /// The last number that the pod said is on the disk; kubelet knows.
    pub(crate) fn said(&self) -> u64 {
        let line = self.namespace.kubectl(&["logs", "--tail=1", &self.name]);
        line.trim().parse().unwrap_or(0)
    }

    /// Waits until it has written once more.
    pub(crate) fn goes_on(&self) {
        let before = self.said();
        until("the pod writes", || self.said() > before);
    }

    /// It writes on, in the same container on the same mount, and has lost nothing.
    pub(crate) fn is_undisturbed(&self) {
        self.goes_on();
        assert_eq!(self.container(), self.container);
        assert_eq!(self.mount(), self.mount);
        let said = self.said();
        assert!(self.count() >= said);
    }

    /// Its node loses its power and comes back, and it writes on: all that it said is on the disk is there.
    pub(crate) fn outlives_a_power_cut(&self, lab: &Lab, node: &str) {
        self.goes_on();
        let said = self.said();
        lab.node(node, &["reboot"]);
        lab.until_kubelet_answers(node);
        until("the pod is started again", || {
            let restarts = "jsonpath={.status.containerStatuses[0].restartCount}";
            let words = ["get", "pod", &self.name, "-o", restarts];
            let count = self.namespace.kubectl(&words);
            count.parse::<u32>().is_ok_and(|count| count > 0)
        });
        lab.until_rolled_out();
        until_running(self.namespace, &self.name);
        self.goes_on();
        let counted = self.count();
        assert!(counted > said, "{counted} of {said}");
    }
}
