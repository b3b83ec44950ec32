//! What happens behind our back: each leads to a message that says what to do, and leaves the data as it was.

use std::{fs, path::Path};

use drumlin_proto::{
    csi::v1::{
        ControllerGetVolumeRequest, ListVolumesRequest, NodeGetVolumeStatsRequest, ProbeRequest,
        controller_client::ControllerClient, node_client::NodeClient,
    },
    drumlin::v1::ObjectKind,
};
use drumlin_tests::{
    agent::{Agent, Options, eventually},
    programs::{drumlin, output, program, run},
    requests::{create, delete, mounted, raw, snapshot, stage, unstage},
    storage::{Kind, Scratch, attached_images_below},
};
use nix::sys::signal::Signal;
use tonic::{Code, Status};

use crate::{
    attach::{attach, attaching},
    group_snapshots::together,
    helpers::{
        bytes_of, detach, get, home, mount, ok, paths, put, refused, text, trigger_ext4_error,
        unmount, volume,
    },
    snapshot_uuid,
    thaw_watchdog::until_stopped,
};

/// An agent whose one class is at `images` in its scratch directory.
async fn over(scratch: Scratch, images: &Path) -> Agent {
    Agent::with(scratch, Options::of_directory(images)).await
}

/// The next device that anybody attaches has the name of the last one that was detached: what an agent has just attached, and
/// is about to format, must not become somebody else's.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_detached_before_it_is_formatted_does_not_become_another_image() {
    let scratch = Scratch::new();
    let (images, others) = (scratch.directory("images"), scratch.directory("others"));
    let mut agent = over(scratch, &images).await;
    let capability = mounted("ext4");
    let id = volume(&agent, "v", 8, &capability).await;
    let other = text(others.join("image"));
    fs::write(&other, vec![b'x'; 8 << 20]).unwrap();
    let plain = agent.options().clone();
    agent.kill();
    let stopped = plain.stopped_at("directory.attach.attached");
    agent.restart_with(stopped).await;
    let (staging, _) = paths(&agent, "v");
    let (mut node, request) = (agent.node(), stage(&id, &staging, &capability));
    let mut call = tokio::spawn(async move { node.node_stage_volume(request).await });
    until_stopped(&agent, &mut call).await;
    let devices = attached_images_below(images.to_str().unwrap());
    let [device] = devices.as_slice() else {
        panic!("{devices:?}");
    };
    run("losetup", &["--detach", device]);
    let taken = output("losetup", &[device, &other]);
    agent.signal(Signal::SIGCONT);
    ok(call.await.unwrap());
    assert!(!taken.status.success(), "the name was free for others");
    assert!(fs::read(&other).unwrap().iter().all(|byte| *byte == b'x'));
    // It is in use as any other one, and is detached at its end.
    put(&staging, "file", b"a");
    assert_eq!(get(&staging, "file"), b"a");
    ok(agent
        .node()
        .node_unstage_volume(unstage(&id, &staging))
        .await);
    assert_eq!(attached_images_below(images.to_str().unwrap()).len(), 0);
}

#[tokio::test]
async fn what_was_interrupted_in_a_directory_that_comes_late_is_ended_then() {
    let scratch = Scratch::new();
    let images = scratch.directory("images");
    let mut agent = over(scratch, &images).await;
    let id = volume(&agent, "v", 1, &raw()).await;
    let fail = agent
        .options()
        .clone()
        .killed_at("create-group-snapshot.prepared");
    agent.kill();
    agent.restart_with(fail).await;
    let request = together("g", &[id]);
    let mut groups = agent.group_controller();
    groups
        .create_volume_group_snapshot(request)
        .await
        .unwrap_err();
    agent.wait_until_killed().await;
    let away = images.with_extension("away");
    fs::rename(&images, &away).unwrap();
    let plain = Options {
        environment: Vec::new(),
        ..agent.options().clone()
    };
    agent.restart_with(plain).await;
    refused(
        agent.identity().probe(ProbeRequest {}).await,
        Code::FailedPrecondition,
    );
    let left = |images: &Path| {
        ["group-snapshots", "snapshots"].map(|kind| {
            let directory = fs::read_dir(images.join(kind)).unwrap();
            directory.count()
        })
    };
    // Where nobody ends it meanwhile.
    assert_eq!(left(&away), [1, 1]);
    fs::rename(&away, &images).unwrap();
    ok(agent.identity().probe(ProbeRequest {}).await);
    eventually(|| left(&images), |left| *left == [0, 0]).await;
}

