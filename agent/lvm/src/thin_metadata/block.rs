//! Blocks of a metadata device, and reading them ahead.

use std::{
    fmt::Display,
    fs::File,
    io::{self, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::{
    Error, Kind, Result,
    host::{Access, DirectBuffer, open_direct},
};

/// The size of a block, in bytes: `THIN_METADATA_BLOCK_SIZE`. It suits direct I/O.
pub(super) const BLOCK: usize = 4096;
/// Maximum number of blocks per read. Of 256 KiB each takes a fifteenth of the time that one by itself takes.
const LONGEST: u64 = 64;
/// The next read has so many times the blocks that were used of the last one.
const GROWTH: u64 = 4;

/// The device or file with the metadata of a pool.
#[derive(Debug)]
pub(super) struct Device {
    file: File,
    path: PathBuf,
    blocks: u64,
}

impl Device {
    /// Opens it with direct I/O, because the page cache does not see the kernel's own writes.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let open = || -> io::Result<(File, u64)> {
            let mut file = open_direct(path, Access::ReadOnly)?;
            // Also the size of a block device.
            let bytes = file.seek(SeekFrom::End(0))?;
            Ok((file, bytes))
        };
        let (file, bytes) = open().map_err(|error| failed(path, error))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            blocks: bytes / bytes_of(1),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Verifies the checksum of a block, and that it was written for this place. Superblocks and nodes have both at the
    /// same offsets.
    pub(super) fn verify(&self, block: u64, bytes: &[u8], salt: u32) -> Result<()> {
        if u32_at(bytes, 0) != checksum(bytes, salt) {
            return Err(self.corrupt(block, "its checksum is wrong"));
        }
        match u64_at(bytes, 8) {
            own if own == block => Ok(()),
            other => Err(self.corrupt(block, format!("it was written as block {other}"))),
        }
    }

    /// The error for a block whose contents are not valid.
    pub(super) fn corrupt(&self, block: u64, why: impl Display) -> Error {
        Error::new(
            Kind::Precondition,
            format!(
                "block {block} of the thin pool metadata {} is corrupt: {why}",
                self.path.display()
            ),
        )
    }
}

/// Reads the blocks of one walk, and, where its reads follow each other, blocks ahead: up to [`LONGEST`].
///
/// A walk reads leaves that were written one after the other, which are roughly in order on the device, and between them
/// nodes that are elsewhere. These do not end the reading ahead. Where few of the blocks are used, fewer are read.
#[derive(Debug)]
pub(super) struct ReadAhead<'a> {
    device: &'a Device,
    ahead: Window,
    /// The last block that was elsewhere.
    elsewhere: Window,
}

/// Consecutive blocks in memory.
#[derive(Debug)]
struct Window {
    buffer: DirectBuffer,
    first: u64,
    count: u64,
    /// The number of them that were asked for.
    used: u64,
}

impl<'a> ReadAhead<'a> {
    pub(super) fn new(device: &'a Device) -> Self {
        Self {
            device,
            ahead: Window::new(LONGEST),
            elsewhere: Window::new(1),
        }
    }

    pub(super) fn device(&self) -> &'a Device {
        self.device
    }

    /// The bytes of a block, not verified.
    pub(super) fn read(&mut self, block: u64) -> Result<&[u8]> {
        let left = self.device.blocks.saturating_sub(block);
        if left == 0 {
            let blocks = self.device.blocks;
            let why = format!("it is behind the end of the device, which has {blocks} blocks");
            return Err(self.device.corrupt(block, why));
        }
        let (window, count) = if self.ahead.contains(block) {
            (&mut self.ahead, 0)
        } else if self.ahead.leads_to(block) {
            let count = (self.ahead.used * GROWTH).min(LONGEST);
            (&mut self.ahead, count)
        } else if self.elsewhere.leads_to(block) {
            (&mut self.ahead, GROWTH)
        } else {
            (&mut self.elsewhere, 1)
        };
        if count > 0 {
            window.fill(self.device, block, count.min(left))?;
        }
        window.used += 1;
        Ok(window.block(block))
    }
}

impl Window {
    fn new(room: u64) -> Self {
        Self {
            buffer: DirectBuffer::new(index(room) * BLOCK),
            first: 0,
            count: 0,
            used: 0,
        }
    }

