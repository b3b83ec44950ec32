//! The metadata text of a realistic volume group, reduced by hand, and parsing it.

use super::*;
use crate::Extents;

const TEXT: &str = r#"vg0 {
id = "AAAAAA-BBBB-CCCC-DDDD-EEEE-FFFF-GGGGGG"
seqno = 12
format = "lvm2" # informational
status = ["RESIZEABLE", "READ", "WRITE"]
flags = []
extent_size = 8192
max_lv = 0
physical_volumes {
pv0 {
id = "pppppp-0000-0000-0000-0000-0000-000000"
device = "/dev/ubdb"
status = ["ALLOCATABLE"]
flags = []
pe_start = 2048
pe_count = 100
}
pv1 {
id = "pppppp-1111-0000-0000-0000-0000-000000"
status = ["ALLOCATABLE"]
flags = ["MISSING"]
pe_start = 4096
pe_count = 50
}
}
logical_volumes {
pool {
id = "llllll-0000-0000-0000-0000-0000-pooool"
status = ["READ", "WRITE", "VISIBLE"]
flags = []
segment_count = 1
segment1 {
start_extent = 0
extent_count = 25
type = "thin-pool"
metadata = "pool_tmeta"
pool = "pool_tdata"
transaction_id = 4
chunk_size = 128
discards = "passdown"
zero_new_blocks = 1
message1 {
create = "x"
}
}
}
x {
id = "llllll-0000-0000-0000-0000-0000-xxxxxx"
status = ["READ", "WRITE", "VISIBLE"]
flags = ["ACTIVATION_SKIP"]
tags = ["a", "drumlin.schema=1"]
segment_count = 2
segment1 {
start_extent = 0
extent_count = 5
type = "thin"
thin_pool = "pool"
transaction_id = 3
device_id = 7
origin = "y"
}
segment2 {
start_extent = 5
extent_count = 2
type = "thin"
thin_pool = "pool"
device_id = 7
}
}
pool_tmeta {
id = "llllll-0000-0000-0000-0000-0000-tmmmmm"
status = ["READ", "WRITE"]
segment1 { extent_count = 1 type = "striped" stripe_count = 1 stripes = ["pv0", 0] }
}
pool_tdata {
id = "llllll-0000-0000-0000-0000-0000-tddddd"
status = ["READ", "WRITE"]
segment1 { extent_count = 20 type = "striped" stripe_count = 2 stripes = ["pv0", 1, "pv1", 0] }
segment2 { start_extent = 20 extent_count = 5 type = "striped" stripe_count = 1 stripes = ["pv0", 11] }
}
lin {
id = "llllll-0000-0000-0000-0000-0000-liinnn"
status = ["READ", "WRITE", "VISIBLE"]
segment1 { extent_count = 10 type = "striped" stripe_count = 1 stripes = ["pv0", 20] }
}
cow {
id = "llllll-0000-0000-0000-0000-0000-cooooo"
status = ["READ", "WRITE"]
segment1 { extent_count = 3 type = "striped" stripe_count = 1 stripes = ["pv0", 30] }
}
snapshot0 {
id = "llllll-0000-0000-0000-0000-0000-snaaaa"
status = ["READ", "WRITE", "VISIBLE"]
segment1 { extent_count = 10 type = "snapshot" chunk_size = 8 origin = "lin" cow_store = "cow" }
}
}
}
contents = "Text Format Volume Group"
version = 1
"#;

