//! One manifest file: whether it may be trusted, and what it holds.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use drumlin_crd::{Manifest, Problem, read};
use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};

use super::{
    open_for_write::{OpenFiles, Writers},
    trust::Trust,
};

/// The largest manifest, in bytes.
const FILE_BYTES: u64 = 1 << 20;
/// Where nobody can tell who writes a file, it must have been left alone for this long.
const SETTLED: Duration = Duration::from_secs(1);
/// A file that was left alone for this long before it was seen first is not waited for, whatever the clocks.
const OLD: Duration = Duration::from_mins(1);

/// What tells one version of a file from another without reading it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    pub(super) fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What a file turned out to be.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reading {
    /// All of it is right.
    Good(Manifest),
    /// Something is wrong: nothing of it is used, and what it said before still holds.
    Invalid(Vec<Problem>),
    /// It may be being written; what it said before still holds, and it is looked at again.
    /// With the time at which it was seen first as it is now.
    Later(Instant),
}

/// A file that was read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReadFile {
    pub(super) identity: Identity,
    pub(super) hash: [u8; 32],
    pub(super) reading: Reading,
}

impl ReadFile {
    /// Whether the file at `path` is still what was read, so that it need not be read again.
    pub(super) fn is_as_it_was(&self, path: &Path) -> bool {
        !matches!(self.reading, Reading::Later(_))
            && std::fs::metadata(path).is_ok_and(|now| Identity::of(&now) == self.identity)
    }
}

/// Who reads manifests: whose they may be, and what is known of writers.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) trust: &'a Trust,
    pub(super) open_files: OpenFiles,
}

impl Reader<'_> {
    /// Reads the file at `path`; none when it is gone, as files are for a moment while an editor saves.
    ///
    /// `known` is what was read before: an unchanged content is not parsed again.
    pub(super) fn look(&mut self, path: &Path, known: Option<&ReadFile>) -> Option<ReadFile> {
        match self.try_look(path, known) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // One file that cannot be read says nothing of the others.
            Err(error) => Some(refusal(
                Identity::default(),
                format!("cannot be read: {error}"),
            )),
        }
    }

    fn try_look(&mut self, path: &Path, known: Option<&ReadFile>) -> io::Result<ReadFile> {
        let file = OpenOptions::new()
            .read(true)
            // A pipe of this name would be waited for without end.
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)?;
        let metadata = file.metadata()?;
        let identity = Identity::of(&metadata);
        if let Err(message) = self.check(&file, &metadata) {
            return Ok(refusal(identity, message));
        }
        let since = match known.map(|known| &known.reading) {
            Some(Reading::Later(since))
                if known.is_some_and(|known| known.identity == identity) =>
            {
                *since
            }
            _ => Instant::now(),
        };
        let later = ReadFile {
            identity,
            hash: known.map_or([0; 32], |known| known.hash),
            reading: Reading::Later(since),
        };
        if !self.is_settled(&file, &metadata, since) {
            return Ok(later);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(metadata.size()).unwrap_or(0) + 1);
        (&file).take(FILE_BYTES + 1).read_to_end(&mut bytes)?;
        if Identity::of(&file.metadata()?) != identity {
            return Ok(later);
        }
        let hash: [u8; 32] = Sha256::digest(&bytes).into();
        if let Some(known) = known
            && known.hash == hash
            && !matches!(known.reading, Reading::Later(_))
        {
            return Ok(ReadFile {
                identity,
                ..known.clone()
            });
        }
        let reading = match String::from_utf8(bytes) {
            Ok(text) => match read(&text) {
                Ok(manifest) => Reading::Good(manifest),
                Err(problems) => Reading::Invalid(problems),
            },
            Err(_) => return Ok(refusal(identity, "is not UTF-8 text".to_owned())),
        };
        Ok(ReadFile {
            identity,
            hash,
            reading,
        })
    }

    fn check(&self, file: &File, metadata: &std::fs::Metadata) -> Result<(), String> {
        if !metadata.is_file() {
            return Err("is not a file".to_owned());
        }
        self.trust.check(file, metadata)?;
        if metadata.size() > FILE_BYTES {
            let size = metadata.size();
            return Err(format!(
                "file has {size} bytes, more than the maximum of {FILE_BYTES}"
            ));
        }
        Ok(())
    }

    /// Whether nobody is writing the file just now, which was seen as it is at `since`.
    fn is_settled(&mut self, file: &File, metadata: &std::fs::Metadata, since: Instant) -> bool {
        match self.open_files.writers(file, metadata) {
            Writers::None => true,
            Writers::Some => false,
            Writers::Unknown => {
                let changed = u64::try_from(metadata.ctime()).unwrap_or(0);
                let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(changed);
                let age = SystemTime::now()
                    .duration_since(changed)
                    .unwrap_or_default();
                since.elapsed() >= SETTLED || age >= OLD
            }
        }
    }
}

/// What a file says that is refused as it is.
fn refusal(identity: Identity, message: String) -> ReadFile {
    ReadFile {
        identity,
        hash: [0; 32],
        reading: Reading::Invalid(vec![Problem {
            line: 1,
            column: 1,
            object: None,
            message,
        }]),
    }
}
