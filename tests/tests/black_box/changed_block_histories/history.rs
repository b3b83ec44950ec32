//! A raw volume that is written to at random while it is published, and its snapshots.

use std::{
    fs::{self, File},
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
};

use drumlin_proto::csi::v1::{CapacityRange, ControllerExpandVolumeRequest, CreateVolumeRequest};
use drumlin_tests::{
    agent::{Agent, Volumes, is_over_lvm, snapshots_bind_their_volume, unit},
    programs::{output, run},
    random::Random,
    requests::{create, delete, delete_snapshot, expand, node_expand, raw, snapshot},
};
use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, OFlag, fallocate},
};

use super::check::{Pair, Surplus};
use crate::helpers::{bytes_of, mount, ok, unmount};

const MIB: usize = 1 << 20;
/// No volume grows beyond this size.
const LARGEST: usize = 16 * MIB;
/// What is compared is compared in blocks of this size.
const BLOCK: usize = 4096;

/// A snapshot.
pub(super) struct Point {
    pub(super) id: String,
    /// What a user read of the volume just before.
    pub(super) bytes: Vec<u8>,
    /// What was written since the snapshot before.
    written: Vec<Range<usize>>,
}

/// A volume, and what was done to it.
pub(super) struct History<'a> {
    agent: &'a Agent,
    name: String,
    pub(super) random: Random,
    id: String,
    /// Where it is staged and published.
    at: (String, String),
    size: usize,
    written: Vec<Range<usize>>,
    pub(super) points: Vec<Point>,
}

impl<'a> History<'a> {
    pub(super) async fn begin(agent: &'a Agent, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let name = format!("history-{seed}");
        let wanted = larger(&mut random, 3 * MIB);
        let request = CreateVolumeRequest {
            capacity_range: Some(capacity(wanted)),
            ..create(&name, 0, &raw())
        };
        let made = ok(agent.controller().create_volume(request).await);
        let id = made.volume.unwrap().volume_id;
        let at = mount(agent, &name, &id, &raw()).await;
        let mut history = Self {
            agent,
            name,
            random,
            id,
            at,
            size: 0,
            written: Vec::new(),
            points: Vec::new(),
        };
        history.size = history.read().len();
        assert_eq!(history.size, wanted);
        history
    }

    /// What a user reads.
    fn read(&self) -> Vec<u8> {
        fs::read(&self.at.1).unwrap()
    }

    /// So many writes, of which the last are in the cache of the device until its end, and a snapshot.
    pub(super) async fn go_on(&mut self, writes: u64) {
        if !self.points.is_empty() && self.random.chance(30) {
            self.grow().await;
        }
        let mut device = File::options();
        let device = device.read(true).write(true).open(&self.at.1).unwrap();
        for _ in 0..writes {
            self.write(&device);
        }
        device.sync_all().unwrap();
        drop(device);
        let bytes = self.read();
        assert_eq!(bytes.len(), self.size);
        let name = format!("{}-{}", self.name, self.points.len());
        let request = snapshot(&name, &self.id);
        let taken = ok(self.agent.controller().create_snapshot(request).await);
        self.points.push(Point {
            id: taken.snapshot.unwrap().snapshot_id,
            bytes,
            written: std::mem::take(&mut self.written),
        });
    }

    /// Makes the volume larger: in use, where the back end can, or not.
    async fn grow(&mut self) {
        let wanted = larger(&mut self.random, self.size).min(LARGEST);
        let is_in_use = !snapshots_bind_their_volume() && self.random.chance(50);
        if !is_in_use {
            unmount(self.agent, &self.id, &self.at).await;
        }
        let request = ControllerExpandVolumeRequest {
            capacity_range: Some(capacity(wanted)),
            ..expand(&self.id, 0)
        };
        let mut controller = self.agent.controller();
        ok(controller.controller_expand_volume(request).await);
        if is_in_use {
            let request = node_expand(&self.id, &self.at.1);
            ok(self.agent.node().node_expand_volume(request).await);
        } else {
            self.at = mount(self.agent, &self.name, &self.id, &raw()).await;
        }
        self.size = wanted;
    }

    fn write(&mut self, device: &File) {
        let range = self.range();
        let length = range.len();
        let offset = u64::try_from(range.start).unwrap();
        match self.random.below(10) {
            0..4 => device.write_all_at(&self.noise(length), offset).unwrap(),
            4 => {
                let bytes = self.noise(length);
                write_direct(&self.at.1, &bytes, offset);
            }
            5 => {
                // The same once more.
                let mut bytes = vec![0; length];
                device.read_exact_at(&mut bytes, offset).unwrap();
                device.write_all_at(&bytes, offset).unwrap();
            }
            6 => device.write_all_at(&vec![0; length], offset).unwrap(),
            7 => punch(device, &range),
            _ => discard(device, &self.at.1, &range),
        }
        self.written.push(range);
    }

