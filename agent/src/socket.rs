//! The unix socket that the agent serves.

use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use nix::sys::{
    socket::{getsockopt, sockopt::PeerCredentials},
    stat::{Mode, umask},
};
use tokio::net::UnixListener;

/// A bound socket; its file is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    identity: (u64, u64),
}

impl Socket {
    /// Binds `path`, with mode 0600 from the beginning. A stale socket is replaced; a socket that is in use is an
    /// error.
    pub(crate) fn bind(path: &Path) -> anyhow::Result<(Self, UnixListener)> {
        if let Some(parent) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(parent)
                .with_context(|| format!("could not create directory {}", parent.display()))?;
        }
        clear(path)?;
        // The umask is process-wide, so this happens before any other file is created.
        let before = umask(Mode::from_bits_truncate(0o177));
        let bound = UnixListener::bind(path);
        umask(before);
        let listener =
            bound.with_context(|| format!("could not listen on endpoint {}", path.display()))?;
        let socket = Self {
            path: path.to_owned(),
            identity: identity(path)?,
        };
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .with_context(|| format!("could not set the mode of {}", path.display()))?;
        Ok((socket, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Only the own socket: another agent may have bound the path since.
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Device and inode of a socket's file, which tell it from another one at its path.
pub(crate) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Removes a stale socket, unless another process serves it.
fn clear(path: &Path) -> anyhow::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error)
                .with_context(|| format!("could not read the metadata of {}", path.display()));
        }
    };
    if !metadata.file_type().is_socket() {
        bail!(
            "endpoint {} exists and is not a socket; remove it or choose another endpoint",
            path.display()
        );
    }
    match UnixStream::connect(path) {
        Ok(stream) => {
            let pid = getsockopt(&stream, PeerCredentials).map_or(0, |peer| peer.pid());
            bail!(
                "endpoint {} is served by another process, pid {pid}; stop that process first",
                path.display()
            );
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .with_context(|| format!("could not remove the stale socket {}", path.display())),
        Err(error) => Err(error)
            .with_context(|| format!("could not determine whether {} is in use", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_living_one_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/csi.sock");
        let (socket, listener) = Socket::bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let refused = Socket::bind(&path).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("pid {}", std::process::id())),
            "{refused}"
        );
        drop(listener);
        std::mem::forget(socket);
        let (socket, _listener) = Socket::bind(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        fs::write(&path, "x").unwrap();
        assert!(Socket::bind(&path).is_err());
        assert_eq!(fs::read_to_string(path).unwrap(), "x");
    }
}
