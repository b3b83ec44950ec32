//! Volumes on the node: staged, published, used as their mode says, never formatted twice.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use drumlin_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, VolumeCapability,
    volume_capability::{AccessType, MountVolume, access_mode::Mode},
};
use drumlin_tests::{
    agent::Agent,
    programs::{output, run},
    requests::{
        capability, create, delete, for_mode, mounted, publish, raw, stage, unpublish, unstage,
    },
};
use tonic::Code;

use crate::helpers::{bytes_of, get, mount, ok, paths, put, refused, text, unmount, volume};

/// A mounted volume with these mount flags.
pub(crate) fn with_flags(fs_type: &str, flags: &[&str]) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: fs_type.to_owned(),
        mount_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
        volume_mount_group: String::new(),
    };
    capability(AccessType::Mount(mount), Mode::SingleNodeWriter)
}

fn read_only(request: NodePublishVolumeRequest) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        readonly: true,
        ..request
    }
}

#[tokio::test]
async fn staging_and_publishing_again_changes_nothing_and_otherwise_is_refused() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let (staging, target) = mount(&agent, "v", &id, &plain).await;
    for _ in 0..3 {
        mount(&agent, "v", &id, &plain).await;
    }
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert_eq!(
        table.matches(&target).count(),
        1,
        "one mount, however often it was asked for"
    );
    refused(
        agent
            .node()
            .node_stage_volume(stage(&id, &staging, &with_flags("ext4", &["ro"])))
            .await,
        Code::AlreadyExists,
    );
    let request = read_only(publish(&id, (&staging, &target), &plain));
    refused(
        agent.node().node_publish_volume(request).await,
        Code::AlreadyExists,
    );
    refused(
        agent
            .node()
            .node_unstage_volume(unstage(&id, &staging))
            .await,
        Code::FailedPrecondition,
    );
    refused(
        agent.controller().delete_volume(delete(&id)).await,
        Code::FailedPrecondition,
    );
    for _ in 0..2 {
        unmount(&agent, &id, &(staging.clone(), target.clone())).await;
        assert!(!Path::new(&target).exists(), "the target is removed");
    }
    refused(
        agent
            .node()
            .node_publish_volume(publish(&id, (&staging, &target), &plain))
            .await,
        Code::FailedPrecondition,
    );
    ok(agent.controller().delete_volume(delete(&id)).await);
    ok(agent
        .node()
        .node_unpublish_volume(unpublish(&id, &target))
        .await);
    ok(agent
        .node()
        .node_unstage_volume(unstage(&id, &staging))
        .await);
}

#[tokio::test]
async fn a_reader_can_write_nothing() {
    for capability in [mounted("ext4"), raw()] {
        let agent = Agent::start().await;
        let id = volume(&agent, "v", 32, &capability).await;
        let reader = for_mode(&capability, Mode::SingleNodeReaderOnly);
        let (staging, target) = mount(&agent, "v", &id, &reader).await;
        let file = if capability == raw() { "" } else { "/file" };
        assert!(fs::write(format!("{target}{file}"), "x").is_err());
        unmount(&agent, &id, &(staging, target)).await;
    }
}

#[tokio::test]
async fn a_read_only_publication_refuses_writes_beside_a_writable_one() {
    let agent = Agent::start().await;
    for (name, capability) in [("m", mounted("ext4")), ("b", raw())] {
        let capability = for_mode(&capability, Mode::SingleNodeMultiWriter);
        let id = volume(&agent, name, 32, &capability).await;
        let (staging, target) = mount(&agent, name, &id, &capability).await;
        let other = format!("{target}-ro");
        for _ in 0..2 {
            ok(agent
                .node()
                .node_publish_volume(read_only(publish(&id, (&staging, &other), &capability)))
                .await);
        }
        if name == "m" {
            put(&target, "file", b"x");
            assert_eq!(get(&other, "file"), b"x");
            assert!(fs::write(format!("{other}/file"), "y").is_err());
        } else {
            assert!(fs::File::options().write(true).open(&target).is_ok());
            let refusal = fs::File::options().write(true).open(&other);
            assert!(
                refusal.is_err()
                    || output(
                        "dd",
                        &[
                            "if=/dev/zero",
                            &format!("of={other}"),
                            "bs=4096",
                            "count=1",
                            "conv=fsync,notrunc"
                        ]
                    )
                    .status
                    .code()
                        != Some(0)
            );
        }
        ok(agent
            .node()
            .node_unpublish_volume(unpublish(&id, &other))
            .await);
        assert!(!Path::new(&other).exists());
        unmount(&agent, &id, &(staging, target)).await;
        ok(agent.controller().delete_volume(delete(&id)).await);
    }
    assert!(
        drumlin_tests::storage::attached_images_below(&agent.scratch.path().to_string_lossy())
            .is_empty()
    );
}

