//! Decrypted devices of encrypted volumes, over logical volumes and over image files.

use drumlin_tests::{
    agent::{Agent, Options},
    doctor::Diagnosis,
    programs::run,
    requests::{mounted, raw, stage},
};

use crate::{
    encryption::setup::{mappings, write_header_of_disk},
    helpers::{mount, paths, put, text, unmount, volume},
    place::{Place, places},
};

fn look(agent: &Agent) -> Diagnosis {
    Diagnosis::of_part(agent, "decrypted-devices")
}

/// The name of the one decrypted device.
fn mapping() -> String {
    let names = mappings();
    assert_eq!(names.len(), 1, "{names:?}");
    names.into_iter().next().unwrap()
}

#[tokio::test]
async fn a_decrypted_device_that_is_suspended_is_told() {
    for place in places() {
        let agent = place.agent().await;
        let ext4 = mounted("ext4");
        let id = volume(&agent, "v", 32, &ext4).await;
        look(&agent).lacks("suspended-device");
        let at = mount(&agent, "v", &id, &ext4).await;
        let name = mapping();
        let found = look(&agent);
        found.lacks("suspended-device");
        found.lacks("leaked-mapping");
        run("dmsetup", &["suspend", &name]);
        let found = look(&agent);
        let mended = std::panic::catch_unwind(|| found.mend("suspended-device", &name));
        run("dmsetup", &["resume", &name]);
        mended.unwrap();
        found.lacks("leaked-mapping");
        look(&agent).lacks("suspended-device");
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test]
async fn what_a_group_snapshot_leaves_suspended_is_told_and_resumed_from_below() {
    let place = Place::Lvm;
    let agent = place.agent().await;
    let ext4 = mounted("ext4");
    let id = volume(&agent, "v", 32, &ext4).await;
    let at = mount(&agent, "v", &id, &ext4).await;
    let (name, below) = (mapping(), text(place.below(&agent, &id)));
    let info = ["info", "-c", "--noheadings", "-o", "name", &below];
    let below = run("dmsetup", &info).trim().to_owned();
    for device in [&name, &below] {
        run("dmsetup", &["suspend", device]);
    }
    let groups = Diagnosis::of_part(&agent, "volume-groups");
    let found = look(&agent);
    let mended = std::panic::catch_unwind(|| {
        groups.mend("suspended-device", &below);
        found.mend("suspended-device", &name);
    });
    for device in [&below, &name] {
        run("dmsetup", &["resume", device]);
    }
    mended.unwrap();
    put(&at.1, "after", b"written");
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn an_open_volume_that_nothing_uses_is_leaked() {
    for place in places() {
        let mut agent = place.agent().await;
        let ext4 = mounted("ext4");
        let id = volume(&agent, "v", 32, &ext4).await;
        let at = mount(&agent, "v", &id, &ext4).await;
        unmount(&agent, &id, &at).await;
        look(&agent).lacks("leaked-mapping");
        // The agent dies between the opening of the volume and its mount.
        agent.kill();
        agent
            .restart_with(Options::default().killed_at("encrypted.attach.opened"))
            .await;
        let (staging, _) = paths(&agent, "v");
        let request = stage(&id, &staging, &ext4);
        agent.node().node_stage_volume(request).await.unwrap_err();
        agent.wait_until_killed().await;
        let name = mapping();
        let found = Diagnosis::of(&agent);
        assert!(found.all("not-checked").is_empty(), "{place:?} {found:?}");
        found.mend("leaked-mapping", &name);
        assert_eq!(mappings(), [""; 0], "{place:?}");
        look(&agent).lacks("leaked-mapping");
    }
}

#[tokio::test]
async fn an_open_raw_volume_is_in_use_though_nobody_has_it_open() {
    for place in places() {
        let agent = place.agent().await;
        let id = volume(&agent, "v", 32, &raw()).await;
        let at = mount(&agent, "v", &id, &raw()).await;
        mapping();
        look(&agent).lacks("leaked-mapping");
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test]
async fn a_disk_that_a_user_writes_into_a_volume_is_none_that_lvm_hides() {
    let agent = Place::Lvm.agent().await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    Diagnosis::of_part(&agent, "lvm").lacks("hidden-disk");
    write_header_of_disk(&agent, &at.1);
    Diagnosis::of_part(&agent, "lvm").lacks("hidden-disk");
    unmount(&agent, &id, &at).await;
}
