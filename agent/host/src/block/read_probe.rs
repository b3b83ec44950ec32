//! Whether a disk answers: one block is read with a deadline.
//!
//! A read of a disk that has stalled never ends and cannot be cancelled. It is made in a thread of its own that lasts as
//! long as the disk is silent, at most one for each device, however often it is asked for.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{Access, DirectBuffer, lock, open_direct};

/// Stack size of a thread that reads one block, in bytes.
const STACK: usize = 128 << 10;

/// The pending reads: the device number, and when the read began.
pub type Pending = BTreeMap<u64, Instant>;

static PENDING: Mutex<Pending> = Mutex::new(BTreeMap::new());
/// Signalled when a disk has answered.
static ANSWERED: Condvar = Condvar::new();

/// The number of the block device at a path; follows symbolic links.
///
/// # Errors
/// `InvalidInput` if it is not a block device.
pub fn number(path: &Path) -> io::Result<u64> {
    let file = fs::metadata(path)?;
    if !file.file_type().is_block_device() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(file.rdev())
}

/// Begins to read a device, unless a read of it is pending.
pub fn begin(device: PathBuf, number: u64) {
    let mut pending = lock(&PENDING);
    if pending.contains_key(&number) {
        return;
    }
    pending.insert(number, Instant::now());
    drop(pending);
    let thread = std::thread::Builder::new().name("disk probe".to_owned());
    let begun = thread.stack_size(STACK).spawn(move || {
        // An error is an answer, too.
        let _ = read_first_block(&device);
        end(number);
    });
    if begun.is_err() {
        end(number);
    }
}

fn end(number: u64) {
    lock(&PENDING).remove(&number);
    ANSWERED.notify_all();
}

fn read_first_block(device: &Path) -> io::Result<()> {
    let file = open_direct(device, Access::ReadOnly)?;
    let mut buffer = DirectBuffer::new(DirectBuffer::BLOCK);
    file.read_exact_at(buffer.bytes_mut(), 0)
}

/// The reads that are pending.
pub fn pending() -> Pending {
    lock(&PENDING).clone()
}

/// Waits until `is_enough`, or until a deadline. Returns the reads that are pending then.
pub fn wait_until(deadline: Instant, is_enough: impl Fn(&Pending) -> bool) -> Pending {
    let mut pending = lock(&PENDING);
    while !is_enough(&pending) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        (pending, _) = ANSWERED
            .wait_timeout(pending, left)
            .unwrap_or_else(PoisonError::into_inner);
    }
    pending.clone()
}

/// Reads a device. Returns for how long it has been silent if it does not answer within `patience`; an error is an
/// answer. A device that is known to be silent is not waited for.
pub fn silence(device: &Path, patience: Duration) -> Option<Duration> {
    let number = number(device).ok()?;
    begin(device.to_owned(), number);
    let is_over = |pending: &Pending| {
        pending
            .get(&number)
            .is_none_or(|since| since.elapsed() >= patience)
    };
    let pending = wait_until(Instant::now() + patience, is_over);
    pending.get(&number).map(Instant::elapsed)
}
