//! Shows that a group snapshot is of one point in time: writers whose order can be determined write to all members
//! meanwhile, and the copies must hold a prefix of what was acknowledged.
//!
//! The blocks of the copies are read at the places of the files of mounted members. Negative controls: the
//! `negative_control_…` tests make copies in wrong ways, and fail if these pass the same check.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use drumlin_proto::csi::v1::{VolumeCapability, VolumeGroupSnapshot};
use drumlin_tests::{
    agent::{Agent, Volumes, is_over_lvm},
    does_not_apply,
    programs::{output, run},
    requests::{delete_group_snapshot, mounted, raw},
    sequence::{Place, RING, Writer, ring},
    storage::lvm,
};

use crate::{
    group_snapshots::{take, with_reflinks},
    helpers::{bytes_of, mount, ok, unmount, volume},
};

/// So many group snapshots are taken of each kind of volumes, unless `DRUMLIN_GROUP_SNAPSHOTS` says otherwise.
const ROUNDS: usize = 40;
/// So many tries a wrong way has to be found out.
const TRIES: usize = 30;
/// The second writer's blocks on a raw volume begin here.
const SECOND: u64 = 4 << 20;

fn rounds() -> usize {
    let asked = std::env::var("DRUMLIN_GROUP_SNAPSHOTS").ok();
    asked.map_or(ROUNDS, |rounds| rounds.parse().unwrap())
}

/// A volume that is used.
struct Used {
    id: String,
    capability: VolumeCapability,
    at: (String, String),
    /// Where each writer writes in it, if it does, and where that lies on the volume.
    places: [Option<(Place, Pieces)>; 2],
}

/// Bytes of a volume: offset and length of each piece.
type Pieces = Vec<(u64, u64)>;

impl Used {
    async fn new(agent: &Agent, name: &str, capability: VolumeCapability, mebibytes: i64) -> Self {
        let id = volume(agent, name, mebibytes, &capability).await;
        let at = mount(agent, name, &id, &capability).await;
        Self {
            id,
            capability,
            at,
            places: [None, None],
        }
    }

    fn is_raw(&self) -> bool {
        self.capability == raw()
    }

    /// A place for one of the writers.
    fn place(&mut self, writer: usize) -> Place {
        let offset = if self.is_raw() && writer == 1 {
            SECOND
        } else {
            0
        };
        let path = if self.is_raw() {
            PathBuf::from(&self.at.1)
        } else {
            let path = Path::new(&self.at.1).join(format!("ring-{writer}"));
            std::fs::write(&path, vec![0; RING]).unwrap();
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
            path
        };
        let place = Place { path, offset };
        self.places[writer] = Some((place.clone(), Vec::new()));
        place
    }

    /// Whether what is written to a file goes to another place each time.
    fn moves(&self) -> bool {
        self.capability == mounted("btrfs")
    }

    /// Finds out where on the volume the files lie that are written in place.
    fn locate(&mut self) {
        if self.moves() {
            return;
        }
        for (place, pieces) in self.places.iter_mut().flatten() {
            *pieces = if place.path.is_file() {
                extents(&place.path)
            } else {
                vec![(place.offset, u64::try_from(RING).unwrap())]
            };
        }
    }

    /// What one writer wrote, in a copy of this volume.
    fn ring_in(&self, writer: usize, copy: &Path) -> Option<Vec<u8>> {
        let (place, pieces) = self.places[writer].as_ref()?;
        if self.moves() {
            return Some(file_in(copy, &place.path));
        }
        let mut bytes = Vec::new();
        for (offset, length) in pieces {
            bytes.extend(ring(copy, *offset, usize::try_from(*length).unwrap()).unwrap());
        }
        Some(bytes)
    }
}

/// The bytes of a device that a file has, in its order: offset and length of each piece.
fn extents(path: &Path) -> Pieces {
    // Small ext4 file systems have blocks of a kibibyte.
    let listed = run("filefrag", &["-b1024", "-v", &path.to_string_lossy()]);
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let piece = |line: &str| {
        let mut parts = line.split(':');
        number(parts.next()?)?;
        let _logical = parts.next()?;
        let first = number(parts.next()?.split("..").next()?)?;
        let count = number(parts.next()?)?;
        Some((first << 10, count << 10))
    };
    let pieces: Pieces = listed.lines().filter_map(piece).collect();
    let all: u64 = pieces.iter().map(|(_, length)| length).sum();
    assert_eq!(all, u64::try_from(RING).unwrap(), "{listed}");
    pieces
}

/// What a file in the root of a btrfs holds in a copy of it: what was committed, without what its log would bring back.
fn file_in(copy: &Path, path: &Path) -> Vec<u8> {
    let name = path.file_name().unwrap().to_string_lossy();
    let into = tempfile::tempdir().unwrap();
    let wanted = format!("^/(|{name})$");
    let (copy, place) = (copy.to_string_lossy(), into.path().to_string_lossy());
    run(
        "btrfs",
        &["restore", "--path-regex", &wanted, &copy, &place],
    );
    std::fs::read(into.path().join(&*name)).unwrap()
}

