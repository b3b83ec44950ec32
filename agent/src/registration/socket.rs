//! The socket in kubelet's registration directory.
//!
//! Kubelet calls each socket that appears there, and ignores names that begin with a dot. So a socket is bound under such a
//! name, listens, and then gets its own name: kubelet finds nobody absent there, and whoever listened under that name
//! before is replaced in one step.

use std::{
    ffi::OsString,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{self, fs::FileTypeExt},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt,
            listen, socket, sockopt::PeerCredentials,
        },
        stat::{Mode, fchmod},
    },
};
use tokio::net::UnixListener;

use crate::socket::identity;

/// The file name of a driver's registration socket: that of the stock registrar, because kubelet refuses a second socket of a
/// driver that is registered.
pub(crate) fn file_name(driver: &str) -> String {
    format!("{driver}-reg.sock")
}

/// The name under which a socket is bound before kubelet may see it.
pub(crate) fn hidden_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

/// A socket that kubelet sees. Its file stays when this value is dropped: kubelet then keeps the driver registered until
/// the next agent replaces it.
#[derive(Debug)]
pub(super) struct RegistrationSocket {
    path: PathBuf,
    identity: (u64, u64),
}

impl RegistrationSocket {
    /// Listens at `path`, with mode 0600. Replaces a socket that nobody serves; an interrupted attempt is no obstacle.
    ///
    /// # Errors
    /// If another process serves the socket, if there is something else at its path, or if the directory does not permit
    /// it.
    pub(super) fn bind(path: &Path) -> anyhow::Result<(Self, unix::net::UnixListener)> {
        if let State::Served { pid } = state(path)? {
            bail!(
                "{} is served by another process, pid {pid}; stop that process, such as the stock node-driver-registrar",
                path.display()
            );
        }
        let hidden = hidden_path(path);
        if state(&hidden)? != State::Absent {
            fs::remove_file(&hidden)
                .with_context(|| format!("could not remove {}", hidden.display()))?;
        }
        let listener = listen_at(&hidden)
            .with_context(|| format!("could not listen at {}", hidden.display()))?;
        let identity = identity(&hidden)
            .with_context(|| format!("could not read the metadata of {}", hidden.display()))?;
        fs::rename(&hidden, path)
            .with_context(|| format!("could not rename {}", hidden.display()))?;
        let path = path.to_owned();
        Ok((Self { path, identity }, listener))
    }

    /// Returns true if kubelet still finds this socket at its path.
    pub(super) fn is_in_place(&self) -> bool {
        identity(&self.path).is_ok_and(|now| now == self.identity)
    }
}

/// The listener of [`RegistrationSocket::bind`], for tokio.
pub(super) fn accept_with_tokio(listener: unix::net::UnixListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Removes a registration socket that nobody serves, so that kubelet forgets the driver. Returns true if there was one; one
/// that is served is another registrar's, and stays.
///
/// # Errors
/// If there is something else at its path, or the directory does not permit it.
pub(crate) fn remove_stale(path: &Path) -> anyhow::Result<bool> {
    if state(path)? != State::Stale {
        return Ok(false);
    }
    fs::remove_file(path).with_context(|| format!("could not remove {}", path.display()))?;
    Ok(true)
}

/// Listens at a path where nothing is.
fn listen_at(path: &Path) -> nix::Result<unix::net::UnixListener> {
    let bound = stream_socket()?;
    // The file gets the mode that the socket has. The umask of this process is not touched: others create files meanwhile.
    fchmod(bound.as_fd(), Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(bound.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&bound, Backlog::MAXALLOWABLE)?;
    Ok(bound.into())
}

fn stream_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

/// What is at the path of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing.
    Absent,
    /// A socket that nobody serves.
    Stale,
    /// A socket that a process serves.
    Served {
        /// Its process id; 0 if it is in another PID namespace.
        pid: i32,
    },
}

/// Looks at the path of a socket.
///
/// # Errors
/// If there is something else.
fn state(path: &Path) -> anyhow::Result<State> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => bail!("{} exists and is not a socket; remove it", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::Absent),
        Err(error) => {
            return Err(error)
                .with_context(|| format!("could not read the metadata of {}", path.display()));
        }
    }
    // It does not wait: somebody whose backlog is full serves it, too.
    let client = stream_socket()?;
    match connect(client.as_raw_fd(), &UnixAddr::new(path)?) {
        Ok(()) => {
            let pid = getsockopt(&client, PeerCredentials).map_or(0, |peer| peer.pid());
            Ok(State::Served { pid })
        }
        Err(Errno::EAGAIN) => Ok(State::Served { pid: 0 }),
        Err(Errno::ECONNREFUSED) => Ok(State::Stale),
        Err(Errno::ENOENT) => Ok(State::Absent),
        Err(error) => Err(error)
            .with_context(|| format!("could not determine whether {} is in use", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn at(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().join(file_name("org.example.test"))
    }

    #[test]
    fn a_socket_that_nobody_serves_is_replaced_in_one_step() {
        let directory = tempfile::tempdir().unwrap();
        let path = at(&directory);
        assert_eq!(path.file_name().unwrap(), "org.example.test-reg.sock");
        let (first, listener) = RegistrationSocket::bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let refused = RegistrationSocket::bind(&path).unwrap_err().to_string();
        let pid = format!("pid {}", std::process::id());
        assert!(refused.contains(&pid), "{refused}");
        drop(listener);
        assert!(first.is_in_place());
        // As a kill between bind and rename leaves it.
        drop(listen_at(&hidden_path(&path)).unwrap());
        let (second, _listener) = RegistrationSocket::bind(&path).unwrap();
        assert!(second.is_in_place() && !first.is_in_place());
        let names = fs::read_dir(directory.path()).unwrap();
        assert_eq!(names.count(), 1, "nothing is left of the hidden name");
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = at(&directory);
        let precious = directory.path().join("precious");
        fs::write(&precious, "x").unwrap();
        for at in [path.clone(), hidden_path(&path)] {
            symlink(&precious, &at).unwrap();
            let error = RegistrationSocket::bind(&path).unwrap_err().to_string();
            assert!(error.contains(&*at.to_string_lossy()), "{error}");
            assert!(error.contains("not a socket"), "{error}");
            fs::remove_file(&at).unwrap();
        }
        fs::write(&path, "x").unwrap();
        remove_stale(&path).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "x");
    }

    #[test]
    fn a_served_socket_is_not_removed_and_a_stale_one_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = at(&directory);
        assert!(!remove_stale(&path).unwrap());
        let (_socket, listener) = RegistrationSocket::bind(&path).unwrap();
        assert!(!remove_stale(&path).unwrap());
        assert!(path.exists());
        drop(listener);
        assert!(remove_stale(&path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn one_whose_backlog_is_full_counts_as_served() {
        let directory = tempfile::tempdir().unwrap();
        let path = at(&directory);
        let busy = stream_socket().unwrap();
        bind(busy.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&busy, Backlog::new(0).unwrap()).unwrap();
        let _first = unix::net::UnixStream::connect(&path).unwrap();
        assert_eq!(state(&path).unwrap(), State::Served { pid: 0 });
    }
}
