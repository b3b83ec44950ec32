//! Volumes made, written, snapshotted, grown, restored and deleted, until the lights go out.

use std::{fs::File, os::unix::fs::FileExt};

use drumlin_proto::csi::v1::CreateVolumeRequest;
use drumlin_tests::{
    agent::Agent,
    requests::{
        create, delete, delete_snapshot, expand, from_snapshot, raw, snapshot, stage, unstage,
    },
};

use crate::{
    ROUNDS, Witness, device,
    journal::{self, Journal},
    pattern,
};

/// The names of what one round makes: a volume, its snapshot, and what is restored from that.
struct Names {
    volume: String,
    snapshot: String,
    restored: String,
}

/// What a round has left: names and ids.
struct Living {
    volumes: [(String, String); 2],
    snapshot: (String, String),
}

pub(crate) async fn run(file: &str) {
    let agent = crate::agent("").await;
    let _witness = Witness(&agent);
    let numbers = journal::read(file)
        .into_keys()
        .map(|name| name[1..].parse::<u64>().unwrap());
    let first = numbers.max().map_or(0, |last| last + 1);
    let mut journal = Journal::open(file);
    let mut living = Vec::new();
    for number in first.. {
        living.push(round(&agent, &mut journal, number).await);
        if living.len() > ROUNDS {
            end(&agent, &mut journal, living.remove(0)).await;
        }
    }
}

async fn round(agent: &Agent, journal: &mut Journal, number: u64) -> Living {
    let names = Names {
        volume: format!("v{number}"),
        snapshot: format!("s{number}"),
        restored: format!("r{number}"),
    };
    let size = i64::try_from(4 + number % 5).unwrap();
    let (mut controller, mut node) = (agent.controller(), agent.node());
    journal.note("making", &names.volume);
    let made = controller
        .create_volume(create(&names.volume, size, &raw()))
        .await
        .unwrap();
    let id = made.into_inner().volume.unwrap().volume_id;
    journal.note("made", &names.volume);

    let staging = agent
        .scratch
        .directory(&format!("staging/{}", names.volume));
    let staging = staging.to_string_lossy().into_owned();
    node.node_stage_volume(stage(&id, &staging, &raw()))
        .await
        .unwrap();
    let bytes = File::options().write(true).open(device(&id, 'v')).unwrap();
    bytes.write_all_at(&pattern(number), 0).unwrap();
    bytes.sync_all().unwrap();
    drop(bytes);
    journal.note("written", &names.volume);

    controller
        .controller_expand_volume(expand(&id, size + 8))
        .await
        .unwrap();
    journal.note("grown", &format!("{} {}", names.volume, size + 8));

    let (snapshot, restored) = copies(agent, journal, &names, &id, size + 4).await;
    node.node_unstage_volume(unstage(&id, &staging))
        .await
        .unwrap();
    Living {
        volumes: [(names.volume, id), (names.restored, restored)],
        snapshot: (names.snapshot, snapshot),
    }
}

/// A snapshot of a volume, and a volume of `size` MiB from it: their ids.
async fn copies(
    agent: &Agent,
    journal: &mut Journal,
    names: &Names,
    id: &str,
    size: i64,
) -> (String, String) {
    let mut controller = agent.controller();
    journal.note("making", &names.snapshot);
    let answer = controller
        .create_snapshot(snapshot(&names.snapshot, id))
        .await
        .unwrap();
    let snapshot = answer.into_inner().snapshot.unwrap().snapshot_id;
    journal.note("made", &names.snapshot);

    let restore = CreateVolumeRequest {
        volume_content_source: from_snapshot(&snapshot),
        ..create(&names.restored, size, &raw())
    };
    journal.note("making", &names.restored);
    let restored = controller.create_volume(restore).await.unwrap();
    let restored = restored.into_inner().volume.unwrap().volume_id;
    journal.note("made", &names.restored);
    journal.note("written", &names.restored);
    (snapshot, restored)
}

async fn end(agent: &Agent, journal: &mut Journal, living: Living) {
    let mut controller = agent.controller();
    // A thick volume cannot go before its snapshots.
    let (taken, snapshot) = living.snapshot;
    journal.note("deleting", &taken);
    let request = delete_snapshot(&snapshot);
    controller.delete_snapshot(request).await.unwrap();
    journal.note("deleted", &taken);
    for (name, id) in living.volumes {
        journal.note("deleting", &name);
        controller.delete_volume(delete(&id)).await.unwrap();
        journal.note("deleted", &name);
    }
}
