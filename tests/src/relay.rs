//! A socket between a caller and an agent: it counts calls, and can hold some back or refuse them.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use axum::{Router, body::to_bytes, extract::Request, response::Response};
use bytes::Bytes;
use futures::{future::poll_fn, stream};
use tokio::{net::UnixListener, task::JoinHandle};
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service, http},
    service::Routes,
    transport::{Channel, Server},
};

/// The largest request that is looked at, in bytes.
const LARGEST: usize = 64 << 20;

/// What becomes of a call that is not just passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is never answered.
    Hold,
    /// It is answered with this code.
    Refuse(Code),
}

/// The calls of a method whose requests have a word in them.
#[derive(Debug, Clone)]
struct Rule {
    method: String,
    word: String,
    fault: Fault,
}

#[derive(Debug, Default)]
struct Seen {
    rules: Vec<Rule>,
    calls: Vec<String>,
}

/// A socket through which an agent is reached.
#[derive(Debug)]
pub struct Relay {
    socket: PathBuf,
    seen: Arc<Mutex<Seen>>,
    serving: JoinHandle<()>,
}

impl Relay {
    /// Listens at `socket` for those who want the agent at `agent`.
    ///
    /// # Panics
    /// When it cannot.
    pub fn start(socket: PathBuf, agent: &Path) -> Self {
        let channel = drumlin_proto::connect(agent).expect("an agent's socket");
        let listener = UnixListener::bind(&socket).expect("a socket can be made");
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let known = Arc::clone(&seen);
        let router = Router::new().fallback(move |request: Request| {
            let (channel, seen) = (channel.clone(), Arc::clone(&known));
            async move { pass(request, channel, &seen).await }
        });
        let connections = stream::unfold(listener, async |listener| {
            let connection = listener.accept().await.map(|(stream, _)| stream);
            Some((connection, listener))
        });
        let serving = tokio::spawn(async move {
            let server = Server::builder().add_routes(Routes::from(router));
            let _ = server.serve_with_incoming(connections).await;
        });
        Self {
            socket,
            seen,
            serving,
        }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What becomes of the calls of `method` whose requests have `word` in them.
    pub fn on(&self, method: &str, word: &str, fault: Fault) {
        let rule = Rule {
            method: method.to_owned(),
            word: word.to_owned(),
            fault,
        };
        lock(&self.seen).rules.push(rule);
    }

    /// All calls are passed on from now on.
    pub fn pass_all(&self) {
        lock(&self.seen).rules.clear();
    }

    /// How many calls of a method came.
    pub fn calls(&self, method: &str) -> usize {
        let seen = lock(&self.seen);
        let calls = seen.calls.iter();
        calls.filter(|called| *called == method).count()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "it stands for an agent that answers so"
)]
async fn pass(request: Request, mut channel: Channel, seen: &Mutex<Seen>) -> Response {
    let (head, body) = request.into_parts();
    let bytes = to_bytes(body, LARGEST).await.unwrap_or_default();
    let path = head.uri.path();
    let method = path.rsplit('/').next().unwrap_or_default().to_owned();
    let fault = {
        let mut seen = lock(seen);
        seen.calls.push(method.clone());
        let mut rules = seen.rules.iter();
        let rule = rules.find(|rule| rule.method == method && has(&bytes, &rule.word));
        rule.map(|rule| rule.fault)
    };
    match fault {
        Some(Fault::Hold) => std::future::pending().await,
        Some(Fault::Refuse(code)) => answer(Status::new(code, "refused on the way").into_http()),
        None => {
            let body = Body::new(axum::body::Body::from(bytes));
            let passed = poll_fn(|context| channel.poll_ready(context)).await;
            let passed = match passed {
                Ok(()) => channel.call(http::Request::from_parts(head, body)).await,
                Err(error) => Err(error),
            };
            answer(passed.unwrap_or_else(|error| Status::from_error(error.into()).into_http()))
        }
    }
}

fn answer(response: http::Response<Body>) -> Response {
    response.map(axum::body::Body::new)
}

fn has(bytes: &Bytes, word: &str) -> bool {
    bytes
        .windows(word.len().max(1))
        .any(|part| part == word.as_bytes())
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
