//! On which disks the legs of raid1 volumes and the stripes of striped ones are, with disks of unequal room.

use std::collections::{BTreeMap, BTreeSet};

use drumlin_proto::csi::v1::GetCapacityRequest;
use drumlin_tests::{
    agent::Agent,
    requests::{MIB, create, delete, expand, raw},
    storage::{Scratch, lvm},
};
use tonic::Code;

use crate::{
    groups::{condition, group, name_of, names, over},
    helpers::{ok, refused, volume},
};

/// An agent over thick volumes in a group of disks of so many extents each, of a mebibyte; and its disks.
async fn agent_over(disks: &[u64], options: &str) -> (Agent, Vec<String>) {
    let scratch = Scratch::new();
    // LVM's own head takes a mebibyte of each.
    let disk =
        |(number, extents): (usize, &u64)| scratch.disk(&format!("disk-{number}"), extents + 1);
    let disks: Vec<String> = disks.iter().enumerate().map(disk).collect();
    let group = scratch.volume_group_over(&disks);
    let class = format!("thick: {{volumeGroup: {group}, {options}}}");
    (over(scratch, &class).await, disks)
}

/// Has others take extents: `/dev/loop1:0-9`.
fn take(agent: &Agent, name: &str, place: &str, extents: u64) {
    let extents = extents.to_string();
    lvm(
        "lvcreate",
        &[
            "-Zn",
            "-Wn",
            "-n",
            name,
            "-l",
            &extents,
            &group(agent),
            place,
        ],
    );
}

/// The disks of each leg of a volume, with what LVM keeps there for itself.
fn legs(agent: &Agent, id: &str) -> Vec<BTreeSet<String>> {
    let columns = [
        "-a",
        "--noheadings",
        "--separator",
        "|",
        "-o",
        "lv_name,devices",
    ];
    let listed = lvm("lvs", &[&columns[..], &[&group(agent)]].concat());
    let mut legs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in listed.lines() {
        let (name, devices) = line.trim().split_once('|').unwrap();
        let name = name.trim_matches(['[', ']']);
        let part = name.strip_prefix(&name_of(id)).unwrap_or_default();
        if let Some(leg) = part
            .strip_prefix("_rimage_")
            .or(part.strip_prefix("_rmeta_"))
        {
            let disk = devices.split_once('(').unwrap().0;
            legs.entry(leg.to_owned())
                .or_default()
                .insert(disk.to_owned());
        }
    }
    legs.into_values().collect()
}

/// Any disk may be lost without the volume.
fn assert_redundant(agent: &Agent, id: &str, copies: usize) {
    let legs = legs(agent, id);
    assert_eq!(legs.len(), copies, "{legs:?}");
    let all: BTreeSet<&String> = legs.iter().flatten().collect();
    let sum: usize = legs.iter().map(BTreeSet::len).sum();
    assert_eq!(
        all.len(),
        sum,
        "legs of one volume on the same disk: {legs:?}"
    );
}