    fn contains(&self, block: u64) -> bool {
        (self.first..self.first + self.count).contains(&block)
    }

    /// Returns true if a block is so little behind this window that the blocks between them are read, too.
    fn leads_to(&self, block: u64) -> bool {
        let end = self.first + self.count;
        self.count > 0 && (end..=end + LONGEST).contains(&block)
    }

    fn block(&self, block: u64) -> &[u8] {
        let at = index(block - self.first) * BLOCK;
        let bytes = self.buffer.bytes().get(at..at + BLOCK);
        bytes.unwrap_or_default()
    }

    fn fill(&mut self, device: &Device, block: u64, count: u64) -> Result<()> {
        // Nothing of it is valid until the read has succeeded.
        self.count = 0;
        let length = index(count) * BLOCK;
        let buffer = self.buffer.bytes_mut().get_mut(..length);
        let buffer = buffer.unwrap_or_default();
        match device.file.read_exact_at(buffer, bytes_of(block)) {
            Ok(()) => {
                (self.first, self.count, self.used) = (block, count, 0);
                Ok(())
            }
            // A block that nobody asked for may be the unreadable one.
            Err(_) if count > 1 => self.fill(device, block, 1),
            Err(error) => Err(failed(&device.path, error)),
        }
    }
}

/// The kernel's `dm_bm_checksum`: CRC-32C of all behind the checksum itself, without the final inversion, and a salt
/// that tells the kinds of blocks apart.
pub(super) fn checksum(bytes: &[u8], salt: u32) -> u32 {
    !crc32c::crc32c(bytes.get(4..).unwrap_or_default()) ^ salt
}

/// The number at an offset within a block.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The number at an offset within a block.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// A small number, to count in memory.
pub(super) fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn bytes_of(blocks: u64) -> u64 {
    blocks.saturating_mul(u64::try_from(BLOCK).unwrap_or(u64::MAX))
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::io(
        format!("could not read the thin pool metadata {}", path.display()),
        error,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::Scratch;

    /// A file in which each block has its own number.
    fn numbered(scratch: &Scratch, blocks: u64) -> Device {
        let path = scratch.path().join("blocks");
        let bytes: Vec<u8> = (0..blocks)
            .flat_map(|block| block.to_le_bytes().repeat(BLOCK / 8))
            .collect();
        std::fs::write(&path, bytes).unwrap();
        Device::open(&path).unwrap()
    }

    #[test]
    fn a_block_is_the_right_one_in_whatever_order_they_are_read() {
        let scratch = Scratch::new();
        let device = numbered(&scratch, 300);
        for step in [1, 2, 3, 5, 62, 70, 150, 299] {
            let mut reader = ReadAhead::new(&device);
            // Now and then one that is elsewhere.
            let order = (0..300)
                .step_by(step)
                .flat_map(|block| [block, block * 7 % 300]);
            for block in order.filter(|block| block % 10 != 9) {
                let bytes = reader.read(block).unwrap();
                assert_eq!((u64_at(bytes, 0), u64_at(bytes, BLOCK - 8)), (block, block));
            }
        }
        let error = ReadAhead::new(&device).read(300).unwrap_err();
        assert_eq!(error.kind(), Kind::Precondition);
        assert!(error.to_string().contains("has 300 blocks"), "{error}");
    }

    #[test]
    fn what_is_read_ahead_grows_with_what_is_used_of_it() {
        let scratch = Scratch::new();
        let device = numbered(&scratch, 2000);
        let mut reader = ReadAhead::new(&device);
        // The first one is elsewhere, and so is another one between them.
        for (block, count) in [(0, 0), (1, 4), (4, 4), (5, 8), (1900, 8), (17, 4)] {
            reader.read(block).unwrap();
            assert_eq!(reader.ahead.count, count, "{block}");
        }
        for block in 18..997 {
            reader.read(block).unwrap();
        }
        assert_eq!(reader.ahead.count, LONGEST);
        // Of the next one only one is used.
        for block in [1000, 1070] {
            reader.read(block).unwrap();
        }
        assert_eq!(reader.ahead.count, GROWTH);
    }
}
