//! The location of LVM's metadata text on a physical volume, and reading it without a program.
//!
//! A change writes a new text beside the old one and then, in one sector, its location. So the location shows whether
//! anything has changed since, and a text with a correct checksum is complete. The formats are those of LVM2 since
//! its first release; grub and others read them in the same way.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use crate::{Error, Kind, Result, host::DirectBuffer};

const SECTOR: usize = 512;
/// The label is in one of the first four sectors.
const LABEL_SECTORS: usize = 4;
/// Alignment of direct reads.
const BLOCK: usize = DirectBuffer::BLOCK;
/// Initial value of the checksums, which are zlib's CRC.
const SUM_START: u32 = 0xf597_a6cf;
const AREA_MAGIC: &[u8; 16] = b" LVM2 x[5A%r0N*>";
/// Flag: this copy is to be ignored.
const IGNORED: u32 = 1;
/// Maximum size of a text that LVM itself could handle, in bytes.
const TEXT: u64 = 256 << 20;

/// A readable physical volume.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    /// Its UUID, without dashes.
    pub(super) uuid: String,
    areas: Vec<u64>,
}

/// The location of a text on a disk, and its checksum: it differs after every change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextLocation {
    area: u64,
    area_size: u64,
    offset: u64,
    size: u64,
    sum: u32,
}

impl TextLocation {
    /// The largest text that fits beside another one, by LVM's own rule (`_vg_write_raw`).
    pub(super) fn largest(self) -> u64 {
        let head = u64::try_from(SECTOR).unwrap_or_default();
        (self.area_size.saturating_sub(head) / 2).saturating_sub(head)
    }

    /// The checksum and length of the text: equal for equal texts.
    pub(super) fn sum(self) -> (u32, u64) {
        (self.sum, self.size)
    }
}

impl Disk {
    /// Opens the physical volume at `path` with direct I/O, because the page cache does not see LVM's own writes.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when it is not a physical volume.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::new(
                Kind::Precondition,
                format!("could not read physical volume {}", path.display()),
            )
            .because(error)
        };
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
            .open(path)
            .map_err(failed)?;
        let head = read(&file, 0, BLOCK).map_err(failed)?;
        let label = head
            .chunks_exact(SECTOR)
            .take(LABEL_SECTORS)
            .find(|sector| {
                sector.starts_with(b"LABELONE") && sector.get(24..32) == Some(b"LVM2 001")
            });
        let parsed = label.and_then(|label| {
            let rest = label.get(20..)?;
            (u32_at(label, 16)? == sum(rest)).then_some(())?;
            let header = usize::try_from(u32_at(label, 20)?).ok()?;
            let uuid = String::from_utf8(label.get(header..header + 32)?.to_vec()).ok()?;
            Some((uuid, areas(label, header + 40)?))
        });
        let Some((uuid, areas)) = parsed else {
            return Err(Error::new(
                Kind::Precondition,
                format!("{} is not an LVM physical volume", path.display()),
            ));
        };
        Ok(Self { file, uuid, areas })
    }

    /// The current location of the text; none on a disk that keeps no copy.
    pub(super) fn spot(&self) -> io::Result<Option<TextLocation>> {
        for area in &self.areas {
            let head = read(&self.file, *area, BLOCK)?;
            if let Some(spot) = spot(&head, *area) {
                return Ok(Some(spot));
            }
        }
        Ok(None)
    }

    /// The text at a location; none when it has been overwritten since.
    pub(super) fn text(&self, spot: TextLocation) -> io::Result<Option<String>> {
        let head = u64::try_from(SECTOR).unwrap_or_default();
        // The area is a ring buffer behind its header.
        let first = spot.size.min(spot.area_size.saturating_sub(spot.offset));
        let mut text = read_any(&self.file, spot.area.saturating_add(spot.offset), first)?;
        text.extend(read_any(
            &self.file,
            spot.area.saturating_add(head),
            spot.size - first,
        )?);
        Ok(whole(text, spot.sum))
    }
}

/// A text with a correct checksum; none when it has been overwritten. LVM's own names and tags are ASCII; other parts
/// (the command line that has written it, the names of the host and of devices) can be in any encoding.
fn whole(text: Vec<u8>, wanted: u32) -> Option<String> {
    (sum(&text) == wanted).then(|| {
        String::from_utf8(text)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    })
}

/// The metadata areas in a header: they follow the list of data areas, and each list ends with a zero.
fn areas(label: &[u8], mut at: usize) -> Option<Vec<u64>> {
    let mut lists = [Vec::new(), Vec::new()];
    for list in &mut lists {
        loop {
            let offset = u64_at(label, at)?;
            at += 16;
            if offset == 0 {
                break;
            }
            list.push(offset);
        }
    }
    let [_, areas] = lists;
    Some(areas)
}

fn spot(head: &[u8], area: u64) -> Option<TextLocation> {
    (head.get(4..20)? == AREA_MAGIC && u32_at(head, 0)? == sum(head.get(4..SECTOR)?))
        .then_some(())?;
    let spot = TextLocation {
        area,
        area_size: u64_at(head, 32)?,
        offset: u64_at(head, 40)?,
        size: u64_at(head, 48)?,
        sum: u32_at(head, 56)?,
    };
    let is_ignored = u32_at(head, 60)? & IGNORED != 0;
    let is_there = spot.offset > 0 && spot.size > 0 && spot.size < spot.area_size.min(TEXT);
    (is_there && !is_ignored).then_some(spot)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn sum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!SUM_START);
    hasher.update(bytes);
    !hasher.finalize()
}

/// Reads `length` bytes at any offset.
fn read_any(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let block = u64::try_from(BLOCK).unwrap_or(1);
    let before = at % block;
    let whole = (before + length).next_multiple_of(block);
    let size = |bytes: u64| usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput);
    if length == 0 {
        return Ok(Vec::new());
    }
    let bytes = read(file, at - before, size(whole)?)?;
    let (before, length) = (size(before)?, size(length)?);
    Ok(bytes
        .get(before..before + length)
        .unwrap_or_default()
        .to_vec())
}

/// Reads whole blocks into memory aligned for direct I/O.
fn read(file: &File, at: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut buffer = DirectBuffer::new(length);
    file.read_exact_at(buffer.bytes_mut(), at)?;
    Ok(buffer.bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_text_in_another_encoding_does_not_hide_it() {
        let text = b"vg0 {\n}\ndescription = \"vgchange --addtag caf\xe9\"\n";
        let read = whole(text.to_vec(), sum(text)).unwrap();
        assert!(
            read.starts_with("vg0 {\n}\n") && read.ends_with("\u{fffd}\"\n"),
            "{read}"
        );
        assert_eq!(whole(b"vg0 {\n}\n".to_vec(), sum(text)), None);
    }
}
