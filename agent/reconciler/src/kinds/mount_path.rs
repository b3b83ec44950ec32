//! A path has one mount: an object whose path is that of another one waits for it.
//!
//! Of two that are mounted at the same time the agent refuses one.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use drumlin_crd::ObjectKey;

use super::{Halt, Pass, stalled, waiting};
use crate::{
    blocking::blocking,
    record::{Body, Of, Record},
};

impl Pass<'_> {
    /// Stalls while another object is mounted there and stays. To be called before a mount is taken down for the new path.
    pub(super) fn check_path_is_not_held(&self, path: &str) -> Result<(), Halt> {
        match self.mounted_at(path, stays) {
            Some(other) => Err(stalled(
                "MountConflict",
                format!("spec.mount.path: {other} is mounted at {path}"),
            )),
            None => Ok(()),
        }
    }

    /// Waits while nothing can be mounted there, as the agent would say, before a mount is taken down for the new path.
    pub(super) fn check_path_is_usable(&self, path: &str) -> Result<(), Halt> {
        // Another object is about to go from there.
        if self.mounted_at(path, |_, _| true).is_some() {
            return Ok(());
        }
        match blocking(|| obstacle(Path::new(path))) {
            Some(why) => Err(waiting(
                "MountPending",
                format!("spec.mount.path: {path} {why}; the volume stays mounted where it is"),
            )),
            None => Ok(()),
        }
    }

    /// Waits while another object is mounted there that is about to go.
    pub(super) fn check_path_is_free(&self, path: &str) -> Result<(), Halt> {
        match self.mounted_at(path, |_, _| true) {
            Some(other) => Err(waiting(
                "MountPending",
                format!("spec.mount.path: {other} is still mounted at {path}"),
            )),
            None => Ok(()),
        }
    }

    /// The other object that is mounted at a path, as this one may call it, if it is meant.
    fn mounted_at(&self, path: &str, is_meant: fn(&Record, &str) -> bool) -> Option<String> {
        if self.status().mount_path.as_deref() == Some(path) {
            return None;
        }
        let key = self.record.key();
        // Of two that are about to be mounted, one goes first.
        let is_there = |other: &Record| {
            is_meant(other, path)
                && (is_mounted_at(other, path)
                    || other.key() < key && is_about_to_be_mounted_at(other, path))
        };
        let others = self.shared.keys_of(is_there);
        let other = others.into_iter().find(|other| *other != key)?;
        Some(self.name_as_known(&other))
    }

    /// A namespace is not told what another one has.
    fn name_as_known(&self, other: &ObjectKey) -> String {
        if self.record.is_of_file() || other.namespace == self.record.key().namespace {
            other.to_string()
        } else {
            "an object of another namespace".to_owned()
        }
    }
}

/// Why nothing can be mounted at a path.
fn obstacle(path: &Path) -> Option<&'static str> {
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_dir() {
        return Some("is not a directory");
    }
    let above = path.parent().and_then(|above| fs::metadata(above).ok());
    if above.is_some_and(|above| above.dev() != found.dev()) {
        return Some("is a mount point already");
    }
    let mut entries = fs::read_dir(path).ok()?;
    entries
        .next()
        .is_some()
        .then_some("is not empty; a mount would hide its files")
}

fn is_mounted_at(record: &Record, path: &str) -> bool {
    match &record.body {
        Body::Volume(Of { status, .. }) => status.mount_path.as_deref() == Some(path),
        _ => false,
    }
}

fn is_about_to_be_mounted_at(record: &Record, path: &str) -> bool {
    let mounted = record.drumlin.mounted.as_ref();
    mounted.is_some_and(|mounted| mounted.path == path)
}

/// Its manifest has it there.
fn stays(record: &Record, path: &str) -> bool {
    match &record.body {
        Body::Volume(Of { spec, .. }) => {
            let wanted = spec.mount.as_ref();
            !record.is_absent() && wanted.is_some_and(|wanted| wanted.path == path)
        }
        _ => false,
    }
}