#[tokio::test]
async fn a_group_owns_what_it_is_given() {
    let agent = Agent::start().await;
    let mount_type = |group: &str| {
        let mount = MountVolume {
            fs_type: "ext4".into(),
            volume_mount_group: group.into(),
            ..MountVolume::default()
        };
        capability(AccessType::Mount(mount), Mode::SingleNodeWriter)
    };
    let grouped = mount_type("4711");
    let id = volume(&agent, "v", 32, &grouped).await;
    let (_, target) = mount(&agent, "v", &id, &grouped).await;
    let metadata = fs::metadata(&target).unwrap();
    assert_eq!((metadata.gid(), metadata.mode() & 0o2070), (4711, 0o2070));
    put(&target, "file", b"x");
    assert_eq!(fs::metadata(format!("{target}/file")).unwrap().gid(), 4711);
    for wrong in ["wheel", "-1", "4294967295", "4294967296"] {
        let (staging, _) = paths(&agent, "other");
        let message = refused(
            agent
                .node()
                .node_stage_volume(stage(&id, &staging, &mount_type(wrong)))
                .await,
            Code::InvalidArgument,
        );
        assert!(message.contains("volume_mount_group"), "{message}");
    }
}

#[tokio::test]
async fn only_safe_mount_flags_are_taken_and_they_hold() {
    let agent = Agent::start().await;
    let flags = with_flags("ext4", &["noatime", "nodev", "noexec"]);
    let id = volume(&agent, "v", 32, &flags).await;
    let at = mount(&agent, "v", &id, &flags).await;
    let options = run("findmnt", &["--noheadings", "--output", "OPTIONS", &at.0]);
    for flag in ["noatime", "nodev", "noexec"] {
        assert!(options.contains(flag), "{options}");
    }
    for wrong in [
        "loop",
        "context=x",
        "remount",
        "bind",
        "uid=0",
        "dev=/etc",
        "nouuid",
        "a\nb",
    ] {
        let answer = agent
            .controller()
            .create_volume(create("w", 32, &with_flags("ext4", &[wrong])))
            .await;
        let message = refused(answer, Code::InvalidArgument);
        assert!(message.contains("mount_flags"), "{message}");
    }
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn another_file_system_than_the_one_that_is_there_is_refused() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 320, &mounted("ext4")).await;
    let at = mount(&agent, "v", &id, &mounted("ext4")).await;
    put(&at.1, "file", b"precious");
    unmount(&agent, &id, &at).await;
    let message = refused(
        agent
            .node()
            .node_stage_volume(stage(&id, &at.0, &mounted("xfs")))
            .await,
        Code::FailedPrecondition,
    );
    assert!(message.contains("fs_type"), "{message}");
    refused(
        agent
            .controller()
            .create_volume(create("w", 32, &mounted("ntfs")))
            .await,
        Code::InvalidArgument,
    );
    let at = mount(&agent, "v", &id, &mounted("")).await;
    assert_eq!(get(&at.1, "file"), b"precious");
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn what_we_did_not_put_there_is_never_formatted() {
    let agent = Agent::start().await;
    let (staging, _) = paths(&agent, "v");
    for (name, what) in [("luks", "LUKS\u{ba}\u{be}"), ("unknown", "precious")] {
        let id = volume(&agent, name, 32, &mounted("ext4")).await;
        let image = bytes_of(&agent, &id);
        let bytes: &[u8] = if what == "precious" {
            b"precious"
        } else {
            b"LUKS\xba\xbe"
        };
        std::os::unix::fs::FileExt::write_all_at(
            &fs::File::options().write(true).open(&image).unwrap(),
            bytes,
            0,
        )
        .unwrap();
        let message = refused(
            agent
                .node()
                .node_stage_volume(stage(&id, &staging, &mounted("ext4")))
                .await,
            Code::FailedPrecondition,
        );
        assert!(message.contains("was not changed"), "{message}");
        assert!(
            fs::read(&image).unwrap().starts_with(bytes),
            "the data is as it was"
        );
    }
    // A volume that was used and is blank now has lost its data; an empty file system would hide that.
    let id = volume(&agent, "wiped", 32, &mounted("ext4")).await;
    let at = mount(&agent, "wiped", &id, &mounted("ext4")).await;
    unmount(&agent, &id, &at).await;
    fs::write(bytes_of(&agent, &id), vec![0; 32 << 20]).unwrap();
    let message = refused(
        agent
            .node()
            .node_stage_volume(stage(&id, &staging, &mounted("ext4")))
            .await,
        Code::FailedPrecondition,
    );
    assert!(message.contains("not formatted again"), "{message}");
    // A raw volume is its user's, blank or not.
    let id = volume(&agent, "raw", 32, &mounted("ext4")).await;
    let at = mount(&agent, "raw", &id, &raw()).await;
    unmount(&agent, &id, &at).await;
    refused(
        agent
            .node()
            .node_stage_volume(stage(&id, &staging, &mounted("ext4")))
            .await,
        Code::FailedPrecondition,
    );
}

