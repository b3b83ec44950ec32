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
    /// The handle that it applies to: another resource that the object may have by then is not meant.
    pub(crate) handle: String,
    pub(crate) permits: Permission,
}

/// What a request permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    /// The object adopts the resource, whoever owned it.
    Adopt,
    /// Nothing more than without it: the resource that belongs to the object is newer than the cached list.
    LookAgain,
}

/// The last word of a request that permits nothing.
const LOOK_AGAIN: &str = "look-again";

impl AdminRequest {
    /// The object adopts the resource, whoever owned it.
    pub(crate) fn adopt(key: &ObjectKey, handle: &str) -> Self {
        Self::new(key, handle, Permission::Adopt)
    }

    /// The object looks for its resource in a new list.
    pub(crate) fn look_again(key: &ObjectKey, handle: &str) -> Self {
        Self::new(key, handle, Permission::LookAgain)
    }

    fn new(key: &ObjectKey, handle: &str, permits: Permission) -> Self {
        Self {
            key: key.clone(),
            handle: handle.to_owned(),
            permits,
        }
    }

    /// The handle of the resource that the object may adopt.
    pub(crate) fn adoptable(&self) -> Option<&str> {
        (self.permits == Permission::Adopt).then_some(&*self.handle)
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
        let handle = &request.handle;
        let permits = match request.permits {
            Permission::Adopt => "",
            Permission::LookAgain => LOOK_AGAIN,
        };
        writeln!(file, "{kind} {namespace} {name} {handle} {permits}").map_err(failed)?;
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
        let adoptable = request.as_ref().and_then(AdminRequest::adoptable);
        handle.is_some() && adoptable == handle
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
        let is_about = |request: &AdminRequest| handle == Some(&*request.handle);
        if self.get(key).as_ref().is_some_and(is_about) {
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
        handle: words.next()?,
        permits: match words.next() {
            None => Permission::Adopt,
            Some(_) => Permission::LookAgain,
        },
    })
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}
