//! A writer whose order can be told afterwards: what it wrote last is on which volume, in which place.
//!
//! It writes one block after the other, to its volumes in turn, each only when the one before was acknowledged. So of
//! what is in copies of all volumes that are of one moment, there is a last block, and all blocks before it are there.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise},
    unistd::gettid,
};

/// A block, in bytes.
const BLOCK: usize = 4096;
/// So many blocks of a volume are written again and again.
const SLOTS: usize = 256;
/// What is written of a volume, in bytes.
pub const RING: usize = BLOCK * SLOTS;
/// So long a writer may take for some blocks.
const PATIENCE: Duration = Duration::from_secs(20);
/// A disk that takes so long for one file is busy with something else, and the writer may take longer, too.
const SLOW_DISK: Duration = Duration::from_millis(500);
/// What blocks of ours begin with.
const MAGIC: u64 = 0x6472_756d_6c69_6e21;

/// Where a writer writes: [`RING`] bytes of a file or device, from an offset.
#[derive(Debug, Clone)]
pub struct Place {
    /// The file or device; a file has its blocks already.
    pub path: PathBuf,
    /// Where its ring begins, in bytes.
    pub offset: u64,
}

/// A writer that runs.
#[derive(Debug)]
pub struct Writer {
    run: u64,
    volumes: usize,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    stops: AtomicBool,
    acknowledged: AtomicU64,
    longest: AtomicU64,
    /// The thread's.
    number: AtomicI32,
    /// What a write failed with.
    error: OnceLock<String>,
}

/// How long a small file of its own takes to come to the disk that the scratch directories are on.
pub fn disk_takes() -> Duration {
    let begun = Instant::now();
    let synced = tempfile::tempfile().and_then(|mut file| {
        file.write_all(&[1; BLOCK])?;
        file.sync_all()
    });
    synced.expect("a temporary file can be written");
    begun.elapsed()
}

/// Memory that direct writes take.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

impl Writer {
    /// Starts one that tells its blocks by `run`, a number of its own.
    ///
    /// # Errors
    /// When a place cannot be opened or written.
    pub fn start(run: u64, places: &[Place]) -> io::Result<Self> {
        let mut files = Vec::new();
        for place in places {
            let file = OpenOptions::new()
                .write(true)
                .custom_flags((OFlag::O_DIRECT | OFlag::O_DSYNC).bits())
                .open(&place.path)?;
            files.push((file, place.offset));
        }
        let shared = Arc::new(Shared::default());
        let volumes = files.len();
        let (write, seen) = (files, Arc::clone(&shared));
        let thread = std::thread::spawn(move || write_on(run, &write, &seen));
        Ok(Self {
            run,
            volumes,
            shared,
            thread: Some(thread),
        })
    }

    /// So many blocks were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::SeqCst)
    }

    /// The longest time that a write took since this was asked for last.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.shared.longest.swap(0, Ordering::SeqCst))
    }

    /// Waits until so many more blocks were acknowledged.
    ///
    /// # Panics
    /// When that takes longer than 20 s on a disk that answers, or the writer has failed.
    pub fn goes_on(&self, blocks: u64) {
        self.comes_on(blocks).unwrap_or_else(|why| panic!("{why}"));
    }

    /// The same with what holds it up, as far as that can be told.
    ///
    /// # Errors
    /// When that takes longer than 20 s on a disk that answers, or the writer has failed.
    pub fn comes_on(&self, blocks: u64) -> Result<(), String> {
        let begun = Instant::now();
        let (at, mut limit) = (self.acknowledged(), PATIENCE);
        while self.acknowledged() < at + blocks {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                return Err(format!(
                    "the writer has failed: {:?}",
                    self.shared.error.get()
                ));
            }
            if begun.elapsed() > limit {
                let took = disk_takes();
                if begun.elapsed() > 6 * PATIENCE || took < SLOW_DISK {
                    let number = self.shared.number.load(Ordering::SeqCst);
                    let stack = std::fs::read_to_string(format!("/proc/self/task/{number}/stack"));
                    return Err(format!(
                        "the writer is stuck after {at} blocks and {} more for {:?}; another file is synced in {took:?}; it is in\n{}",
                        self.acknowledged() - at,
                        begun.elapsed(),
                        stack.unwrap_or_default()
                    ));
                }
                limit = begun.elapsed() + took;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Ends it.
    ///
    /// # Errors
    /// What a write failed with.
    pub fn stop(mut self) -> io::Result<()> {
        self.shared.stops.store(true, Ordering::SeqCst);
        let thread = self.thread.take().expect("it is stopped once");
        thread.join().expect("a writer does not panic")
    }

    /// Whether the rings of copies are of one moment: how many blocks they have of its order.
    ///
    /// # Errors
    /// The first block that is not as it must be, in words.
    pub fn check(&self, rings: &[Vec<u8>]) -> Result<u64, String> {
        check(self.run, self.volumes, rings)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::SeqCst);
    }
}

