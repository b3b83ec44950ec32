//! Objects that are mounted on the host: with nothing that its administrator has not allowed.

use std::path::Path;

use drumlin_tests::{
    agent::{Options, eventually},
    cluster::Cluster,
    programs::run,
};

use crate::node::Node;

/// An agent that mounts objects below `root`.
fn allowed(root: &Path, more: &[&str]) -> Options {
    let roots = format!("--mount-roots={}", root.display());
    let arguments = ["--allow-host-mounts", roots.as_str()];
    Options {
        arguments: arguments
            .iter()
            .chain(more)
            .map(|&argument| argument.to_owned())
            .collect(),
        ..Options::default()
    }
}

/// The options of the mount at a path.
fn options_at(path: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let fields = table.lines().map(|line| line.split(' ').skip(4));
    let mut mounts = fields.filter_map(|mut fields| Some((fields.next()?, fields.next()?)));
    let mount = mounts.find(|(target, _)| Path::new(target) == path)?;
    Some(format!(",{},", mount.1))
}

/// Whether what is mounted at a path is without programs that run as others, and without devices.
fn refuses(path: &Path) -> Option<(bool, bool)> {
    let options = options_at(path)?;
    Some((options.contains(",nosuid,"), options.contains(",nodev,")))
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_setuid_nor_devices_come_with_a_host_mount_unless_they_are_allowed() {
    let cluster = Cluster::of_the_lab();
    let mut node = Node::start(&cluster).await;
    let space = cluster.namespace();
    let root = node.agent.scratch.directory("srv");
    node.restart_with(&cluster, allowed(&root, &[])).await;
    let target = root.join("data");
    let mount = format!(
        "deletionPolicy: Delete\n  mount: {{path: {}, options: [suid, dev, noatime]}}",
        target.display()
    );
    space.apply(&node.volume("data", "32Mi", &mount));
    space.until_ready("dv/data");
    assert_eq!(refuses(&target), Some((true, true)));
    assert!(options_at(&target).unwrap().contains(",noatime,"));
    let with = |more: &[&str]| allowed(&root, more);
    for (more, wanted) in [
        (["--mount-allow=suid"].as_slice(), (false, true)),
        (&["--mount-allow=suid,dev"], (false, false)),
        (&[], (true, true)),
    ] {
        node.restart_with(&cluster, with(more)).await;
        eventually(|| refuses(&target), |seen| *seen == Some(wanted)).await;
        space.until_ready("dv/data");
    }
    // One of an agent that knew nothing of this.
    node.restart_with(&cluster, with(&["--mount-allow=suid,dev"]))
        .await;
    eventually(|| refuses(&target), |seen| *seen == Some((false, false))).await;
    space.until_ready("dv/data");
    node.agent.kill();
    let records = node.agent.path("state/reconciler");
    run(
        "find",
        &[
            &records.to_string_lossy(),
            "-name",
            "*.json",
            "-exec",
            "sed",
            "-i",
            "s/\"confined\"/\"unknown\"/",
            "{}",
            "+",
        ],
    );
    node.restart_with(&cluster, with(&[])).await;
    eventually(|| refuses(&target), |seen| *seen == Some((true, true))).await;
    space.until_ready("dv/data");
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    assert!(!target.exists());
    assert_eq!(node.holds().await, (0, 0));
}
