//! Every dialect says the same of the same volumes, and old texts hold for those who call by them.

use std::{fs::File, os::unix::fs::FileExt};

use drumlin_proto::csi::{v0, v0_1};
use drumlin_tests::{
    agent::{Agent, Options, is_over_lvm},
    requests::{MIB, expand},
    storage::{Scratch, attached_images_below, mounts_below},
};
use tonic::Code;

use crate::{
    dialect::{
        Dialect, Use, VERSION, capability_v0, capability_v0_1, controller_v0, controller_v0_1,
        node_v0, node_v0_1, publish_v0, publish_v0_1, unpublish_v0_1,
    },
    helpers::{get, ok, paths, put, refused},
};

/// Writes through a publication, to the disk.
fn write(target: &str, how: Use, bytes: &[u8]) {
    match how {
        Use::Mounted => put(target, "file", bytes),
        Use::Raw => {
            let device = File::options().write(true).open(target).unwrap();
            device.write_all_at(bytes, 0).unwrap();
            device.sync_all().unwrap();
        }
    }
}

/// Reads as much.
fn read(target: &str, how: Use, length: usize) -> Vec<u8> {
    match how {
        Use::Mounted => get(target, "file"),
        Use::Raw => {
            let mut bytes = vec![0; length];
            let device = File::open(target).unwrap();
            device.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        }
    }
}

