//! A directory of manifests: what is in it now, compared with what was.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use drumlin_crd::{Document, ObjectKey, Problem};

use super::{
    file::{ReadFile, Reader, Reading},
    open_for_write::OpenFiles,
    trust::Trust,
};

/// Reads a directory again and again; only what changed is read anew.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    trust: Trust,
    /// The device that the directory was on when it could be read first; another one is another directory.
    device: Option<u64>,
    known: HashMap<String, ReadFile>,
}

/// What a look at the directory found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scan {
    /// It cannot be trusted to be the directory that it was: nothing follows from what is not in it.
    Unavailable(String),
    /// It was read.
    Read(Content),
}

/// What is in the directory.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Content {
    /// The documents of files that are right, with their files.
    pub(crate) documents: Vec<(String, Document)>,
    /// What is wrong with the others.
    pub(crate) problems: BTreeMap<String, Vec<Problem>>,
    /// Files that say nothing new for now: wrong, or being written. What they said before still holds.
    pub(crate) silent: Vec<String>,
    /// How many files there are.
    pub(crate) files: usize,
    /// Whether a file was being written, so that another look is due soon.
    pub(crate) unsettled: bool,
}

impl Directory {
    /// A directory whose files belong to users who are trusted.
    pub(crate) fn new(path: PathBuf, trust: Trust) -> Self {
        Self {
            path,
            trust,
            device: None,
            known: HashMap::new(),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Looks at the directory: a `stat` a file, and a read of those that changed.
    pub(crate) fn scan(&mut self) -> Scan {
        // A directory that is replaced while it is read seems to lose files; who replaces it is soon done.
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

    /// Reads what changed; says whether the directory was the same one all the time.
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
        for entry in fs::read_dir(&root).map_err(failed)? {
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string()
                && is_manifest(&name)
            {
                names.push(name);
            }
        }
        // An empty one may be a mount point that is not mounted yet.
        if !names.is_empty() {
            self.device = Some(metadata.dev());
        }
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
        let (_, now) = self.trust.locate(&self.path)?;
        Ok((now.dev(), now.ino()) == (metadata.dev(), metadata.ino()))
    }

    fn gather(&self) -> Content {
        let mut content = Content {
            files: self.known.len(),
            ..Content::default()
        };
        for (name, found) in &self.known {
            match &found.reading {
                Reading::Good(manifest) => {
                    let documents = manifest.documents.iter().cloned();
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
        content
            .documents
            .sort_by(|a, b| (&a.0, a.1.line).cmp(&(&b.0, b.1.line)));
        content
    }
}

impl Content {
    /// An object that is there twice is refused in both places: nobody can say which one is meant.
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
        // One bad document rejects its whole file.
        let silent: std::collections::HashSet<&String> = self.silent.iter().collect();
        self.documents.retain(|(file, _)| !silent.contains(file));
        self.silent.dedup();
    }
}

/// Whether a file of this name is read: `^[A-Za-z0-9][A-Za-z0-9._-]*\.(ya?ml|json)$`, but for what kustomize reads: no back-up, no editor's file.
pub fn is_manifest(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let stem = [".yaml", ".yml", ".json"]
        .iter()
        .find_map(|end| name.strip_suffix(end));
    stem.is_some_and(|stem| !stem.is_empty() && stem != "kustomization")
        && name.bytes().all(inner)
        && name
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests;
