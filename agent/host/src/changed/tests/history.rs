//! Random writes to an image, and snapshots of it.

use std::{
    fs::{self, File},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use nix::fcntl::{FallocateFlags, fallocate};

use crate::{
    Access, FileSystem, MountOptions,
    copy::{Reflink, reflink, sparse_copy},
    loop_device::attach,
    mount::mount_device,
    testing::{Mounted, Scratch, run},
};

pub(super) const MIB: u64 = 1 << 20;

/// The same numbers in each run.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of the range.
    pub(super) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        let length = usize::try_from(length).unwrap();
        let mut bytes = self.next().to_le_bytes().repeat(length.div_ceil(8));
        bytes.truncate(length);
        bytes
    }
}

/// A file system to write to.
pub(super) enum Ground {
    Disk(Mounted),
    /// Mounted at `mnt`.
    Other(Scratch),
}

impl Ground {
    pub(super) fn of(kind: FileSystem) -> Self {
        Self::Disk(Mounted::new(kind, 512 * MIB))
    }

    /// A tmpfs.
    pub(super) fn memory() -> Self {
        let scratch = Scratch::new();
        let target = scratch.directory("mnt");
        run("mount", &["-t", "tmpfs", "tmpfs", target.to_str().unwrap()]);
        Self::Other(scratch)
    }

    /// An xfs with blocks of 1 KiB.
    pub(super) fn of_small_blocks() -> Self {
        let scratch = Scratch::new();
        let image = scratch.image("image", 512 * MIB);
        let path = image.to_str().unwrap();
        run("mkfs.xfs", &["-q", "-b", "size=1024", path]);
        let device = attach(&image, Access::ReadWrite).unwrap();
        let options = MountOptions::new(FileSystem::Xfs);
        let target = scratch.directory("mnt");
        mount_device(&device.path, &target, FileSystem::Xfs, &options).unwrap();
        Self::Other(scratch)
    }

    /// Its root.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::Disk(mounted) => mounted.target.clone(),
            Self::Other(scratch) => scratch.path().join("mnt"),
        }
    }
}

/// An image that is written to.
pub(super) struct History {
    directory: PathBuf,
    /// The image.
    pub(super) live: PathBuf,
    file: File,
    pub(super) random: Random,
    /// What was written since the last snapshot, in the order of the writes.
    pub(super) touched: Vec<Range<u64>>,
}

impl History {
    pub(super) fn new(ground: &Ground, seed: u64) -> Self {
        let directory = ground.path().join(format!("history-{seed}"));
        fs::create_dir(&directory).unwrap();
        let live = directory.join("live");
        let file = new_file(&live);
        let mut random = Random::new(seed);
        file.set_len(random.within(1..5) * MIB).unwrap();
        Self {
            directory,
            live,
            file,
            random,
            touched: Vec::new(),
        }
    }

    fn size(&self) -> u64 {
        self.file.metadata().unwrap().len()
    }

    /// A few writes. None of them is flushed.
    pub(super) fn go_on(&mut self) {
        for _ in 0..self.random.within(1..7) {
            let size = self.size();
            let length = self.random.within(4096..MIB).min(size);
            let unit = [4096, 4096, 512, 1][usize::try_from(self.random.within(0..4)).unwrap()];
            let start = self.random.within(0..size - length + 1) / unit * unit;
            let range = start..start + (length / unit * unit).max(unit);
            self.write(&range);
            self.touched.push(range);
        }
    }

    fn write(&mut self, range: &Range<u64>) {
        let length = range.end - range.start;
        match self.random.within(0..10) {
            0..4 => {
                let bytes = self.random.bytes(length);
                self.put(range, &bytes);
            }
            4 => self.put(range, &vec![0; usize::try_from(length).unwrap()]),
            5 => {
                let mut bytes = vec![0; usize::try_from(length).unwrap()];
                self.file.read_exact_at(&mut bytes, range.start).unwrap();
                self.put(range, &bytes);
            }
            6 | 7 => {
                let flags =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                let [start, length] = [range.start, length].map(|at| i64::try_from(at).unwrap());
                fallocate(&self.file, flags, start, length).unwrap();
            }
            // A single block.
            8 => {
                let bytes = self.random.bytes(4096.min(length));
                self.put(range, &bytes);
            }
            _ => {
                let more = self.random.within(1..3 * MIB);
                let whole = (self.size() + more) / MIB * MIB;
                let size = if more.is_multiple_of(4) {
                    self.size() + more
                } else {
                    whole
                };
                self.file.set_len(size.max(self.size())).unwrap();
            }
        }
    }

    fn put(&self, range: &Range<u64>, bytes: &[u8]) {
        self.file.write_all_at(bytes, range.start).unwrap();
    }

    /// A copy of the image, which shares its blocks where the file system can do that.
    pub(super) fn snapshot(&mut self, name: &str) -> PathBuf {
        let path = self.directory.join(name);
        let copy = new_file(&path);
        if reflink(&self.file, &copy).unwrap() == Reflink::Unsupported {
            sparse_copy(&self.file, &copy, |_| Ok(())).unwrap();
        }
        self.touched.clear();
        path
    }
}

impl Drop for History {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

pub(super) fn new_file(path: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap()
}