/// Nothing of the agent's is mounted or attached.
fn assert_all_is_down(agent: &Agent) {
    let root = agent.scratch.path().to_string_lossy().into_owned();
    assert_eq!(
        mounts_below(&format!("{root}/targets")),
        Vec::<String>::new()
    );
    assert_eq!(
        mounts_below(&format!("{root}/staging")),
        Vec::<String>::new()
    );
    if !is_over_lvm() {
        assert_eq!(attached_images_below(&root), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_volume_lives_the_same_life_in_every_dialect() {
    let agent = Agent::start().await;
    for maker in Dialect::ALL {
        for user in Dialect::ALL {
            for how in [Use::Mounted, Use::Raw] {
                let name = format!("{maker:?}-{user:?}-{how:?}");
                let made = maker.create(&agent, &name, 16, how).await.unwrap();
                for other in Dialect::ALL {
                    assert_eq!(other.create(&agent, &name, 16, how).await.unwrap(), made);
                    assert_eq!(other.list(&agent).await, vec![made.clone()], "{name}");
                    let clash = other.create(&agent, &name, 4096, how).await.unwrap_err();
                    assert_eq!(clash.code(), Code::AlreadyExists, "{clash}");
                }
                let id = &made.0;
                let target = user.mount(&agent, &name, id, how).await;
                write(&target, how, name.as_bytes());
                user.unmount(&agent, &name, id).await;
                assert_all_is_down(&agent);
                let target = user.mount(&agent, &name, id, how).await;
                assert_eq!(read(&target, how, name.len()), name.as_bytes());
                user.unmount(&agent, &name, id).await;
                ok(agent
                    .controller()
                    .controller_expand_volume(expand(id, 32))
                    .await);
                assert_eq!(maker.list(&agent).await, vec![(id.clone(), 32 * MIB)]);
                let copy = format!("{name}-copy");
                let (snapshot, restored) = user.restore(&agent, (&copy, id), 32, how).await;
                let target = maker.mount(&agent, &copy, &restored, how).await;
                assert_eq!(read(&target, how, name.len()), name.as_bytes());
                maker.unmount(&agent, &copy, &restored).await;
                user.delete(&agent, &restored).await;
                maker.forget(&agent, &snapshot).await;
                user.delete(&agent, id).await;
                assert_eq!(user.list(&agent).await, vec![]);
            }
        }
    }
}

#[tokio::test]
async fn publishing_without_staging_takes_everything_down_again() {
    let agent = Agent::start().await;
    for how in [Use::Mounted, Use::Raw] {
        let name = format!("{how:?}");
        let made = Dialect::V0_1.create(&agent, &name, 16, how).await;
        let (id, _) = made.unwrap();
        let (_, target) = paths(&agent, &name);
        for readonly in [false, true] {
            let request = v0_1::NodePublishVolumeRequest {
                readonly,
                ..publish_v0_1(&id, &target, how)
            };
            for _ in 0..2 {
                ok(node_v0_1(&agent).node_publish_volume(request.clone()).await);
            }
            let other = v0_1::NodePublishVolumeRequest {
                readonly: !readonly,
                ..request.clone()
            };
            refused(
                node_v0_1(&agent).node_publish_volume(other).await,
                Code::AlreadyExists,
            );
            let writes = match how {
                Use::Mounted => File::create(format!("{target}/file")).is_ok(),
                Use::Raw => File::options()
                    .write(true)
                    .open(&target)
                    .and_then(|device| device.write_all_at(&[1; 512], 0))
                    .is_ok(),
            };
            assert_eq!(writes, !readonly, "{how:?}");
            Dialect::V0_1.unmount(&agent, &name, &id).await;
            // Its caller makes the target, and takes it away.
            match how {
                Use::Mounted => std::fs::remove_dir(&target).unwrap(),
                Use::Raw => std::fs::remove_file(&target).unwrap(),
            }
            assert_all_is_down(&agent);
        }
        // What stands in the way is neither hidden nor removed, and no device stays behind.
        put(&agent.scratch.directory("targets"), &name, b"precious");
        refused(
            node_v0_1(&agent)
                .node_publish_volume(publish_v0_1(&id, &target, how))
                .await,
            Code::FailedPrecondition,
        );
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
        assert_all_is_down(&agent);
        std::fs::remove_file(&target).unwrap();
        Dialect::V0_1.delete(&agent, &id).await;
    }
}

/// An agent whose controller publishes.
async fn attaching() -> Agent {
    let options = Options {
        arguments: vec!["--attach".to_owned()],
        ..Options::default()
    };
    Agent::with(Scratch::new(), options).await
}

#[tokio::test]
async fn the_old_codes_hold_for_the_callers_of_old_texts() {
    let agent = Agent::start().await;
    let unknown = "node-a/default/00000000-0000-5000-8000-000000000000";
    let (staging, target) = paths(&agent, "v");
    let gone_v0 = v0::NodeUnpublishVolumeRequest {
        volume_id: unknown.to_owned(),
        target_path: target.clone(),
    };
    let mut node = node_v0(&agent);
    refused(node.node_unpublish_volume(gone_v0).await, Code::NotFound);
    let gone_v0 = v0::NodeUnstageVolumeRequest {
        volume_id: unknown.to_owned(),
        staging_target_path: staging.clone(),
    };
    refused(node.node_unstage_volume(gone_v0).await, Code::NotFound);
    let mut old_node = node_v0_1(&agent);
    refused(
        old_node
            .node_unpublish_volume(unpublish_v0_1(unknown, &target))
            .await,
        Code::NotFound,
    );
    let made = Dialect::V0_1.create(&agent, "v", 16, Use::Mounted).await;
    let (id, _) = made.unwrap();
    // 0.3 stages first.
    let message = refused(
        node.node_publish_volume(publish_v0(&id, ("", &target), Use::Mounted))
            .await,
        Code::FailedPrecondition,
    );
    assert!(message.contains("staging_target_path"), "{message}");
    // A second target.
    let second = format!("{target}-2");
    Dialect::V0.mount(&agent, "v", &id, Use::Mounted).await;
    for answer in [
        node.node_publish_volume(publish_v0(&id, (&staging, &second), Use::Mounted))
            .await
            .map(drop),
        old_node
            .node_publish_volume(publish_v0_1(&id, &second, Use::Mounted))
            .await
            .map(drop),
    ] {
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(!std::fs::exists(&second).unwrap());
    }
    // The same target in another way.
    let other = v0::NodePublishVolumeRequest {
        readonly: true,
        ..publish_v0(&id, (&staging, &target), Use::Mounted)
    };
    refused(node.node_publish_volume(other).await, Code::AlreadyExists);
    let mut other = publish_v0(&id, (&staging, &target), Use::Mounted);
    let mount = v0::volume_capability::MountVolume {
        fs_type: "xfs".to_owned(),
        mount_flags: Vec::new(),
    };
    let access_type = v0::volume_capability::AccessType::Mount(mount);
    other.volume_capability.as_mut().unwrap().access_type = Some(access_type);
    refused(node.node_publish_volume(other).await, Code::AlreadyExists);
    Dialect::V0.unmount(&agent, "v", &id).await;
    Dialect::V0_1.mount(&agent, "v", &id, Use::Mounted).await;
    refused(
        old_node
            .node_publish_volume(publish_v0_1(&id, &second, Use::Mounted))
            .await,
        Code::FailedPrecondition,
    );
    Dialect::V0_1.unmount(&agent, "v", &id).await;
}

fn attach_v0(id: &str, node: &str) -> v0::ControllerPublishVolumeRequest {
    v0::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(capability_v0(Use::Mounted)),
        ..v0::ControllerPublishVolumeRequest::default()
    }
}

fn attach_v0_1(id: &str, node: &str) -> v0_1::ControllerPublishVolumeRequest {
    v0_1::ControllerPublishVolumeRequest {
        version: VERSION,
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(capability_v0_1(Use::Mounted)),
        ..v0_1::ControllerPublishVolumeRequest::default()
    }
}

fn detach_v0(id: &str, node: &str) -> v0::ControllerUnpublishVolumeRequest {
    v0::ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        ..v0::ControllerUnpublishVolumeRequest::default()
    }
}

fn detach_v0_1(id: &str, node: &str) -> v0_1::ControllerUnpublishVolumeRequest {
    v0_1::ControllerUnpublishVolumeRequest {
        version: VERSION,
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        ..v0_1::ControllerUnpublishVolumeRequest::default()
    }
}

#[tokio::test]
async fn the_controller_publishes_by_old_texts() {
    let agent = attaching().await;
    let unknown = "node-a/default/00000000-0000-5000-8000-000000000000";
    let made = Dialect::V0.create(&agent, "v", 16, Use::Mounted).await;
    let (id, _) = made.unwrap();
    let (mut new, mut old) = (controller_v0(&agent), controller_v0_1(&agent));
    let (_, target) = paths(&agent, "v");
    for (volume, node) in [(unknown, "node-a"), (id.as_str(), "node-b")] {
        let answer = new.controller_publish_volume(attach_v0(volume, node));
        refused(answer.await, Code::NotFound);
        let answer = old.controller_publish_volume(attach_v0_1(volume, node));
        refused(answer.await, Code::NotFound);
        let answer = new.controller_unpublish_volume(detach_v0(volume, node));
        refused(answer.await, Code::NotFound);
        let answer = old.controller_unpublish_volume(detach_v0_1(volume, node));
        refused(answer.await, Code::NotFound);
    }
    // Not published, the node has no use for it.
    refused(
        node_v0_1(&agent)
            .node_publish_volume(publish_v0_1(&id, &target, Use::Mounted))
            .await,
        Code::FailedPrecondition,
    );
    ok(new
        .controller_publish_volume(attach_v0(&id, "node-a"))
        .await);
    let again = old.controller_publish_volume(attach_v0_1(&id, "node-a"));
    assert!(!ok(again.await).publish_volume_info.is_empty());
    let other = v0::ControllerPublishVolumeRequest {
        readonly: true,
        ..attach_v0(&id, "node-a")
    };
    refused(
        new.controller_publish_volume(other).await,
        Code::AlreadyExists,
    );
    let answer = new.controller_publish_volume(attach_v0(&id, "node-b"));
    let first = refused(answer.await, Code::FailedPrecondition);
    let answer = old.controller_publish_volume(attach_v0_1(&id, "node-b"));
    let second = refused(answer.await, Code::FailedPrecondition);
    for message in [first, second] {
        assert!(message.contains("node-a"), "{message}");
    }
    Dialect::V0_1.mount(&agent, "v", &id, Use::Mounted).await;
    Dialect::V0_1.unmount(&agent, "v", &id).await;
    for node in ["node-a", ""] {
        ok(old
            .controller_unpublish_volume(detach_v0_1(&id, node))
            .await);
        ok(new.controller_unpublish_volume(detach_v0(&id, node)).await);
    }
    Dialect::V0.delete(&agent, &id).await;
}
