//! Pools and exception stores.

use std::{fs::File, io::Write, path::Path};

use drumlin_tests::{
    agent::write,
    programs::run,
    requests::{raw, snapshot},
    storage::lvm,
};

use super::look;
use crate::{
    groups::{group, thick, thin},
    helpers::{bytes_of, ok, volume},
};

/// Writes so many mebibytes, from this one on.
fn fill(device: &Path, from: u64, mebibytes: usize) {
    use std::io::{Seek, SeekFrom};
    let mut file = File::options().write(true).open(device).unwrap();
    file.seek(SeekFrom::Start(from << 20)).unwrap();
    file.write_all(&vec![7; mebibytes << 20]).unwrap();
    file.sync_all().unwrap();
}

#[tokio::test]
async fn a_pool_that_fills_up_fails_or_is_missing_is_told() {
    let mut agent = thin(200, &["-L", "100M"], "overcommit: 10").await;
    let group = group(&agent);
    let pool = format!("{group}/pool");
    let id = volume(&agent, "v", 200, &raw()).await;
    let device = bytes_of(&agent, &id);
    let checks = ["pool-filling", "pool-full", "pool-failed", "pool-unusable"];
    let found = look(&agent);
    for check in checks {
        found.lacks(check);
    }
    found.finds("overcommitted", &pool);
    fill(&device, 0, 85);
    let found = look(&agent);
    found.lacks("pool-full");
    found.mend("pool-filling", &pool);
    look(&agent).lacks("pool-filling");
    fill(&device, 85, 31);
    let found = look(&agent);
    found.lacks("pool-filling");
    found.mend("pool-full", &pool);
    look(&agent).lacks("pool-full");

    let worker = format!("{}-pool-tpool", group.replace('-', "--"));
    let table = run("dmsetup", &["table", &worker]);
    let words: Vec<&str> = table.split_whitespace().take(7).collect();
    let read_only = format!("{} 1 read_only", words.join(" "));
    for (table, is_failed) in [(read_only.as_str(), true), (table.trim(), false)] {
        run("dmsetup", &["load", &worker, "--table", table]);
        run("dmsetup", &["suspend", "--noflush", &worker]);
        run("dmsetup", &["resume", &worker]);
        let found = look(&agent);
        if is_failed {
            found.finds("pool-failed", &pool);
        } else {
            found.lacks("pool-failed");
        }
    }
    lvm("lvchange", &["--zero", "n", &pool]);
    look(&agent).mend("pool-unusable", &pool);
    look(&agent).lacks("pool-unusable");
    agent.kill();
    let other =
        format!("classes: [{{name: default, thin: {{volumeGroup: {group}, pool: other}}}}]\n");
    write(&agent.path("config.yaml"), &other);
    look(&agent).finds("pool-unusable", &format!("{group}/other"));
}

#[tokio::test]
async fn a_store_that_fills_up_or_overflows_is_told() {
    let agent = thick(200, "snapshotSize: 20%, wipe: none").await;
    let id = volume(&agent, "v", 40, &raw()).await;
    ok(agent.controller().create_snapshot(snapshot("s", &id)).await);
    let device = bytes_of(&agent, &id);
    let found = look(&agent);
    found.lacks("snapshot-store-filling");
    found.lacks("snapshot-overflowed");
    fill(&device, 0, 7);
    let found = look(&agent);
    found.lacks("snapshot-overflowed");
    found.mend("snapshot-store-filling", "/dl-s-");
    look(&agent).lacks("snapshot-store-filling");
    fill(&device, 7, 20);
    look(&agent).finds("snapshot-overflowed", "/dl-s-");
}
