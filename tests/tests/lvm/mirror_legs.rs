//! Mirrors whose legs are lost: what is told of them, and what can still be done.

use std::{fs::File, os::unix::fs::FileExt, path::Path};

use drumlin_proto::csi::v1::VolumeCondition;
use drumlin_tests::{
    agent::{Agent, eventually},
    requests::{delete, raw, snapshot},
    storage::lvm,
};

use crate::{
    dm_faults::Bench,
    groups::{condition, group, name_of, names, soon},
    helpers::{bytes_of, ok, volume},
};

/// A mirrored volume whose legs have the same.
async fn synced(agent: &Agent) -> String {
    let id = volume(agent, "v", 64, &raw()).await;
    let path = format!("{}/{}", group(agent), name_of(&id));
    let synced = || lvm("lvs", &["--noheadings", "-o", "sync_percent", &path]);
    eventually(synced, |synced| synced.trim().starts_with("100")).await;
    id
}

fn write_to(path: &Path) {
    let device = File::options().write(true).open(path).unwrap();
    device.write_all_at(b"precious", 0).unwrap();
    device.sync_all().unwrap();
}

/// The numbers of the disks that have a leg of it.
fn legs(agent: &Agent, name: &str) -> Vec<usize> {
    let wanted = format!("[{name}_rimage_");
    let words = ["-a", "--noheadings", "-o", "lv_name,devices"];
    let listed = lvm("lvs", &[&words[..], &[&group(agent)]].concat());
    let legs = listed
        .lines()
        .filter(|line| line.trim().starts_with(&wanted));
    let disks = legs.map(|line| {
        let (_, disk) = line.split_once("-disk-").unwrap();
        disk.split('(').next().unwrap().parse().unwrap()
    });
    disks.collect()
}

#[tokio::test]
async fn a_mirror_without_any_leg_is_lost_and_can_be_deleted() {
    for wipe in ["zero", "none"] {
        let class = format!("thick: {{volumeGroup: GROUP, layout: raid1, wipe: {wipe}}}");
        let bench = Bench::new((3, 100), &class, |_| {}).await;
        let agent = &bench.agent;
        let id = synced(agent).await;
        lvm("vgchange", &["-an", &group(agent)]);
        let legs = legs(agent, &name_of(&id));
        assert_eq!(legs.len(), 2, "{legs:?}");
        bench.disk(legs[0]).fails();
        let seen = soon("condition", condition(agent, &id)).await;
        assert!(seen.message.contains("a leg of its mirror"), "{seen:?}");
        bench.disk(legs[1]).fails();
        let seen = soon("condition", condition(agent, &id)).await;
        assert!(
            seen.abnormal && seen.message.contains("a disk of volume group"),
            "{seen:?}"
        );
        let mut controller = agent.controller();
        ok(soon("delete", controller.delete_volume(delete(&id))).await);
        assert_eq!(names(agent), [""; 0], "{wipe}");
    }
}

/// Makes a thin pool whose data is a mirror.
fn mirrored_pool(group: &str) {
    let path = format!("{group}/pool");
    let words = ["-y", "--type", "raid1", "-m", "1", "-L", "64M"];
    lvm("lvcreate", &[&words[..], &["-n", "pool", group]].concat());
    lvm("lvconvert", &["-y", "--type", "thin-pool", &path]);
}

#[tokio::test]
async fn volumes_of_a_pool_on_a_mirror_are_told_of_its_lost_legs() {
    let class = "thin: {volumeGroup: GROUP, pool: pool}";
    let bench = Bench::new((2, 150), class, mirrored_pool).await;
    let agent = &bench.agent;
    let group = group(agent);
    assert_eq!(legs(agent, "pool_tdata").len(), 2);
    let id = volume(agent, "v", 32, &raw()).await;
    let synced = || {
        let words = ["-a", "--noheadings", "-o", "sync_percent"];
        lvm(
            "lvs",
            &[&words[..], &[&format!("{group}/pool_tdata")]].concat(),
        )
    };
    eventually(synced, |synced| synced.trim().starts_with("100")).await;
    assert!(!condition(agent, &id).await.abnormal);
    // The pool's own metadata is on one of them.
    let words = ["-a", "--noheadings", "-o", "lv_name,devices", &group];
    let listed = lvm("lvs", &words);
    let metadata = listed.lines().find(|line| line.contains("_tmeta]"));
    let other = usize::from(metadata.unwrap().contains("-disk-0("));
    let path = bytes_of(agent, &id);
    bench.disk(other).fails();
    write_to(&path);
    let told = |seen: &VolumeCondition| seen.message.contains("a leg of its mirror pool_tdata");
    for is_back in [false, true] {
        if is_back {
            // LVM finds it again, and the kernel does not.
            bench.disk(other).works();
        }
        let seen = soon("condition", condition(agent, &id)).await;
        assert!(seen.abnormal && told(&seen), "{is_back}: {seen:?}");
    }
    lvm("lvchange", &["--refresh", &format!("{group}/pool")]);
    soon("the end of its rebuild", async {
        while condition(agent, &id).await.abnormal {}
    })
    .await;
}

/// Lays a cache over a volume; what it keeps is on the first disk.
fn cache(bench: &Bench, id: &str) {
    let group = group(&bench.agent);
    let words = ["-y", "-an", "-Zn", "-L", "32M", "-n", "fast", &group];
    lvm("lvcreate", &[&words[..], &[&bench.disk(0).path()]].concat());
    let path = format!("{group}/{}", name_of(id));
    let words = ["-y", "--type", "cache", "--cachevol", "fast", &path];
    lvm("lvconvert", &words);
}

#[tokio::test]
async fn a_dead_leg_below_snapshots_or_a_cache_is_told() {
    for over in ["snapshots", "cache"] {
        let class = "thick: {volumeGroup: GROUP, layout: raid1}";
        let bench = Bench::new((2, 300), class, |_| {}).await;
        let agent = &bench.agent;
        let id = synced(agent).await;
        if over == "cache" {
            cache(&bench, &id);
        } else {
            let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
            ok(taken);
        }
        let path = bytes_of(agent, &id);
        assert!(!condition(agent, &id).await.abnormal);
        bench.disk(1).fails();
        write_to(&path);
        // LVM finds it again, and the kernel does not.
        bench.disk(1).works();
        let seen = soon("condition", condition(agent, &id)).await;
        assert!(
            seen.abnormal && seen.message.contains("a leg of"),
            "{over}: {seen:?}"
        );
        let path = format!("{}/{}", group(agent), name_of(&id));
        lvm("lvchange", &["--refresh", &path]);
        soon("the end of its rebuild", async {
            while condition(agent, &id).await.abnormal {}
        })
        .await;
    }
}
