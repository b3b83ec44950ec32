//! Copying, zeroing and discarding ranges of block devices. Uses direct I/O, in steps.

use std::{
    fs::File,
    io,
    ops::{ControlFlow, Range},
    os::unix::fs::FileExt,
    path::Path,
};

use crate::{Access, DirectBuffer, fsync, open_direct, system, zeros::is_zero};
use crate::{Error, Result, trace};

/// Bytes per step: large enough to be fast, small enough to be stopped.
const STEP: u64 = 64 << 20;
/// Bytes per read and write.
const BUFFER: usize = 4 << 20;

/// Progress callback: gets the offset from the device's beginning, in bytes, and may stop the operation.
pub type Step<'a> = &'a mut dyn FnMut(u64) -> ControlFlow<()>;

/// Copies a range, in bytes, of one device to the same range of another; returns the offset reached. Reported
/// progress is on the disk.
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
    let _span = trace::copy();
    let mut work = || -> io::Result<u64> {
        let (from, to) = (
            open_direct(source, Access::ReadOnly)?,
            open_direct(target, Access::ReadWrite)?,
        );
        let mut buffer = DirectBuffer::new(BUFFER);
        let mut at = span.start;
        while at < span.end {
            let length = usize::try_from(span.end - at).map_or(BUFFER, |left| left.min(BUFFER));
            let part = buffer.bytes_mut().get_mut(..length).unwrap_or_default();
            from.read_exact_at(part, at)?;
            let bytes = u64::try_from(length).unwrap_or_default();
            // Devices that support it write no zeros.
            if is_zero(part) {
                system::zero_range(&to, at, bytes)?;
            } else {
                to.write_all_at(part, at)?;
            }
            at += bytes;
            if step(at).is_break() {
                break;
            }
        }
        fsync(&to)?;
        Ok(at)
    };
    work().map_err(failed)
}

/// Makes a range, in bytes, of a device read as zeros; returns the offset reached.
pub fn zero(device: &Path, span: Range<u64>, step: Step<'_>) -> Result<u64> {
    each(device, span, step, |file, start, length| {
        system::zero_range(file, start, length)
    })
}

/// Discards a range, in bytes, of a device, and zeroes it where the device cannot discard; returns the offset
/// reached.
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
        let file = open_direct(device, Access::ReadWrite)?;
        let mut at = span.start;
        while at < span.end {
            let length = (span.end - at).min(STEP);
            change(&file, at, length)?;
            at += length;
            if step(at).is_break() {
                break;
            }
        }
        fsync(&file)?;
        Ok(at)
    };
    work().map_err(|error| Error::io(format!("could not wipe {}", device.display()), error))
}
