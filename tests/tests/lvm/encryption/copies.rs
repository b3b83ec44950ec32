//! Copies of encrypted volumes.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use drumlin_proto::{
    csi::v1::CreateVolumeRequest, drumlin::v1::RollbackVolumeGroupSnapshotRequest,
};
use drumlin_tests::{
    agent::{Agent, Options},
    requests::{
        create, create_group_snapshot, from_snapshot, from_volume, mounted, raw, snapshot, stage,
    },
    storage::Scratch,
};
use tonic::Code;

use super::setup::{encryption, opens};
use crate::{
    helpers::{get, mount, ok, paths, put, refused, unmount, volume},
    place::{Place, places},
};

async fn copied(agent: &Agent, request: CreateVolumeRequest) -> String {
    let answer = agent.controller().create_volume(request).await;
    ok(answer).volume.unwrap().volume_id
}

#[tokio::test]
async fn snapshots_and_clones_of_a_mounted_volume_have_its_data() {
    for place in places() {
        let agent = place.agent().await;
        let id = volume(&agent, "v", 32, &mounted("ext4")).await;
        let at = mount(&agent, "v", &id, &mounted("ext4")).await;
        put(&at.1, "words", b"at the time of the copy");
        let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
        let taken = ok(taken).snapshot.unwrap();
        assert_eq!(taken.size_bytes, 32 << 20);
        put(&at.1, "words", b"later");
        let clone = CreateVolumeRequest {
            volume_content_source: from_volume(&id),
            ..create("clone", 32, &mounted("ext4"))
        };
        let clone = copied(&agent, clone).await;
        let larger = CreateVolumeRequest {
            volume_content_source: from_snapshot(&taken.snapshot_id),
            ..create("larger", 48, &mounted("ext4"))
        };
        let larger = copied(&agent, larger).await;
        for (name, id, words) in [
            ("clone", &clone, &b"later"[..]),
            ("larger", &larger, b"at the time of the copy"),
        ] {
            let at = mount(&agent, name, id, &mounted("ext4")).await;
            assert_eq!(get(&at.1, "words"), words, "{place:?} {name}");
            unmount(&agent, id, &at).await;
            assert!(opens(&place.below(&agent, id), &agent.path("key")));
        }
        let at_larger = mount(&agent, "larger", &larger, &mounted("ext4")).await;
        put(&at_larger.1, "more", &vec![1; 36 << 20]);
        unmount(&agent, &larger, &at_larger).await;
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test]
async fn a_copy_of_a_volume_that_was_never_used_gets_a_key_of_its_own() {
    let place = Place::Lvm;
    let agent = place.agent().await;
    let id = volume(&agent, "v", 32, &mounted("ext4")).await;
    let clone = CreateVolumeRequest {
        volume_content_source: from_volume(&id),
        ..create("clone", 32, &mounted("ext4"))
    };
    let clone = copied(&agent, clone).await;
    let mut headers = Vec::new();
    for (name, id) in [("v", &id), ("clone", &clone)] {
        let at = mount(&agent, name, id, &mounted("ext4")).await;
        put(&at.1, "name", name.as_bytes());
        let below = place.below(&agent, id);
        headers.push(drumlin_tests::programs::run(
            "cryptsetup",
            &["luksUUID", &below.to_string_lossy()],
        ));
        unmount(&agent, id, &at).await;
    }
    assert_ne!(headers[0], headers[1]);
}

#[tokio::test]
async fn a_restore_into_a_class_with_another_key_is_refused() {
    let place = Place::Lvm;
    let scratch = Scratch::new();
    let (own, other) = (scratch.key("key"), scratch.key("other"));
    let storage = place.storage(&scratch);
    let config = format!(
        "classes:\n- {{name: default, default: true, {storage}{}}}\n- {{name: other, {storage}{}}}\n",
        encryption(&own, &[]),
        encryption(&other, &[])
    );
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    unmount(&agent, &id, &at).await;
    let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
    let taken = ok(taken).snapshot.unwrap().snapshot_id;
    for source in [from_snapshot(&taken), from_volume(&id)] {
        let request = CreateVolumeRequest {
            volume_content_source: source,
            parameters: [("class".to_owned(), "other".to_owned())].into(),
            ..create("r", 32, &raw())
        };
        let answer = agent.controller().create_volume(request).await;
        assert!(answer.is_err(), "a class opens nothing of another one");
    }
}

#[tokio::test]
async fn a_program_gives_each_namespace_its_key_and_no_other_one() {
    let place = Place::Lvm;
    let scratch = Scratch::new();
    let program = scratch.path().join("key-program");
    let script = "#!/bin/sh\n[ -n \"$DRUMLIN_NAMESPACE\" ] || exit 3\nprintf '%s-0123456789abcdef0123456789abcdef-%s' \"$DRUMLIN_NAMESPACE\" \"$DRUMLIN_CLASS\"\n";
    std::fs::write(&program, script).unwrap();
    drumlin_tests::programs::run("chmod", &["0700", &program.to_string_lossy()]);
    let setting = format!(
        ", encryption: {{type: luks2, key: {{command: [{}]}}}}",
        program.display()
    );
    let options = Options {
        config: Some(place.config(&scratch, &setting)),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let of = |namespace: &str, request: CreateVolumeRequest| CreateVolumeRequest {
        parameters: [(
            "csi.storage.k8s.io/pvc/namespace".to_owned(),
            namespace.to_owned(),
        )]
        .into(),
        ..request
    };
    let own = copied(&agent, of("a", create("own", 32, &mounted("ext4")))).await;
    let at = mount(&agent, "own", &own, &mounted("ext4")).await;
    put(&at.1, "words", b"of a");
    unmount(&agent, &own, &at).await;
    let taken = agent
        .controller()
        .create_snapshot(snapshot("s", &own))
        .await;
    let taken = ok(taken).snapshot.unwrap().snapshot_id;
    let restored = |name: &str| CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken),
        ..create(name, 32, &mounted("ext4"))
    };
    let same = copied(&agent, of("a", restored("same"))).await;
    let at = mount(&agent, "same", &same, &mounted("ext4")).await;
    assert_eq!(get(&at.1, "words"), b"of a");
    unmount(&agent, &same, &at).await;
    // Its bytes are there, as everything of the snapshot is; what opens them is not asked for.
    let foreign = copied(&agent, of("b", restored("foreign"))).await;
    let (staging, _) = paths(&agent, "foreign");
    let request = stage(&foreign, &staging, &mounted("ext4"));
    let message = refused(
        agent.node().node_stage_volume(request).await,
        Code::FailedPrecondition,
    );
    assert!(message.contains("namespace a"), "{message}");
    let nobody = volume(&agent, "nobody", 32, &mounted("ext4")).await;
    let (staging, _) = paths(&agent, "nobody");
    let request = stage(&nobody, &staging, &mounted("ext4"));
    let message = refused(
        agent.node().node_stage_volume(request).await,
        Code::FailedPrecondition,
    );
    assert!(message.contains("exit status: 3"), "{message}");
}