    /// 4 KiB to 1 MiB, and now and then not in whole blocks.
    fn range(&mut self) -> Range<usize> {
        let unit = self.random.one(&[BLOCK, BLOCK, BLOCK, 512]);
        let length = self.random.one(&[1, 1, 1, 2, 5, 16, 40, 128, 256]) * BLOCK / unit;
        let units = self.size / unit;
        let length = length.min(units);
        let start = self.below(units - length + 1);
        start * unit..(start + length) * unit
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.random.below(u64::try_from(end).unwrap())).unwrap()
    }

    /// Bytes that nobody else has written.
    fn noise(&mut self, length: usize) -> Vec<u8> {
        let word = 1 + self.random.below(u64::MAX - 1);
        let mut bytes = word.to_le_bytes().repeat(length.div_ceil(8));
        bytes.truncate(length);
        bytes
    }

    /// Two snapshots, by their numbers in the order of time; the base may be the later one.
    pub(super) fn pair(&self, base: usize, target: usize) -> Pair<'_> {
        let between = base.min(target) + 1..=base.max(target);
        let written = self.points[between].iter();
        Pair {
            base: &self.points[base].bytes,
            target: &self.points[target].bytes,
            written: written.flat_map(|point| point.written.clone()).collect(),
            surplus: if is_thin() {
                Surplus::Written
            } else {
                Surplus::Nothing
            },
            block: block(self.agent),
        }
    }

    /// What a snapshot holds beside nothing; `zeros` are at least as many.
    pub(super) fn alone<'b>(&'b self, target: usize, zeros: &'b [u8]) -> Pair<'b> {
        let bytes = &self.points[target].bytes;
        let written = self.points[..=target].iter();
        Pair {
            base: &zeros[..bytes.len()],
            target: bytes,
            written: written.flat_map(|point| point.written.clone()).collect(),
            surplus: if is_thin() {
                Surplus::Written
            } else {
                Surplus::Anything
            },
            block: block(self.agent),
        }
    }

    /// Whether the snapshots have what the user read.
    pub(super) fn check_snapshots(&self) {
        for point in &self.points {
            let bytes = fs::read(bytes_of(self.agent, &point.id)).unwrap();
            assert!(bytes == point.bytes, "{}", point.id);
        }
    }

    /// Deletes all of it.
    pub(super) async fn end(self) {
        unmount(self.agent, &self.id, &self.at).await;
        let mut controller = self.agent.controller();
        for point in &self.points {
            ok(controller.delete_snapshot(delete_snapshot(&point.id)).await);
        }
        ok(controller.delete_volume(delete(&self.id)).await);
    }
}

/// A size above this one that a volume can have.
fn larger(random: &mut Random, size: usize) -> usize {
    let unit = usize::try_from(unit()).unwrap();
    let more = usize::try_from(random.below(5 << 20)).unwrap();
    (size + unit + more) / unit * unit
}

fn capacity(bytes: usize) -> CapacityRange {
    CapacityRange {
        required_bytes: i64::try_from(bytes).unwrap(),
        limit_bytes: 0,
    }
}

fn is_thin() -> bool {
    is_over_lvm() && Volumes::asked() == Volumes::Thin
}

/// The unit of the answers: a chunk of the pool, or what is compared at once.
fn block(agent: &Agent) -> usize {
    if !is_thin() {
        return BLOCK;
    }
    let group = agent.scratch.group().unwrap();
    let pool = format!("{group}/pool");
    let fields = [
        "--noheadings",
        "--nosuffix",
        "--units",
        "b",
        "-o",
        "chunk_size",
    ];
    let printed = run("lvs", &[&fields[..], &[&pool]].concat());
    printed.trim().parse().unwrap()
}

/// Past the cache.
fn write_direct(path: &str, bytes: &[u8], offset: u64) {
    let mut options = File::options();
    let options = options.write(true).custom_flags(OFlag::O_DIRECT.bits());
    // What is written directly lies where a page begins.
    let mut memory = vec![0; bytes.len() + BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    let aligned = &mut memory[start..start + bytes.len()];
    aligned.copy_from_slice(bytes);
    let file = options.open(path).unwrap();
    file.write_all_at(aligned, offset).unwrap();
}

/// Zeros, without writing them where the device can do that.
fn punch(device: &File, range: &Range<usize>) {
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let [start, length] = [range.start, range.len()].map(|at| i64::try_from(at).unwrap());
    match fallocate(device, hole, start, length) {
        Err(Errno::EOPNOTSUPP) => {
            let zeros = FallocateFlags::FALLOC_FL_ZERO_RANGE;
            fallocate(device, zeros, start, length).unwrap();
        }
        other => other.unwrap(),
    }
}

/// Discards, where the device can do that; the origin of thick snapshots cannot.
fn discard(device: &File, path: &str, range: &Range<usize>) {
    let [start, length] = [range.start, range.len()].map(|at| at.to_string());
    let words = ["--force", "--offset", &start, "--length", &length, path];
    let discarded = output("blkdiscard", &words);
    if !discarded.status.success() {
        let complaint = String::from_utf8_lossy(&discarded.stderr);
        assert!(complaint.contains("Operation not supported"), "{complaint}");
        punch(device, range);
    }
}
