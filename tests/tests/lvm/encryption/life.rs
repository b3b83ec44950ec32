//! The life of an encrypted volume: what is on the disks, its size, its growth, its keys and its end.

use std::{fs, fs::File, os::unix::fs::FileExt, path::Path};

use drumlin_proto::csi::v1::ControllerGetVolumeRequest;
use drumlin_tests::{
    programs::run,
    requests::{create, delete, expand, mounted, node_expand, raw, stage, unstage},
};
use tonic::Code;

use super::setup::{encryption, has_bytes, mappings, opens, write_header_of_disk};
use crate::{
    helpers::{get, mount, ok, paths, put, refused, unmount, volume},
    place::{Place, places, restart_with},
};

/// What nobody may find on a disk.
const WORDS: &str = "the words that nobody may read from the disk below";

fn bytes_of(device: &str) -> u64 {
    run("blockdev", &["--getsize64", device])
        .trim()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn what_is_written_is_encrypted_and_stays_through_growth_and_restart() {
    for place in places() {
        let mut agent = place.agent().await;
        let id = volume(&agent, "v", 32, &mounted("ext4")).await;
        let at = mount(&agent, "v", &id, &mounted("ext4")).await;
        put(&at.1, "words", WORDS.repeat(64).as_bytes());
        let below = place.below(&agent, &id);
        assert!(!has_bytes(&below, WORDS), "{place:?}");
        assert_eq!(mappings().len(), 1);

        let grown = agent
            .controller()
            .controller_expand_volume(expand(&id, 64))
            .await;
        assert_eq!(ok(grown).capacity_bytes, 64 << 20);
        ok(agent
            .node()
            .node_expand_volume(node_expand(&id, &at.1))
            .await);
        put(&at.1, "more", &vec![7; 40 << 20]);

        agent.kill();
        agent.restart().await;
        ok(agent
            .node()
            .node_stage_volume(stage(&id, &at.0, &mounted("ext4")))
            .await);
        unmount(&agent, &id, &at).await;
        assert_eq!(
            mappings(),
            [""; 0],
            "{place:?}: the key is not in the kernel any more"
        );
        let at = mount(&agent, "v", &id, &mounted("ext4")).await;
        assert_eq!(get(&at.1, "words"), WORDS.repeat(64).as_bytes());
        assert_eq!(get(&at.1, "more").len(), 40 << 20);
        let busy = agent.controller().delete_volume(delete(&id)).await;
        refused(busy, Code::FailedPrecondition);
        unmount(&agent, &id, &at).await;
        ok(agent.controller().delete_volume(delete(&id)).await);
    }
}

#[tokio::test]
async fn a_raw_volume_has_the_size_that_was_asked_for() {
    let place = Place::Lvm;
    let agent = place.agent().await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    assert_eq!(bytes_of(&at.1), 32 << 20, "{place:?}");
    let device = File::options().read(true).write(true).open(&at.1).unwrap();
    let mut head = [1; 4096];
    device.read_exact_at(&mut head, 0).unwrap();
    assert_eq!(head, [0; 4096], "a new volume begins with zeros");
    device
        .write_all_at(WORDS.as_bytes(), (32 << 20) - 4096)
        .unwrap();
    device.sync_all().unwrap();
    drop(device);
    assert!(!has_bytes(&place.below(&agent, &id), WORDS));
    let request = ControllerGetVolumeRequest {
        volume_id: id.clone(),
    };
    let found = agent.controller().controller_get_volume(request).await;
    assert_eq!(ok(found).volume.unwrap().capacity_bytes, 32 << 20);
    let grown = agent
        .controller()
        .controller_expand_volume(expand(&id, 40))
        .await;
    assert_eq!(ok(grown).capacity_bytes, 40 << 20);
    ok(agent
        .node()
        .node_expand_volume(node_expand(&id, &at.1))
        .await);
    assert_eq!(bytes_of(&at.1), 40 << 20, "{place:?}");
    unmount(&agent, &id, &at).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
}

#[tokio::test]
async fn without_its_key_a_volume_stays_closed_and_unchanged() {
    let place = Place::Lvm;
    let mut agent = place.agent().await;
    let id = volume(&agent, "v", 32, &mounted("ext4")).await;
    let at = mount(&agent, "v", &id, &mounted("ext4")).await;
    put(&at.1, "words", WORDS.as_bytes());
    unmount(&agent, &id, &at).await;

    let (key, other) = (agent.path("key"), agent.scratch.key("other"));
    let short = agent.path("short");
    fs::write(&short, "too short").unwrap();
    let missing = agent.path("missing");
    for (wrong, reason) in [
        (encryption(&other, &[]), "previousKeys"),
        (encryption(&short, &[]), "9 bytes"),
        (encryption(&missing, &[]), "missing"),
        (String::new(), "has no key"),
    ] {
        let config = place.config(&agent.scratch, &wrong);
        restart_with(&mut agent, config).await;
        let (staging, _) = paths(&agent, "v");
        let answer = agent
            .node()
            .node_stage_volume(stage(&id, &staging, &mounted("ext4")))
            .await;
        let message = refused(answer, Code::FailedPrecondition);
        assert!(message.contains(reason), "{place:?}: {message}");
        assert!(!message.contains("too short"), "{message}");
        assert_eq!(mappings(), [""; 0]);
        if wrong.contains("short") || wrong.contains("missing") {
            let new = agent
                .controller()
                .create_volume(create("w", 32, &raw()))
                .await;
            refused(new, Code::FailedPrecondition);
        }
        ok(agent
            .node()
            .node_unstage_volume(unstage(&id, &staging))
            .await);
    }
    let config = place.config(&agent.scratch, &encryption(&key, &[]));
    restart_with(&mut agent, config).await;
    let at = mount(&agent, "v", &id, &mounted("ext4")).await;
    assert_eq!(get(&at.1, "words"), WORDS.as_bytes());
    unmount(&agent, &id, &at).await;
}

/// The files that the disks of a volume group are.
fn disks(root: &Path) -> [std::path::PathBuf; 2] {
    ["disk-a", "disk-b"].map(|disk| root.join(disk))
}

#[tokio::test]
async fn who_deletes_a_volume_forgets_its_key() {
    // What a header has in its text.
    const HEADER: &str = r#""keyslots":{"0""#;
    let place = Place::Lvm;
    let agent = place.agent().await;
    let id = volume(&agent, "v", 32, &mounted("ext4")).await;
    let at = mount(&agent, "v", &id, &mounted("ext4")).await;
    unmount(&agent, &id, &at).await;
    assert!(opens(&place.below(&agent, &id), &agent.path("key")));
    run("sync", &[]);
    let has_header = |disk: &std::path::PathBuf| has_bytes(disk, HEADER);
    assert!(disks(agent.scratch.path()).iter().any(has_header));
    ok(agent.controller().delete_volume(delete(&id)).await);
    run("sync", &[]);
    assert!(!disks(agent.scratch.path()).iter().any(has_header));
}

#[tokio::test]
async fn a_physical_volume_that_a_user_writes_is_none_of_the_hosts() {
    let place = Place::Lvm;
    let mut agent = place.agent().await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    write_header_of_disk(&agent, &at.1);
    // As when another disk comes: LVM looks at all of them anew.
    let _ = fs::remove_file("/run/lvm/hints");
    let other = volume(&agent, "w", 32, &raw()).await;
    // The mapping was opened by another process.
    agent.kill();
    agent.restart().await;
    let third = volume(&agent, "x", 32, &raw()).await;
    for id in [&other, &third] {
        ok(agent.controller().delete_volume(delete(id)).await);
    }
    unmount(&agent, &id, &at).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
}
