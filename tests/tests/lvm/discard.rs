//! Volumes whose disks forget them.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
};

use drumlin_tests::{
    agent::{Agent, Options},
    requests::{delete, raw},
    storage::Scratch,
};

use crate::helpers::{bytes_of, ok, volume};

#[tokio::test]
async fn a_disk_forgets_the_bytes_of_a_volume_that_is_deleted() {
    let scratch = Scratch::new();
    let group = scratch.volume_group(64);
    let options = Options {
        config: Some(format!(
            "classes: [{{name: fast, thick: {{volumeGroup: {group}, wipe: discard}}}}]\n"
        )),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let held = || {
        let disks = ["disk-a", "disk-b"].map(|disk| fs::metadata(agent.path(disk)).unwrap());
        disks.iter().map(MetadataExt::blocks).sum::<u64>() * 512
    };
    let id = volume(&agent, "v", 16, &raw()).await;
    let file = File::options()
        .write(true)
        .open(bytes_of(&agent, &id))
        .unwrap();
    file.write_all_at(&vec![7; 16 << 20], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let before = held();
    assert!(before >= 16 << 20, "{before}");
    ok(agent.controller().delete_volume(delete(&id)).await);
    let after = held();
    assert!(after <= before - (15 << 20), "{before} {after}");
}
