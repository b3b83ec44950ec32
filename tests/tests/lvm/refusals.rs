//! What would do harm is refused with a reason, and served as soon as that is gone.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, thread, time::Duration};

use drumlin_proto::csi::v1::{
    ListVolumesRequest, ProbeRequest, controller_client::ControllerClient,
};
use drumlin_tests::{
    agent::{Agent, Options, Volumes},
    does_not_apply,
    programs::run,
    requests::{create, create_group, delete, delete_group, delete_snapshot, raw, snapshot},
    storage::{Scratch, lvm},
};
use tonic::{Code, transport::Channel};

use crate::{
    concurrent_tools::node_of,
    helpers::{ok, refused, volume},
    udev::has_udevd,
};

async fn start() -> (Agent, String) {
    let scratch = Scratch::new();
    let options = Options {
        config: Some(Volumes::Thin.classes(&scratch)),
        arguments: vec!["--log-level=debug".to_owned()],
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let group = agent.scratch.group().unwrap();
    (agent, group)
}

/// No call is served, and each says this.
async fn refuses(agent: &Agent, why: &str) {
    let (mut controller, mut identity) = (agent.controller(), agent.identity());
    let answers = [
        refused(
            identity.probe(ProbeRequest {}).await,
            Code::FailedPrecondition,
        ),
        refused(
            controller.create_volume(create("v", 4, &raw())).await,
            Code::FailedPrecondition,
        ),
        refused(
            controller.list_volumes(ListVolumesRequest::default()).await,
            Code::FailedPrecondition,
        ),
    ];
    for answer in answers {
        assert!(answer.contains(why), "{answer}");
    }
}

async fn serves(agent: &Agent) {
    ok(agent.identity().probe(ProbeRequest {}).await);
    let id = volume(agent, "v", 4, &raw()).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
}

/// Writes the group's record anew, with this before its flags.
fn rewrite(agent: &Agent, group: &str, line: &str) {
    let path = agent.path("record");
    let path = path.to_str().unwrap();
    lvm("vgchange", &["-an", group]);
    lvm("vgcfgbackup", &["-f", path, group]);
    let record = fs::read_to_string(path).unwrap();
    let record = record.replacen("\tflags = [", &format!("\t{line}\n\tflags = ["), 1);
    fs::write(path, record).unwrap();
    lvm("vgcfgrestore", &["-y", "--force", "-f", path, group]);
}

#[tokio::test]
async fn a_group_that_is_shared_with_other_hosts_is_refused() {
    let (mut agent, group) = start().await;
    serves(&agent).await;
    rewrite(
        &agent,
        &group,
        "lock_type = \"dlm\"\n\tlock_args = \"1.0.0:cluster\"",
    );
    refuses(&agent, "shared with other hosts").await;
    agent.kill();
    agent.restart().await;
    refuses(&agent, "shared with other hosts").await;
}

#[tokio::test]
async fn a_group_of_another_host_is_refused_until_it_is_given_away() {
    let (mut agent, group) = start().await;
    lvm("vgchange", &["-an", &group]);
    lvm("vgchange", &["-y", "--systemid", "other-host", &group]);
    agent.kill();
    agent.restart().await;
    refuses(&agent, "system id other-host").await;
    let ours = "local{system_id=\"other-host\"} global{system_id_source=\"lvmlocal\"}";
    run(
        "vgchange",
        &["-q", "-y", "--config", ours, "--systemid", "", &group],
    );
    serves(&agent).await;
}

#[tokio::test]
async fn a_group_that_is_given_to_another_host_meanwhile_is_refused_until_it_is_given_back() {
    let (agent, group) = start().await;
    serves(&agent).await;
    lvm("vgchange", &["-an", &group]);
    lvm("vgchange", &["-y", "--systemid", "other-host", &group]);
    refuses(&agent, "system id other-host").await;
    let theirs = "local{system_id=\"other-host\"} global{system_id_source=\"lvmlocal\"}";
    run(
        "vgchange",
        &["-q", "-y", "--config", theirs, "--systemid", "", &group],
    );
    serves(&agent).await;
}

#[tokio::test]
async fn a_host_is_not_told_to_give_away_its_group_to_a_container_with_another_name() {
    const SETTINGS: &str = "/etc/lvm/lvmlocal.conf";
    if std::env::var_os("DRUMLIN_LAB").is_none_or(|lab| lab != "vm") {
        return does_not_apply!(
            "the name and the settings of a machine that people use are not changed"
        );
    }
    let (mut agent, group) = start().await;
    agent.kill();
    lvm("vgchange", &["-an", &group]);
    lvm("vgchange", &["-y", "--systemid", "host-a", &group]);
    fs::write("/proc/sys/kernel/hostname", "pod-x").unwrap();
    let settings = "global { system_id_source = \"uname\" }\n";
    fs::write(SETTINGS, settings).unwrap();
    agent.restart().await;
    refuses(&agent, "system id here is pod-x").await;
    refuses(&agent, "add host-a to local/extra_system_ids").await;
    // And that helps.
    let settings = format!("{settings}local {{ extra_system_ids = [ \"host-a\" ] }}\n");
    fs::write(SETTINGS, settings).unwrap();
    serves(&agent).await;
    lvm("vgchange", &["-y", "--systemid", "", &group]);
    fs::remove_file(SETTINGS).unwrap();
    serves(&agent).await;
}

#[tokio::test]
async fn an_exported_group_is_refused_until_it_is_imported() {
    let (agent, group) = start().await;
    lvm("vgchange", &["-an", &group]);
    lvm("vgexport", &[&group]);
    refuses(&agent, &format!("vgimport {group}")).await;
    lvm("vgimport", &[&group]);
    serves(&agent).await;
}

#[tokio::test]
async fn nothing_is_made_when_the_records_of_lvm_are_nearly_full() {
    let (agent, group) = start().await;
    let id = volume(&agent, "v", 4, &raw()).await;
    let tags: Vec<String> = ["a", "b", "c", "d", "e"]
        .map(|letter| letter.repeat(95_000))
        .into();
    for tag in &tags {
        lvm("vgchange", &["--addtag", tag, &group]);
    }
    let mut controller = agent.controller();
    let more = controller.create_volume(create("w", 4, &raw())).await;
    let message = refused(more, Code::ResourceExhausted);
    // 1020 KiB, as LVM makes it: `vg_mda_size`.
    assert!(
        message.contains("of 521472 bytes") && message.contains("--metadatasize"),
        "{message}"
    );
    ok(controller.delete_volume(delete(&id)).await);
    lvm("vgchange", &["--deltag", &tags[0], &group]);
    serves(&agent).await;
}

#[tokio::test]
async fn locks_that_cannot_be_written_are_refused() {
    let (mut agent, _) = start().await;
    run(
        "mount",
        &["-t", "tmpfs", "-o", "ro", "none", "/run/lock/lvm"],
    );
    agent.kill();
    agent.restart().await;
    let answer = agent.identity().probe(ProbeRequest {}).await;
    run("umount", &["/run/lock/lvm"]);
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("/run/lock/lvm"), "{message}");
    serves(&agent).await;
}

