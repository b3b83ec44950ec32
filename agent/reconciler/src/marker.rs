//! The marker file of the state directory: it exists while records may be missing. A process that finds it takes no new object
//! for one that has no resource.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Mutex,
};

use crate::{Error, state::lock, state_file::write};

/// The file in the reconciler's directory.
const FILE: &str = "new.json";
/// What is in it, for whoever looks.
const WHY: &str = "records may be missing: not every class was readable since the state directory was created, or since a process ended that had not saved all new ones";

/// Whether records may be missing, and why.
#[derive(Debug)]
pub(crate) struct Marker {
    /// None in a dry run, which writes nothing.
    path: Option<PathBuf>,
    reasons: Mutex<Reasons>,
}

/// The file exists if one of them is true.
#[derive(Debug)]
struct Reasons {
    /// The state may have been lost: not all classes were listed since this process has found the marker, or no state.
    is_new: bool,
    /// Records of new objects are in memory alone, or may be lost by a power cut.
    is_unsaved: bool,
}

impl Reasons {
    fn found(root: &Path) -> Mutex<Self> {
        Mutex::new(Self {
            is_new: has_no_objects(root) || root.join(FILE).exists(),
            is_unsaved: false,
        })
    }
}

fn has_no_objects(root: &Path) -> bool {
    !root.join("objects").exists()
}

impl Marker {
    /// The marker in the reconciler's directory, written if that has no objects yet.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn open(root: &Path) -> Result<Self, Error> {
        let path = root.join(FILE);
        if has_no_objects(root) {
            write(&path, &WHY)?;
        }
        Ok(Self {
            reasons: Reasons::found(root),
            path: Some(path),
        })
    }

    /// The same, which is never written.
    pub(crate) fn dry_run(root: &Path) -> Self {
        Self {
            reasons: Reasons::found(root),
            path: None,
        }
    }

    /// Returns true if the state may have been lost before this process.
    pub(crate) fn is_new(&self) -> bool {
        lock(&self.reasons).is_new
    }

    /// Notes that all classes of the agent were listed.
    pub(crate) fn has_seen_all(&self) {
        let mut reasons = lock(&self.reasons);
        if reasons.is_new && (reasons.is_unsaved || self.is_removed()) {
            reasons.is_new = false;
        }
    }

    /// Notes, durably, that records of new objects are not saved.
    ///
    /// # Errors
    /// If that cannot be written.
    pub(crate) fn leave_unsaved(&self) -> Result<(), Error> {
        let mut reasons = lock(&self.reasons);
        if let Some(path) = self.path.as_ref().filter(|_| !reasons.is_unsaved) {
            if !reasons.is_new {
                write(path, &WHY)?;
            }
            reasons.is_unsaved = true;
        }
        Ok(())
    }

    /// Notes that all records are saved. What is left of a marker has no meaning but for the next process.
    pub(crate) fn has_saved_all(&self) {
        let mut reasons = lock(&self.reasons);
        if reasons.is_unsaved && (reasons.is_new || self.is_removed()) {
            reasons.is_unsaved = false;
        }
    }

    fn is_removed(&self) -> bool {
        let removed = self.path.as_ref().map(fs::remove_file);
        removed.is_some_and(|removed| match removed {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_there_while_one_of_its_reasons_is() {
        let root = tempfile::tempdir().unwrap();
        let objects = root.path().join("objects");
        let found = || Marker::open(root.path()).unwrap().is_new();
        let marker = Marker::open(root.path()).unwrap();
        fs::create_dir(&objects).unwrap();
        assert!(marker.is_new() && found());
        marker.leave_unsaved().unwrap();
        marker.has_seen_all();
        assert!(
            !marker.is_new(),
            "what this process saw is no matter of what it saves"
        );
        assert!(found());
        marker.has_saved_all();
        assert!(!found());

        marker.leave_unsaved().unwrap();
        assert!(!marker.is_new(), "its own memory has all");
        assert!(found(), "the next process has not");
        marker.has_saved_all();
        marker.has_saved_all();
        assert!(!found());

        fs::remove_dir(&objects).unwrap();
        let marker = Marker::open(root.path()).unwrap();
        fs::create_dir(&objects).unwrap();
        marker.leave_unsaved().unwrap();
        marker.has_saved_all();
        assert!(found(), "not every class was listed");
    }

    #[test]
    fn a_dry_run_finds_it_and_writes_none() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("objects")).unwrap();
        let marker = Marker::dry_run(root.path());
        marker.leave_unsaved().unwrap();
        assert!(!Marker::dry_run(root.path()).is_new());
        write(&root.path().join(FILE), &WHY).unwrap();
        let marker = Marker::dry_run(root.path());
        assert!(marker.is_new());
        marker.has_seen_all();
        assert!(Marker::dry_run(root.path()).is_new());
    }
}