#[test]
fn volumes_pools_snapshots_and_free_extents_are_read() {
    let group = GroupMetadata::parse(TEXT, |_| true).unwrap();
    assert_eq!(
        (group.name.as_str(), group.sequence, group.extent_size),
        ("vg0", 12, 4 << 20)
    );
    assert_eq!(group.uuid.len(), 32);
    // 1 + 10 + 5 + 10 + 3 of a hundred; a missing disk has no free extents.
    assert_eq!(group.disks["pv0"].free, Extents(71));
    assert_eq!(group.disks["pv1"].free, Extents(40));
    let (pool, settings) = group.pool("pool").unwrap();
    assert_eq!((pool.extents, settings.transaction), (Extents(25), 4));
    assert_eq!(settings.messages, [Message::Create("x".to_owned())]);
    assert!(settings.zeroes && settings.chunk == 64 << 10);
    assert!(!pool.is_complete, "a disk of its data is missing");
    let x = &group.volumes["x"];
    assert_eq!(
        (x.extents, x.tags.len(), x.is_complete),
        (Extents(7), 2, false)
    );
    let thin = VolumeKind::Thin {
        pool: "pool".to_owned(),
        device: 7,
        origin: Some("y".to_owned()),
    };
    assert_eq!(x.kind, thin);
    assert_eq!(group.mapped_uuid(x).len(), 4 + 64);
    assert!(group.volumes["lin"].is_complete);
    assert!(group.volumes["cow"].is_visible, "LVM shows it, too");
    let lin = &group.volumes["lin"];
    let names: Vec<_> = group.snapshots_of(lin).map(|one| &one.name).collect();
    assert_eq!(names, ["cow"]);
    assert_eq!(
        group.free(),
        [Extents(71)],
        "a disk that is missing has nothing to give"
    );
    let areas = |counts| -> Vec<(String, u64, u64)> {
        let areas = group.areas(&group.volumes["pool"], counts);
        areas
            .into_iter()
            .map(|area| (area.disk, area.start, area.count.0))
            .collect()
    };
    let (one, other) = (
        |start, count| ("pv0".to_owned(), start, count),
        |start, count| ("pv1".to_owned(), start, count),
    );
    let data = [one(1, 10), other(0, 10), one(11, 5)];
    assert_eq!(areas(|part| part.ends_with("_tdata")), data);
    assert!(areas(|_| true).len() > data.len());
    assert_eq!(
        (group.disks["pv0"].start, group.disks["pv1"].start),
        (1 << 20, 2 << 20)
    );
    assert_eq!(
        group.volumes["cow"].kind,
        VolumeKind::Snapshot {
            origin: "lin".to_owned()
        }
    );
}

#[test]
fn a_snapshot_that_is_merged_is_hidden_and_its_volume_known() {
    let merging = TEXT.replace("cow_store", "merging_store");
    let merging = merging.replace("origin = \"y\"", "origin = \"y\"\nmerge = \"y\"");
    let group = GroupMetadata::parse(&merging, |_| true).unwrap();
    for (snapshot, volume) in [("cow", "lin"), ("x", "y")] {
        assert_eq!(group.volumes[snapshot].merges_into.as_deref(), Some(volume));
    }
    let (cow, lin) = (&group.volumes["cow"], &group.volumes["lin"]);
    assert!(!cow.is_visible && matches!(cow.kind, VolumeKind::Snapshot { .. }));
    assert_eq!(group.merged_into(lin), Some(cow));
    assert_eq!(group.snapshots_of(lin).count(), 1);

    let group = GroupMetadata::parse(TEXT, |_| true).unwrap();
    assert_eq!(group.merged_into(&group.volumes["lin"]), None);
}

#[test]
fn a_text_that_lacks_something_is_refused() {
    for (from, to) in [
        ("extent_size = 8192\n", ""),
        ("seqno = 12\n", ""),
        ("pe_count = 100\n", ""),
        ("vg0 {", "vg0 ="),
    ] {
        assert!(
            GroupMetadata::parse(&TEXT.replacen(from, to, 1), |_| true).is_err(),
            "{from}"
        );
    }
    assert!(GroupMetadata::parse("contents = \"x\"\n", |_| true).is_err());
}

#[test]
fn flags_behind_the_type_of_a_segment_are_told_from_it() {
    let of = |kind: &str| {
        let text = TEXT.replacen("type = \"thin-pool\"", &format!("type = \"{kind}\""), 1);
        GroupMetadata::parse(&text, |_| true).unwrap()
    };
    let known = of("thin-pool+METADATA_FORMAT+CROP_METADATA");
    assert_eq!(known.volumes, of("thin-pool").volumes);
    assert!(known.pool("pool").is_some());

    // Unknown parts are visible and must not be used, nor anything made of them.
    let unknown = of("thin-pool+CROP_METADATA+NEWER");
    assert!(unknown.pool("pool").is_some());
    for name in ["pool", "x"] {
        let flag = unknown.volumes[name].unknown_flag.as_deref();
        assert_eq!(flag, Some("NEWER"), "{name}");
    }
    assert_eq!(unknown.volumes["lin"].unknown_flag, None);
}

