//! The example of a database host does what it says.

use std::fs;

use drumlin_tests::{
    agent::{Agent, Options, eventually, write},
    programs::workspace,
    storage::{Scratch, lvm},
};

use crate::helpers::text;

#[tokio::test]
async fn the_database_host_has_its_volumes() {
    let example = workspace().join("examples/database-host");
    let scratch = Scratch::new();
    let group = scratch.volume_group(2 << 10);
    let config = fs::read_to_string(example.join("config.yaml")).unwrap();
    let manifests = scratch.directory("manifests");
    let manifest = fs::read_to_string(example.join("manifests/database.yaml")).unwrap();
    let mounts = text(scratch.path().join("mnt"));
    write(
        &manifests.join("database.yaml"),
        &manifest.replace("/mnt", &mounts),
    );
    let options = Options {
        config: Some(config.replace("vg0", &group)),
        arguments: vec!["--manifests".to_owned(), text(manifests)],
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let done = |(table, code): &(String, i32)| *code == 0 && table.lines().count() == 7;
    let (table, _) = eventually(|| agent.status(), done).await;
    assert!(table.contains("log-upgrade"), "{table}");
    let listed = lvm("lvs", &["--noheadings", "-o", "pool_lv", &group]);
    assert_eq!(listed.matches("pool0").count(), 6, "{listed}");
}
