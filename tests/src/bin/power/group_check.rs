//! After a cut every group snapshot that was acknowledged is whole and of one moment, none is there in part, and their
//! volumes have all that was acknowledged.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use drumlin_proto::csi::v1::{
    GetVolumeGroupSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest, ProbeRequest,
    VolumeGroupSnapshot,
};
use drumlin_tests::{
    agent::{Agent, eventually},
    programs::run as run_program,
    requests::{create, delete, delete_group_snapshot, raw},
    sequence::{Place, RING, check, ring},
    storage::lvm,
};

use crate::{
    GROUP, Witness, agent,
    check::check_group,
    device,
    group_journal::{Asked, Counts, Record},
    groups::{KEPT, MEMBERS, ROOM, leave_all, places, use_all},
};

/// A group snapshot that callers see: its id, and the id of each snapshot by that of its volume.
#[derive(Debug)]
struct Seen {
    found: VolumeGroupSnapshot,
    members: BTreeMap<String, String>,
}

pub(crate) async fn run(file: &str) {
    let half = records().values().filter(|tags| is_half(tags)).count();
    let agent = agent(ROOM).await;
    let _witness = Witness(&agent);
    agent.identity().probe(ProbeRequest {}).await.unwrap();
    // At once, while what was interrupted is still being removed.
    let seen = seen(&agent).await;
    // One more change: it settles what LVM does not settle before, and shows that the pool takes changes.
    let probe = create("probe", 4, &raw());
    let made = agent.controller().create_volume(probe).await.unwrap();
    let id = made.into_inner().volume.unwrap().volume_id;
    agent.controller().delete_volume(delete(&id)).await.unwrap();
    nothing_else_is_left(&seen).await;
    check_group();

    let mut record = Record::read(file);
    for (name, asked) in &record.asked {
        let is_there = seen.contains_key(name);
        let must_be_there = asked.after.is_some() && !asked.is_being_forgotten;
        assert!(is_there || !must_be_there, "{name} is gone: {asked:?}");
        assert!(!is_there || !asked.was_forgotten, "{name} is back");
    }
    // The volumes first: of their ids there are the places of the copies.
    let used = use_all(&agent).await;
    let mut controller = agent.controller();
    let listed = controller.list_volumes(ListVolumesRequest::default());
    let listed = listed.await.unwrap().into_inner().entries;
    assert_eq!(listed.len(), MEMBERS.len());
    for entry in listed {
        assert!(!entry.status.unwrap().volume_condition.unwrap().abnormal);
    }
    let ids: Vec<String> = used.iter().map(|used| used.id.clone()).collect();
    let targets: Vec<&str> = used.iter().map(|used| used.target.as_str()).collect();
    let kept = judge("the volumes", record.run, &places(&targets));
    for (kept, acknowledged) in kept.iter().zip(record.acknowledged) {
        assert!(*kept >= acknowledged, "{kept} of {acknowledged} blocks");
    }
    leave_all(&agent, &used).await;
    for (name, seen) in &seen {
        let asked = record.asked.get(name);
        let asked = asked.unwrap_or_else(|| panic!("{name} was never asked for"));
        check_copies(&agent, name, asked, seen, &ids);
    }

    let newest = seen
        .keys()
        .map(|name| name[1..].parse::<u64>().unwrap())
        .max();
    let mut groups = agent.group_controller();
    for (name, seen) in seen {
        let number = name[1..].parse::<u64>().unwrap() + u64::try_from(KEPT).unwrap();
        if newest.is_some_and(|newest| number > newest) && !record.asked[&name].is_being_forgotten {
            // It has to be there after the next cut, too.
            let asked = record.asked.get_mut(&name).unwrap();
            asked.after = asked.after.or(Some([u64::MAX - 1; 2]));
            continue;
        }
        let request = delete_group_snapshot(&seen.found);
        groups.delete_volume_group_snapshot(request).await.unwrap();
        record.asked.remove(&name);
    }
    let records = records();
    let left: BTreeSet<&String> = records.keys().collect();
    record.asked.retain(|name, _| left.contains(name));
    record.write(file, half);
}

/// The tags of each group snapshot that the volume group has a record of, by name.
fn records() -> BTreeMap<String, Vec<String>> {
    let tags = lvm("vgs", &["--noheadings", "-o", "vg_tags", GROUP]);
    let mut by_key: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for tag in tags.trim().split(',') {
        if let Some((key, tag)) = tag
            .strip_prefix("drumlin:")
            .and_then(|tag| tag.split_once(':'))
        {
            by_key.entry(key).or_default().push(tag.to_owned());
        }
    }
    let named = by_key.into_iter().map(|(key, mut tags)| {
        let name = tags.iter().find_map(|tag| tag.strip_prefix("l.name="));
        let name = name.unwrap().to_owned();
        tags.push(format!("key={key}"));
        (name, tags)
    });
    named.collect()
}