#[tokio::test]
async fn a_directory_that_is_missing_is_reported_and_used_when_it_comes() {
    let scratch = Scratch::new();
    let images = scratch.path().join("missing");
    let agent = over(scratch, &images).await;
    let message = refused(
        agent.identity().probe(ProbeRequest {}).await,
        Code::FailedPrecondition,
    );
    assert!(
        message.contains("class default") && message.contains("create it"),
        "{message}"
    );
    let answer = agent
        .controller()
        .create_volume(create("v", 1, &raw()))
        .await;
    refused(answer, Code::FailedPrecondition);
    assert!(
        !images.exists(),
        "the administrator's directory is not made"
    );
    fs::create_dir(&images).unwrap();
    ok(agent.identity().probe(ProbeRequest {}).await);
    let id = volume(&agent, "v", 1, &raw()).await;
    // It goes away, as with a file system that is unmounted, and comes back.
    let away = images.with_extension("away");
    fs::rename(&images, &away).unwrap();
    refused(
        agent.identity().probe(ProbeRequest {}).await,
        Code::FailedPrecondition,
    );
    refused(
        agent
            .controller()
            .list_volumes(ListVolumesRequest::default())
            .await,
        Code::FailedPrecondition,
    );
    fs::rename(&away, &images).unwrap();
    assert_eq!(id, volume(&agent, "v", 1, &raw()).await);
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_reported() {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", Kind::Ext4, 64);
    let agent = over(scratch, &images).await;
    ok(agent.identity().probe(ProbeRequest {}).await);
    let volumes = text(images.join("volumes"));
    run("chattr", &["+i", &volumes]);
    let message = refused(
        agent.identity().probe(ProbeRequest {}).await,
        Code::FailedPrecondition,
    );
    assert!(
        message.contains("cannot be written") && message.contains("attributes"),
        "{message}"
    );
    assert!(
        agent
            .controller()
            .create_volume(create("v", 1, &raw()))
            .await
            .is_err()
    );
    run("chattr", &["-i", &volumes]);
    run("mount", &["-o", "remount,ro", &text(images.clone())]);
    let message = refused(
        agent.identity().probe(ProbeRequest {}).await,
        Code::FailedPrecondition,
    );
    assert!(message.contains("read-only"), "{message}");
    run("mount", &["-o", "remount,rw", &text(images)]);
    ok(agent.identity().probe(ProbeRequest {}).await);
}

#[tokio::test]
async fn a_full_disk_is_exhausted_and_nothing_is_left_behind() {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", Kind::Ext4, 128);
    let agent = over(scratch, &images).await;
    let id = volume(&agent, "v", 64, &raw()).await;
    fs::write(
        images
            .join("volumes")
            .join(id.rsplit('/').next().unwrap())
            .join("image"),
        vec![7; 60 << 20],
    )
    .unwrap();
    fs::File::options()
        .write(true)
        .open(home_in(&images, &id))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let before = entries(&images);
    refused(
        agent.controller().create_snapshot(snapshot("s", &id)).await,
        Code::ResourceExhausted,
    );
    refused(
        agent
            .controller()
            .create_volume(create("w", 100, &raw()))
            .await,
        Code::ResourceExhausted,
    );
    assert_eq!(entries(&images), before);
    // To the last byte.
    let filler = images.join("filler");
    let _ = program("dd")
        .args([
            "if=/dev/zero",
            &format!("of={}", filler.display()),
            "bs=64K",
        ])
        .output();
    refused(
        agent
            .controller()
            .create_volume(create("x", 1, &raw()))
            .await,
        Code::ResourceExhausted,
    );
    fs::remove_file(filler).unwrap();
    assert_eq!(entries(&images), before);
    volume(&agent, "x", 1, &raw()).await;
}

fn home_in(images: &Path, id: &str) -> std::path::PathBuf {
    images
        .join("volumes")
        .join(id.rsplit('/').next().unwrap())
        .join("image")
}

fn entries(images: &Path) -> Vec<String> {
    let list = run(
        "find",
        &[
            &images.to_string_lossy(),
            "-mindepth",
            "1",
            "-not",
            "-path",
            "*/lost+found",
        ],
    );
    let mut lines: Vec<String> = list.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn an_image_that_was_truncated_is_abnormal_and_not_used() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 32, &mounted("ext4")).await;
    let image = home(&agent, &id).join("image");
    fs::File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(5 << 20)
        .unwrap();
    let got = ok(agent
        .controller()
        .controller_get_volume(ControllerGetVolumeRequest {
            volume_id: id.clone(),
        })
        .await);
    let condition = got.status.unwrap().volume_condition.unwrap();
    assert!(
        condition.abnormal && condition.message.contains("truncated"),
        "{condition:?}"
    );
    let (staging, _) = paths(&agent, "v");
    refused(
        agent
            .node()
            .node_stage_volume(stage(&id, &staging, &mounted("ext4")))
            .await,
        Code::FailedPrecondition,
    );
    refused(
        agent.controller().create_snapshot(snapshot("s", &id)).await,
        Code::FailedPrecondition,
    );
    assert_eq!(fs::metadata(&image).unwrap().len(), 5 << 20);
    fs::remove_file(&image).unwrap();
    let list = ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    let condition = list.entries[0]
        .status
        .clone()
        .unwrap()
        .volume_condition
        .unwrap();
    assert!(
        condition.abnormal && condition.message.contains("is missing"),
        "{condition:?}"
    );
    ok(agent.controller().delete_volume(delete(&id)).await);
}

