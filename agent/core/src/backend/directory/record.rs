//! The JSON record of an image, stored beside its data.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::fd::BorrowedFd,
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, openat},
    sys::stat::Mode,
};
use serde::{Deserialize, Serialize};

use crate::{Error, Result, backend::Labels, host::fsync, types::Size};

/// The version of the record that this agent writes. Images with a newer one are left unchanged.
pub(super) const VERSION: u32 = 1;

/// Maximum size of a record; a larger file is foreign.
const RECORD_BYTES: usize = 1 << 20;

/// The record of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The version of the record's format.
    pub(super) version: u32,
    /// The size of the image in bytes.
    pub(super) size: Size,
    /// Labels of the operations.
    pub(super) labels: Labels,
}

/// Only the version, for records of unknown format.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn newer(version: u32) -> String {
    format!(
        "its record.json has version {version}, but this agent supports version {VERSION}; upgrade this agent"
    )
}

impl Record {
    /// A record of the version that this agent writes.
    pub(super) fn new(size: Size, labels: Labels) -> Self {
        Self {
            version: VERSION,
            size,
            labels,
        }
    }

    /// Parses a record.
    ///
    /// # Errors
    /// A message for people: a newer version, or not a record at all.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let unparsed = |error| format!("its record.json cannot be parsed: {error}");
        let error = match serde_json::from_slice::<Self>(bytes) {
            Ok(record) if record.version == VERSION => return Ok(record),
            Ok(record) => return Err(newer(record.version)),
            Err(error) => error,
        };
        // A record of an unknown format may still have a version.
        let Version { version } = serde_json::from_slice(bytes).map_err(unparsed)?;
        Err(if version == VERSION {
            unparsed(error)
        } else {
            newer(version)
        })
    }

    /// Reads the record at `path`; none when there is no such file.
    pub(super) fn read(path: &Path) -> io::Result<Option<Result<Self, String>>> {
        Self::read_at(AT_FDCWD, path)
    }

    /// As [`Self::read`], with `path` relative to the directory `here`.
    pub(super) fn read_at(
        here: BorrowedFd<'_>,
        path: &Path,
    ) -> io::Result<Option<Result<Self, String>>> {
        match openat(
            here,
            path,
            OFlag::O_RDONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        ) {
            Ok(file) => read_small(file.into()).map(|bytes| Some(Self::parse(&bytes))),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the record to a new file at `path` and syncs it.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        write_json(self, path)
    }
}

/// Writes a value to a new file at `path` and syncs it.
pub(super) fn write_json(value: &impl Serialize, path: &Path) -> Result<()> {
    let mut bytes = serde_json::to_vec(value).map_err(|error| {
        Error::new(crate::Kind::Bug, "could not serialize a record").because(error)
    })?;
    bytes.push(b'\n');
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        file.write_all(&bytes)?;
        fsync(&file)
    };
    write().map_err(|error| Error::io(format!("could not write record {}", path.display()), error))
}

/// Reads a file with a single `read` if it is as small as records are: no `stat`, no second `read` to detect its end.
fn read_small(mut file: File) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; 4096];
    let mut length = 0;
    loop {
        let Some(room) = buffer.get_mut(length..) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let count = file.read(room)?;
        length += count;
        if count == 0 || length < buffer.len() {
            buffer.truncate(length);
            return Ok(buffer);
        }
        if buffer.len() >= RECORD_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        buffer.resize(buffer.len() * 2, 0);
    }
}

/// Makes changes of a directory's entries (created, renamed, removed) durable.
pub(super) fn sync_directory(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|directory| fsync(&directory))
        .map_err(|error| {
            Error::io(
                format!("could not sync directory {}", path.display()),
                error,
            )
        })
}

/// Removes a directory of the agent with its contents; a missing one is not an error.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(
            format!("could not remove {}", path.display()),
            error,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_newer_or_broken_record_is_reported_not_misread() {
        let newer = Record::parse(br#"{"version":2,"whatever":true}"#).unwrap_err();
        assert!(newer.contains("version 2"), "{newer}");
        for broken in [&b""[..], b"{", b"[]", b"{\"version\":1}", b"\0\0\0"] {
            assert!(Record::parse(broken).is_err());
        }
    }

    proptest! {
        #[test]
        fn a_record_is_read_back_as_it_was_written(
            size in 0..=i64::MAX.unsigned_abs(),
            labels in proptest::collection::btree_map(".*", ".*", 0..5),
        ) {
            let record = Record::new(Size::try_from(size).unwrap(), labels);
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("record.json");
            record.write(&path).unwrap();
            prop_assert_eq!(Record::read(&path).unwrap().unwrap().unwrap(), record);
        }
    }

    /// This format is on the disks of hosts: a change here requires a new version.
    #[test]
    fn the_text_of_a_record_is_this() {
        let labels = Labels::from([("name".to_owned(), "a b".to_owned())]);
        let record = Record::new(Size::try_from(5_u64 << 20).unwrap(), labels);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record.json");
        record.write(&path).unwrap();
        assert_eq!(
            fs::read_to_string(path).unwrap(),
            "{\"version\":1,\"size\":5242880,\"labels\":{\"name\":\"a b\"}}\n"
        );
    }

    #[test]
    fn a_long_record_is_read_whole() {
        let labels = Labels::from([("long".to_owned(), "x".repeat(100_000))]);
        let record = Record::new(Size::default(), labels);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record.json");
        record.write(&path).unwrap();
        assert_eq!(Record::read(&path).unwrap().unwrap().unwrap(), record);
    }
}