fn is_half(tags: &[String]) -> bool {
    tags.iter().any(|tag| tag.starts_with("l.state="))
}

/// What callers see of group snapshots, by name: each is whole, wherever one looks.
async fn seen(agent: &Agent) -> BTreeMap<String, Seen> {
    let mut controller = agent.controller();
    let listed = controller.list_snapshots(ListSnapshotsRequest::default());
    let mut by_id: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for entry in listed.await.unwrap().into_inner().entries {
        let snapshot = entry.snapshot.unwrap();
        assert!(snapshot.ready_to_use, "{snapshot:?}");
        let members = by_id.entry(snapshot.group_snapshot_id).or_default();
        members.insert(snapshot.source_volume_id, snapshot.snapshot_id);
    }
    let records = records();
    let mut all = BTreeMap::new();
    for (id, members) in by_id {
        let key = format!("key={}", id.rsplit('/').next().unwrap());
        let mut record = records.iter().filter(|(_, tags)| tags.contains(&key));
        let (name, _) = record.next().unwrap_or_else(|| panic!("{id}: {members:?}"));
        assert_eq!(members.len(), MEMBERS.len(), "{name} is there in part");
        let request = GetVolumeGroupSnapshotRequest {
            group_snapshot_id: id.clone(),
            snapshot_ids: members.values().cloned().collect(),
            ..GetVolumeGroupSnapshotRequest::default()
        };
        let mut groups = agent.group_controller();
        let found = groups.get_volume_group_snapshot(request).await.unwrap();
        let found = found.into_inner().group_snapshot.unwrap();
        assert!(found.ready_to_use, "{name}");
        assert_eq!(found.snapshots.len(), MEMBERS.len(), "{name}");
        all.insert(name.clone(), Seen { found, members });
    }
    all
}

/// Waits until there is no record and no copy but of what is seen.
async fn nothing_else_is_left(seen: &BTreeMap<String, Seen>) {
    let key = |id: &String| format!("dl-s-{}", id.rsplit('/').next().unwrap());
    let members = seen.values().flat_map(|seen| seen.members.values());
    let wanted: BTreeSet<String> = members.map(key).collect();
    let names: BTreeSet<String> = seen.keys().cloned().collect();
    let look = || {
        let listed = lvm("lvs", &["--noheadings", "-o", "lv_name", GROUP]);
        let listed = listed.split_whitespace().map(str::to_owned);
        let copies = listed.filter(|name| name.starts_with("dl-s-"));
        let records = records();
        let whole = records.values().all(|tags| !is_half(tags));
        let copies: BTreeSet<String> = copies.collect();
        let records: BTreeSet<String> = records.into_keys().collect();
        (copies, records, whole)
    };
    eventually(look, |left| *left == (wanted.clone(), names.clone(), true)).await;
}

/// How many blocks of each writer of a life are in these places, of one moment.
fn judge(what: &str, run: u64, places: &[Vec<Place>; 2]) -> Counts {
    [0, 1].map(|index| {
        let places = &places[index];
        let rings = places
            .iter()
            .map(|place| ring(&place.path, place.offset, RING).unwrap());
        let rings: Vec<Vec<u8>> = rings.collect();
        let writer = 2 * run + u64::try_from(index).unwrap();
        let count = check(writer, places.len(), &rings);
        count.unwrap_or_else(|why| panic!("{what}, writer {index}: {why}"))
    })
}

fn check_copies(agent: &Agent, name: &str, asked: &Asked, seen: &Seen, ids: &[String]) {
    let mut roots: Vec<PathBuf> = Vec::new();
    for ((member, fs_type, _), id) in MEMBERS.iter().zip(ids) {
        let copy = device(&seen.members[id], 's');
        let path = copy.to_string_lossy();
        lvm("lvchange", &["-y", "-ay", "-K", &path]);
        if fs_type.is_empty() {
            roots.push(copy);
            continue;
        }
        let target = agent.scratch.directory(&format!("copies/{member}"));
        let options = if *fs_type == "xfs" { "ro,nouuid" } else { "ro" };
        let words = ["-t", fs_type, "-o", options, &path];
        run_program("mount", &[&words[..], &[text(&target)]].concat());
        roots.push(target);
    }
    let counts = judge(name, asked.run, &places(&roots));
    for (root, (_, fs_type, _)) in roots.iter().zip(MEMBERS) {
        if !fs_type.is_empty() {
            run_program("umount", &[text(root)]);
        }
    }
    // What was acknowledged before it was asked for is there, and nothing from after its answer.
    let after = asked.after.unwrap_or([u64::MAX - 1; 2]);
    for ((count, before), after) in counts.iter().zip(asked.before).zip(after) {
        let expected = before..=after + 1;
        assert!(
            expected.contains(count),
            "{name}: {count}, not {expected:?}"
        );
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
