//! Reads one manifest file: checks that it is trusted and completely written, and parses it.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use drumlin_crd::{Document, Problem, read};
use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};

use super::{
    open_for_write::{OpenFiles, Writers},
    trust::Trust,
};

/// The largest manifest, in bytes.
const FILE_BYTES: u64 = 1 << 20;
/// If the writers of a file cannot be determined, it must have been unchanged for this long.
const SETTLED: Duration = Duration::from_secs(1);
/// A file that was unchanged for this long before its first scan is read at once, whatever the clocks.
const OLD: Duration = Duration::from_mins(1);

/// Identifies one version of a file without reading it.
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

/// The result of reading a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reading {
    /// The file is valid. Each scan shares its documents.
    Good(Vec<Arc<Document>>),
    /// The file is invalid: nothing of it is used, and its last valid version still applies.
    Invalid(Vec<Problem>),
    /// The file may be being written; its last valid version still applies, and it is read again soon.
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
    /// Returns true if the file at `path` is unchanged, so that it need not be read again.
    pub(super) fn is_as_it_was(&self, path: &Path) -> bool {
        !matches!(self.reading, Reading::Later(_))
            && std::fs::metadata(path).is_ok_and(|now| Identity::of(&now) == self.identity)
    }
}

/// Why a file or directory of manifests is not read, whatever is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Its owner or mode.
    Insecure(String),
    /// Its type or size.
    Unusable(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Insecure(why) | Self::Unusable(why)) = self;
        f.write_str(why)
    }
}

/// Reads manifests: the trusted owners, and the files that are open for writing.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) trust: &'a Trust,
    pub(super) open_files: OpenFiles,
}

impl Reader<'_> {
    /// Reads the file at `path`; `None` if it does not exist, as happens briefly while an editor saves.
    ///
    /// `known` is the previous result: unchanged contents are not parsed again.
    pub(super) fn look(&mut self, path: &Path, known: Option<&ReadFile>) -> Option<ReadFile> {
        match self.try_look(path, known) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => leads_nowhere(path),
            // One unreadable file does not affect the others.
            Err(error) => Some(refusal(
                Identity::default(),
                format!("cannot be read: {error}"),
            )),
        }
    }

    fn try_look(&mut self, path: &Path, known: Option<&ReadFile>) -> io::Result<ReadFile> {
        let file = open(path)?;
        let metadata = file.metadata()?;
        let identity = Identity::of(&metadata);
        if let Some(why) = refused(self.trust, &file, &metadata) {
            return Ok(refusal(identity, why.to_string()));
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
                Ok(manifest) => {
                    let documents = manifest.documents.into_iter().map(Arc::new);
                    let mut documents: Vec<_> = documents.collect();
                    // The space of the documents themselves, which is used again for the references.
                    documents.shrink_to_fit();
                    Reading::Good(documents)
                }
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

    /// Returns true if no process is writing the file, whose present version was seen first at `since`.
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

/// Opens a file to read it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        // Opening a pipe of this name would block forever.
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
}

/// Why an open file is not read.
pub(crate) fn refused(trust: &Trust, file: &File, metadata: &std::fs::Metadata) -> Option<Refusal> {
    if !metadata.is_file() {
        return Some(Refusal::Unusable("is not a file".to_owned()));
    }
    if let Err(why) = trust.check(file, metadata) {
        return Some(Refusal::Insecure(why));
    }
    let size = metadata.size();
    (size > FILE_BYTES).then(|| {
        Refusal::Unusable(format!(
            "file has {size} bytes, more than the maximum of {FILE_BYTES}"
        ))
    })
}

/// The result for a file that could not be found; none if its name is gone, too. A symbolic link that leads nowhere has
/// lost a file that may still have objects.
fn leads_nowhere(path: &Path) -> Option<ReadFile> {
    let target = std::fs::read_link(path).ok()?;
    // It may have been replaced meanwhile: the next scan reads it.
    Some(refusal(
        Identity::default(),
        format!(
            "is a symbolic link to {}, which does not exist",
            target.display()
        ),
    ))
}

/// The result for a file that is rejected as a whole.
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
