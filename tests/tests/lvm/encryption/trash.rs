//! Encrypted volumes in the trash of their class.

use std::path::{Path, PathBuf};

use drumlin_proto::drumlin::v1::{DestroyTrashedVolumeRequest, TrashedVolume};
use drumlin_tests::{
    agent::{Agent, Options, eventually},
    programs::run,
    requests::delete,
    storage::Scratch,
};

use super::{
    rotation::{reload, until_only},
    setup::{encryption, has_bytes, mappings, opens},
};
use crate::{
    helpers::ok,
    place::{Place, places, restart_with},
    trash::{content, in_trash, undelete, used},
};

/// What a header has in its text.
const HEADER: &str = r#""keyslots":{"0""#;

/// The keys of a class that has a trash.
fn with_trash(encryption: &str) -> String {
    format!("{encryption}, trash: {{keep: 7d}}")
}

/// An agent of one class with a trash, whose key is `key`.
async fn start(place: Place) -> Agent {
    let scratch = Scratch::new();
    let keys = with_trash(&encryption(&scratch.key("key"), &[]));
    let options = Options {
        config: Some(place.config(&scratch, &keys)),
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

/// A volume with words in a file, in the trash.
async fn thrown_away(agent: &Agent, name: &str, words: &str) -> (String, TrashedVolume) {
    let id = used(agent, name, words.as_bytes()).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
    let mut all = in_trash(agent).await.into_iter();
    (id, all.find(|trashed| trashed.name == name).unwrap())
}

/// The device or file of a volume in the trash, below its encryption; LVM activates it.
fn below(place: Place, agent: &Agent, trashed: &TrashedVolume) -> PathBuf {
    let key = trashed.trash_id.rsplit('/').next().unwrap();
    if place == Place::Images {
        return agent.path(&format!("images/trash/{key}/image"));
    }
    let name = format!("{}/dl-d-{key}", agent.scratch.group().unwrap());
    run("lvchange", &["-q", "-y", "-ay", "-K", &name]);
    Path::new("/dev").join(name)
}

#[tokio::test]
async fn what_is_in_the_trash_stays_encrypted_and_comes_back_with_its_data() {
    const WORDS: &str = "the words that nobody may read from the trash";
    for place in places() {
        let mut agent = start(*place).await;
        let (id, trashed) = thrown_away(&agent, "v", WORDS).await;
        assert_eq!(mappings(), [""; 0], "{place:?}");
        assert_eq!(trashed.size_bytes, 16 << 20, "without its header");
        let there = below(*place, &agent, &trashed);
        assert!(opens(&there, &agent.path("key")) && !has_bytes(&there, WORDS));
        agent.kill();
        agent.restart().await;
        // Beside a new one of its name, whose header is another.
        assert_eq!(used(&agent, "v", b"new").await, id);
        let back = ok(undelete(&agent, &trashed.trash_id, "w").await).volume_id;
        assert_eq!(content(&agent, "w", &back).await, WORDS.as_bytes());
        assert_eq!(content(&agent, "v", &id).await, b"new");
    }
}

#[tokio::test]
async fn who_destroys_a_volume_in_the_trash_forgets_its_key() {
    let agent = start(Place::Lvm).await;
    let (_, trashed) = thrown_away(&agent, "v", "words").await;
    let has_header = || {
        run("sync", &[]);
        let mut disks = ["disk-a", "disk-b"].into_iter();
        disks.any(|disk| has_bytes(&agent.path(disk), HEADER))
    };
    assert!(has_header());
    let trash_id = trashed.trash_id;
    let request = DestroyTrashedVolumeRequest { trash_id };
    ok(agent.trash().destroy_trashed_volume(request).await);
    assert!(!has_header());
}

#[tokio::test]
async fn a_rotation_re_keys_what_is_in_the_trash() {
    for place in places() {
        let mut agent = start(*place).await;
        let (old, new) = (agent.path("key"), agent.scratch.key("new"));
        let (id, trashed) = thrown_away(&agent, "v", "before").await;
        let keys = with_trash(&encryption(&new, &[&old]));
        reload(&agent, &place.config(&agent.scratch, &keys));
        let ended = "rotation of the key ended";
        let log = eventually(|| agent.log(), |log| log.contains(ended)).await;
        assert!(log.contains("images=1 done=1"), "{log}");
        until_only(&below(*place, &agent, &trashed), &new, &old).await;

        let keys = with_trash(&encryption(&new, &[]));
        let config = place.config(&agent.scratch, &keys);
        restart_with(&mut agent, config).await;
        assert_eq!(
            ok(undelete(&agent, &trashed.trash_id, "").await).volume_id,
            id
        );
        assert_eq!(content(&agent, "v", &id).await, b"before");
    }
}

/// The key of a program that has another one for each volume.
const PROGRAM: &str = "{command: [/bin/sh, -c, 'printf %s $DRUMLIN_VOLUME_KEY-of-this-volume']}";

#[tokio::test]
async fn with_a_key_for_each_volume_one_is_undeleted_under_another_name() {
    let place = Place::Lvm;
    let mut agent = start(place).await;
    let old = agent.path("key");
    let (_, from_file) = thrown_away(&agent, "a", "of the file").await;
    // What is re-keyed in the trash gets the key of its id there.
    let keys = format!(
        ", encryption: {{type: luks2, key: {PROGRAM}, previousKeys: [{{file: {}}}]}}",
        old.display()
    );
    reload(&agent, &place.config(&agent.scratch, &with_trash(&keys)));
    let ended = "rotation of the key ended";
    eventually(|| agent.log(), |log| log.contains(ended)).await;
    let keys = format!(", encryption: {{type: luks2, key: {PROGRAM}}}");
    let config = place.config(&agent.scratch, &with_trash(&keys));
    restart_with(&mut agent, config).await;
    let (_, from_program) = thrown_away(&agent, "b", "of the program").await;
    for (trashed, name, words) in [
        (from_file, "c", "of the file"),
        (from_program, "d", "of the program"),
    ] {
        let back = ok(undelete(&agent, &trashed.trash_id, name).await).volume_id;
        assert_eq!(content(&agent, name, &back).await, words.as_bytes());
        // It has got the key of its own name, and needs no other one.
        let own = agent.path("own");
        let key = back.rsplit('/').next().unwrap();
        std::fs::write(&own, format!("{key}-of-this-volume")).unwrap();
        content(&agent, name, &back).await;
        assert!(opens(&activated(&place.below(&agent, &back)), &own));
    }
}

/// The device of a logical volume, which LVM activates.
fn activated(device: &Path) -> PathBuf {
    run(
        "lvchange",
        &["-q", "-y", "-ay", "-K", &device.to_string_lossy()],
    );
    device.to_owned()
}
