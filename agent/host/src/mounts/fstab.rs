//! The file systems that the host mounts at its start, as `fstab(5)` lists them.

use std::{
    ffi::OsString,
    fmt::Write,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::mount_table::{DeviceNumber, unescape};
use crate::{Error, Result};

/// Where the table is. `LIBMOUNT_FSTAB` names another one, as for `mount`.
const PATH: &str = "/etc/fstab";

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FstabEntry {
    /// The number of the line, from 1.
    pub line: usize,
    /// What is mounted: as it is written, or for `UUID=…` and its like the link in `/dev/disk` that means the same.
    pub source: PathBuf,
    /// Where it is mounted.
    pub target: PathBuf,
    /// The host does not start without it: it has no option `nofail`.
    pub is_needed: bool,
}

/// The table of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fstab {
    /// Its path.
    pub path: PathBuf,
    /// Its lines that mount something at the start, or when it is used first.
    pub entries: Vec<FstabEntry>,
}

impl Fstab {
    /// Reads the table. One that does not exist is empty.
    ///
    /// # Errors
    /// `Io`.
    pub fn read() -> Result<Self> {
        let path = std::env::var_os("LIBMOUNT_FSTAB").unwrap_or_else(|| OsString::from(PATH));
        let path = PathBuf::from(path);
        let entries = match fs::read(&path) {
            Ok(bytes) => parse(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                return Err(Error::io(
                    format!("could not read {}", path.display()),
                    error,
                ));
            }
        };
        Ok(Self { path, entries })
    }

    /// The line that mounts this device or file.
    pub fn of_source(&self, source: &Path) -> Option<&FstabEntry> {
        let number = DeviceNumber::of_block_device(source).ok();
        let is_meant = |entry: &&FstabEntry| {
            // Nothing else is looked at: it may be on a server that does not answer.
            let is_device = || {
                entry.source.starts_with("/dev")
                    && DeviceNumber::of_block_device(&entry.source).ok() == number
            };
            entry.source == source || (number.is_some() && is_device())
        };
        self.entries.iter().find(is_meant)
    }

    /// The line that mounts something at this path.
    pub fn at(&self, target: &Path) -> Option<&FstabEntry> {
        self.entries.iter().find(|entry| entry.target == target)
    }
}

fn parse(bytes: &[u8]) -> Vec<FstabEntry> {
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    lines
        .filter_map(|(before, line)| entry(before + 1, line))
        .collect()
}

fn entry(line: usize, text: &[u8]) -> Option<FstabEntry> {
    let mut fields = text
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty());
    let source = fields.next().filter(|source| !source.starts_with(b"#"))?;
    let target = fields.next()?;
    let options = fields.nth(1).unwrap_or_default();
    let has = |wanted: &[u8]| options.split(|byte| *byte == b',').any(|one| one == wanted);
    if has(b"noauto") && !has(b"x-systemd.automount") {
        return None;
    }
    Some(FstabEntry {
        line,
        source: source_of(&unescape(source)),
        target: unescape(target).into(),
        is_needed: !has(b"nofail") && !has(b"noauto"),
    })
}

/// What a source means: udev has a link for each way to say it.
fn source_of(word: &OsString) -> PathBuf {
    let text = String::from_utf8_lossy(word.as_bytes());
    let Some((by, value)) = text.split_once('=') else {
        return word.into();
    };
    let value = value.trim_matches('"');
    match by {
        "UUID" | "LABEL" | "PARTUUID" | "PARTLABEL" | "ID" => {
            let by = by.to_ascii_lowercase();
            Path::new("/dev/disk")
                .join(format!("by-{by}"))
                .join(encoded(value))
        }
        _ => word.into(),
    }
}

/// A label as udev has it in the name of a link: of ASCII, letters, digits and some signs are as they are.
fn encoded(label: &str) -> String {
    let mut name = String::new();
    for letter in label.chars() {
        if letter.is_ascii_alphanumeric() || "#+-.:=@_".contains(letter) || !letter.is_ascii() {
            name.push(letter);
        } else {
            let _ = write!(name, "\\x{:02x}", u32::from(letter));
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_that_mounts_something_is_read() {
        let text = b"# a comment\n\
            \n\
            UUID=1b2c /srv/db ext4 defaults 0 2\n\
            \t/dev/vg0/my\\040data\t/srv/my\\040data\txfs\tnoatime,nofail\n\
            /srv/a.img /srv/a ext4 loop,noauto\n\
            LABEL=\"my\\040data/1\" /\n\
            /dev/vg0/late /late ext4 noauto,x-systemd.automount\n\
            lonely\n\
            tmpfs /tmp tmpfs";
        let found = parse(text);
        let shown: Vec<_> = found
            .iter()
            .map(|entry| {
                let (source, target) = (entry.source.to_str(), entry.target.to_str());
                (
                    entry.line,
                    source.unwrap(),
                    target.unwrap(),
                    entry.is_needed,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                (3, "/dev/disk/by-uuid/1b2c", "/srv/db", true),
                (4, "/dev/vg0/my data", "/srv/my data", false),
                (6, "/dev/disk/by-label/my\\x20data\\x2f1", "/", true),
                (7, "/dev/vg0/late", "/late", false),
                (9, "tmpfs", "/tmp", true),
            ]
        );
    }
}
