//! Requests of an administrator that no manifest expresses: a file for each, below the state directory, that a command
//! writes and the reconciler carries out. Write access to that directory means full access to the host.

use std::{
    fs::{self, DirBuilder},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use drumlin_crd::ObjectKey;

use crate::{Error, store};

/// The directory of requests within the reconciler's state.
const DIRECTORY: &str = "requests";
/// Lifetime of a request: a permission that was not used expires.
const HOLDS: Duration = Duration::from_hours(1);

/// The directory of requests.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    root: PathBuf,
    /// True in a dry run, which leaves requests to the reconciler.
    is_dry_run: bool,
}

/// A request about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdminRequest {
    pub(crate) key: ObjectKey,
    /// The resource that the object may adopt, whoever owned it: another one that it may have by then is not meant. Without it
    /// nothing is permitted, and the object looks for its own resource in a new list.
    pub(crate) handle: Option<String>,
}

/// In place of a handle; there is no such resource.
const NONE: &str = "-";

impl AdminRequest {
    /// The object adopts the resource, whoever owned it.
    pub(crate) fn adopt(key: &ObjectKey, handle: &str) -> Self {
        Self {
            key: key.clone(),
            handle: Some(handle.to_owned()),
        }
    }

    /// The object looks for its resource in a new list.
    pub(crate) fn look_again(key: &ObjectKey) -> Self {
        Self {
            key: key.clone(),
            handle: None,
        }
    }
}

impl Requests {
    /// The requests below the agent's state directory.
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join(store::DIRECTORY).join(DIRECTORY),
            is_dry_run: false,
        }
    }

    /// The same for a dry run, which removes no request.
    pub(crate) fn dry_run(state_dir: &Path) -> Self {
        Self {
            is_dry_run: true,
            ..Self::new(state_dir)
        }
    }

    /// Leaves a request for the reconciler, in place of a former one about the same object.
    pub(crate) fn write(&self, request: &AdminRequest) -> Result<(), Error> {
        let path = store::path(&self.root, &request.key)?;
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
        } = &request.key;
        let handle = request.handle.as_deref().unwrap_or(NONE);
        writeln!(file, "{kind} {namespace} {name} {handle}").map_err(failed)?;
        fs::rename(&passing, &path).map_err(failed)
    }

    /// The unexpired request about an object.
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<AdminRequest> {
        let request = read(&store::path(&self.root, key).ok()?)?;
        (request.key == *key).then_some(request)
    }

    /// Returns true if a request permits this object to adopt the resource with this handle.
    pub(crate) fn allow(&self, key: &ObjectKey, handle: Option<&str>) -> bool {
        let request = self.get(key);
        handle.is_some() && request.is_some_and(|request| request.handle.as_deref() == handle)
    }

    /// Removes a request that was carried out.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        if self.is_dry_run {
            return;
        }
        if let Ok(path) = store::path(&self.root, key) {
            let _ = fs::remove_file(path);
        }
    }

    /// Removes a request that was carried out because the object has this resource now. What it has not is still to come.
    pub(crate) fn forget_about(&self, key: &ObjectKey, handle: Option<&str>) {
        if self.allow(key, handle) {
            self.forget(key);
        }
    }

    /// All unexpired requests.
    pub(crate) fn all(&self) -> Vec<AdminRequest> {
        let mut requests = Vec::new();
        for kind in entries(&self.root.join("objects")) {
            for namespace in entries(&kind) {
                for path in entries(&namespace) {
                    requests.extend(read(&path));
                }
            }
        }
        requests
    }
}

fn read(path: &Path) -> Option<AdminRequest> {
    let age = fs::metadata(path).ok()?.modified().ok()?.elapsed();
    // After the clock was set back, the age of a request is unknown.
    if age.is_ok_and(|age| age > HOLDS) {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    let mut words = text.split_whitespace().map(str::to_owned);
    Some(AdminRequest {
        key: ObjectKey {
            kind: words.next()?,
            namespace: words.next()?,
            name: words.next()?,
        },
        handle: Some(words.next()?).filter(|handle| handle != NONE),
    })
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}
