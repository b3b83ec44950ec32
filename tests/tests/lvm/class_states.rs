//! The state of classes over logical volumes, beside what LVM says, and what it costs.

use std::{fs::File, os::unix::fs::FileExt};

use drumlin_proto::{
    csi::v1::{NodeGetVolumeStatsRequest, ProbeRequest},
    drumlin::v1::DeviceClass,
};
use drumlin_tests::{
    agent::{Agent, Options},
    requests::{delete, mounted, raw, snapshot},
    storage::{Scratch, lvm},
};

use crate::{
    classes::{Watch, until_read},
    helpers::{mount, ok, unmount, volume},
    processes::started,
};

/// An agent with one class over a new group, which logs what it reads and starts; a minute of it is a second.
async fn over(class: impl Fn(&str) -> String) -> (Agent, String) {
    let scratch = Scratch::new();
    let group = scratch.volume_group(201);
    let options = Options {
        config: Some(format!("classes: [{{name: only, {}}}]\n", class(&group))),
        arguments: vec!["--log-level=debug".to_owned()],
        environment: vec![("DRUMLIN_TIME_LAPSE".to_owned(), "60".to_owned())],
        ..Options::default()
    };
    (Agent::with(scratch, options).await, group)
}

fn thin(group: &str) -> String {
    format!(
        "thin: {{volumeGroup: {group}, pool: pool, create: {{size: 80%VG, chunk: 128KiB, metadata: 4MiB}}}}"
    )
}

/// A number of a group or a volume, in bytes or percent.
fn reported(command: &str, column: &str, of: &str) -> f64 {
    let common = ["--noheadings", "--units", "b", "--nosuffix", "-o", column];
    let text = lvm(command, &[&common[..], &[of]].concat());
    text.trim().parse().unwrap()
}

#[expect(
    clippy::cast_precision_loss,
    clippy::as_conversions,
    reason = "the numbers of a test are small"
)]
fn number(bytes: i64) -> f64 {
    bytes as f64
}

#[tokio::test]
async fn a_pool_is_full_as_lvm_says_and_that_is_told_in_steps() {
    let (agent, group) = over(thin).await;
    let mut watch = Watch::begin(&agent, 1).await;
    let planned = watch.class().await;
    assert_eq!(planned.kind, "thin");
    assert_eq!((planned.data_percent, planned.metadata_percent), (0, 0));
    assert_eq!(planned.available_bytes, planned.size_bytes);
    let capability = mounted("ext4");
    let id = volume(&agent, "v", 128, &capability).await;
    let pool = format!("{group}/pool");
    let made = watch.class().await;
    assert_eq!(made.promised_bytes, 128 << 20);
    assert_eq!(made.available_bytes, made.size_bytes - (128 << 20));
    assert!((number(made.size_bytes) - reported("lvs", "lv_size", &pool)).abs() < 1.0);

    let at = mount(&agent, "v", &id, &capability).await;
    let file = File::create(format!("{}/file", at.1)).unwrap();
    file.write_all_at(&vec![1; 64 << 20], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    // Kubelet asks for the stats of each volume in use once a minute.
    let request = NodeGetVolumeStatsRequest {
        volume_id: id.clone(),
        volume_path: at.1.clone(),
        ..NodeGetVolumeStatsRequest::default()
    };
    let programs = started(&agent);
    let stats = || async {
        ok(agent.node().node_get_volume_stats(request.clone()).await);
    };
    // The first reading may be that of the publication, begun before the file was written.
    until_read(&agent, stats).await;
    until_read(&agent, stats).await;
    let told = |class: &DeviceClass| {
        let data = reported("lvs", "data_percent", &pool);
        let metadata = reported("lvs", "metadata_percent", &pool);
        assert!(
            (data - f64::from(class.data_percent)).abs() <= 1.0,
            "{data}"
        );
        let apart = (metadata - f64::from(class.metadata_percent)).abs();
        assert!(apart <= 1.0, "{metadata}");
    };
    let mut filled = watch.class().await;
    // The readings after the stage may have seen a part of it.
    while filled.data_percent < 20 {
        filled = watch.class().await;
    }
    told(&filled);
    assert_eq!(filled.available_bytes, made.available_bytes);
    assert_eq!(started(&agent), programs, "a reading starts no program");
    watch.is_silent().await;
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn a_group_is_allocated_as_lvm_says_and_readings_start_no_program() {
    let (agent, group) = over(|group| format!("thick: {{volumeGroup: {group}}}")).await;
    let mut watch = Watch::begin(&agent, 1).await;
    let empty = watch.class().await;
    assert_eq!((empty.kind.as_str(), empty.data_percent), ("thick", 0));
    let mut controller = agent.controller();
    let id = volume(&agent, "v", 64, &raw()).await;
    assert_eq!(watch.class().await.volumes, 1);
    let taken = ok(controller.create_snapshot(snapshot("s", &id)).await);
    let both = watch.class().await;
    let size = reported("vgs", "vg_size", &group);
    let free = reported("vgs", "vg_free", &group);
    assert!((number(both.size_bytes) - size).abs() < 1.0);
    // A linear volume and the store of its snapshot are all that there is.
    assert!((number(both.promised_bytes) - (size - free)).abs() < 1.0);
    let percent = (size - free) * 100.0 / size;
    assert!((percent - f64::from(both.data_percent)).abs() <= 1.0);
    assert_eq!((both.metadata_percent, both.volumes), (-1, 1));
    let deletion = drumlin_tests::requests::delete_snapshot(&taken.snapshot.unwrap().snapshot_id);
    ok(controller.delete_snapshot(deletion).await);
    assert_eq!(watch.class().await.promised_bytes, 64 << 20);
    ok(controller.delete_volume(delete(&id)).await);
    assert_eq!(watch.class().await, empty);

    // The same in a new stream, which reads anew.
    let programs = started(&agent);
    assert_eq!(Watch::begin(&agent, 1).await.class().await, empty);
    assert_eq!(started(&agent), programs);
}

#[tokio::test]
async fn a_group_that_goes_away_and_comes_back_is_one_response_each() {
    let (agent, group) = over(thin).await;
    volume(&agent, "v", 16, &raw()).await;
    let mut watch = Watch::begin(&agent, 1).await;
    let before = watch.class().await;
    assert!(before.ready);
    lvm("vgrename", &[&group, "away"]);
    agent.identity().probe(ProbeRequest {}).await.unwrap_err();
    let away = watch.class().await;
    assert!(!away.ready && away.message.contains(&group), "{away:?}");
    assert_eq!((away.available_bytes, away.data_percent), (0, -1));
    lvm("vgrename", &["away", &group]);
    // A class that is not ready is read again without any call.
    let back = watch.class().await;
    assert!(back.ready, "{back:?}");
    assert_eq!(back.available_bytes, before.available_bytes);
}