#[tokio::test]
async fn hostile_and_wrong_paths_are_named_and_left_alone() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let (staging, target) = paths(&agent, "v");
    malformed_paths_are_named(&agent, &id, &staging).await;
    let file = text(agent.path("file"));
    fs::write(&file, "precious").unwrap();
    refused(
        agent
            .node()
            .node_stage_volume(stage(&id, &file, &plain))
            .await,
        Code::InvalidArgument,
    );
    refused(
        agent
            .node()
            .node_stage_volume(stage(&id, &format!("{file}-missing"), &plain))
            .await,
        Code::FailedPrecondition,
    );
    ok(agent
        .node()
        .node_stage_volume(stage(&id, &staging, &plain))
        .await);
    let full = text(agent.scratch.directory("full"));
    fs::write(format!("{full}/precious"), "x").unwrap();
    for wrong in [
        file.as_str(),
        full.as_str(),
        &format!("{file}/below"),
        &format!("{target}/no/parent"),
    ] {
        refused(
            agent
                .node()
                .node_publish_volume(publish(&id, (&staging, wrong), &plain))
                .await,
            Code::FailedPrecondition,
        );
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    a_foreign_mount_point_is_left_alone(&agent, &id, &staging).await;
}

async fn malformed_paths_are_named(agent: &Agent, id: &str, staging: &str) {
    let plain = mounted("ext4");
    for path in [
        "relative",
        "/",
        "/tmp/../etc/x",
        "/tmp/a\nb",
        "/tmp/a\0b",
        "/tmp/./x",
    ] {
        let message = refused(
            agent
                .node()
                .node_stage_volume(stage(id, path, &plain))
                .await,
            Code::InvalidArgument,
        );
        assert!(message.starts_with("staging_target_path"), "{message}");
        let message = refused(
            agent
                .node()
                .node_publish_volume(publish(id, (staging, path), &plain))
                .await,
            Code::InvalidArgument,
        );
        assert!(message.starts_with("target_path"), "{message}");
    }
}

async fn a_foreign_mount_point_is_left_alone(agent: &Agent, id: &str, staging: &str) {
    let taken = text(agent.scratch.directory("taken"));
    run("mount", &["-t", "tmpfs", "tmpfs", &taken]);
    refused(
        agent
            .node()
            .node_publish_volume(publish(id, (staging, &taken), &mounted("ext4")))
            .await,
        Code::FailedPrecondition,
    );
    // The volume is neither published nor staged there.
    ok(agent
        .node()
        .node_unpublish_volume(unpublish(id, &taken))
        .await);
    ok(agent.node().node_unstage_volume(unstage(id, &taken)).await);
    refused(
        agent
            .node()
            .node_unpublish_volume(unpublish("gone", &taken))
            .await,
        Code::NotFound,
    );
    assert!(drumlin_tests::storage::mounts_below(&taken).len() == 1);
}

#[tokio::test]
async fn a_mount_that_is_used_stays_and_its_user_is_named() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    put(&at.1, "file", b"x");
    let held = fs::File::open(format!("{}/file", at.1)).unwrap();
    let message = refused(
        agent
            .node()
            .node_unpublish_volume(unpublish(&id, &at.1))
            .await,
        Code::FailedPrecondition,
    );
    assert!(
        message.contains(&std::process::id().to_string()),
        "{message}"
    );
    assert_eq!(get(&at.1, "file"), b"x");
    drop(held);
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn stats_and_expansion_know_where_a_volume_is() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    let stats = |id: &str, path: &str| NodeGetVolumeStatsRequest {
        volume_id: id.into(),
        volume_path: path.into(),
        ..Default::default()
    };
    let grow = |id: &str, path: &str| NodeExpandVolumeRequest {
        volume_id: id.into(),
        volume_path: path.into(),
        ..Default::default()
    };
    for path in [&at.0, &at.1] {
        assert_eq!(
            ok(agent.node().node_get_volume_stats(stats(&id, path)).await)
                .usage
                .len(),
            2
        );
        ok(agent.node().node_expand_volume(grow(&id, path)).await);
    }
    for (id, path) in [
        (id.as_str(), "some/path"),
        (id.as_str(), "/tmp"),
        ("unknown", at.1.as_str()),
    ] {
        refused(
            agent.node().node_get_volume_stats(stats(id, path)).await,
            Code::NotFound,
        );
        refused(
            agent.node().node_expand_volume(grow(id, path)).await,
            Code::NotFound,
        );
    }
    refused(
        agent.node().node_get_volume_stats(stats(&id, "")).await,
        Code::InvalidArgument,
    );
    refused(
        agent.node().node_expand_volume(grow("", &at.1)).await,
        Code::InvalidArgument,
    );
    unmount(&agent, &id, &at).await;
    let info = ok(agent.node().node_get_info(NodeGetInfoRequest {}).await);
    assert_eq!(
        (info.node_id.as_str(), info.max_volumes_per_node),
        ("node-a", 0)
    );
}
