//! Scans a directory of manifests and compares it with the previous scan.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use drumlin_crd::{Document, ObjectKey, Problem};

use super::{
    file::{ReadFile, Reader, Reading},
    file_name::Entry,
    open_for_write::OpenFiles,
    trust::Trust,
    watch::UNSETTLED,
};
use crate::{Error, known_directory::FileSystemId, prune::SENTINEL};

/// How often a command looks at files that are being written.
const LOOKS: usize = 3;

/// Reads a directory repeatedly; only changed files are read again.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    trust: Trust,
    /// The device of the directory when it was used first; on another device it is another directory.
    device: Option<u64>,
    /// The device at the last read, if it had manifests: an empty directory may be a mount point that is not mounted yet.
    seen: Option<u64>,
    known: HashMap<String, ReadFile>,
    ignored: Vec<String>,
    may_prune: bool,
    file_system: Option<FileSystemId>,
}

/// The result of a scan.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scan {
    /// It may not be the same directory as before: missing files have no consequences.
    Unavailable(String),
    /// The directory was read.
    Read(Content),
}

/// The contents of the directory.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Content {
    /// The documents of valid files, with their files.
    pub(crate) documents: Vec<(String, Arc<Document>)>,
    /// The problems of invalid files.
    pub(crate) problems: BTreeMap<String, Vec<Problem>>,
    /// Files that are invalid or being written: their last valid version still applies.
    pub(crate) silent: Vec<String>,
    /// The number of files.
    pub(crate) files: usize,
    /// True if a file was being written, so that another scan is due soon.
    pub(crate) unsettled: bool,
    /// Files without a document.
    pub(crate) empty: Vec<String>,
    /// Files and subdirectories that may be meant as manifests, or have some, and are not read.
    pub(crate) ignored: Vec<String>,
    /// True if the directory says that objects whose manifests are gone may be pruned.
    pub(crate) may_prune: bool,
    /// Where the directory is, if that can be determined.
    pub(crate) file_system: Option<FileSystemId>,
}

impl Directory {
    /// A directory whose files must belong to trusted users.
    pub(crate) fn new(path: PathBuf, trust: Trust) -> Self {
        Self {
            path,
            trust,
            device: None,
            seen: None,
            known: HashMap::new(),
            ignored: Vec::new(),
            may_prune: false,
            file_system: None,
        }
    }

    /// The same of a path that may be relative.
    ///
    /// # Errors
    /// When there is no working directory for a relative path.
    pub(crate) fn of(path: &Path, trust: Trust) -> Result<Self, Error> {
        let absolute = std::path::absolute(path);
        let absolute =
            absolute.map_err(|error| Error::State(format!("{}: {error}", path.display())))?;
        Ok(Self::new(absolute, trust))
    }

    /// The path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Numeric ids of the users whose manifests are trusted, besides root and the user of this process.
    pub(crate) fn owners(&self) -> &[u32] {
        self.trust.named()
    }

    /// Scans the directory: a `stat` of each file, and a read of changed ones.
    pub(crate) fn scan(&mut self) -> Scan {
        // A directory that is replaced during the read seems to lose files; a replacement does not take long.
        for _ in 0..3 {
            match self.read() {
                Ok(true) => return Scan::Read(self.gather()),
                Ok(false) => {}
                Err(why) => return Scan::Unavailable(why),
            }
        }
        let shown = self.path.display();
        Scan::Unavailable(format!(
            "{shown} was replaced during every attempt to read it"
        ))
    }

    /// Scans the directory once for a command: files that are being written are looked at again for some seconds.
    pub(crate) async fn settled_scan(&mut self) -> Scan {
        for _ in 1..LOOKS {
            match self.scan() {
                Scan::Read(content) if content.unsettled => tokio::time::sleep(UNSETTLED).await,
                scan => return scan,
            }
        }
        self.scan()
    }

