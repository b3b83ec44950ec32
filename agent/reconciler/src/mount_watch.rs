//! Detects mounts that another process removed: the kernel reports when the mount table of this process changes.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use drumlin_crd::ObjectKey;
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    blocking::blocking,
    engine::Engine,
    record::{Body, Of, Record},
};

/// The mount table of this process.
const TABLE: &str = "/proc/self/mountinfo";
/// How long changes are debounced: containers start and stop with many mounts at once.
const GATHER: Duration = Duration::from_millis(100);
/// Delay before the next check if an object was just being reconciled.
const AGAIN: Duration = Duration::from_secs(1);

impl Engine {
    /// Queues objects whose mount disappeared, forever. If the mount table cannot be watched, the drift check every ten
    /// minutes remains.
    pub(crate) async fn keep_mounts(&self) {
        let table = watched();
        let table = match table {
            Ok(table) => table,
            Err(error) => {
                tracing::warn!(error = %error, "mount table cannot be watched; checking mounts every ten minutes");
                return;
            }
        };
        loop {
            match table.ready(Interest::PRIORITY).await {
                Ok(mut ready) => ready.clear_ready(),
                Err(error) => {
                    tracing::warn!(error = %error, "mount table watch failed; checking mounts every ten minutes");
                    return;
                }
            }
            tokio::time::sleep(GATHER).await;
            while self.doubt_unmounted().await == MountScan::Again {
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    /// Asks the agent about each mount that is missing in the table: the agent may have mounts that this process does
    /// not see.
    pub(crate) async fn doubt_unmounted(&self) -> MountScan {
        let mut look = MountScan::Done;
        for (key, handle, path) in blocking(|| self.unseen()) {
            // Its own pass may have unmounted it.
            if self.shared.queue.is_running(&key) {
                look = MountScan::Again;
            } else if !self.shared.is_doubted(&key) {
                // A paused object or an orphan is checked when it is neither any more.
                self.verify_mount(&key, &handle, &path).await;
            }
        }
        look
    }

    /// The expected mounts that are missing in the table: the object, its volume, and the path.
    fn unseen(&self) -> Vec<(ObjectKey, String, String)> {
        let should = self.shared.keys_of(|record| mount_of(record).is_some());
        if should.is_empty() {
            return Vec::new();
        }
        let Ok(mounted) = mount_points() else {
            return Vec::new();
        };
        let unseen = should.into_iter().filter_map(|key| {
            let (handle, path) = self.shared.with(&key, mount_of).flatten()?;
            let is_seen = mounted.contains(&real(Path::new(&path)));
            (!is_seen).then_some((key, handle, path))
        });
        unseen.collect()
    }
}

/// Opens the mount table, which has a priority event whenever it changes.
#[expect(
    deprecated,
    reason = "its successor is unsafe, for descriptors that change; that of a file never does"
)]
fn watched() -> io::Result<AsyncFd<File>> {
    AsyncFd::with_interest(File::open(TABLE)?, Interest::PRIORITY)
}

/// Whether all mounts could be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountScan {
    Done,
    Again,
}

/// The handle and mount path of a mounted volume.
fn mount_of(record: &Record) -> Option<(String, String)> {
    match &record.body {
        Body::Volume(Of { status, .. }) => {
            status.volume_handle.clone().zip(status.mount_path.clone())
        }
        _ => None,
    }
}

/// The path of a mount point as the mount table has it. Only its parent is resolved: the mounted file system may not
/// answer.
fn real(path: &Path) -> PathBuf {
    let parent = path
        .parent()
        .and_then(|parent| fs::canonicalize(parent).ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

fn mount_points() -> io::Result<HashSet<PathBuf>> {
    let table = fs::read(TABLE)?;
    let lines = table.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    Ok(points.map(unescaped).collect())
}

/// Unescapes a path: the table writes spaces and the like as `\040`.
fn unescaped(field: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(field.len());
    let mut left = field;
    while let [first, rest @ ..] = left {
        let code = rest.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        let byte = code.and_then(|code| u8::from_str_radix(code, 8).ok());
        if let Some(byte) = byte {
            bytes.push(byte);
            left = rest.get(3..).unwrap_or_default();
        } else {
            bytes.push(*first);
            left = rest;
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_they_are_and_through_links() {
        assert_eq!(unescaped(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescaped(b"/a\\9"), Path::new("/a\\9"));
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("to");
        fs::create_dir(&to).unwrap();
        std::os::unix::fs::symlink(&to, directory.path().join("link")).unwrap();
        let to = fs::canonicalize(to).unwrap();
        assert_eq!(real(&directory.path().join("link/at")), to.join("at"));
        assert!(mount_points().unwrap().contains(Path::new("/proc")));
    }
}