#[tokio::test]
async fn an_image_that_is_replaced_while_mounted_is_told_from_the_old_one() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    put(&at.1, "file", b"old");
    let image = home(&agent, &id).join("image");
    fs::remove_file(&image).unwrap();
    fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
    let message = refused(
        agent
            .node()
            .node_stage_volume(stage(&id, &format!("{}-2", at.0), &plain))
            .await,
        Code::FailedPrecondition,
    );
    assert!(!message.is_empty());
    assert_eq!(
        get(&at.1, "file"),
        b"old",
        "who has it mounted keeps what is there"
    );
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_reported_and_left_alone() {
    let mut agent = Agent::start().await;
    let good = volume(&agent, "good", 1, &raw()).await;
    for (name, bytes, part) in [
        ("broken", "{\"version\":", "cannot be parsed"),
        ("newer", "{\"version\": 2, \"shape\": {}}", "version 2"),
        ("empty", "", "cannot be parsed"),
    ] {
        let id = volume(&agent, name, 1, &raw()).await;
        let record = home(&agent, &id).join("record.json");
        fs::write(&record, bytes).unwrap();
        agent.kill();
        agent.restart().await;
        let got = ok(agent
            .controller()
            .controller_get_volume(ControllerGetVolumeRequest {
                volume_id: id.clone(),
            })
            .await);
        let condition = got.status.unwrap().volume_condition.unwrap();
        assert!(
            condition.abnormal && condition.message.contains(part),
            "{condition:?}"
        );
        let message = refused(
            agent.controller().delete_volume(delete(&id)).await,
            Code::FailedPrecondition,
        );
        assert!(message.contains(part), "{message}");
        refused(
            agent
                .controller()
                .create_volume(create(name, 1, &raw()))
                .await,
            Code::FailedPrecondition,
        );
        assert_eq!(fs::read_to_string(record).unwrap(), bytes);
    }
    assert_eq!(
        good,
        volume(&agent, "good", 1, &raw()).await,
        "the others serve"
    );
    let list = ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    assert_eq!(list.entries.len(), 4);
}

