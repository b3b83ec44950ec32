//! Where scrapes are answered: `GET /metrics` over HTTP/1.1, on an address or a unix socket.
//!
//! **Invariant:** clients that are slow, silent or many delay only each other.

use std::{convert::Infallible, fmt, net::SocketAddr, str::FromStr, sync::Arc, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use drumlin_proto::Endpoint;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::page::Page;
use crate::socket::Socket;

/// Maximum number of connections at the same time; further ones wait.
const CONNECTIONS: usize = 16;
/// Timeout for the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// Timeout for a whole connection.
const WHOLE: Duration = Duration::from_secs(20);
/// Pause after a failed accept: the process or the host is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MetricsEndpoint {
    /// An address and a port.
    Address(SocketAddr),
    /// A unix socket.
    Socket(Endpoint),
}

impl FromStr for MetricsEndpoint {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if text.starts_with('/') || text.starts_with("unix:") {
            return Ok(Self::Socket(text.parse()?));
        }
        let address = text.parse().with_context(|| {
            format!("{text:?} is neither an address and a port, such as 127.0.0.1:9464, nor a unix socket")
        });
        Ok(Self::Address(address?))
    }
}

/// A bound endpoint.
#[derive(Debug)]
pub(crate) enum Listener {
    /// An address and a port.
    Address(TcpListener),
    /// A unix socket, whose file is removed with it.
    Socket {
        listener: UnixListener,
        _file: Socket,
    },
}

impl Listener {
    /// Binds an endpoint.
    ///
    /// # Errors
    /// The error names it.
    pub(crate) async fn bind(endpoint: &MetricsEndpoint) -> anyhow::Result<Self> {
        match endpoint {
            MetricsEndpoint::Address(address) => {
                let bound = TcpListener::bind(address).await;
                let bound = bound.with_context(|| format!("could not listen on {address}"));
                Ok(Self::Address(bound.context("metrics.listen")?))
            }
            MetricsEndpoint::Socket(endpoint) => {
                let (socket, listener) = Socket::bind(endpoint.path()).context("metrics.listen")?;
                Ok(Self::Socket {
                    listener,
                    _file: socket,
                })
            }
        }
    }

    /// Answers scrapes until `stop`.
    pub(super) async fn serve(self, page: Arc<Page>, stop: &CancellationToken) {
        stop.run_until_cancelled(self.accept(page)).await;
    }

    async fn accept(&self, page: Arc<Page>) {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        // Nobody closes it.
        while let Ok(place) = Arc::clone(&room).acquire_owned().await {
            let page = Arc::clone(&page);
            let accepted = match self {
                Self::Address(listener) => listener.accept().await.map(|(stream, _)| {
                    tokio::spawn(async move {
                        page.serve(stream).await;
                        drop(place);
                    });
                }),
                Self::Socket { listener, .. } => listener.accept().await.map(|(stream, _)| {
                    tokio::spawn(async move {
                        page.serve(stream).await;
                        drop(place);
                    });
                }),
            };
            if accepted.is_err() {
                sleep(PAUSE).await;
            }
        }
    }
}

impl Page {
    /// Answers the one request of a connection.
    async fn serve(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let answer = service_fn(|request| {
            let page = Arc::clone(&self);
            async move { Ok::<_, Infallible>(page.answer(&request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), answer);
        // What a client does wrong is its own matter.
        let _ = timeout(WHOLE, connection).await;
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::default());
        if request.uri().path() != "/metrics" {
            *response.status_mut() = StatusCode::NOT_FOUND;
        } else if request.method() != Method::GET {
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        } else {
            match self.text().await {
                Ok(text) => {
                    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                    let kind = header::HeaderValue::from_static(kind);
                    response.headers_mut().insert(header::CONTENT_TYPE, kind);
                    *response.body_mut() = Full::from(text);
                }
                Err(fmt::Error) => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpStream, UnixStream},
    };

    use super::*;
    use crate::metrics::{AgentState, Metrics};

    async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, line: &str) -> String {
        let request = format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[test]
    fn an_endpoint_is_an_address_or_a_socket() {
        assert!(matches!(
            "[::1]:9464".parse().unwrap(),
            MetricsEndpoint::Address(_)
        ));
        for text in ["/run/m.sock", "unix:///run/m.sock"] {
            assert!(matches!(text.parse().unwrap(), MetricsEndpoint::Socket(_)));
        }
        for text in [
            "9464",
            ":9464",
            "localhost:9464",
            "http://127.0.0.1:9464",
            "",
        ] {
            let error = text.parse::<MetricsEndpoint>().unwrap_err().to_string();
            assert!(error.contains("127.0.0.1:9464"), "{error}");
        }
    }

    #[tokio::test]
    async fn scrapes_are_answered_on_a_port_and_on_a_socket_also_beside_silent_clients() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.sock");
        let operations = crate::fuzzing::operations().unwrap();
        let stop = CancellationToken::new();
        let serve = |listener: Listener| {
            let state = AgentState::new(&operations, None);
            let page = Arc::new(Page::new(Metrics::of_agent(), state));
            let stop = stop.clone();
            tokio::spawn(async move { listener.serve(page, &stop).await })
        };
        let port = Listener::bind(&"127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let Listener::Address(bound) = &port else {
            panic!("{port:?}");
        };
        let address = bound.local_addr().unwrap();
        let socket = path.to_str().unwrap().parse().unwrap();
        let socket = Listener::bind(&socket).await.unwrap();
        let served = [serve(port), serve(socket)];
        let _silent = TcpStream::connect(address).await.unwrap();
        let connect = async || TcpStream::connect(address).await.unwrap();
        let answer = ask(connect().await, "GET /metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("application/openmetrics-text"), "{answer}");
        assert!(answer.contains("drumlin_class_ready{class="), "{answer}");
        let other = ask(UnixStream::connect(&path).await.unwrap(), "GET /metrics").await;
        assert!(other.ends_with("# EOF\n"), "{other}");
        for (line, code) in [("GET /", "404"), ("POST /metrics", "405")] {
            let answer = ask(connect().await, line).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{answer}");
        }
        stop.cancel();
        for served in served {
            served.await.unwrap();
        }
        assert!(!path.exists());
    }
}