/// Volumes with two writers: one over all, one over those that nothing freezes, or over the last two.
pub(crate) struct Load {
    pub(crate) agent: Agent,
    used: Vec<Used>,
    pub(crate) writers: Vec<Writer>,
}

impl Load {
    pub(crate) async fn new() -> Self {
        // Each write of a btrfs is many of its device: they fill a thick copy's store, which is a part of the volume's size,
        // before a busy machine looks at it. Mirrored ones are slower still.
        let mebibytes = match Volumes::asked() {
            Volumes::Raid1 if is_over_lvm() => return Self::with(&[]).await,
            Volumes::Linear if is_over_lvm() => 1024,
            _ => 256,
        };
        Self::with(&[(mounted("btrfs"), mebibytes)]).await
    }

    /// The same with some more volumes.
    pub(crate) async fn with(more: &[(VolumeCapability, i64)]) -> Self {
        let agent = with_reflinks(4 << 10).await;
        let mut used = Vec::new();
        let kinds = [(mounted("ext4"), 32), (mounted("xfs"), 300)];
        let others = if is_over_lvm() {
            [(raw(), 16), (raw(), 16)]
        } else {
            // Nobody can hold a raw volume in a directory.
            [(mounted("ext4"), 32), (mounted("xfs"), 300)]
        };
        let more = more.iter().cloned();
        let all = kinds.into_iter().chain(others).chain(more);
        for (index, (capability, mebibytes)) in all.enumerate() {
            let name = format!("v{index}");
            used.push(Used::new(&agent, &name, capability, mebibytes).await);
        }
        // They write one after the other as they are listed, and are held in the order of their ids.
        used.sort_by(|a, b| a.id.cmp(&b.id));
        let all: Vec<Place> = used.iter_mut().map(|used| used.place(0)).collect();
        let some: Vec<Place> = used
            .iter_mut()
            .filter(|used| used.is_raw() || !is_over_lvm())
            .map(|used| used.place(1))
            .collect();
        let writers = [(1, all), (2, some)];
        let writers = writers.map(|(run, places)| Writer::start(run, &places).unwrap());
        for writer in &writers {
            writer.goes_on(20);
        }
        used.iter_mut().for_each(Used::locate);
        Self {
            agent,
            used,
            writers: writers.into(),
        }
    }

    /// The same over raw volumes that are there already, with one writer.
    pub(crate) async fn over_raw(agent: Agent, ids: &[String]) -> Self {
        let mut used = Vec::new();
        for id in ids {
            let at = mount(&agent, key(id), id, &raw()).await;
            used.push(Used {
                id: id.clone(),
                capability: raw(),
                at,
                places: [None, None],
            });
        }
        let places: Vec<Place> = used.iter_mut().map(|used| used.place(0)).collect();
        let writer = Writer::start(1, &places).unwrap();
        writer.goes_on(20);
        used.iter_mut().for_each(Used::locate);
        Self {
            agent,
            used,
            writers: vec![writer],
        }
    }

    /// The id of one of the volumes, and where it is mounted.
    pub(crate) fn used(&self, index: usize) -> (String, String) {
        let used = &self.used[index];
        (used.id.clone(), used.at.1.clone())
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.used.iter().map(|used| used.id.clone()).collect()
    }

    /// Whether copies are of one moment, in the words of the first writer that says no.
    fn judge(&self, copies: &BTreeMap<&str, PathBuf>) -> Result<Vec<u64>, String> {
        let mut counts = Vec::new();
        for (index, writer) in self.writers.iter().enumerate() {
            let rings = self.used.iter().filter_map(|used| {
                let copy = &copies[used.id.as_str()];
                used.ring_in(index, copy)
            });
            let rings: Vec<Vec<u8>> = rings.collect();
            let count = writer.check(&rings);
            counts.push(count.map_err(|why| format!("writer {index}: {why}"))?);
        }
        Ok(counts)
    }

    /// Checks that a group snapshot is of one moment.
    ///
    /// # Errors
    /// In the words of the first writer that says no.
    pub(crate) fn judge_taken(&self, taken: &VolumeGroupSnapshot) -> Result<Vec<u64>, String> {
        self.judge(&self.copies(taken))
    }

