//! One manifest file: whether it may be trusted, and what it holds.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, SystemTime},
};

use drumlin_crd::{Manifest, Problem, read};
use nix::unistd::Uid;
use sha2::{Digest, Sha256};

use super::lease::{Writers, writers};

/// The largest manifest, in bytes.
const FILE_BYTES: u64 = 1 << 20;
/// Where nobody can tell who writes a file, it must have been left alone for this long.
const SETTLED: Duration = Duration::from_secs(1);

/// What tells one version of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// It cannot be looked at now; what it said before still holds, and it is looked at again.
    Later,
}

/// A file that was read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    pub(super) identity: Identity,
    pub(super) hash: [u8; 32],
    pub(super) reading: Reading,
}

/// Reads the file at `path`; none when it is gone, as files are for a moment while an editor saves.
///
/// `known` is what was read before: an unchanged content is not parsed again.
pub(super) fn look(path: &Path, owner: Uid, known: Option<&Found>) -> io::Result<Option<Found>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    let identity = Identity::of(&metadata);
    if !metadata.is_file() {
        return Ok(None);
    }
    let refuse = |message: String| {
        Ok(Some(Found {
            identity,
            hash: [0; 32],
            reading: Reading::Invalid(vec![Problem {
                line: 1,
                object: None,
                message,
            }]),
        }))
    };
    if let Err(message) = check_permissions(&metadata, owner) {
        return refuse(message);
    }
    if metadata.size() > FILE_BYTES {
        return refuse(format!(
            "has {} bytes; at most {FILE_BYTES} are read",
            metadata.size()
        ));
    }
    let later = Found {
        identity,
        hash: known.map_or([0; 32], |known| known.hash),
        reading: Reading::Later,
    };
    if !is_settled(&file, &metadata) {
        return Ok(Some(later));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.size()).unwrap_or(0) + 1);
    (&file).take(FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if Identity::of(&file.metadata()?) != identity {
        return Ok(Some(later));
    }
    let hash: [u8; 32] = Sha256::digest(&bytes).into();
    if let Some(known) = known
        && known.hash == hash
        && known.reading != Reading::Later
    {
        return Ok(Some(Found {
            identity,
            ..known.clone()
        }));
    }
    let Ok(text) = String::from_utf8(bytes) else {
        return refuse("is not UTF-8 text".to_owned());
    };
    let reading = match read(&text) {
        Ok(manifest) => Reading::Good(manifest),
        Err(problems) => Reading::Invalid(problems),
    };
    Ok(Some(Found {
        identity,
        hash,
        reading,
    }))
}

/// Whether nobody is writing the file just now.
fn is_settled(file: &File, metadata: &std::fs::Metadata) -> bool {
    match writers(file) {
        Writers::None => true,
        Writers::Some => false,
        Writers::Unknown => metadata
            .modified()
            .ok()
            .and_then(|modified| SystemTime::now().duration_since(modified).ok())
            // A time in the future says nothing; the poll looks again anyway.
            .is_none_or(|age| age >= SETTLED),
    }
}

/// Who can write a manifest can have volumes destroyed: only its owner may.
///
/// # Errors
/// Says what to do.
pub(super) fn check_permissions(metadata: &std::fs::Metadata, owner: Uid) -> Result<(), String> {
    let uid = Uid::from_raw(metadata.uid());
    if !uid.is_root() && uid != owner {
        return Err(format!(
            "InsecurePermissions: belongs to user {uid}; make it root's (chown root)"
        ));
    }
    // A link's own bits say nothing; what it leads to was opened.
    if metadata.mode() & 0o022 != 0 {
        return Err(format!(
            "InsecurePermissions: can be written by others (mode {:o}); take that away (chmod go-w)",
            metadata.mode() & 0o7777
        ));
    }
    Ok(())
}