/// What staging a volume says where the agent sees another `/dev`, made by a script in a mount namespace of its own.
async fn staging_with_dev(script: &str) -> Status {
    let scratch = Scratch::new();
    let state = text(scratch.path().join("state"));
    let socket = text(scratch.path().join("csi.sock"));
    let script = format!("mount --make-rprivate / && {script} && exec \"$@\"");
    let mut child = program("unshare")
        .args(["--mount", "sh", "-c", &script, "sh"])
        .arg(drumlin())
        .args(["agent", "--state-dir", &state, "--endpoint", &socket])
        .spawn()
        .unwrap();
    let channel = drumlin_proto::connect(Path::new(&socket)).unwrap();
    let mut controller = ControllerClient::new(channel.clone());
    let deadline = std::time::Instant::now() + drumlin_tests::agent::PATIENCE;
    let id = loop {
        match controller
            .create_volume(create("v", 32, &mounted("ext4")))
            .await
        {
            Ok(answer) => break answer.into_inner().volume.unwrap().volume_id,
            Err(status) => assert!(std::time::Instant::now() < deadline, "{status}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    let staging = text(scratch.directory("staging"));
    let status = NodeClient::new(channel)
        .node_stage_volume(stage(&id, &staging, &mounted("ext4")))
        .await
        .unwrap_err();
    // The volume is as it was: it can be deleted, and nothing has its image.
    ok(controller.delete_volume(delete(&id)).await);
    child.kill().unwrap();
    child.wait().unwrap();
    status
}

#[tokio::test]
async fn without_loop_devices_the_agent_says_what_to_do() {
    let hidden = staging_with_dev("mount --bind /dev/null /dev/loop-control").await;
    assert_eq!(hidden.code(), Code::FailedPrecondition, "{hidden:?}");
    assert!(hidden.message().contains("modprobe loop"), "{hidden:?}");
}

#[tokio::test]
async fn where_dev_has_no_more_loop_devices_the_agent_says_what_to_do() {
    // As in a container that was given a fixed number of them: the kernel has more, and nobody makes their nodes.
    let bare = "dev=$(mktemp -d) && mount -t tmpfs none $dev && cp -a /dev/null /dev/urandom /dev/loop-control $dev && mount --move $dev /dev && rmdir $dev";
    let none = staging_with_dev(bare).await;
    assert_eq!(none.code(), Code::ResourceExhausted, "{none:?}");
    assert!(none.message().contains("the host's /dev"), "{none:?}");
}

#[tokio::test]
async fn a_file_system_that_went_read_only_is_abnormal() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    // What the kernel does on an error with errors=remount-ro: the file system, not the mount, becomes read-only.
    run("mount", &["-o", "remount,errors=remount-ro", &at.0]);
    trigger_ext4_error(&at.0);
    assert!(fs::write(format!("{}/file", at.1), "x").is_err());
    is_abnormal_and_goes(&agent, (&id, at), "read-only").await;
}

#[tokio::test]
async fn a_file_system_that_has_shut_itself_down_is_abnormal() {
    let agent = Agent::start().await;
    let plain = mounted("xfs");
    let id = volume(&agent, "v", 320, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    put(&at.1, "file", b"precious");
    // What xfs does on an I/O error of its log.
    run("xfs_io", &["-x", "-c", "shutdown", &at.1]);
    assert!(fs::write(format!("{}/other", at.1), "x").is_err());
    is_abnormal_and_goes(&agent, (&id, at), "does not respond").await;
    let at = mount(&agent, "v", &id, &plain).await;
    assert_eq!(get(&at.1, "file"), b"precious");
    unmount(&agent, &id, &at).await;
}

/// Its stats say what is wrong with it, and it can be let go.
async fn is_abnormal_and_goes(agent: &Agent, (id, at): (&str, (String, String)), why: &str) {
    let request = NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: at.1.clone(),
        ..Default::default()
    };
    let stats = ok(agent.node().node_get_volume_stats(request).await);
    let condition = stats.volume_condition.unwrap();
    assert!(
        condition.abnormal && condition.message.contains(why),
        "{condition:?}"
    );
    unmount(agent, id, &at).await;
}

#[tokio::test]
async fn a_publication_that_cannot_be_read_does_not_count_as_none() {
    let agent = attaching().await;
    let id = volume(&agent, "v", 1, &raw()).await;
    ok(agent
        .controller()
        .controller_publish_volume(attach(&id, &raw()))
        .await);
    let record = home(&agent, &id).join("record.json");
    let mut damaged: serde_json::Value =
        serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    damaged["labels"]["published"] = "{\"node\":".into();
    fs::write(&record, damaged.to_string()).unwrap();
    for _ in 0..2 {
        let message = refused(
            agent.controller().delete_volume(delete(&id)).await,
            Code::FailedPrecondition,
        );
        assert!(message.contains("unpublish the volume"), "{message}");
    }
    // The cure that the message names.
    ok(agent
        .controller()
        .controller_unpublish_volume(detach(&id))
        .await);
    ok(agent.controller().delete_volume(delete(&id)).await);
}

#[tokio::test]
async fn a_snapshot_whose_record_is_lost_has_no_uuid_until_the_record_is_back() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 4, &raw()).await;
    let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
    let handle = ok(taken).snapshot.unwrap().snapshot_id;
    let uuid = snapshot_uuid::object(&agent, &handle).await.uuid;
    let image = bytes_of(&agent, &handle);
    let record = image.with_file_name("record.json");
    let text = fs::read(&record).unwrap();
    fs::write(&record, "not JSON").unwrap();
    let lost = snapshot_uuid::object(&agent, &handle).await;
    assert_eq!((lost.kind(), &*lost.uuid), (ObjectKind::Snapshot, ""));
    assert!(!lost.problem.is_empty());
    fs::write(&record, text).unwrap();
    assert_eq!(snapshot_uuid::object(&agent, &handle).await.uuid, uuid);
}
