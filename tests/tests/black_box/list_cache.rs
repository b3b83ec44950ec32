//! Lists are answered from memory where the kernel tells of changes: whatever somebody changes in an image directory is
//! in the next answer all the same.

use std::{collections::BTreeMap, fs, path::PathBuf};

use drumlin_proto::csi::v1::{ListSnapshotsRequest, ListVolumesRequest};
use drumlin_tests::{
    agent::{Agent, Options},
    requests::{raw, snapshot},
    storage::{Kind, Scratch},
};

use crate::helpers::{ok, volume};

/// Three volumes and a snapshot of each, over an image directory.
async fn some() -> (Agent, Vec<String>) {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", Kind::Ext4, 64);
    let agent = Agent::with(scratch, Options::of_directory(&images)).await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        let id = volume(&agent, name, 1, &raw()).await;
        ok(agent
            .controller()
            .create_snapshot(snapshot(name, &id))
            .await);
        ids.push(id);
    }
    (agent, ids)
}

/// Every volume and snapshot that is listed, with its size in MiB.
async fn listed(agent: &Agent) -> BTreeMap<String, i64> {
    let mut controller = agent.controller();
    let volumes = ok(controller.list_volumes(ListVolumesRequest::default()).await);
    let snapshots = ok(controller
        .list_snapshots(ListSnapshotsRequest::default())
        .await);
    let volumes = volumes.entries.into_iter().map(|entry| {
        let volume = entry.volume.unwrap();
        (volume.volume_id, volume.capacity_bytes >> 20)
    });
    let snapshots = snapshots.entries.into_iter().map(|entry| {
        let snapshot = entry.snapshot.unwrap();
        (snapshot.snapshot_id, snapshot.size_bytes >> 20)
    });
    volumes.chain(snapshots).collect()
}

fn home(agent: &Agent, kind: &str, id: &str) -> PathBuf {
    let key = id.rsplit('/').next().unwrap();
    agent.path("images").join(kind).join(key)
}

/// Changes volumes and snapshots one after the other, and looks after each change.
async fn is_seen(agent: &Agent, ids: &[String]) {
    let mut expected = listed(agent).await;
    assert_eq!(expected.len(), 6);
    let snapshots: Vec<String> = expected
        .keys()
        .filter(|id| !ids.contains(id))
        .cloned()
        .collect();
    for (kind, ids) in [("volumes", ids), ("snapshots", &snapshots)] {
        let [one, other, _] = ids else {
            panic!("{ids:?}")
        };
        let image = home(agent, kind, one).join("image");
        let file = fs::OpenOptions::new().write(true).open(image).unwrap();
        for mebibytes in [2, 3] {
            file.set_len(u64::try_from(mebibytes).unwrap() << 20)
                .unwrap();
            expected.insert(one.clone(), mebibytes);
            assert_eq!(listed(agent).await, expected, "a longer image");
        }
        // A snapshot's file goes back to its length with the next one.
        file.set_len(1 << 20).unwrap();
        expected.insert(one.clone(), 1);
        let (there, away) = (home(agent, kind, other), agent.path("images/away"));
        fs::rename(&there, &away).unwrap();
        let size = expected.remove(other).unwrap();
        assert_eq!(listed(agent).await, expected, "an image moved away");
        fs::rename(&away, &there).unwrap();
        expected.insert(other.clone(), size);
        assert_eq!(listed(agent).await, expected, "an image moved back");
    }
}

#[tokio::test]
async fn what_somebody_changes_in_an_image_directory_is_in_the_next_list() {
    let (agent, ids) = some().await;
    is_seen(&agent, &ids).await;
}

#[tokio::test]
async fn lists_are_right_where_the_host_has_no_more_inotify_to_give() {
    let (mut agent, ids) = some().await;
    let plain = agent.options().clone();
    for limit in [
        "max_inotify_instances 0",
        "max_inotify_watches 0",
        "max_inotify_watches 3",
    ] {
        let (name, count) = limit.split_once(' ').unwrap();
        let script = format!("echo {count} > /proc/sys/user/{name} && exec \"$@\"");
        let within = [
            "unshare",
            "--user",
            "--map-root-user",
            "sh",
            "-c",
            &script,
            "sh",
        ];
        let limited = Options {
            within: within.map(str::to_owned).into(),
            ..plain.clone()
        };
        agent.kill();
        agent.restart_with(limited).await;
        is_seen(&agent, &ids).await;
    }
}