#[tokio::test]
async fn an_lvm_that_is_too_old_is_refused() {
    let (mut agent, _) = start().await;
    let old = agent.path("lvm");
    fs::write(&old, "#!/bin/sh\necho '  LVM version:     2.02.98(2)'\n").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
    let lvm = ["/usr/sbin/lvm", "/usr/bin/lvm", "/sbin/lvm"];
    let lvm = lvm.into_iter().find(|path| Path::new(path).exists());
    run("mount", &["--bind", old.to_str().unwrap(), lvm.unwrap()]);
    agent.kill();
    agent.restart().await;
    let answer = agent.identity().probe(ProbeRequest {}).await;
    run("umount", &[lvm.unwrap()]);
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("lvm is 2.02.98"), "{message}");
    serves(&agent).await;
}

/// Starts an agent again in namespaces of its own, of which a script says what is there; what it has logged since.
async fn restart_within(agent: &mut Agent, namespaces: &[&str], script: &str) -> usize {
    fs::create_dir_all("/run/udev").unwrap();
    let script = format!("{script}; exec \"$@\"");
    let shell = ["sh", "-e", "-c", &script, "sh"];
    let within = [&["unshare", "--mount"], namespaces, &shell].concat();
    agent.kill();
    let before = agent.log().len();
    let options = Options {
        within: within.into_iter().map(str::to_owned).collect(),
        ..agent.options().clone()
    };
    agent.restart_with(options).await;
    before
}

