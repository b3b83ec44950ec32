//! Exception stores of old-style device-mapper snapshots: the chunks of the origin that were overwritten since.
//!
//! The first chunk of the store is a header with the chunk size. Areas follow: a chunk of pairs (chunk of the origin,
//! chunk of the store), little-endian, and the chunks of the store that they name. A pair that names chunk 0 of the
//! store marks the end.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::{Access, DirectBuffer, Sectors, fsync, open_direct};
use crate::{Error, Kind, Result};

/// The magic number of a store: `SnAp`.
const MAGIC: u32 = 0x7041_6e53;
/// The version that all kernels write.
const VERSION: u32 = 1;
/// The unit of the header's chunk size, in bytes.
/// Size of a pair: two numbers of 64 bits.
const PAIR: usize = 16;
/// Bytes per copy step.
const BUFFER: usize = 1 << 20;

/// The exception store of one snapshot.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    file: File,
    /// The chunk size, in bytes.
    pub(super) chunk: u64,
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = open_direct(path, Access::ReadOnly).map_err(|error| failed(path, error))?;
        let mut head = DirectBuffer::new(DirectBuffer::BLOCK);
        file.read_exact_at(head.bytes_mut(), 0)
            .map_err(|error| failed(path, error))?;
        let number = |at: usize| {
            let bytes = head.bytes().get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let chunk = Sectors(number(12).into()).bytes();
        let is_whole = number(4) != 0 && number(8) == VERSION;
        // It must suit direct I/O, and have room for at least one pair.
        let fits = usize::try_from(chunk).is_ok_and(|chunk| (1..=BUFFER).contains(&chunk));
        if number(0) != MAGIC || !is_whole || !fits || !chunk.is_multiple_of(4096) {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "{} is not a valid exception store with a chunk size that is a multiple of 4 KiB",
                    path.display()
                ),
            ));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            chunk,
        })
    }

    /// Calls `hear` with the chunks of the origin that each area names, sorted.
    pub(super) fn each_area(&self, mut hear: impl FnMut(&[u64]) -> Result<()>) -> Result<()> {
        let failed = |at, error| {
            let path = self.path.display();
            let message = format!("could not read the exception store {path} at byte {at}");
            Error::io(message, error)
        };
        let length = usize::try_from(self.chunk).unwrap_or_default();
        let pairs = self.chunk / 16;
        let mut area = DirectBuffer::new(length);
        let mut at = self.chunk;
        loop {
            match self.file.read_exact_at(area.bytes_mut(), at) {
                // A store can be full to the last chunk.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                other => other.map_err(|error| failed(at, error))?,
            }
            let mut chunks = Vec::new();
            for pair in area.bytes().chunks_exact(PAIR) {
                let number = |at: usize| {
                    let bytes = pair.get(at..).and_then(|bytes| bytes.first_chunk());
                    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
                };
                if number(8) == 0 {
                    break;
                }
                chunks.push(number(0));
            }
            let is_last = chunks.len() < area.bytes().len() / PAIR;
            chunks.sort_unstable();
            hear(&chunks)?;
            if is_last {
                return Ok(());
            }
            at += (pairs + 1) * self.chunk;
        }
    }
}

/// Refuses a store that cannot be used for a rollback.
///
/// # Errors
/// `Precondition`, `Io`.
pub fn check(store: &Path) -> Result<()> {
    Store::open(store).map(drop)
}

/// Rolls an origin back to one of its snapshots: copies the chunks that the snapshot's store names and that differ.
/// Data behind the snapshot's end is unchanged.
///
/// The origin must not be in use. After an interruption it starts over; chunks that were copied already are not
/// written again. `step` gets the number of bytes of all chunks that are complete.
///
/// # Errors
/// `Precondition` when the store does not belong to a valid snapshot, `Io`.
pub fn roll_back(
    store: &Path,
    snapshot: &Path,
    origin: &Path,
    mut step: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    let store = Store::open(store)?;
    let from = open_direct(snapshot, Access::ReadOnly).map_err(|error| failed(snapshot, error))?;
    let to = open_direct(origin, Access::ReadWrite).map_err(|error| failed(origin, error))?;
    let mut buffers = (DirectBuffer::new(BUFFER), DirectBuffer::new(BUFFER));
    let mut done = 0;
    store.each_area(|chunks| {
        for run in runs(chunks, store.chunk, BUFFER) {
            give_run_back(&from, &to, &run, store.chunk, &mut buffers)
                .map_err(|error| failed(origin, error))?;
            done += run.end - run.start;
            step(done)?;
        }
        Ok(())
    })?;
    fsync(&to).map_err(|error| failed(origin, error))
}

