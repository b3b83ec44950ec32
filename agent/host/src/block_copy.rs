//! What a block device holds: copied from another one, zeroed, forgotten. Past the page cache, in steps.

use std::{
    fs::File,
    io,
    ops::{ControlFlow, Range},
    os::unix::fs::FileExt,
    path::Path,
};

use super::{DirectBuffer, open_direct, system};
use crate::{Error, Result};

/// One step: large enough to be fast, small enough to be stopped.
const STEP: u64 = 64 << 20;
/// What is read and written at a time.
const BUFFER: usize = 4 << 20;

/// Hears how far it is, in bytes from the device's beginning, and may say that it is enough for now.
pub type Step<'a> = &'a mut dyn FnMut(u64) -> ControlFlow<()>;

/// Copies a stretch, in bytes, of one device to the same place of another; says where it ended. What it says is there
/// is on the disk.
pub fn copy(source: &Path, target: &Path, span: Range<u64>, step: Step<'_>) -> Result<u64> {
    let failed = |error| {
        Error::io(
            format!(
                "could not copy {} to {}",
                source.display(),
                target.display()
            ),
            error,
        )
    };
    let mut work = || -> io::Result<u64> {
        let (from, to) = (open_direct(source, false)?, open_direct(target, true)?);
        let mut buffer = DirectBuffer::new(BUFFER);
        let mut at = span.start;
        while at < span.end {
            let length = usize::try_from(span.end - at).map_or(BUFFER, |left| left.min(BUFFER));
            let part = buffer.bytes_mut().get_mut(..length).unwrap_or_default();
            from.read_exact_at(part, at)?;
            let bytes = u64::try_from(length).unwrap_or_default();
            // Devices that know how write no zeros.
            if part.iter().all(|byte| *byte == 0) {
                system::zero_range(&to, at, bytes)?;
            } else {
                to.write_all_at(part, at)?;
            }
            at += bytes;
            if step(at).is_break() {
                break;
            }
        }
        to.sync_all()?;
        Ok(at)
    };
    work().map_err(failed)
}

/// Makes a stretch, in bytes, of a device read as zeros; says where it ended.
pub fn zero(device: &Path, span: Range<u64>, step: Step<'_>) -> Result<u64> {
    each(device, span, step, |file, start, length| {
        system::zero_range(file, start, length)
    })
}

/// Tells a device to forget a stretch, in bytes, and zeroes it where a device cannot forget; says where it ended.
pub fn discard(device: &Path, span: Range<u64>, step: Step<'_>) -> Result<u64> {
    each(
        device,
        span,
        step,
        |file, start, length| match system::discard_range(file, start, length) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                system::zero_range(file, start, length)
            }
            other => other,
        },
    )
}

fn each(
    device: &Path,
    span: Range<u64>,
    step: Step<'_>,
    change: impl Fn(&File, u64, u64) -> io::Result<()>,
) -> Result<u64> {
    let mut work = || -> io::Result<u64> {
        let file = open_direct(device, true)?;
        let mut at = span.start;
        while at < span.end {
            let length = (span.end - at).min(STEP);
            change(&file, at, length)?;
            at += length;
            if step(at).is_break() {
                break;
            }
        }
        file.sync_all()?;
        Ok(at)
    };
    work().map_err(|error| Error::io(format!("could not wipe {}", device.display()), error))
}
