//! Volumes made, written, snapshotted, grown, restored and deleted, until the lights go out.

use std::{fs::File, os::unix::fs::FileExt};

use drumlin_proto::csi::v1::{CreateVolumeRequest, DeleteSnapshotRequest};
use drumlin_tests::requests::{
    create, delete, expand, from_snapshot, raw, snapshot, stage, unstage,
};

use crate::{
    ROUNDS, Witness, agent, device,
    journal::{self, Journal},
    pattern,
};

pub(crate) async fn run(file: &str) {
    let agent = agent("").await;
    let _witness = Witness(&agent);
    let (mut controller, mut node) = (agent.controller(), agent.node());
    let numbers = journal::read(file)
        .into_keys()
        .map(|name| name[1..].parse::<u64>().unwrap());
    let first = numbers.max().map_or(0, |last| last + 1);
    let mut journal = Journal::open(file);
    let mut living = Vec::new();
    for number in first.. {
        let (name, taken, copy) = (
            format!("v{number}"),
            format!("s{number}"),
            format!("r{number}"),
        );
        let size = i64::try_from(4 + number % 5).unwrap();

        journal.note("making", &name);
        let made = controller
            .create_volume(create(&name, size, &raw()))
            .await
            .unwrap();
        let id = made.into_inner().volume.unwrap().volume_id;
        journal.note("made", &name);

        let staging = agent.scratch.directory(&format!("staging/{name}"));
        let staging = staging.to_string_lossy().into_owned();
        node.node_stage_volume(stage(&id, &staging, &raw()))
            .await
            .unwrap();
        let bytes = File::options().write(true).open(device(&id, 'v')).unwrap();
        bytes.write_all_at(&pattern(number), 0).unwrap();
        bytes.sync_all().unwrap();
        drop(bytes);
        journal.note("written", &name);

        controller
            .controller_expand_volume(expand(&id, size + 8))
            .await
            .unwrap();
        journal.note("grown", &format!("{name} {}", size + 8));

        journal.note("making", &taken);
        let answer = controller
            .create_snapshot(snapshot(&taken, &id))
            .await
            .unwrap();
        let snapshot = answer.into_inner().snapshot.unwrap().snapshot_id;
        journal.note("made", &taken);

        let restore = CreateVolumeRequest {
            volume_content_source: from_snapshot(&snapshot),
            ..create(&copy, size + 4, &raw())
        };
        journal.note("making", &copy);
        let restored = controller.create_volume(restore).await.unwrap();
        let restored = restored.into_inner().volume.unwrap().volume_id;
        journal.note("made", &copy);
        journal.note("written", &copy);
        node.node_unstage_volume(unstage(&id, &staging))
            .await
            .unwrap();

        living.push(([(name, id), (copy, restored)], (taken, snapshot)));
        if living.len() > ROUNDS {
            // A thick volume cannot go before its snapshots.
            let (volumes, (taken, snapshot)) = living.remove(0);
            journal.note("deleting", &taken);
            let request = DeleteSnapshotRequest {
                snapshot_id: snapshot,
                ..DeleteSnapshotRequest::default()
            };
            controller.delete_snapshot(request).await.unwrap();
            journal.note("deleted", &taken);
            for (name, id) in volumes {
                journal.note("deleting", &name);
                controller.delete_volume(delete(&id)).await.unwrap();
                journal.note("deleted", &name);
            }
        }
    }
}