#[test]
fn extents_that_are_moved_are_taken_where_they_are_and_where_they_come() {
    let moved = TEXT.replace(
        r#"segment1 { extent_count = 10 type = "striped" stripe_count = 1 stripes = ["pv0", 20] }
}
cow {"#,
        r#"segment1 { extent_count = 10 type = "striped" stripe_count = 1 stripes = ["pvmove0", 0] }
}
pvmove0 {
id = "llllll-0000-0000-0000-0000-0000-moooov"
status = ["READ", "WRITE", "PVMOVE", "LOCKED"]
segment1 { extent_count = 4 type = "mirror" mirror_count = 2 extents_moved = 0 mirrors = ["pv0", 20, "pv1", 30] }
segment2 { start_extent = 4 extent_count = 6 type = "mirror" mirror_count = 2 extents_moved = 0 mirrors = ["pv0", 24, "pv1", 40] }
}
cow {"#,
    );
    let group = GroupMetadata::parse(&moved, |_| true).unwrap();
    assert_eq!(group.disks["pv0"].free, Extents(71));
    assert_eq!(group.disks["pv1"].free, Extents(40 - 4 - 6));
}

/// The same text, with a layer over `lin`.
fn with_layer(segment: &str) -> String {
    let lin = TEXT.find("lin {").unwrap();
    let layered = format!(
        r#"lin {{
id = "llllll-0000-0000-0000-0000-0000-laaaaa"
status = ["READ", "WRITE", "VISIBLE"]
segment1 {{ extent_count = 10 {segment} }}
}}
fast_cvol {{
id = "llllll-0000-0000-0000-0000-0000-faaaaa"
status = ["READ", "WRITE"]
segment1 {{ extent_count = 5 type = "striped" stripe_count = 1 stripes = ["pv1", 30] }}
}}
below {{"#
    );
    format!("{}{layered}{}", &TEXT[..lin], &TEXT[lin + "lin {".len()..])
}

