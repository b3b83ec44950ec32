//! Mirrors whose legs are lost: what is told of them, and what can still be done.

use drumlin_tests::{
    agent::{Agent, eventually},
    requests::{delete, raw},
    storage::lvm,
};

use crate::{
    groups::{condition, group, name_of, names, soon},
    kit::{ok, volume},
    mapped::Bench,
};

/// A mirrored volume whose legs have the same.
async fn synced(agent: &Agent) -> String {
    let id = volume(agent, "v", 64, &raw()).await;
    let path = format!("{}/{}", group(agent), name_of(&id));
    let synced = || lvm("lvs", &["--noheadings", "-o", "sync_percent", &path]);
    eventually(synced, |synced| synced.trim().starts_with("100")).await;
    id
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
