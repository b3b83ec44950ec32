//! What was acknowledged is there, what was deleted is not, and nothing is half-made.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs::{self, File},
    os::unix::fs::FileExt,
};

use drumlin_proto::csi::v1::{ListSnapshotsRequest, ListVolumesRequest, ProbeRequest};
use drumlin_tests::{
    agent::{Agent, Volumes, eventually},
    requests::{MIB, create, delete, delete_snapshot, raw},
    state::{assert_devices_work, assert_pool_is_known},
    storage::lvm,
};

use crate::{
    BLOCK, GROUP, ROUNDS, Witness, agent, device,
    journal::{self, Known},
    pattern,
};

/// Volumes and snapshots by name: the id, and the size in bytes.
type Found = BTreeMap<String, (String, i64)>;

pub(crate) async fn run(file: &str) {
    let agent = agent("").await;
    let _witness = Witness(&agent);
    agent.identity().probe(ProbeRequest {}).await.unwrap();
    // One more change: it settles what LVM does not settle before, and shows that the pool takes changes.
    let probe = create("probe", 4, &raw());
    let made = agent.controller().create_volume(probe).await.unwrap();
    let id = made.into_inner().volume.unwrap().volume_id;
    agent.controller().delete_volume(delete(&id)).await.unwrap();

    let tags = || lvm("lvs", &["--noheadings", "-o", "lv_tags", GROUP]);
    let is_over = |tags: &String| !tags.contains("drumlin.deleting");
    // Deletions that were interrupted are ended by and by.
    eventually(tags, is_over).await;
    let known = journal::read(file);
    let found = found(&agent).await;
    for (name, known) in &known {
        let found = found.get(name);
        if known.was_deleted {
            assert!(found.is_none(), "{name} is back");
            continue;
        }
        let Some((id, size)) = found else {
            let may_be_gone = !known.was_made || known.is_being_deleted;
            assert!(may_be_gone, "{name} is gone: {known:?}");
            continue;
        };
        check_one(name, id, *size, known);
    }
    for name in found.keys() {
        assert!(known.contains_key(name), "{name} was never asked for");
    }
    check_group();
    let kept = forget_the_oldest(&agent, found).await;
    // The next load begins with what is there: what is uncertain is made certain.
    let mut text = String::new();
    for (name, known) in known {
        if kept.contains(&name) {
            writeln!(text, "made {name}").unwrap();
            if known.was_written {
                writeln!(text, "written {name}").unwrap();
            }
        }
    }
    fs::write(file, text).unwrap();
}

/// Deletes all but the last rounds, so that any number of cuts finds room; the names of what is left.
async fn forget_the_oldest(agent: &Agent, found: Found) -> BTreeSet<String> {
    let number = |name: &str| name[1..].parse::<usize>().unwrap();
    let last = found.keys().map(|name| number(name)).max().unwrap_or(0);
    let (old, kept): (Found, Found) = found
        .into_iter()
        .partition(|(name, _)| number(name) + ROUNDS < last);
    let mut controller = agent.controller();
    // A thick volume cannot go before its snapshots.
    let (snapshots, volumes): (Found, Found) =
        old.into_iter().partition(|(name, _)| name.starts_with('s'));
    for (snapshot_id, _) in snapshots.into_values() {
        let request = delete_snapshot(&snapshot_id);
        controller.delete_snapshot(request).await.unwrap();
    }
    for (id, _) in volumes.into_values() {
        controller.delete_volume(delete(&id)).await.unwrap();
    }
    kept.into_keys().collect()
}

/// Volumes and snapshots by name, each with its id and size in bytes.
async fn found(agent: &Agent) -> Found {
    let mut found = BTreeMap::new();
    let mut controller = agent.controller();
    let volumes = controller
        .list_volumes(ListVolumesRequest::default())
        .await
        .unwrap();
    for entry in volumes.into_inner().entries {
        let volume = entry.volume.unwrap();
        assert!(!entry.status.unwrap().volume_condition.unwrap().abnormal);
        found.insert(
            name_of(&volume.volume_id, 'v'),
            (volume.volume_id, volume.capacity_bytes),
        );
    }
    let snapshots = controller
        .list_snapshots(ListSnapshotsRequest::default())
        .await
        .unwrap();
    for entry in snapshots.into_inner().entries {
        let snapshot = entry.snapshot.unwrap();
        assert!(snapshot.ready_to_use);
        found.insert(
            name_of(&snapshot.snapshot_id, 's'),
            (snapshot.snapshot_id, snapshot.size_bytes),
        );
    }
    found
}

/// The name that was asked for, as its tag has it.
fn name_of(id: &str, kind: char) -> String {
    let key = id.rsplit('/').next().unwrap();
    let volume = format!("{GROUP}/dl-{kind}-{key}");
    let tags = lvm("lvs", &["--noheadings", "-o", "lv_tags", &volume]);
    let name = tags.split("drumlin.l.name=").nth(1).unwrap();
    name.split(',').next().unwrap().trim().to_owned()
}

fn check_one(name: &str, id: &str, size: i64, known: &Known) {
    if let Some(mebibytes) = known.grown_to {
        assert!(
            size >= mebibytes * MIB,
            "{name} has {size} bytes: {known:?}"
        );
    }
    // A snapshot is made of what was written.
    let is_snapshot = name.starts_with('s');
    let path = device(id, if is_snapshot { 's' } else { 'v' });
    lvm("lvchange", &["-y", "-ay", "-K", &path.to_string_lossy()]);
    let file = File::open(&path).unwrap();
    let mut bytes = vec![0; BLOCK];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let number: u64 = name[1..].parse().unwrap();
    let is_written = bytes == pattern(number);
    let is_zero = bytes.iter().all(|byte| *byte == 0);
    assert!(
        is_written || (is_zero && !known.was_written && !is_snapshot),
        "{name} lost its bytes: {known:?}"
    );
}

/// Nothing undone, nothing held, and no device in the pool that the group does not know.
pub(crate) fn check_group() {
    let tags = lvm("lvs", &["--noheadings", "-o", "lv_tags", GROUP]);
    assert!(!tags.contains("drumlin.incomplete"), "{tags}");
    assert_devices_work(GROUP);
    if Volumes::asked() != Volumes::Thin {
        return;
    }
    assert_pool_is_known(GROUP, "pool");
}
