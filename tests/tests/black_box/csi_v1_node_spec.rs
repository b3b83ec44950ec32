//! What CSI 1 asks of a node, call by call, where no other test makes the call.

use std::{
    fs,
    io::{Seek, SeekFrom},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use drumlin_proto::csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest, CreateVolumeRequest,
    NodeExpandVolumeRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, VolumeCapability, VolumeUsage, volume_capability::access_mode::Mode,
    volume_usage::Unit,
};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::run,
    requests::{
        MIB, create, expand, for_mode, mounted, node_expand, publish, raw, stage, unpublish,
        unstage,
    },
    storage::{Scratch, mounts_below},
};
use tonic::{Code, Response, Status};

use crate::helpers::{
    get, mount, ok, paths, put, refused, text, trigger_ext4_error, unmount, volume,
};

/// An id of this node that no volume has.
const UNKNOWN: &str = "node-a/default/00000000-0000-5000-8000-00000000000a";

fn stats(volume_id: &str, volume_path: &str) -> NodeGetVolumeStatsRequest {
    NodeGetVolumeStatsRequest {
        volume_id: volume_id.to_owned(),
        volume_path: volume_path.to_owned(),
        ..NodeGetVolumeStatsRequest::default()
    }
}

/// The refusal of a call with a path that is not absolute, which names the field.
#[track_caller]
fn names<T: std::fmt::Debug>(answer: Result<Response<T>, Status>, field: &str) {
    let message = refused(answer, Code::InvalidArgument);
    assert!(message.starts_with(&format!("{field} ")), "{message}");
}

#[tokio::test]
async fn a_path_that_is_not_absolute_is_refused_by_every_node_call() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let (staging, target) = mount(&agent, "v", &id, &plain).await;
    let mut node = agent.node();
    for wrong in ["relative", "some/path", "./x", "../x"] {
        let request = stage(&id, wrong, &plain);
        names(node.node_stage_volume(request).await, "staging_target_path");
        let request = unstage(&id, wrong);
        names(
            node.node_unstage_volume(request).await,
            "staging_target_path",
        );
        let request = publish(&id, (wrong, &target), &plain);
        names(
            node.node_publish_volume(request).await,
            "staging_target_path",
        );
        let request = publish(&id, (&staging, wrong), &plain);
        names(node.node_publish_volume(request).await, "target_path");
        let request = unpublish(&id, wrong);
        names(node.node_unpublish_volume(request).await, "target_path");
        // The volume is nowhere else than at absolute paths.
        refused(
            node.node_get_volume_stats(stats(&id, wrong)).await,
            Code::NotFound,
        );
        refused(
            node.node_expand_volume(node_expand(&id, wrong)).await,
            Code::NotFound,
        );
    }
    // A staging path is a directory.
    let file = text(agent.path("file"));
    fs::write(&file, "").unwrap();
    names(
        node.node_stage_volume(stage(&id, &file, &plain)).await,
        "staging_target_path",
    );
    unmount(&agent, &id, &(staging, target)).await;
}

#[tokio::test]
async fn a_staging_path_of_stats_and_expansion_is_absolute_too() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    let mut node = agent.node();
    for (staging, is_taken) in [("", true), (at.0.as_str(), true), ("some/path", false)] {
        let measured = NodeGetVolumeStatsRequest {
            staging_target_path: staging.to_owned(),
            ..stats(&id, &at.1)
        };
        let grown = NodeExpandVolumeRequest {
            staging_target_path: staging.to_owned(),
            ..node_expand(&id, &at.1)
        };
        let measured = node.node_get_volume_stats(measured).await;
        let grown = node.node_expand_volume(grown).await;
        if is_taken {
            ok(measured);
            ok(grown);
        } else {
            names(measured, "staging_target_path");
            names(grown, "staging_target_path");
        }
    }
    unmount(&agent, &id, &at).await;
}

/// A path below `root` of so many bytes, whose parent directories exist.
fn long_path(root: &Path, bytes: usize) -> PathBuf {
    let mut path = root.to_owned();
    loop {
        let left = bytes - path.as_os_str().len();
        // A name has at most 255 bytes, and the last one at least one.
        if left <= 256 {
            fs::create_dir_all(&path).unwrap();
            return path.join("x".repeat(left - 1));
        }
        path.push("d".repeat(if left <= 300 { 100 } else { 255 }));
    }
}

