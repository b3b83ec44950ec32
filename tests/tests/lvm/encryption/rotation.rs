//! Rotation of the key of a class while its volumes are used.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use drumlin_tests::{
    agent::{Agent, Options, eventually, write},
    requests::{create, delete, from_snapshot, mounted, snapshot, stage},
};
use nix::sys::signal::Signal;
use tonic::Code;

use super::setup::{encryption, opens};
use crate::{
    helpers::{get, mount, ok, paths, put, refused, unmount, volume},
    place::{Place, places, restart_with},
};

/// Writes and syncs a file over and over, and counts.
fn writer(directory: &str) -> (Arc<AtomicBool>, Arc<AtomicU64>, std::thread::JoinHandle<()>) {
    let (stop, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&count));
    let directory = directory.to_owned();
    let thread = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let next = counted.load(Ordering::Relaxed) + 1;
            put(&directory, "count", &next.to_le_bytes());
            counted.store(next, Ordering::Relaxed);
        }
    });
    (stop, count, thread)
}

/// Has the running agent read its configuration again.
pub(super) fn reload(agent: &Agent, config: &str) {
    write(&agent.path("config.yaml"), config);
    agent.signal(Signal::SIGHUP);
}

pub(super) async fn until_only(below: &Path, new: &Path, old: &Path) {
    eventually(
        || (opens(below, new), opens(below, old)),
        |both| *both == (true, false),
    )
    .await;
}

#[tokio::test]
async fn a_key_is_rotated_while_a_writer_goes_on() {
    for place in places() {
        let mut agent = place.agent().await;
        let (old, new) = (agent.path("key"), agent.scratch.key("new"));
        let id = volume(&agent, "v", 32, &mounted("ext4")).await;
        let unused = volume(&agent, "unused", 32, &mounted("ext4")).await;
        let at = mount(&agent, "unused", &unused, &mounted("ext4")).await;
        put(&at.1, "words", b"before");
        unmount(&agent, &unused, &at).await;
        let taken = agent
            .controller()
            .create_snapshot(snapshot("s", &unused))
            .await;
        let taken = ok(taken).snapshot.unwrap().snapshot_id;
        let at = mount(&agent, "v", &id, &mounted("ext4")).await;
        let (stop, count, thread) = writer(&at.1);

        let config = place.config(&agent.scratch, &encryption(&new, &[&old]));
        reload(&agent, &config);
        for volume in [&id, &unused] {
            until_only(&place.below(&agent, volume), &new, &old).await;
        }
        let seen = count.load(Ordering::Relaxed);
        eventually(|| count.load(Ordering::Relaxed), |now| *now > seen + 2).await;
        eventually(
            || agent.log(),
            |log| log.contains("rotation of the key ended"),
        )
        .await;
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        let last = get(&at.1, "count");
        assert_eq!(last, count.load(Ordering::Relaxed).to_le_bytes());
        unmount(&agent, &id, &at).await;

        // The old key is not needed any more, not even by what was taken before.
        let config = place.config(&agent.scratch, &encryption(&new, &[]));
        restart_with(&mut agent, config).await;
        let request = drumlin_proto::csi::v1::CreateVolumeRequest {
            volume_content_source: from_snapshot(&taken),
            ..create("r", 32, &mounted("ext4"))
        };
        let restored = ok(agent.controller().create_volume(request).await);
        let restored = restored.volume.unwrap().volume_id;
        for (name, id) in [("v", &id), ("r", &restored)] {
            let at = mount(&agent, name, id, &mounted("ext4")).await;
            let name = if id == &restored { "words" } else { "count" };
            assert!(!get(&at.1, name).is_empty());
            unmount(&agent, id, &at).await;
        }
        let secrets = std::fs::read(&new).unwrap();
        let log = agent.log();
        assert!(
            !log.as_bytes()
                .windows(16)
                .any(|part| part == &secrets[..16])
        );
    }
}

