//! The socket's address as people write it, and a client's channel to it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tonic::transport::Channel;

/// The longest path of a Unix socket: `sun_path` in `sockaddr_un` has 108 bytes, the last one zero.
const LONGEST: usize = 107;

/// The address of a Unix socket: `unix:///path`, `unix:/path` or the bare path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint(PathBuf);

/// Why a text or a path is not the address of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Nothing follows the scheme, if there is one.
    #[error("endpoint {0:?} names no socket; write it as unix:///path/to/the.sock")]
    Empty(String),
    /// Another scheme, as `tcp://`.
    #[error("endpoint {0:?} is not a unix socket; write it as unix:///path/to/the.sock")]
    Scheme(String),
    /// The path would depend on the working directory.
    #[error("socket path {0:?} is relative; begin it with a slash, as in unix:///path/to/the.sock")]
    Relative(String),
    /// The kernel cannot bind or connect to it.
    #[error("socket path {path:?} has {length} bytes; choose one of at most {LONGEST}")]
    TooLong {
        /// The path.
        path: String,
        /// Its length in bytes.
        length: usize,
    },
    /// The path names a directory, holds a zero byte, or is not UTF-8.
    #[error("socket path {0:?} cannot name a socket; choose a plain file name in a directory")]
    Unusable(String),
}

impl Endpoint {
    /// The socket's absolute path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let path = match text.strip_prefix("unix:") {
            Some(rest) => rest.strip_prefix("//").unwrap_or(rest),
            None if text.contains("://") => return Err(EndpointError::Scheme(text.to_owned())),
            None => text,
        };
        if path.is_empty() {
            return Err(EndpointError::Empty(text.to_owned()));
        }
        if !path.starts_with('/') {
            return Err(EndpointError::Relative(path.to_owned()));
        }
        if path.len() > LONGEST {
            return Err(EndpointError::TooLong {
                path: path.to_owned(),
                length: path.len(),
            });
        }
        if path.ends_with('/') || path.contains('\0') {
            return Err(EndpointError::Unusable(path.to_owned()));
        }
        Ok(Self(path.into()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

/// The path in a socket's address; for those who need no [`Endpoint`].
pub fn socket_path(text: &str) -> Result<PathBuf, EndpointError> {
    text.parse().map(|Endpoint(path)| path)
}

/// A client's channel to the server at an absolute path.
///
/// Nothing is opened before the first call, and a call after the server was restarted opens the socket anew; while
/// nobody listens, a call fails with `UNAVAILABLE`. Copies of the channel share one connection. Calls have no
/// deadline of their own.
///
/// # Panics
///
/// Outside a Tokio runtime.
pub fn connect(path: &Path) -> Result<Channel, EndpointError> {
    let unusable = || EndpointError::Unusable(path.display().to_string());
    let text = path.to_str().ok_or_else(unusable)?;
    if !text.starts_with('/') {
        return Err(EndpointError::Relative(text.to_owned()));
    }
    let endpoint: Endpoint = text.parse()?;
    // Tonic takes all after the scheme as the path, whatever characters it has.
    let channel =
        tonic::transport::Endpoint::from_shared(endpoint.to_string()).map_err(|_| unusable())?;
    Ok(channel.connect_lazy())
}
