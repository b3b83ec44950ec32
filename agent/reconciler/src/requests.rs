//! What an administrator says of objects beside their manifests: a file each, below the state directory, that a command
//! writes and the reconciler obeys. Who may write there has the host.

use std::{
    fs::{self, DirBuilder},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use drumlin_crd::ObjectKey;

use crate::{Error, blocking::blocking, engine::Engine, record::Record, store};

/// Where the words are within the reconciler's state.
const DIRECTORY: &str = "words";
/// How often they are looked at.
const ROUND: Duration = Duration::from_secs(3);
/// So long a word holds: what was allowed once and not done is not allowed for ever.
const HOLDS: Duration = Duration::from_hours(1);

/// The words that there are.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    root: PathBuf,
}

/// What is said of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) key: ObjectKey,
    /// What it is about: another one that the object may have by then is not meant.
    pub(crate) handle: String,
}

impl Requests {
    /// Those below the agent's state directory.
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join(store::DIRECTORY).join(DIRECTORY),
        }
    }

    /// Says that whoever asks for this name may have what its object has, or had.
    pub(crate) fn say(&self, word: &Word) -> Result<(), Error> {
        let path = store::path(&self.root, &word.key)?;
        let failed = |error: std::io::Error| {
            Error::State(format!("could not write {}: {error}", path.display()))
        };
        let parent = path.parent().unwrap_or(&self.root);
        let mut directories = DirBuilder::new();
        directories.recursive(true).mode(0o700);
        directories.create(parent).map_err(failed)?;
        let passing = path.with_extension("new");
        let mut file = fs::OpenOptions::new();
        file.write(true).create(true).truncate(true).mode(0o600);
        let mut file = file.open(&passing).map_err(failed)?;
        let ObjectKey {
            kind,
            namespace,
            name,
        } = &word.key;
        writeln!(file, "{kind} {namespace} {name} {}", word.handle).map_err(failed)?;
        fs::rename(&passing, &path).map_err(failed)
    }

    /// What was said of an object, not long ago.
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<String> {
        let said = said(&store::path(&self.root, key).ok()?)?;
        (said.key == *key).then_some(said.handle)
    }

    /// Whether this was said.
    pub(crate) fn allow(&self, key: &ObjectKey, handle: Option<&str>) -> bool {
        handle.is_some() && self.get(key).as_deref() == handle
    }

    /// What was said is done.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        if let Ok(path) = store::path(&self.root, key) {
            let _ = fs::remove_file(path);
        }
    }

    /// All that was said.
    pub(crate) fn all(&self) -> Vec<Word> {
        let mut words = Vec::new();
        for kind in entries(&self.root.join("objects")) {
            for namespace in entries(&kind) {
                for path in entries(&namespace) {
                    words.extend(said(&path));
                }
            }
        }
        words
    }
}

impl Engine {
    /// Obeys what administrators say, for ever.
    pub(crate) async fn keep_words(&self) {
        let mut heard = Vec::new();
        loop {
            let words = blocking(|| self.shared.words.all());
            heard.retain(|word| words.contains(word));
            for word in words {
                self.obey(&word).await;
                if !heard.contains(&word) {
                    self.hear(&word).await;
                    heard.push(word);
                }
            }
            tokio::time::sleep(ROUND).await;
        }
    }

    /// Whoever may have waited for this looks again.
    async fn hear(&self, word: &Word) {
        self.client.forget_inventory().await;
        self.reset(&word.key);
        self.shared.tell(&word.key);
        self.shared.look_at_directory();
    }

    /// What was kept of an object that nobody asks for, and was deleted, is kept no more.
    async fn obey(&self, word: &Word) {
        let is_meant = |record: &Record| {
            record.drumlin.orphan_since.is_some() && record.handle() == Some(&word.handle)
        };
        if self.shared.with(&word.key, is_meant) != Some(true) {
            return;
        }
        let Ok(None) = self.client.object(&word.handle).await else {
            return;
        };
        match self.shared.forget(&word.key) {
            Ok(()) => {
                self.shared.words.forget(&word.key);
                tracing::info!(object = %word.key, handle = %word.handle, "record of a deleted orphan removed");
            }
            Err(error) => {
                tracing::error!(object = %word.key, error = %error, "state could not be written");
            }
        }
    }
}

fn said(path: &Path) -> Option<Word> {
    let age = fs::metadata(path).ok()?.modified().ok()?.elapsed();
    // A clock that was set back says nothing of when that was.
    if age.is_ok_and(|age| age > HOLDS) {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    let mut words = text.split_whitespace().map(str::to_owned);
    Some(Word {
        key: ObjectKey {
            kind: words.next()?,
            namespace: words.next()?,
            name: words.next()?,
        },
        handle: words.next()?,
    })
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}