#[tokio::test]
async fn nobody_waits_for_a_udevd_that_does_not_run() {
    let (mut agent, _) = start().await;
    let script = "mount -t tmpfs none /run/udev";
    let before = restart_within(&mut agent, &[], script).await;
    serves(&agent).await;
    let log = agent.log();
    assert!(log.get(before..).unwrap().contains("udev_sync=0"), "{log}");
    if has_udevd() {
        agent.kill();
        let before = agent.log().len();
        let options = Options {
            within: Vec::new(),
            ..agent.options().clone()
        };
        agent.restart_with(options).await;
        serves(&agent).await;
        let log = agent.log();
        let log = log.get(before..).unwrap();
        assert!(
            log.contains("lvcreate") && !log.contains("udev_sync"),
            "{log}"
        );
    }
}

#[tokio::test]
async fn a_udevd_whose_answers_are_not_heard_is_refused() {
    let (mut agent, _) = start().await;
    let cookies = || {
        fs::read_to_string("/proc/sysvipc/sem")
            .unwrap()
            .lines()
            .count()
    };
    let before = cookies();
    let told =
        "[ -e /run/udev/control ] || { mount -t tmpfs none /run/udev; touch /run/udev/control; }";
    restart_within(&mut agent, &["--ipc"], told).await;
    refuses(&agent, "hostIPC").await;
    assert!(node_of(|name| name.starts_with("drumlin-")).is_none());
    agent.kill();
    let options = Options {
        within: Vec::new(),
        ..agent.options().clone()
    };
    agent.restart_with(options).await;
    serves(&agent).await;
    assert!(node_of(|name| name.starts_with("drumlin-")).is_none());
    assert_eq!(cookies(), before, "what was asked leaves no semaphore");
}

/// As after a boot with many disks.
#[tokio::test]
async fn a_udevd_that_is_busy_is_waited_for() {
    if !has_udevd() {
        return does_not_apply!("there is no udevd");
    }
    let (mut agent, _) = start().await;
    agent.kill();
    run("udevadm", &["control", "--stop-exec-queue"]);
    let later = thread::spawn(|| {
        thread::sleep(Duration::from_secs(6));
        run("udevadm", &["control", "--start-exec-queue"]);
    });
    agent.restart().await;
    let answer = agent.identity().probe(ProbeRequest {}).await;
    later.join().unwrap();
    ok(answer);
    serves(&agent).await;
}

/// `onGroupDelete: cascade` deletes all members or none.
#[tokio::test]
async fn a_group_with_a_volume_that_has_snapshots_keeps_all_its_volumes() {
    let scratch = Scratch::new();
    let class = format!("thick: {{volumeGroup: {}}}", scratch.volume_group(60));
    let config = format!("onGroupDelete: cascade\nclasses: [{{name: default, {class}}}]\n");
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let mut controller = agent.controller();
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        ids.push(volume(&agent, name, 4, &raw()).await);
    }
    // The last one that would be deleted.
    ids.sort();
    let taken = controller.create_snapshot(snapshot("s", &ids[2])).await;
    let taken = ok(taken).snapshot.unwrap().snapshot_id;
    let mut groups = agent.groups();
    let made = groups.create_volume_group(create_group("g", ids)).await;
    let volume_group_id = ok(made).volume_group.unwrap().volume_group_id;
    let request = delete_group(&volume_group_id);
    let refusal = groups.delete_volume_group(request.clone()).await;
    let why = refused(refusal, Code::FailedPrecondition);
    assert!(why.contains(&taken), "{why}");
    let mut controller = agent.controller();
    let count = async |controller: &mut ControllerClient<Channel>| {
        let listed = controller.list_volumes(ListVolumesRequest::default()).await;
        ok(listed).entries.len()
    };
    assert_eq!(count(&mut controller).await, 3);
    ok(controller.delete_snapshot(delete_snapshot(&taken)).await);
    ok(groups.delete_volume_group(request).await);
    assert_eq!(count(&mut controller).await, 0);
}