#[tokio::test]
async fn paths_as_long_as_the_system_allows_are_taken_by_every_node_call() {
    let agent = Agent::start().await;
    for (name, capability) in [("m", mounted("ext4")), ("r", raw())] {
        for bytes in [128, 4095] {
            let name = format!("{name}{bytes}");
            let id = volume(&agent, &name, 32, &capability).await;
            let staging = long_path(&agent.path(&format!("s{name}")), bytes);
            fs::create_dir(&staging).unwrap();
            let target = long_path(&agent.path(&format!("t{name}")), bytes);
            let (staging, target) = (text(staging), text(target));
            assert_eq!([staging.len(), target.len()], [bytes; 2]);
            let mut node = agent.node();
            ok(node
                .node_stage_volume(stage(&id, &staging, &capability))
                .await);
            let request = publish(&id, (&staging, &target), &capability);
            ok(node.node_publish_volume(request).await);
            let measured = NodeGetVolumeStatsRequest {
                staging_target_path: staging.clone(),
                ..stats(&id, &target)
            };
            ok(node.node_get_volume_stats(measured).await);
            let grown = NodeExpandVolumeRequest {
                staging_target_path: staging.clone(),
                ..node_expand(&id, &target)
            };
            ok(node.node_expand_volume(grown).await);
            unmount(&agent, &id, &(staging, target)).await;
        }
    }
    let root = agent.scratch.path().to_string_lossy().into_owned();
    assert_eq!(mounts_below(&root), [""; 0]);
}

#[tokio::test]
async fn a_mounted_volume_is_a_directory_at_its_target_and_a_raw_one_a_block_device() {
    let agent = Agent::start().await;
    for (name, capability) in [("m", mounted("ext4")), ("r", raw())] {
        let id = volume(&agent, name, 32, &capability).await;
        let at = mount(&agent, name, &id, &capability).await;
        let kind = fs::metadata(&at.1).unwrap().file_type();
        assert_eq!(kind.is_dir(), capability != raw());
        assert_eq!(kind.is_block_device(), capability == raw());
        unmount(&agent, &id, &at).await;
        assert!(!Path::new(&at.1).exists());
    }
}

