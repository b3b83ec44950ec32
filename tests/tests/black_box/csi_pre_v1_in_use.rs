//! What the texts before `csi.v1` say of the use and the deletion of volumes and snapshots, where no other test makes the
//! call.

use std::fs;

use drumlin_proto::csi::{
    v0,
    v1::{VolumeCapability, volume_capability::access_mode::Mode},
};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::run,
    requests::{MIB, for_mode, mounted, raw},
    storage::{Kind, Scratch},
};
use tonic::Code;

use crate::{
    csi_pre_v1_calls::{Caller, Dialect, OLD},
    dialect::controller_v0,
    helpers::{ok, paths, refused, text},
    node::with_flags,
};

#[tokio::test]
async fn a_snapshot_that_is_mounted_is_not_deleted_by_0_3() {
    let agent = Agent::start().await;
    let caller = Caller::of(&agent, Dialect::V0_3);
    let plain = mounted("ext4");
    let made = caller.create("v", (32 * MIB, 0), &[plain.clone()]).await;
    let id = made.unwrap().id;
    let (staging, target) = paths(&agent, "v");
    caller.stage(&id, &staging, &plain).await.unwrap();
    let at = (staging.as_str(), target.as_str());
    caller.publish(&id, at, &plain, false).await.unwrap();
    let mut controller = controller_v0(&agent);
    let request = v0::CreateSnapshotRequest {
        source_volume_id: id.clone(),
        name: "s".to_owned(),
        ..Default::default()
    };
    let taken = ok(controller.create_snapshot(request).await);
    let snapshot_id = taken.snapshot.unwrap().id;
    let key = snapshot_id.rsplit('/').next().unwrap();
    let image = text(agent.path("state/images/snapshots").join(key).join("image"));
    let place = text(agent.scratch.directory("looked-at"));
    run("mount", &["-o", "ro", &image, &place]);
    let request = v0::DeleteSnapshotRequest {
        snapshot_id,
        ..Default::default()
    };
    let answer = controller.delete_snapshot(request.clone()).await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains(&place), "{message}");
    assert!(fs::exists(&image).unwrap());
    run("umount", &[&place]);
    ok(controller.delete_snapshot(request).await);
    caller.unpublish(&id, &target).await.unwrap();
    caller.unstage(&id, &staging).await.unwrap();
}

/// Uses a volume that was created raw on the node, where the dialect does that first; what becomes of it.
async fn used(agent: &Agent, dialect: Dialect, how: &VolumeCapability) -> Code {
    let caller = Caller::of(agent, dialect);
    let name = format!("{dialect:?}");
    let made = caller.create(&name, (32 * MIB, 0), &[raw()]).await;
    let id = made.unwrap().id;
    let (staging, target) = paths(agent, &name);
    let used = match dialect {
        Dialect::V0_3 => caller.stage(&id, &staging, how).await,
        Dialect::V0_1 => caller.publish(&id, ("", &target), how, false).await,
    };
    assert!(!fs::exists(&target).unwrap());
    used.unwrap_err().code()
}

#[tokio::test]
async fn a_volume_that_was_created_raw_is_not_mounted_for_callers_of_old_texts() {
    let agent = Agent::start().await;
    for dialect in OLD {
        let code = used(&agent, dialect, &mounted("ext4")).await;
        assert_eq!(code, Code::FailedPrecondition, "{dialect:?}");
    }
}

#[tokio::test]
async fn a_mode_of_several_nodes_is_refused_on_the_node_for_callers_of_old_texts() {
    let agent = Agent::start().await;
    for dialect in OLD {
        let many = for_mode(&raw(), Mode::MultiNodeMultiWriter);
        let code = used(&agent, dialect, &many).await;
        assert_eq!(code, Code::FailedPrecondition, "{dialect:?}");
    }
}

#[tokio::test]
async fn a_volume_that_was_created_for_two_uses_can_be_used_in_either_by_old_texts() {
    let agent = Agent::start().await;
    let ways = [mounted("ext4"), raw()];
    for dialect in OLD {
        let caller = Caller::of(&agent, dialect);
        for (number, how) in ways.iter().enumerate() {
            let name = format!("{dialect:?}-{number}");
            let made = caller.create(&name, (32 * MIB, 0), &ways).await;
            let id = made.unwrap().id;
            let (staging, target) = paths(&agent, &name);
            caller.stage(&id, &staging, how).await.unwrap();
            let at = (staging.as_str(), target.as_str());
            caller.publish(&id, at, how, false).await.unwrap();
            assert_eq!(fs::metadata(&target).unwrap().is_dir(), *how != raw());
            caller.unpublish(&id, &target).await.unwrap();
            caller.unstage(&id, &staging).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_volume_that_is_staged_in_another_way_is_a_conflict_in_0_3() {
    let agent = Agent::start().await;
    let caller = Caller::of(&agent, Dialect::V0_3);
    let plain = mounted("ext4");
    let made = caller.create("v", (32 * MIB, 0), &[plain.clone()]).await;
    let id = made.unwrap().id;
    let (staging, _) = paths(&agent, "v");
    caller.stage(&id, &staging, &plain).await.unwrap();
    for other in [raw(), mounted("xfs"), with_flags("ext4", &["ro"])] {
        let answer = caller.stage(&id, &staging, &other).await;
        assert_eq!(answer.unwrap_err().code(), Code::AlreadyExists);
    }
    caller.unstage(&id, &staging).await.unwrap();
}

#[tokio::test]
async fn a_deletion_gives_the_room_back_to_callers_of_old_texts() {
    let scratch = Scratch::new();
    let images = text(scratch.file_system("images", Kind::Ext4, 256));
    let class = format!("{{name: default, directory: {{path: {images}, allocation: thick}}}}");
    let options = Options {
        config: Some(format!("classes: [{class}]\n")),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let mut controller = controller_v0(&agent);
    for dialect in OLD {
        let caller = Caller::of(&agent, dialect);
        let room = async || caller.room("default", &[raw()]).await.unwrap() / MIB;
        let before = room().await;
        let id = caller
            .create("v", (40 * MIB, 0), &[raw()])
            .await
            .unwrap()
            .id;
        let with_volume = room().await;
        assert!(with_volume <= before - 40, "{before} {with_volume}");
        // A copy of what was written: there are no reflinks.
        let key = id.rsplit('/').next().unwrap();
        fs::write(format!("{images}/volumes/{key}/image"), vec![7; 40 << 20]).unwrap();
        let request = v0::CreateSnapshotRequest {
            source_volume_id: id.clone(),
            name: "s".to_owned(),
            ..Default::default()
        };
        let taken = ok(controller.create_snapshot(request).await);
        assert!(room().await <= with_volume - 40);
        let request = v0::DeleteSnapshotRequest {
            snapshot_id: taken.snapshot.unwrap().id,
            ..Default::default()
        };
        ok(controller.delete_snapshot(request).await);
        assert_eq!(room().await, with_volume);
        caller.delete(&id).await.unwrap();
        assert_eq!(room().await, before);
    }
}