/// A snapshot of a volume, which is refused while that is re-keyed.
async fn taken_of(agent: &Agent, id: &str) -> String {
    loop {
        match agent.controller().create_snapshot(snapshot(id, id)).await {
            Ok(made) => return made.into_inner().snapshot.unwrap().snapshot_id,
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn what_is_made_during_a_rotation_is_re_keyed_before_it_ends() {
    for place in places() {
        let mut agent = place.agent().await;
        let (old, new) = (agent.path("key"), agent.scratch.key("new"));
        let mut volumes = Vec::new();
        for name in ["a", "b", "c"] {
            let id = volume(&agent, name, 32, &mounted("ext4")).await;
            let at = mount(&agent, name, &id, &mounted("ext4")).await;
            put(&at.1, "words", name.as_bytes());
            unmount(&agent, &id, &at).await;
            volumes.push(id);
        }
        // Each re-keying takes a second longer.
        agent.kill();
        let config = place.config(&agent.scratch, &encryption(&new, &[&old]));
        let options = Options {
            config: Some(config),
            ..Options::default()
        };
        let pausing = options.pausing_at("encrypted.rekey.added");
        agent.restart_with(pausing).await;
        eventually(|| agent.log(), |log| log.contains("image re-keyed")).await;
        let mut taken = Vec::new();
        for id in &volumes {
            taken.push(taken_of(&agent, id).await);
        }
        assert!(!agent.log().contains("rotation of the key ended"));
        let ended = eventually(
            || agent.log(),
            |log| log.contains("rotation of the key ended"),
        )
        .await;
        // Of the snapshots only those that were taken before their volumes were re-keyed.
        let mut all = (4..=6).map(|all| format!("images={all} done={all}"));
        assert!(all.any(|all| ended.contains(&all)), "{ended}");
        // Without the former key.
        let config = place.config(&agent.scratch, &encryption(&new, &[]));
        restart_with(&mut agent, config).await;
        for (name, id) in ["a", "b", "c"].into_iter().zip(&taken) {
            let request = drumlin_proto::csi::v1::CreateVolumeRequest {
                volume_content_source: from_snapshot(id),
                ..create(&format!("from-{name}"), 32, &mounted("ext4"))
            };
            let restored = ok(agent.controller().create_volume(request).await);
            let restored = restored.volume.unwrap().volume_id;
            let at = mount(&agent, "r", &restored, &mounted("ext4")).await;
            assert_eq!(get(&at.1, "words"), name.as_bytes());
            unmount(&agent, &restored, &at).await;
            ok(agent.controller().delete_volume(delete(&restored)).await);
        }
    }
}

#[tokio::test]
async fn what_was_unused_in_a_rotation_needs_its_former_key_until_it_is_re_keyed() {
    let place = Place::Lvm;
    let mut agent = place.agent().await;
    let (old, new) = (agent.path("key"), agent.scratch.key("new"));
    let id = volume(&agent, "v", 32, &mounted("ext4")).await;
    let at = mount(&agent, "v", &id, &mounted("ext4")).await;
    put(&at.1, "words", b"before");
    unmount(&agent, &id, &at).await;

    let only_new = place.config(&agent.scratch, &encryption(&new, &[]));
    restart_with(&mut agent, only_new.clone()).await;
    let locked = "no key of the class opens these images";
    eventually(|| agent.log(), |log| log.contains(locked)).await;
    let (staging, _) = paths(&agent, "v");
    let answer = agent
        .node()
        .node_stage_volume(stage(&id, &staging, &mounted("ext4")))
        .await;
    refused(answer, Code::FailedPrecondition);

    let both = place.config(&agent.scratch, &encryption(&new, &[&old]));
    restart_with(&mut agent, both).await;
    until_only(&place.below(&agent, &id), &new, &old).await;
    restart_with(&mut agent, only_new).await;
    let at = mount(&agent, "v", &id, &mounted("ext4")).await;
    assert_eq!(get(&at.1, "words"), b"before");
    unmount(&agent, &id, &at).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
}

#[tokio::test]
async fn a_key_that_is_missing_is_told_at_the_reload_that_names_it() {
    let place = Place::Lvm;
    let agent = place.agent().await;
    let missing = agent.path("missing");
    reload(
        &agent,
        &place.config(&agent.scratch, &encryption(&missing, &[])),
    );
    let told = "a key of the class cannot be used";
    let log = eventually(|| agent.log(), |log| log.contains(told)).await;
    assert!(log.contains(missing.to_str().unwrap()), "{log}");
}