    /// Reads changed files; returns false if the directory was replaced meanwhile.
    fn read(&mut self) -> Result<bool, String> {
        let shown = self.path.display().to_string();
        let failed = |error: io::Error| format!("{shown} cannot be read: {error}");
        let (root, metadata) = self.trust.locate(&self.path)?;
        if self.device.is_some_and(|device| device != metadata.dev()) {
            return Err(format!(
                "{shown} is on another device than before; if this is intended, restart the reconciler"
            ));
        }
        let mut names = Vec::new();
        self.ignored.clear();
        for entry in fs::read_dir(&root).map_err(failed)? {
            match Entry::of(&entry.map_err(failed)?) {
                Entry::Manifest(name) => names.push(name),
                Entry::Ignored(name) => self.ignored.push(name),
                Entry::Other => {}
            }
        }
        self.ignored.sort_unstable();
        self.seen = (!names.is_empty()).then(|| metadata.dev());
        let mut reader = Reader {
            trust: &self.trust,
            open_files: OpenFiles::default(),
        };
        let mut before = std::mem::take(&mut self.known);
        for name in names {
            let path = root.join(&name);
            let known = before.remove(&name);
            let found = match known {
                Some(known) if known.is_as_it_was(&path) => Some(known),
                known => reader.look(&path, known.as_ref()),
            };
            if let Some(found) = found {
                self.known.insert(name, found);
            }
        }
        self.may_prune = root.join(SENTINEL).is_file();
        let opened = fs::File::open(&root).map_err(failed)?;
        self.file_system = FileSystemId::of(&opened);
        let (_, now) = self.trust.locate(&self.path)?;
        Ok((now.dev(), now.ino()) == (metadata.dev(), metadata.ino()))
    }

    /// The last scan is used: from now on the directory is on this device.
    pub(crate) fn accept(&mut self) {
        self.device = self.seen.or(self.device);
    }

    fn gather(&self) -> Content {
        let mut content = Content {
            files: self.known.len(),
            ignored: self.ignored.clone(),
            may_prune: self.may_prune,
            file_system: self.file_system.clone(),
            ..Content::default()
        };
        for (name, found) in &self.known {
            match &found.reading {
                Reading::Good(documents) => {
                    if documents.is_empty() {
                        content.empty.push(name.clone());
                    }
                    let documents = documents.iter().cloned();
                    content
                        .documents
                        .extend(documents.map(|document| (name.clone(), document)));
                }
                Reading::Invalid(problems) => {
                    content.problems.insert(name.clone(), problems.clone());
                    content.silent.push(name.clone());
                }
                Reading::Later(_) => {
                    content.silent.push(name.clone());
                    content.unsettled = true;
                }
            }
        }
        content.refuse_duplicates();
        content.silent.sort_unstable();
        content.empty.sort_unstable();
        content
            .documents
            .sort_by(|a, b| (&a.0, a.1.line).cmp(&(&b.0, b.1.line)));
        content
    }
}

impl Content {
    /// An object that is defined twice is rejected in both files: it is unknown which one is meant.
    fn refuse_duplicates(&mut self) {
        let mut places: HashMap<ObjectKey, Vec<(String, usize)>> = HashMap::new();
        for (file, document) in &self.documents {
            let place = (file.clone(), document.line);
            places.entry(document.object.key()).or_default().push(place);
        }
        places.retain(|_, places| places.len() > 1);
        for (key, places) in &mut places {
            places.sort_unstable();
            let all: Vec<String> = places
                .iter()
                .map(|(file, line)| format!("{file}:{line}"))
                .collect();
            for (file, line) in places.iter() {
                self.problems
                    .entry(file.clone())
                    .or_default()
                    .push(Problem {
                        line: *line,
                        column: 1,
                        object: Some(key.clone()),
                        message: format!(
                            "object is defined more than once: {}; keep one",
                            all.join(", ")
                        ),
                    });
                self.silent.push(file.clone());
            }
        }
        // One invalid document rejects its whole file.
        let silent: std::collections::HashSet<&String> = self.silent.iter().collect();
        self.documents.retain(|(file, _)| !silent.contains(file));
        self.silent.dedup();
    }
}

#[cfg(test)]
mod tests;