#[tokio::test]
async fn a_raw_volume_is_a_device_of_the_size_that_was_asked_for() {
    let agent = Agent::start().await;
    for mebibytes in [1, 5, 32] {
        let name = format!("v{mebibytes}");
        let request = CreateVolumeRequest {
            capacity_range: Some(CapacityRange {
                required_bytes: mebibytes * MIB,
                limit_bytes: mebibytes * MIB,
            }),
            ..create(&name, 1, &raw())
        };
        let made = ok(agent.controller().create_volume(request).await);
        let id = made.volume.unwrap().volume_id;
        let at = mount(&agent, &name, &id, &raw()).await;
        let mut device = fs::File::open(&at.1).unwrap();
        let end = device.seek(SeekFrom::End(0)).unwrap();
        assert_eq!(i64::try_from(end).unwrap(), mebibytes * MIB);
        drop(device);
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test]
async fn usage_has_a_unit_and_no_negative_number_and_a_condition_has_a_message() {
    let agent = Agent::start().await;
    for (name, capability) in [("e", mounted("ext4")), ("x", mounted("xfs")), ("r", raw())] {
        let id = volume(&agent, name, 320, &capability).await;
        let at = mount(&agent, name, &id, &capability).await;
        let found = ok(agent.node().node_get_volume_stats(stats(&id, &at.1)).await);
        let units: Vec<Unit> = found.usage.iter().map(VolumeUsage::unit).collect();
        let expected = [Unit::Bytes, Unit::Inodes];
        assert_eq!(
            units,
            if capability == raw() {
                &expected[..1]
            } else {
                &expected
            }
        );
        for usage in found.usage {
            assert!(usage.total > 0, "{usage:?}");
            assert!(usage.used >= 0 && usage.available >= 0, "{usage:?}");
        }
        let condition = found.volume_condition.unwrap();
        assert!(!condition.abnormal && !condition.message.is_empty());
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test]
async fn what_only_the_node_sees_is_in_the_condition_of_the_node_alone() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    // The kernel makes a file system read-only after an error. Its image is as good as before.
    run("mount", &["-o", "remount,errors=remount-ro", &at.0]);
    trigger_ext4_error(&at.0);
    let of_node = ok(agent.node().node_get_volume_stats(stats(&id, &at.1)).await);
    assert!(of_node.volume_condition.unwrap().abnormal);
    let request = ControllerGetVolumeRequest {
        volume_id: id.clone(),
    };
    let of_controller = ok(agent.controller().controller_get_volume(request).await);
    let condition = of_controller.status.unwrap().volume_condition.unwrap();
    assert!(!condition.abnormal, "{condition:?}");
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn a_file_system_that_cannot_grow_while_it_is_mounted_is_refused_and_grows_later() {
    // The kernel grows a mounted ext4 for a process with CAP_SYS_RESOURCE only.
    let without = ["setpriv", "--bounding-set", "-sys_resource"];
    let options = Options {
        within: without.map(str::to_owned).into(),
        ..Options::default()
    };
    let agent = Agent::with(Scratch::new(), options).await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    put(&at.1, "file", b"kept");
    let size = |path: &str| {
        let found = nix::sys::statvfs::statvfs(path).unwrap();
        found.blocks() * found.fragment_size()
    };
    let before = size(&at.1);
    let request = expand(&id, 96);
    ok(agent.controller().controller_expand_volume(request).await);
    for _ in 0..2 {
        let answer = agent
            .node()
            .node_expand_volume(node_expand(&id, &at.1))
            .await;
        let message = refused(answer, Code::FailedPrecondition);
        assert!(message.contains("CAP_SYS_RESOURCE"), "{message}");
        assert_eq!(size(&at.1), before);
    }
    unmount(&agent, &id, &at).await;
    let at = mount(&agent, "v", &id, &plain).await;
    assert!(size(&at.1) > 2 * before);
    assert_eq!(get(&at.1, "file"), b"kept");
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn capabilities_that_a_volume_does_not_support_are_refused_by_each_call_in_its_code() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let unsupported = for_mode(&plain, Mode::MultiNodeMultiWriter);
    let (staging, target) = paths(&agent, "v");
    let staged = agent
        .node()
        .node_stage_volume(stage(&id, &staging, &unsupported))
        .await;
    refused(staged, Code::FailedPrecondition);
    ok(agent
        .node()
        .node_stage_volume(stage(&id, &staging, &plain))
        .await);
    let request = publish(&id, (&staging, &target), &unsupported);
    let published = agent.node().node_publish_volume(request).await;
    refused(published, Code::FailedPrecondition);
    assert!(!Path::new(&target).exists());
    let request = ControllerExpandVolumeRequest {
        volume_capability: Some(unsupported.clone()),
        ..expand(&id, 64)
    };
    let grown = agent.controller().controller_expand_volume(request).await;
    refused(grown, Code::InvalidArgument);
    let request = NodeExpandVolumeRequest {
        volume_capability: Some(unsupported),
        ..node_expand(&id, &staging)
    };
    refused(
        agent.node().node_expand_volume(request).await,
        Code::InvalidArgument,
    );
    ok(agent
        .node()
        .node_unstage_volume(unstage(&id, &staging))
        .await);
}

/// The codes of a second publication: at the same target alike and otherwise, at another target alike and otherwise.
async fn second_publications(agent: &Agent, name: &str, how: &VolumeCapability) -> [Code; 4] {
    let id = volume(agent, name, 32, how).await;
    let (staging, target) = mount(agent, name, &id, how).await;
    let mut codes = Vec::new();
    for (place, readonly) in [
        (target.clone(), false),
        (target.clone(), true),
        (format!("{target}-2"), false),
        (format!("{target}-2"), true),
    ] {
        let request = NodePublishVolumeRequest {
            readonly,
            ..publish(&id, (&staging, &place), how)
        };
        let answer = agent.node().node_publish_volume(request).await;
        codes.push(answer.as_ref().map_or_else(Status::code, |_| Code::Ok));
        if place != target {
            let request = unpublish(&id, &place);
            ok(agent.node().node_unpublish_volume(request).await);
        }
    }
    unmount(agent, &id, &(staging, target)).await;
    codes.try_into().unwrap()
}

#[tokio::test]
async fn a_second_publication_of_a_volume_has_the_code_of_the_table() {
    let agent = Agent::start().await;
    for (kind, capability) in [("m", mounted("ext4")), ("r", raw())] {
        for (mode, elsewhere) in [
            (Mode::SingleNodeSingleWriter, Code::FailedPrecondition),
            (Mode::SingleNodeMultiWriter, Code::Ok),
            (Mode::SingleNodeWriter, Code::FailedPrecondition),
        ] {
            let name = format!("{kind}-{mode:?}");
            let codes = second_publications(&agent, &name, &for_mode(&capability, mode)).await;
            let expected = [Code::Ok, Code::AlreadyExists, elsewhere, elsewhere];
            assert_eq!(codes, expected, "{name}");
        }
    }
}

/// Unstages a volume from a path where it is not staged, before it is staged, while it is, and while it is published.
async fn unstaged_elsewhere(agent: &Agent, capability: &VolumeCapability) {
    let id = volume(agent, "v", 32, capability).await;
    let (staging, target) = paths(agent, "v");
    let (other, _) = paths(agent, "other");
    let unstage_other = async || {
        let request = unstage(&id, &other);
        ok(agent.node().node_unstage_volume(request).await);
    };
    unstage_other().await;
    let request = stage(&id, &staging, capability);
    ok(agent.node().node_stage_volume(request).await);
    unstage_other().await;
    // It is still staged.
    let request = publish(&id, (&staging, &target), capability);
    ok(agent.node().node_publish_volume(request).await);
    unstage_other().await;
    assert!(Path::new(&target).exists());
    unmount(agent, &id, &(staging, target)).await;
}

#[tokio::test]
async fn unstaging_a_mounted_volume_from_where_it_is_not_staged_is_ok_and_changes_nothing() {
    unstaged_elsewhere(&Agent::start().await, &mounted("ext4")).await;
}

#[tokio::test]
async fn unstaging_a_raw_volume_from_where_it_is_not_staged_is_ok_and_changes_nothing() {
    unstaged_elsewhere(&Agent::start().await, &raw()).await;
}

#[tokio::test]
async fn the_end_of_a_volume_that_does_not_exist_is_ok_unless_something_is_mounted_there() {
    let agent = Agent::start().await;
    let (empty, _) = paths(&agent, "empty");
    let taken = text(agent.scratch.directory("taken"));
    run("mount", &["-t", "tmpfs", "tmpfs", &taken]);
    for id in [UNKNOWN, "nonsense"] {
        let mut node = agent.node();
        ok(node.node_unpublish_volume(unpublish(id, &empty)).await);
        ok(node.node_unstage_volume(unstage(id, &empty)).await);
        refused(
            node.node_unpublish_volume(unpublish(id, &taken)).await,
            Code::NotFound,
        );
        refused(
            node.node_unstage_volume(unstage(id, &taken)).await,
            Code::NotFound,
        );
    }
    assert_eq!(mounts_below(&taken).len(), 1);
}

#[tokio::test]
async fn nodes_of_other_names_have_other_ids_and_a_limit_that_is_not_negative() {
    for (node, most) in [("node-a", 0), (&*"n".repeat(63), 7)] {
        let options = Options {
            config: (most > 0).then(|| format!("maxVolumesPerNode: {most}\n")),
            node: Some(node.to_owned()),
            ..Options::default()
        };
        let agent = Agent::with(Scratch::new(), options).await;
        for _ in 0..2 {
            let info = ok(agent.node().node_get_info(NodeGetInfoRequest {}).await);
            assert_eq!(
                (info.node_id.as_str(), info.max_volumes_per_node),
                (node, most)
            );
            let segments = info.accessible_topology.unwrap().segments;
            assert_eq!(segments.len(), 1);
            assert_eq!(segments["topology.drumlin.dev/node"], node);
        }
    }
}
