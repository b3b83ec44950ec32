//! The manifests as a reconciler would read them, for commands: nothing is applied.

use std::{
    io,
    path::{Path, PathBuf},
};

use nix::unistd::Uid;

pub use crate::source::file::Refusal;
use crate::{
    Error,
    source::{
        directory::{Directory, Scan},
        file,
        trust::{INSECURE, Trust},
    },
    status::FileProblem,
    store,
};

/// A directory of manifests, and who may own its files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifests {
    /// The directory.
    pub directory: PathBuf,
    /// Numeric ids of the users whose manifests are trusted, besides root and the user of this process.
    pub owners: Vec<u32>,
}

impl Manifests {
    /// The directory, to be scanned.
    ///
    /// # Errors
    /// When there is no working directory for a relative path.
    pub(crate) fn open(&self) -> Result<Directory, Error> {
        Directory::of(&self.directory, Trust::new(&self.owners))
    }
}

/// The directory that the reconciler with this state directory has followed last, if it has.
pub fn followed(state_dir: &Path) -> Option<Manifests> {
    store::load_source(&state_dir.join(store::DIRECTORY))?.followed()
}

/// Why a reconciler that runs as `user`, and trusts `owners` besides root, does not read a file or a directory of manifests,
/// whatever is in it.
///
/// # Errors
/// If the file cannot be opened.
pub fn refusal(path: &Path, user: u32, owners: &[u32]) -> io::Result<Option<Refusal>> {
    let trust = Trust::of(Uid::from_raw(user), owners);
    if path.is_dir() {
        let located = trust.locate(path).map(drop);
        let why = located.err();
        // Without the path, which the caller has.
        let why = why.and_then(|why| Some(why.get(why.find(INSECURE)?..)?.to_owned()));
        return Ok(why.map(Refusal::Insecure));
    }
    let file = file::open(path)?;
    let metadata = file.metadata()?;
    Ok(file::refused(&trust, &file, &metadata))
}

/// What is wrong with the manifests of a directory.
#[derive(Debug)]
pub struct Scanned {
    /// The problems of its files.
    pub problems: Vec<FileProblem>,
    /// Files and subdirectories that may be meant as manifests, and are ignored.
    pub ignored: Vec<String>,
}

/// What is wrong with the manifests of a directory; `owners` are the users who are trusted besides root and that of this
/// process.
///
/// # Errors
/// Why the directory cannot be read.
pub fn scan(directory: &Path, owners: &[u32]) -> Result<Scanned, String> {
    match Directory::new(directory.to_owned(), Trust::new(owners)).scan() {
        Scan::Unavailable(why) => Err(why),
        Scan::Read(content) => {
            let problems = content.problems.into_iter().flat_map(|(file, problems)| {
                problems.into_iter().map(move |problem| FileProblem {
                    file: file.clone(),
                    problem,
                })
            });
            Ok(Scanned {
                problems: problems.collect(),
                ignored: content.ignored,
            })
        }
    }
}