/// The size of a volume, in extents.
fn extents(agent: &Agent, id: &str) -> u64 {
    let path = format!("{}/{}", group(agent), name_of(id));
    let words = [
        "--noheadings",
        "--units",
        "m",
        "--nosuffix",
        "-o",
        "lv_size",
        &path,
    ];
    lvm("lvs", &words)
        .trim()
        .split('.')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

async fn capacity(agent: &Agent) -> i64 {
    let mut controller = agent.controller();
    let answer = controller.get_capacity(GetCapacityRequest::default());
    ok(answer.await).available_capacity / MIB
}

/// Expands a volume; what is refused leaves all as it was.
async fn try_expand(agent: &Agent, id: &str, mebibytes: i64) -> bool {
    let (before, length) = (names(agent), extents(agent, id));
    let mut controller = agent.controller();
    let answer = controller
        .controller_expand_volume(expand(id, mebibytes))
        .await;
    let is_done = answer.is_ok();
    if !is_done {
        let message = refused(answer, Code::ResourceExhausted);
        assert!(message.contains(&group(agent)), "{message}");
        assert_eq!(extents(agent, id), length);
    }
    assert_eq!(names(agent), before, "{mebibytes}");
    assert_redundant(agent, id, 2);
    is_done
}

#[tokio::test]
async fn the_legs_of_a_raid1_volume_stay_on_different_disks_when_it_grows() {
    for wipe in ["zero", "none"] {
        for is_active in [true, false] {
            let options = format!("layout: raid1, wipe: {wipe}");
            let (agent, disks) = agent_over(&[100, 100, 100], &options).await;
            let id = volume(&agent, "v", 40, &raw()).await;
            let on = legs(&agent, &id);
            let of = |leg: usize| on[leg].first().unwrap().clone();
            let free: Vec<&String> = disks
                .iter()
                .filter(|disk| **disk != of(0) && **disk != of(1))
                .collect();
            assert_eq!(free.len(), 1, "{on:?}");
            // 19 extents are left beside one leg, 59 beside the other, and all of the third disk.
            take(&agent, "other", &of(0), 40);
            if !is_active {
                lvm(
                    "lvchange",
                    &["-an", &format!("{}/{}", group(&agent), name_of(&id))],
                );
            }
            let what = format!("wipe: {wipe}, active: {is_active}");
            assert!(try_expand(&agent, &id, 50).await, "{what}: where it is");
            assert!(
                try_expand(&agent, &id, 80).await,
                "{what}: a leg goes on on the third disk"
            );
            assert!(!condition(&agent, &id).await.abnormal, "{what}");
            // A leg has 19 extents left on its own disk, the other 69 on the third one.
            assert!(
                !try_expand(&agent, &id, 130).await,
                "{what}: more than there is room for"
            );
            assert!(!condition(&agent, &id).await.abnormal, "{what}");
            ok(agent.controller().delete_volume(delete(&id)).await);
        }
    }
}

#[tokio::test]
async fn the_legs_of_a_new_raid1_volume_are_on_different_disks() {
    let (agent, _) = agent_over(&[100, 40, 40], "layout: raid1, wipe: none").await;
    let answer = agent
        .controller()
        .create_volume(create("large", 50, &raw()))
        .await;
    refused(answer, Code::ResourceExhausted);
    assert_eq!(names(&agent), [""; 0]);
    let id = volume(&agent, "v", 39, &raw()).await;
    assert_redundant(&agent, &id, 2);
}

#[tokio::test]
async fn the_legs_of_a_raid1_volume_are_on_different_disks_that_are_fragmented() {
    for wipe in ["zero", "none"] {
        let options = format!("layout: raid1, wipe: {wipe}");
        let (agent, disks) = agent_over(&[101, 101], &options).await;
        take(&agent, "a", &format!("{}:30-79", disks[0]), 50);
        take(&agent, "b", &format!("{}:95-95", disks[0]), 1);
        take(&agent, "c", &format!("{}:25-74", disks[1]), 50);
        // 30, 15 and 5 extents are free on one disk, 25 and 26 on the other: the largest area is on the one, and the
        // largest that is left of the first two is on the other.
        let id = volume(&agent, "v", 45, &raw()).await;
        assert_redundant(&agent, &id, 2);
        // As fragmented once more where it grows.
        lvm("lvremove", &["-y", &format!("{}/a", group(&agent))]);
        take(&agent, "d", &format!("{}:60-64", disks[0]), 5);
        lvm("lvremove", &["-y", &format!("{}/c", group(&agent))]);
        take(&agent, "e", &format!("{}:50-50", disks[1]), 1);
        assert!(try_expand(&agent, &id, 90).await, "wipe: {wipe}");
        assert!(!condition(&agent, &id).await.abnormal, "wipe: {wipe}");
    }
}

#[tokio::test]
async fn a_volume_of_all_the_capacity_that_is_told_can_be_made() {
    for layout in [
        "linear",
        "striped, stripes: 2",
        "raid1",
        "raid1, mirrors: 2",
    ] {
        for disks in [[100, 100, 100], [100, 60, 30], [100, 40, 40]] {
            let options = format!("layout: {layout}, wipe: none");
            let (agent, paths) = agent_over(&disks, &options).await;
            for fragments in [false, true] {
                if fragments {
                    take(&agent, "a", &format!("{}:20-25", paths[0]), 6);
                    take(&agent, "b", &format!("{}:5-15", paths[1]), 11);
                    take(&agent, "c", &format!("{}:15-15", paths[2]), 1);
                }
                let room = capacity(&agent).await;
                let answer = agent
                    .controller()
                    .create_volume(create("v", room, &raw()))
                    .await;
                let what = format!("layout: {layout}, {disks:?}, fragments: {fragments}, {room}");
                let made = answer.unwrap_or_else(|status| panic!("{what}: {status:?}"));
                let id = made.into_inner().volume.unwrap().volume_id;
                assert_eq!(i64::try_from(extents(&agent, &id)), Ok(room), "{what}");
                ok(agent.controller().delete_volume(delete(&id)).await);
            }
        }
    }
}

#[tokio::test]
async fn a_striped_volume_grows_over_disks_that_it_was_not_on() {
    let (agent, disks) = agent_over(&[60, 60, 60], "layout: striped, stripes: 2").await;
    let id = volume(&agent, "v", 40, &raw()).await;
    // Ten extents are left on each disk that it is on, and twenty on the third.
    for (number, disk) in disks.iter().enumerate() {
        let path = format!("{}/{}", group(&agent), name_of(&id));
        let on = lvm("lvs", &["--noheadings", "-o", "devices", &path]);
        let taken = if on.contains(&format!("{disk}(")) {
            30
        } else {
            40
        };
        take(&agent, &format!("other{number}"), disk, taken);
    }
    let answer = agent
        .controller()
        .controller_expand_volume(expand(&id, 80))
        .await;
    ok(answer);
    assert_eq!(extents(&agent, &id), 80);
}
