//! A volume is used in one way at a time, and what it was made for is told.

use std::{fs, path::PathBuf};

use drumlin_proto::csi::v1::{CreateVolumeRequest, VolumeCapability};
use drumlin_tests::{
    agent::Agent,
    programs::{output, run},
    requests::{
        create, from_snapshot, mounted, publish, raw, snapshot, stage, validate_capabilities,
    },
};
use tonic::Code;

use crate::{
    helpers::{get, mount, ok, paths, put, refused, unbind, unmount, volume},
    node::with_flags,
};

/// Why a volume cannot be used so, if it cannot.
async fn why_not(agent: &Agent, id: &str, how: &VolumeCapability) -> Option<String> {
    let request = validate_capabilities(id, vec![how.clone()]);
    let mut controller = agent.controller();
    let answer = ok(controller.validate_volume_capabilities(request).await);
    assert_eq!(answer.confirmed.is_none(), !answer.message.is_empty());
    answer.confirmed.is_none().then_some(answer.message)
}

fn options(path: &str) -> String {
    run("findmnt", &["--noheadings", "--output", "OPTIONS", path])
}

#[tokio::test]
async fn a_volume_that_was_made_raw_is_promised_to_nobody_as_a_file_system() {
    let agent = Agent::start().await;
    let id = volume(&agent, "r", 16, &raw()).await;
    assert_eq!(volume(&agent, "r", 16, &raw()).await, id);
    for how in [mounted("ext4"), mounted("")] {
        let why = why_not(&agent, &id, &how).await.unwrap();
        assert!(why.contains("raw block device"), "{why}");
        let request = create("r", 16, &how);
        let again = agent.controller().create_volume(request).await;
        let message = refused(again, Code::AlreadyExists);
        assert!(message.contains("raw block device"), "{message}");
    }
    assert_eq!(why_not(&agent, &id, &raw()).await, None);
    let (staging, _) = paths(&agent, "r");
    let request = stage(&id, &staging, &mounted("ext4"));
    let answer = agent.node().node_stage_volume(request.clone()).await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("raw block device"), "{message}");
    // Its user has it: that is another use of what is staged.
    let at = mount(&agent, "r", &id, &raw()).await;
    let answer = agent.node().node_stage_volume(request).await;
    refused(answer, Code::AlreadyExists);
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn what_a_raw_user_has_made_is_mounted_as_it_is() {
    let agent = Agent::start().await;
    let id = volume(&agent, "r", 32, &raw()).await;
    let at = mount(&agent, "r", &id, &raw()).await;
    run("mkfs.ext4", &["-q", &at.1]);
    unmount(&agent, &id, &at).await;
    // Who turns a backup of blocks into a volume with a file system does it so.
    let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
    let taken = ok(taken).snapshot.unwrap().snapshot_id;
    let request = CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken),
        ..create("copy", 32, &mounted("ext4"))
    };
    let made = ok(agent.controller().create_volume(request.clone()).await);
    let copy = made.volume.clone().unwrap().volume_id;
    let again = ok(agent.controller().create_volume(request).await);
    assert_eq!(again, made);
    assert_eq!(why_not(&agent, &copy, &mounted("ext4")).await, None);
    let at = mount(&agent, "copy", &copy, &mounted("ext4")).await;
    put(&at.1, "file", b"as it is");
    assert_eq!(get(&at.1, "file"), b"as it is");
    unmount(&agent, &copy, &at).await;
    unbind(&agent, &taken).await;
    let at = mount(&agent, "r", &id, &mounted("ext4")).await;
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn staged_or_published_in_another_way_is_a_conflict() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    let (staging, target) = (at.0.as_str(), at.1.as_str());
    for other in [
        mounted("xfs"),
        with_flags("ext4", &["noexec"]),
        with_flags("ext4", &["ro"]),
        raw(),
    ] {
        let request = stage(&id, staging, &other);
        let answer = agent.node().node_stage_volume(request).await;
        let message = refused(answer, Code::AlreadyExists);
        assert!(message.contains("with other arguments"), "{message}");
        let request = publish(&id, (staging, target), &other);
        let answer = agent.node().node_publish_volume(request).await;
        let message = refused(answer, Code::AlreadyExists);
        assert!(message.contains("with other arguments"), "{message}");
    }
    for same in [with_flags("ext4", &["rw", "exec"]), mounted("")] {
        let request = stage(&id, staging, &same);
        ok(agent.node().node_stage_volume(request).await);
        let request = publish(&id, (staging, target), &same);
        ok(agent.node().node_publish_volume(request).await);
    }
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn the_mount_flags_of_a_publication_hold_at_its_target_alone() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let (staging, target) = paths(&agent, "v");
    ok(agent
        .node()
        .node_stage_volume(stage(&id, &staging, &plain))
        .await);
    let flags = ["nosuid,nodev", "noexec", "noatime", "nodiratime"];
    let request = publish(&id, (&staging, &target), &with_flags("ext4", &flags));
    for _ in 0..2 {
        ok(agent.node().node_publish_volume(request.clone()).await);
    }
    let shown = options(&target);
    for flag in flags.iter().flat_map(|flags| flags.split(',')) {
        assert!(shown.contains(flag), "{shown} lacks {flag}");
    }
    assert!(!options(&staging).contains("noexec"));
    let program = PathBuf::from(&target).join("program");
    fs::copy("/bin/true", &program).unwrap();
    let mut tried = drumlin_tests::programs::program(&program);
    let refusal = tried.status().unwrap_err();
    assert_eq!(refusal.kind(), std::io::ErrorKind::PermissionDenied);
    let staged = PathBuf::from(&staging).join("program");
    assert!(output(&staged.to_string_lossy(), &[]).status.success());
    unmount(&agent, &id, &(staging, target)).await;
}
