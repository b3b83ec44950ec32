//! The socket's address as people write it, and a client's channel to it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tonic::transport::Channel;

/// How much of answers may be on its way, in bytes.
const WINDOW_BYTES: u32 = 4 << 20;

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
    // A list of a thousand volumes is larger than the default window, and would wait for it again and again.
    let channel = channel
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    Ok(channel.connect_lazy())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::net::UnixListener;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::{Code, Request, Response, Status};

    use super::*;
    use crate::csi::v1;
    use v1::identity_client::IdentityClient;
    use v1::identity_server::{Identity, IdentityServer};

    #[test]
    fn an_endpoint_is_a_path_with_or_without_its_scheme() {
        for text in [
            "unix:///run/csi/a b%20.sock",
            "unix:/run/csi/a b%20.sock",
            "/run/csi/a b%20.sock",
        ] {
            assert_eq!(
                socket_path(text).unwrap(),
                Path::new("/run/csi/a b%20.sock"),
                "{text}"
            );
        }
        assert_eq!(
            socket_path("unix:///run/csi/socket").unwrap(),
            Path::new("/run/csi/socket")
        );
    }

    #[test]
    fn an_endpoint_prints_as_what_it_can_be_read_from() {
        let endpoint: Endpoint = "/run/csi.sock".parse().unwrap();
        assert_eq!(endpoint.to_string(), "unix:///run/csi.sock");
        assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
    }

    #[test]
    fn what_is_no_absolute_path_of_a_socket_is_refused() {
        let cases = [
            ("", EndpointError::Empty(String::new())),
            ("unix://", EndpointError::Empty("unix://".into())),
            ("csi.sock", EndpointError::Relative("csi.sock".into())),
            ("unix:csi.sock", EndpointError::Relative("csi.sock".into())),
            (
                "unix://host/csi.sock",
                EndpointError::Relative("host/csi.sock".into()),
            ),
            (
                "tcp://host:1/csi.sock",
                EndpointError::Scheme("tcp://host:1/csi.sock".into()),
            ),
            ("unix:///run/", EndpointError::Unusable("/run/".into())),
            ("/run/\0", EndpointError::Unusable("/run/\0".into())),
        ];
        for (text, error) in cases {
            assert_eq!(socket_path(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_path_may_be_as_long_as_the_kernel_takes_and_no_longer() {
        let longest = format!("/{}", "a".repeat(LONGEST - 1));
        assert_eq!(
            socket_path(&format!("unix://{longest}")).unwrap(),
            Path::new(&longest)
        );
        let error = socket_path(&format!("{longest}a")).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("socket path \"{longest}a\" has 108 bytes; choose one of at most 107")
        );
    }

    #[test]
    fn a_channel_needs_an_absolute_path() {
        let error = connect(Path::new("unix:/run/csi.sock")).unwrap_err();
        assert_eq!(error, EndpointError::Relative("unix:/run/csi.sock".into()));
    }

    #[tokio::test]
    async fn a_channel_outlives_the_server_it_speaks_to() {
        let directory = tempfile::tempdir().unwrap();
        // What a URI would have to escape, a path need not.
        let path = directory.path().join("a %20ö?.sock");
        let mut client = IdentityClient::new(connect(&path).unwrap());
        let absent = client.probe(v1::ProbeRequest {}).await.unwrap_err();
        assert_eq!(absent.code(), Code::Unavailable);

        for _ in 0..2 {
            let (stop, server) = serve(&path);
            tokio::time::timeout(Duration::from_secs(10), async {
                // The first call may still meet the end of the old connection.
                while client.probe(v1::ProbeRequest {}).await.is_err() {
                    tokio::task::yield_now().await;
                }
            })
            .await
            .expect("the server is reached again");
            stop.send(()).unwrap();
            server.await.unwrap();
        }
    }

    struct Ready;

    #[tonic::async_trait]
    impl Identity for Ready {
        async fn get_plugin_info(
            &self,
            _: Request<v1::GetPluginInfoRequest>,
        ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
            Ok(Response::new(v1::GetPluginInfoResponse::default()))
        }

        async fn get_plugin_capabilities(
            &self,
            _: Request<v1::GetPluginCapabilitiesRequest>,
        ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
            Ok(Response::new(v1::GetPluginCapabilitiesResponse::default()))
        }

        async fn probe(
            &self,
            _: Request<v1::ProbeRequest>,
        ) -> Result<Response<v1::ProbeResponse>, Status> {
            Ok(Response::new(v1::ProbeResponse { ready: Some(true) }))
        }
    }

    /// A server that has its socket when this returns, and gives it up when told to stop.
    fn serve(path: &Path) -> (oneshot::Sender<()>, JoinHandle<()>) {
        let listener = UnixListener::bind(path).unwrap();
        let (stop, stopped) = oneshot::channel();
        let path: Arc<Path> = path.into();
        let server = tokio::spawn(async move {
            let stopped = async { stopped.await.unwrap() };
            tonic::transport::Server::builder()
                .add_service(IdentityServer::new(Ready))
                .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped)
                .await
                .unwrap();
            std::fs::remove_file(&path).unwrap();
        });
        (stop, server)
    }
}