/// Writes the same numbers to a file and, after it, to a raw volume, until it is told to stop; returns the last one.
fn write_in_turns(file: &str, raw: &str, stop: &AtomicBool) -> u64 {
    // In place: a file that is written anew is empty for a moment.
    let opened = |path: &str| File::options().write(true).open(path).unwrap();
    let (file, device) = (opened(file), opened(raw));
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        for one in [&file, &device] {
            one.write_all_at(&number.to_le_bytes(), 0).unwrap();
            one.sync_all().unwrap();
        }
    }
    number
}

#[tokio::test]
async fn a_group_snapshot_under_a_writer_is_one_point_in_time_that_can_be_rolled_back_to() {
    let agent = Place::Lvm.agent().await;
    let (ext4, block) = (mounted("ext4"), raw());
    let file = volume(&agent, "file", 32, &ext4).await;
    let device = volume(&agent, "device", 32, &block).await;
    let at_file = mount(&agent, "file", &file, &ext4).await;
    let at_device = mount(&agent, "device", &device, &block).await;
    let stop = Arc::<AtomicBool>::default();
    put(&at_file.1, "number", &[0; 8]);
    let (number, device_path) = (format!("{}/number", at_file.1), at_device.1.clone());
    let stopped = Arc::clone(&stop);
    let writer = std::thread::spawn(move || write_in_turns(&number, &device_path, &stopped));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let request = create_group_snapshot("g", vec![file.clone(), device.clone()]);
    let taken = agent
        .group_controller()
        .create_volume_group_snapshot(request)
        .await;
    let taken = ok(taken).group_snapshot.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Relaxed);
    let last = writer.join().unwrap();
    unmount(&agent, &file, &at_file).await;
    unmount(&agent, &device, &at_device).await;
    let request = RollbackVolumeGroupSnapshotRequest {
        group_snapshot_id: taken.group_snapshot_id,
        name: "back".to_owned(),
        discard: true,
    };
    ok(agent.own().rollback_volume_group_snapshot(request).await);
    let at_file = mount(&agent, "file", &file, &ext4).await;
    let at_device = mount(&agent, "device", &device, &block).await;
    let in_file = u64::from_le_bytes(get(&at_file.1, "number").try_into().unwrap());
    let mut in_device = [0; 8];
    let opened = File::open(&at_device.1).unwrap();
    opened.read_exact_at(&mut in_device, 0).unwrap();
    drop(opened);
    let in_device = u64::from_le_bytes(in_device);
    assert!(
        0 < in_device && in_file < last,
        "{in_device} {in_file} {last}"
    );
    assert!(
        (in_device..=in_device + 1).contains(&in_file),
        "{in_device} {in_file}"
    );
    unmount(&agent, &file, &at_file).await;
    unmount(&agent, &device, &at_device).await;
}