/// On which volume a block is, and in which slot.
fn place_of(sequence: u64, volumes: usize) -> (usize, usize) {
    let sequence = usize::try_from(sequence).unwrap_or(usize::MAX);
    (sequence % volumes, sequence / volumes % SLOTS)
}

impl Aligned {
    fn fill(&mut self, run: u64, volume: usize, number: u64) {
        let volume = u64::try_from(volume).unwrap_or(u64::MAX);
        let words = [MAGIC, run, volume, number].into_iter();
        for (bytes, word) in self.0.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

fn write_on(run: u64, files: &[(File, u64)], shared: &Shared) -> io::Result<()> {
    shared.number.store(gettid().as_raw(), Ordering::SeqCst);
    let mut block = Box::new(Aligned([0; BLOCK]));
    for sequence in 0.. {
        if shared.stops.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (volume, slot) = place_of(sequence, files.len());
        let Some((file, offset)) = files.get(volume) else {
            return Ok(());
        };
        block.fill(run, volume, sequence + 1);
        let begun = Instant::now();
        if let Err(error) = file.write_all_at(&block.0, offset + bytes(slot)) {
            let _ = shared.error.set(format!("volume {volume}: {error}"));
            return Err(error);
        }
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        shared.longest.fetch_max(took, Ordering::SeqCst);
        shared.acknowledged.store(sequence + 1, Ordering::SeqCst);
    }
    Ok(())
}

/// Where a slot begins in its ring.
fn bytes(slot: usize) -> u64 {
    u64::try_from(slot * BLOCK).unwrap_or(u64::MAX)
}

/// What a block holds: 0 for nothing of this run, else the sequence number plus one.
fn read(run: u64, volume: usize, block: &[u8]) -> u64 {
    let mut words = block
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
    let volume = u64::try_from(volume).unwrap_or(u64::MAX);
    let is_ours = [MAGIC, run, volume]
        .into_iter()
        .all(|wanted| words.next() == Some(wanted));
    words.next().filter(|_| is_ours).unwrap_or_default()
}

/// The same of rings that a writer has left which may be gone: that of `run`, in so many volumes.
///
/// # Errors
/// The first block that is not as it must be, in words.
pub fn check(run: u64, volumes: usize, rings: &[Vec<u8>]) -> Result<u64, String> {
    let mut found = Vec::new();
    for (volume, ring) in rings.iter().enumerate() {
        for (slot, block) in ring.chunks(BLOCK).enumerate() {
            found.push(((volume, slot), read(run, volume, block)));
        }
    }
    let last = found.iter().map(|(_, number)| *number).max();
    let last = last.unwrap_or_default();
    let newest = u64::try_from(volumes * SLOTS).unwrap_or(u64::MAX);
    let mut wanted = std::collections::HashMap::new();
    for sequence in last.saturating_sub(newest)..last {
        wanted.insert(place_of(sequence, volumes), sequence + 1);
    }
    for (place, found) in found {
        let wanted = wanted.get(&place).copied().unwrap_or_default();
        if found != wanted {
            let (volume, slot) = place;
            return Err(format!(
                "of the first {last} blocks, volume {volume} has {found} in slot {slot}, not {wanted}"
            ));
        }
    }
    Ok(last)
}

/// A piece of a ring in a copy, from an offset in bytes.
///
/// # Errors
/// When it cannot be read.
pub fn ring(path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    // Nothing that was read of an earlier copy at this place.
    let file = File::open(path)?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    /// Rings as they are after so many blocks, those of some volumes after others.
    fn rings(after: &[u64]) -> Vec<Vec<u8>> {
        let mut rings = vec![vec![0; RING]; after.len()];
        for (volume, end) in after.iter().enumerate() {
            for sequence in 0..*end {
                let (there, slot) = place_of(sequence, after.len());
                if there == volume {
                    let mut block = Aligned([0; BLOCK]);
                    block.fill(7, volume, sequence + 1);
                    let mut blocks = rings.get_mut(volume).unwrap().chunks_mut(BLOCK);
                    blocks.nth(slot).unwrap().copy_from_slice(&block.0);
                }
            }
        }
        rings
    }

    #[test]
    fn rings_of_one_point_in_time_are_told_from_those_of_several() {
        for end in [0, 1, 2, 511, 512, 513, 2000] {
            assert_eq!(check(7, 2, &rings(&[end, end])), Ok(end));
        }
        for (first, second) in [(10, 12), (14, 10), (0, 2), (600, 100)] {
            assert!(check(7, 2, &rings(&[first, second])).is_err());
        }
        // Another run's blocks are nothing.
        assert_eq!(check(8, 2, &rings(&[100, 100])), Ok(0));
    }
}
