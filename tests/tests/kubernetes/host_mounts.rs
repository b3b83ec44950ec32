//! Objects that are mounted on the host: with nothing that its administrator has not allowed.

use std::path::Path;

use drumlin_tests::{
    agent::{Options, eventually},
    cluster::{Cluster, condition},
    programs::run,
    storage::mounts_below,
};
use nix::sys::signal::Signal;

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

/// A link takes the place of a directory, or the directory its own again.
fn swap(directory: &Path, link: &Path) {
    let aside = directory.with_extension("aside");
    if aside.exists() {
        std::fs::remove_file(directory).unwrap();
        std::fs::rename(aside, directory).unwrap();
    } else {
        std::fs::rename(directory, aside).unwrap();
        std::os::unix::fs::symlink(link, directory).unwrap();
    }
}

fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().starts_with('T')
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_a_tenant_swaps_in_leads_no_mount_out_of_the_root() {
    let cluster = Cluster::of_the_lab();
    let mut node = Node::start(&cluster).await;
    let space = cluster.namespace();
    let root = node.agent.scratch.directory("srv");
    let outside = node.agent.scratch.directory("outside");
    let (team, kept) = (root.join("team"), outside.join("data"));
    std::fs::create_dir_all(&team).unwrap();
    std::fs::create_dir_all(&kept).unwrap();
    let is_untouched = || kept.is_dir() && mounts_below(&outside.to_string_lossy()).is_empty();
    let stopping = allowed(&root, &[]).stopped_at("volume.stage.called");
    node.restart_with(&cluster, stopping).await;
    let target = team.join("data");
    let mount = format!(
        "deletionPolicy: Delete\n  mount: {{path: {}}}",
        target.display()
    );
    space.apply(&node.volume("data", "32Mi", &mount));
    // The reconciler has looked at the path by then.
    let pid = node.agent.pid();
    eventually(|| is_stopped(pid), |stopped| *stopped).await;
    swap(&team, &outside);
    node.agent.signal(Signal::SIGCONT);
    let names_link = |now: &serde_json::Value| {
        let ready = condition(now, "Ready").map(|ready| ready["message"].to_string());
        let link = format!("link {},", team.display());
        ready.is_some_and(|told| told.contains("spec.mount.path: ") && told.contains(&link))
    };
    let denied = space.until_reason("dv/data", "HostMountDenied");
    assert!(condition(&denied, "Stalled").is_some());
    assert!(names_link(&denied), "{denied:#}");
    assert!(is_untouched());
    // One that is there before is refused without asking the agent, in the same words.
    space.apply(&node.volume("late", "32Mi", &mount.replace("team/data", "team/late")));
    assert!(names_link(
        &space.until_reason("dv/late", "HostMountDenied")
    ));
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);

    swap(&team, &outside);
    let annotate = |value: &str| {
        let value = format!("drumlin.dev/reconcile-at={value}");
        let words = ["-n", &space.name, "annotate", "--overwrite", "dv/data"];
        cluster.try_kubectl(&[&words[..], &[&value]].concat())
    };
    assert!(annotate("1").status.success());
    space.until_ready("dv/data");
    assert!(target.join("lost+found").exists());
    // Nothing is looked for behind the link when it grows.
    swap(&team, &outside);
    let wider = r#"{"spec": {"capacity": "64Mi"}}"#;
    space.kubectl(&["patch", "dv/data", "--type=merge", "-p", wider]);
    space.until("dv/data", |now| now["status"]["capacity"] == "64Mi");
    // What is elsewhere by now is not left behind without a word.
    space.kubectl(&["delete", "dv/data", "--wait=false"]);
    space.until_reason("dv/data", "MountPending");
    assert!(is_untouched());
    swap(&team, &outside);
    // It may have tried again by itself meanwhile, and be gone.
    annotate("2");
    space.until_gone("dv/data");
    assert!(is_untouched());
    assert!(!target.exists() && team.exists());
}