#[test]
fn a_volume_is_as_complete_as_what_its_layer_is_over() {
    let layers = [
        (
            "cache",
            r#"type = "cache+CACHE_USES_CACHEVOL" cache_pool = "fast_cvol" origin = "below""#,
        ),
        (
            "writecache",
            r#"type = "writecache" writecache = "fast_cvol" origin = "below""#,
        ),
        (
            "integrity",
            r#"type = "integrity" origin = "below" meta_dev = "fast_cvol""#,
        ),
    ];
    for (kind, segment) in layers {
        let text = with_layer(segment);
        let lost = GroupMetadata::parse(&text, |_| true).unwrap();
        let lin = &lost.volumes["lin"];
        assert_eq!(lost.layer_of(lin), Some(kind));
        assert!(!lin.is_complete, "{kind}: the disk of its cache is missing");
        assert!(
            lost.areas(lin, |_| true).is_empty(),
            "a cache's extents are not its own"
        );
        let text = text.replace(r#"flags = ["MISSING"]"#, "flags = []");
        let whole = GroupMetadata::parse(&text, |_| true).unwrap();
        assert!(whole.volumes["lin"].is_complete, "{kind}");
        assert_eq!(whole.layer_of(&whole.volumes["below"]), None);
        // The other one of its disks.
        let lost = GroupMetadata::parse(&text, |uuid| !uuid.contains("pppppp0000")).unwrap();
        assert!(!lost.volumes["lin"].is_complete, "{kind}");
    }
}

/// Reading what LVM itself has made, compared with its own report.
#[cfg(feature = "lab")]
mod in_lab {
    use std::{fs, path::Path, sync::Arc};

    use super::*;
    use crate::{
        Kind, VolumeGroup,
        host::exec,
        testing::{Lab, lvm},
    };

    /// Compares LVM's own report of a group that contains everything with what is read from the disks.
    #[tokio::test]
    async fn what_is_read_is_what_lvm_reports() {
        let lab = Lab::new(3, 300);
        lab.pool("pool", 200);
        let group = Arc::new(VolumeGroup::new(&lab.group));
        let before = group.now().await.unwrap();
        let started = exec::started();
        make_one_of_each(&lab.group);
        let now = group.now().await.unwrap();
        assert!(now.sequence > before.sequence);
        assert_eq!(exec::started(), started, "reading starts no program");
        volumes_are_as_reported(&now, &lab);
        disks_come_and_go(&group, &lab.group).await;
        devices_are_found(&group, &now);
        lvm("vgrename", &[&lab.group, "drumlin-other"]);
        assert_eq!(group.now().await.unwrap_err().kind(), Kind::Precondition);
        lvm("vgrename", &["drumlin-other", &lab.group]);
        assert_eq!(group.now().await.unwrap().name, lab.group);
    }

    fn make_one_of_each(vg: &str) {
        let pool = format!("{vg}/pool");
        lvm(
            "lvcreate",
            &[
                "-V", "64M", "-T", &pool, "-n", "thin", "--addtag", "a.b=c", "--addtag", "d",
            ],
        );
        lvm("lvcreate", &["-s", &format!("{vg}/thin"), "-n", "snap"]);
        lvm("lvcreate", &["-L", "40M", "-n", "linear", vg]);
        lvm("lvcreate", &["-L", "48M", "-i", "2", "-n", "striped", vg]);
        lvm(
            "lvcreate",
            &["-L", "32M", "--type", "raid1", "-m", "1", "-n", "raid", vg],
        );
        lvm(
            "lvcreate",
            &["-s", "-L", "12M", "-n", "old", &format!("{vg}/linear")],
        );
    }

    fn volumes_are_as_reported(now: &GroupMetadata, lab: &Lab) {
        for name in ["thin", "snap", "linear", "striped", "raid", "pool"] {
            let volume = &now.volumes[name];
            assert_eq!(
                now.bytes(volume).to_string(),
                lab.report("lv_size", name),
                "{name}"
            );
            assert_eq!(volume.uuid, lab.report("lv_uuid", name).replace('-', ""));
            let mut tags = volume.tags.clone();
            tags.sort_unstable();
            assert_eq!(tags.join(","), lab.report("lv_tags", name));
            assert!(volume.is_visible && volume.is_complete);
        }
        let VolumeKind::Thin { device, origin, .. } = &now.volumes["snap"].kind else {
            panic!("{:?}", now.volumes["snap"]);
        };
        assert_eq!(device.to_string(), lab.report("thin_id", "snap"));
        assert_eq!(origin.as_deref(), Some("thin"));
        let old = VolumeKind::Snapshot {
            origin: "linear".to_owned(),
        };
        assert_eq!(now.volumes["old"].kind, old);
        let free: Extents = now.disks.values().map(|disk| disk.free).sum();
        let reported = lvm("vgs", &["--noheadings", "-o", "vg_free_count", &lab.group]);
        assert_eq!(free.to_string(), reported.trim());
    }

    /// A new disk is found, and a removed group is reported as missing.
    async fn disks_come_and_go(group: &Arc<VolumeGroup>, vg: &str) {
        let more = Lab::new(1, 100);
        let disk = more.disks[0].path.to_str().unwrap();
        lvm("vgremove", &[&more.group]);
        lvm("vgextend", &[vg, disk]);
        assert_eq!(group.now().await.unwrap().disks.len(), 4);
        lvm("vgreduce", &[vg, disk]);
        assert_eq!(group.now().await.unwrap().disks.len(), 3);
        lvm("vgcreate", &[&more.group, disk]);
    }

    fn devices_are_found(group: &VolumeGroup, now: &GroupMetadata) {
        let devices = group.mapper().unwrap();
        let mapped = devices.find(&now.mapped_uuid(&now.volumes["linear"]));
        let mapped = mapped.unwrap().unwrap();
        assert!(mapped.is_live && !mapped.is_suspended && mapped.open == 0);
        let listed = devices.list(&format!("LVM-{}", now.uuid)).unwrap();
        assert!(listed.contains(&mapped) && listed.len() > 10, "{listed:?}");
    }

    #[tokio::test]
    async fn a_disk_that_leaves_the_group_is_closed_with_the_next_read() {
        let is_open = |disk: &Path| {
            let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
            open.filter_map(|entry| fs::read_link(entry.path()).ok())
                .any(|path| path == disk)
        };
        let lab = Lab::new(2, 50);
        let [kept, reduced] = [0, 1].map(|disk| lab.disks[disk].path.as_path());
        let group = Arc::new(VolumeGroup::new(&lab.group));
        group.now().await.unwrap();
        assert!(is_open(kept) && is_open(reduced));
        lvm("vgreduce", &[&lab.group, reduced.to_str().unwrap()]);
        group.now().await.unwrap();
        assert!(is_open(kept) && !is_open(reduced));

        lvm("vgexport", &[&lab.group]);
        let error = group.now().await.unwrap_err();
        assert!(error.to_string().contains("is exported"), "{error}");
        assert!(!is_open(kept));
        lvm("vgimport", &[&lab.group]);
        group.now().await.unwrap();

        lvm("vgremove", &[&lab.group]);
        let error = group.now().await.unwrap_err();
        assert!(error.to_string().contains("is missing"), "{error}");
        assert!(!is_open(kept));
        lvm("vgcreate", &[&lab.group, kept.to_str().unwrap()]);
    }
}
