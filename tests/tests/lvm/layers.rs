//! Caches that an administrator lays over a volume: it goes on being used, and what cannot be done is refused before.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use drumlin_tests::{
    agent::Agent,
    programs::{output, run},
    requests::{expand, raw, snapshot},
    storage::lvm,
};
use tonic::Code;

use crate::{
    groups::{condition, group, name_of, thick},
    helpers::{mount, ok, refused, unmount, volume},
};

async fn write_and_read(agent: &Agent, name: &str, id: &str) {
    let at = mount(agent, name, id, &raw()).await;
    let file = File::options().write(true).open(&at.1).unwrap();
    file.write_all_at(b"precious", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(fs::read(&at.1).unwrap().starts_with(b"precious"));
    unmount(agent, id, &at).await;
}

/// A volume with a layer of this type, which keeps its bytes in a volume of its own.
async fn layered(agent: &Agent, name: &str, kind: &str) -> String {
    let id = volume(agent, name, 64, &raw()).await;
    write_and_read(agent, name, &id).await;
    let group = group(agent);
    let fast = format!("fast-{name}");
    lvm(
        "lvcreate",
        &["-y", "-an", "-Zn", "-L", "32M", "-n", &fast, &group],
    );
    let path = format!("{group}/{}", name_of(&id));
    lvm(
        "lvconvert",
        &["-y", "--type", kind, "--cachevol", &fast, &path],
    );
    id
}

#[tokio::test]
async fn a_volume_with_a_cache_is_used_and_does_not_grow_before_that_is_taken_away() {
    let agent = thick(300, "wipe: zero").await;
    for kind in ["cache", "writecache"] {
        let id = layered(&agent, kind, kind).await;
        write_and_read(&agent, kind, &id).await;
        assert!(!condition(&agent, &id).await.abnormal);
        let grown = agent
            .controller()
            .controller_expand_volume(expand(&id, 80))
            .await;
        let message = refused(grown, Code::FailedPrecondition);
        assert!(message.contains("lvconvert --splitcache"), "{message}");
        write_and_read(&agent, kind, &id).await;
        if kind == "cache" {
            let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
            let message = refused(taken, Code::FailedPrecondition);
            assert!(message.contains("cache volume"), "{message}");
        }
        let path = format!("{}/{}", group(&agent), name_of(&id));
        lvm("lvconvert", &["-y", "--splitcache", &path]);
        ok(agent
            .controller()
            .controller_expand_volume(expand(&id, 80))
            .await);
        write_and_read(&agent, kind, &id).await;
    }
}

#[tokio::test]
async fn a_cache_that_has_failed_makes_its_volume_abnormal() {
    let agent = thick(300, "wipe: zero").await;
    let id = layered(&agent, "v", "writecache").await;
    let at = mount(&agent, "v", &id, &raw()).await;
    let fast = format!("{}-fast--v_cvol", group(&agent).replace('-', "--"));
    let table = run("dmsetup", &["table", &fast]);
    let becomes = |table: &str| {
        run("dmsetup", &["suspend", "--noflush", "--nolockfs", &fast]);
        run("dmsetup", &["load", &fast, "--table", table]);
        run("dmsetup", &["resume", &fast]);
    };
    let sectors = table.split_whitespace().nth(1).unwrap();
    becomes(&format!("0 {sectors} error"));
    // The first one ends in memory, the next one meets the error of having written that down.
    let to = format!("of={}", at.1);
    let write = ["if=/dev/zero", "bs=4k", "count=1", "conv=fsync", &to];
    for flags in ["oflag=sync", "oflag=direct"] {
        let written = output("dd", &[&write[..], &[flags]].concat());
        assert!(!written.status.success(), "there is nowhere to write to");
    }
    let seen = condition(&agent, &id).await;
    assert!(
        seen.abnormal && seen.message.contains("cache has failed"),
        "{seen:?}"
    );
    becomes(table.trim());
    unmount(&agent, &id, &at).await;
}