fn give_run_back(
    from: &File,
    to: &File,
    run: &Range<u64>,
    chunk: u64,
    (before, now): &mut (DirectBuffer, DirectBuffer),
) -> io::Result<()> {
    let length = usize::try_from(run.end - run.start).unwrap_or_default();
    let unit = usize::try_from(chunk).unwrap_or(length).max(1);
    let before = before.bytes_mut().get_mut(..length).unwrap_or_default();
    let now = now.bytes_mut().get_mut(..length).unwrap_or_default();
    from.read_exact_at(before, run.start)?;
    to.read_exact_at(now, run.start)?;
    let pairs = before.chunks(unit).zip(now.chunks(unit));
    let mut at = run.start;
    for (before, now) in pairs {
        // Another snapshot of the origin keeps every overwritten chunk.
        if before != now {
            to.write_all_at(before, at)?;
        }
        at += chunk;
    }
    Ok(())
}

/// Merges sorted chunks into ranges, in bytes, of at most `most` bytes unless a single chunk is larger.
fn runs(chunks: &[u64], chunk: u64, most: usize) -> Vec<Range<u64>> {
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let mut runs: Vec<Range<u64>> = Vec::new();
    for start in chunks.iter().map(|number| number.saturating_mul(chunk)) {
        match runs.last_mut() {
            Some(last) if last.end == start && last.end - last.start + chunk <= most => {
                last.end += chunk;
            }
            _ => runs.push(start..start.saturating_add(chunk)),
        }
    }
    runs
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::io(
        format!("could not roll back with {}", path.display()),
        error,
    )
}

/// A store with chunks of 4 KiB that names these chunks.
#[cfg(test)]
pub(super) fn store_of(chunks: &[u64]) -> Vec<u8> {
    const CHUNK: usize = 4096;
    let areas = chunks.len() / 256 + 1;
    let mut bytes = vec![0; (1 + areas * 257) * CHUNK];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    for (at, value) in [(0, MAGIC), (4, 1), (8, VERSION), (12, 8)] {
        put(at, &value.to_le_bytes());
    }
    for (number, chunk) in chunks.iter().enumerate() {
        let at = (1 + number / 256 * 257) * CHUNK + number % 256 * PAIR;
        put(at, &chunk.to_le_bytes());
        put(at + 8, &(2 + number).to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_that_lie_together_are_one_run_as_long_as_a_buffer() {
        let all = |chunks: &[u64]| -> Vec<(u64, u64)> {
            let runs = runs(chunks, 4096, 3 * 4096);
            runs.iter().map(|run| (run.start, run.end)).collect()
        };
        assert_eq!(all(&[]), []);
        assert_eq!(all(&[2]), [(8192, 12288)]);
        assert_eq!(all(&[0, 1, 2, 3]), [(0, 12288), (12288, 16384)]);
        assert_eq!(all(&[0, 2, 3]), [(0, 4096), (8192, 16384)]);
    }

    #[test]
    fn a_store_names_the_chunks_of_all_its_areas_and_a_foreign_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        // 256 pairs fill the first area, and two are in the second.
        let bytes = store_of(&(743..=1000).rev().collect::<Vec<u64>>());
        std::fs::write(&path, &bytes).unwrap();
        let mut heard = Vec::new();
        let store = Store::open(&path).unwrap();
        let mut areas = 0;
        store
            .each_area(|chunks| {
                areas += 1;
                assert!(chunks.is_sorted());
                heard.extend_from_slice(chunks);
                Ok(())
            })
            .unwrap();
        heard.sort_unstable();
        assert_eq!(areas, 2);
        assert_eq!(heard, (743..=1000).collect::<Vec<u64>>());
        for (at, value) in [(0, 7), (4, 0), (8, 2), (12, 1)] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            std::fs::write(&path, &wrong).unwrap();
            assert_eq!(Store::open(&path).unwrap_err().kind(), Kind::Precondition);
        }
    }
}
