//! Lives of claims and of objects of ours while the agent, the API server and etcd are killed at random.

use std::{
    path::PathBuf,
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use drumlin_tests::{
    cluster::{Cluster, is_ready},
    programs::{output, run},
};
use serde_json::Value;

use crate::{
    end_to_end::{claim, from_snapshot, snapshot_of},
    kit::{get, put},
    node::{Node, manifest, volume},
    stack::{Kubelet, NODE, Stack},
};

/// So long a step of a life may take, with all that is killed meanwhile.
const PATIENCE: Duration = Duration::from_mins(5);
/// So many lives there are at a time.
const BESIDE: usize = 6;

/// How many there are: `DRUMLIN_LIVES`.
fn lives() -> usize {
    let wanted = std::env::var("DRUMLIN_LIVES");
    wanted.map_or(12, |wanted| wanted.parse().unwrap())
}

/// A number below `end` that nobody knows before.
fn below(end: u64) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let state = std::collections::hash_map::RandomState::new();
    state.build_hasher().finish() % end
}

/// Asks until it is answered.
fn until_done(what: &str, ask: impl Fn() -> Output) -> String {
    let begun = Instant::now();
    loop {
        let output = ask();
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: {output:?}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// What a life asks a server that may be away.
struct Asking<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
}

impl Asking<'_> {
    fn apply(&self, text: &str) {
        let words = ["-n", self.namespace, "apply", "-f", "-"];
        until_done("apply", || self.cluster.try_with_input(&words, text));
    }

    fn find(&self, object: &str) -> Value {
        let words = [
            "-n",
            self.namespace,
            "get",
            object,
            "-o",
            "json",
            "--ignore-not-found",
        ];
        let text = until_done(object, || self.cluster.try_kubectl(&words));
        serde_json::from_str(&text).unwrap_or_default()
    }

    fn until(&self, object: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let now = self.find(object);
            if holds(&now) {
                return now;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{object} never came to be so: {now:#}"
            );
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// The volume of a claim, once it is bound.
    fn volume_of(&self, claim: &str) -> Value {
        let is_bound = |now: &Value| now["status"]["phase"] == "Bound";
        let claim = self.until(&format!("pvc/{claim}"), is_bound);
        self.find(&format!(
            "pv/{}",
            claim["spec"]["volumeName"].as_str().unwrap()
        ))
    }
}

/// A claim with something in it, a snapshot and a copy of that, a volume and the claim as a group, a moment of it, and a
/// restore; and all of it taken down.
async fn live(asking: &Asking<'_>, kubelet: &Kubelet, number: usize) {
    let name = |of: &str| format!("{of}-{number}");
    asking.apply(&claim(&name("data"), "320Mi", ""));
    let data = asking.volume_of(&name("data"));
    let at = kubelet.mount(&data).await;
    put(&at, "file", name("precious").as_bytes());
    kubelet.unmount(&data).await;
    let members = format!(
        "members: [{{kind: PersistentVolumeClaim, name: {}}}, {{kind: Volume, name: {}}}]",
        name("data"),
        name("raw")
    );
    asking.apply(
        &[
            snapshot_of(&name("data"), &name("moment")),
            claim(&name("copy"), "320Mi", &from_snapshot(&name("moment"))),
            volume(
                &name("raw"),
                &format!("nodeName: {NODE}\n  capacity: 8Mi\n  volumeMode: Block\n  deletionPolicy: Delete"),
            ),
            manifest("VolumeGroup", &name("both"), &members),
            manifest("GroupSnapshot", &name("night"), &format!("groupName: {}", name("both"))),
            volume(
                &name("again"),
                &format!(
                    "capacity: 8Mi\n  volumeMode: Block\n  deletionPolicy: Delete\n  source: {{groupSnapshot: {{name: {}, member: {}}}}}",
                    name("night"),
                    name("raw")
                ),
            ),
        ]
        .concat(),
    );
    let copy = asking.volume_of(&name("copy"));
    let at = kubelet.mount(&copy).await;
    assert_eq!(get(&at, "file"), name("precious").as_bytes());
    kubelet.unmount(&copy).await;
    let ours = ["dv/raw", "dvg/both", "dgsnap/night", "dv/again"].map(name);
    for object in &ours {
        asking.until(object, is_ready);
    }
    let theirs = ["volumesnapshot/moment", "pvc/copy", "pvc/data"].map(name);
    for object in ours.iter().chain(&theirs) {
        let words = [
            "-n",
            asking.namespace,
            "delete",
            object,
            "--wait=false",
            "--ignore-not-found",
        ];
        until_done(object, || asking.cluster.try_kubectl(&words));
    }
    for object in ours.iter().chain(&theirs) {
        asking.until(object, Value::is_null);
    }
}

/// What of the server is killed, and started again.
fn kill_of_the_server(cluster: &Cluster, program: &str) {
    let directory = cluster.kubeconfig().parent().unwrap();
    let file = |end: &str| {
        directory
            .join(format!("{program}.{end}"))
            .to_string_lossy()
            .into_owned()
    };
    let pid = std::fs::read_to_string(file("pid")).unwrap();
    output("kill", &["-9", pid.trim()]);
    // Its port is free when it is gone.
    let gone = PathBuf::from(format!("/proc/{}", pid.trim()));
    let begun = Instant::now();
    while gone.exists() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    run("bash", &[&file("command")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
#[expect(clippy::print_stdout, reason = "a figure")]
async fn nothing_is_lost_or_left_whatever_is_killed() {
    let mut stack = Stack::start().await;
    let space = stack.cluster.namespace();
    let (namespace, kubelet) = (space.name.clone(), stack.kubelet());
    let cluster = Arc::new(Cluster::known_by(stack.cluster.kubeconfig()));
    let (next, are_over) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let living: Vec<_> = (0..BESIDE)
        .map(|_| {
            let (cluster, namespace) = (Arc::clone(&cluster), namespace.clone());
            let (next, kubelet) = (Arc::clone(&next), kubelet.clone());
            let runtime = tokio::runtime::Handle::current();
            // Programs are waited for here.
            tokio::task::spawn_blocking(move || {
                let asking = Asking {
                    cluster: &cluster,
                    namespace: &namespace,
                };
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= lives() {
                        return;
                    }
                    runtime.block_on(live(&asking, &kubelet, number));
                }
            })
        })
        .collect();
    let over = Arc::clone(&are_over);
    let ended = tokio::spawn(async move {
        let ended = futures::future::join_all(living).await;
        over.store(true, Ordering::Relaxed);
        ended
    });
    let mut kills = [0_usize; 3];
    while !are_over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(1000 + below(3000))).await;
        // What kubelet does: sidecars end when the agent's socket is gone for long.
        for daemon in stack.daemons.values_mut() {
            if !daemon.is_running() {
                daemon.restart();
            }
        }
        // The agent most often: a server takes seconds to come back.
        let victim = match kills.iter().sum::<usize>() % 12 {
            2 => 1,
            8 => 2,
            _ => 0,
        };
        match victim {
            2 => kill_of_the_server(&stack.cluster, "etcd"),
            1 => kill_of_the_server(&stack.cluster, "kube-apiserver"),
            _ => {
                stack.agent.kill();
                stack.agent.restart().await;
            }
        }
        kills[victim] += 1;
    }
    let failed = ended
        .await
        .unwrap()
        .into_iter()
        .filter_map(Result::err)
        .count();
    assert_eq!(failed, 0, "{}", stack.logs());
    println!(
        "{} lives; killed: agent {}, API server {}, etcd {}",
        lives(),
        kills[0],
        kills[1],
        kills[2]
    );
    assert!(kills[0] > 0 && kills[1] > 0, "{kills:?}");

    let rest = || {
        let kinds = "pv,pvc,volumesnapshots,volumesnapshotcontents,dv,dvg,dsnap,dgsnap";
        let words = ["get", kinds, "-A", "-o", "name"];
        until_done("what is left", || stack.cluster.try_kubectl(&words))
    };
    stack.eventually(rest, String::is_empty);
    let node = Node {
        agent: stack.agent,
        name: NODE.to_owned(),
    };
    assert_eq!(node.holds().await, (0, 0));
    let listed = node.agent.status().0;
    assert!(!listed.contains("Orphan"), "{listed}");
    let groups = drumlin_proto::volumegroup::ListVolumeGroupsRequest::default();
    let groups = node
        .agent
        .groups()
        .list_volume_groups(groups)
        .await
        .unwrap();
    assert!(groups.into_inner().entries.is_empty());
}