    fn copies<'a>(&self, taken: &'a VolumeGroupSnapshot) -> BTreeMap<&'a str, PathBuf> {
        let members = taken.snapshots.iter();
        members
            .map(|member| {
                let path = bytes_of(&self.agent, &member.snapshot_id);
                (member.source_volume_id.as_str(), path)
            })
            .collect()
    }

    pub(crate) async fn end(self) -> Agent {
        for writer in self.writers {
            writer.stop().unwrap();
        }
        for used in &self.used {
            unmount(&self.agent, &used.id, &used.at).await;
        }
        self.agent
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_group_snapshot_under_load_is_one_point_in_time_of_all_its_members() {
    let load = Load::new().await;
    let mut sources = load.ids();
    for number in 0..rounds() {
        // In whatever order they are named.
        sources.rotate_left(number % 3);
        let before: Vec<u64> = load.writers.iter().map(Writer::acknowledged).collect();
        let taken = take(&load.agent, &format!("g{number}"), &sources).await;
        let after: Vec<u64> = load.writers.iter().map(Writer::acknowledged).collect();
        let counts = load.judge_taken(&taken);
        let counts = counts.unwrap_or_else(|why| panic!("snapshot {number}: {why}"));
        for ((count, before), after) in counts.iter().zip(before).zip(after) {
            // What was acknowledged before the call is there, and nothing from after its answer.
            assert!(
                (before..=after + 1).contains(count),
                "{before} {count} {after}"
            );
        }
        let mut groups = load.agent.group_controller();
        ok(groups
            .delete_volume_group_snapshot(delete_group_snapshot(&taken))
            .await);
        for writer in &load.writers {
            writer.goes_on(3);
        }
    }
    load.end().await;
}

/// Makes copies in a wrong way until that is found out.
async fn found_out(way: impl Fn(&Load, usize) -> BTreeMap<String, PathBuf>) {
    // A copy of a btrfs that nobody froze tells itself, whatever order it was written in.
    let load = Load::with(&[]).await;
    for number in 0..TRIES {
        let copies = way(&load, number);
        let copies = copies.iter().map(|(id, path)| (id.as_str(), path.clone()));
        if load.judge(&copies.collect()).is_err() {
            load.end().await;
            return;
        }
        for writer in &load.writers {
            writer.goes_on(3);
        }
    }
    panic!("{TRIES} copies that are of no one moment were taken for good");
}

fn key(id: &str) -> &str {
    id.rsplit('/').next().unwrap()
}

/// The logical volume of a volume.
fn volume_path(load: &Load, id: &str) -> String {
    let group = load.agent.scratch.group().unwrap();
    format!("{group}/dl-v-{}", key(id))
}

/// A snapshot of LVM's own; a thin one without a device when activation is to skip it.
fn lvm_snapshot(load: &Load, id: &str, number: usize, skip: &str) -> PathBuf {
    let name = format!("wrong-{number}-{}", key(id));
    let origin = volume_path(load, id);
    let group = load.agent.scratch.group().unwrap();
    match Volumes::asked() {
        Volumes::Thin => lvm("lvcreate", &["-y", skip, "-s", &origin, "-n", &name]),
        _ => lvm("lvcreate", &["-y", "-s", "-L", "20M", &origin, "-n", &name]),
    };
    Path::new("/dev").join(group).join(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_control_copies_frozen_one_by_one_are_found_out() {
    found_out(|load, number| {
        let mounted = || load.used.iter().filter(|used| !used.is_raw());
        // What nothing can freeze is what such a way gets wrong; a directory has no such volumes, and freezes nothing here.
        let freezes = is_over_lvm();
        if freezes {
            for used in mounted() {
                run("fsfreeze", &["--freeze", &used.at.1]);
            }
        }
        let mut copies = BTreeMap::new();
        for used in &load.used {
            let copy = if is_over_lvm() {
                lvm_snapshot(load, &used.id, number, "-kn")
            } else {
                let from = bytes_of(&load.agent, &used.id);
                let to = from.with_file_name(format!("wrong-{number}"));
                let words = [
                    "--reflink=always",
                    &from.to_string_lossy(),
                    &to.to_string_lossy(),
                ];
                run("cp", &words);
                to
            };
            copies.insert(used.id.clone(), copy);
        }
        if freezes {
            for used in mounted() {
                run("fsfreeze", &["--unfreeze", &used.at.1]);
            }
        }
        copies
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_control_copies_without_quiesce_are_found_out() {
    if !is_over_lvm() || Volumes::asked() != Volumes::Thin {
        return does_not_apply!("over other volumes the control is copies one after the other");
    }
    found_out(|load, number| {
        let group = load.agent.scratch.group().unwrap();
        let pool = format!("/dev/mapper/{}-pool-tpool", group.replace('-', "--"));
        let thin_id = |path: &str| {
            let id = lvm("lvs", &["--noheadings", "-o", "thin_id", path]);
            id.trim().to_owned()
        };
        let mut pairs = Vec::new();
        let mut copies = BTreeMap::new();
        for used in &load.used {
            // Without a device: one that is taken away comes back with udevd's next event about a disk.
            let path = lvm_snapshot(load, &used.id, number, "-ky");
            let name = format!("{group}/{}", path.file_name().unwrap().to_string_lossy());
            let (new, old) = (thin_id(&name), thin_id(&volume_path(load, &used.id)));
            run(
                "dmsetup",
                &["message", &pool, "0", &format!("delete {new}")],
            );
            pairs.push((name, new, old));
            copies.insert(used.id.clone(), path);
        }
        for (_, new, old) in &pairs {
            let text = format!("create_snap {new} {old}");
            assert!(
                output("dmsetup", &["message", &pool, "0", &text])
                    .status
                    .success()
            );
        }
        for (name, ..) in &pairs {
            lvm("lvchange", &["-ay", "-K", name]);
        }
        copies
    })
    .await;
}
