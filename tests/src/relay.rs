//! A socket between a caller and an agent: it counts calls, and can hold some back, refuse them or break their answers.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use axum::{Router, body::to_bytes, extract::Request, response::Response};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, future::poll_fn, stream};
use prost::Message;
use tokio::{net::UnixListener, sync::watch, task::JoinHandle};
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
    /// The first bytes of its answer are passed on; the rest never comes, and [`Relay::break_off`] ends it.
    Stop,
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
    calls: Vec<(String, Bytes)>,
}

/// A socket through which an agent is reached.
#[derive(Debug)]
pub struct Relay {
    socket: PathBuf,
    seen: Arc<Mutex<Seen>>,
    /// Ends the answers that were stopped.
    broken: watch::Sender<()>,
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
        let (broken, is_broken) = watch::channel(());
        let router = Router::new().fallback(move |request: Request| {
            let (channel, seen) = (channel.clone(), Arc::clone(&known));
            let is_broken = is_broken.clone();
            async move { pass(request, channel, &seen, is_broken).await }
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
            broken,
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
        calls.filter(|(called, _)| called == method).count()
    }

    /// The methods of all calls, in their order.
    pub fn methods(&self) -> Vec<String> {
        let seen = lock(&self.seen);
        let calls = seen.calls.iter();
        calls.map(|(method, _)| method.clone()).collect()
    }

    /// The requests of a method, as they came.
    ///
    /// # Panics
    /// When one is no request of this type.
    pub fn requests<T: Message + Default>(&self, method: &str) -> Vec<T> {
        let seen = lock(&self.seen);
        let calls = seen.calls.iter().filter(|(called, _)| called == method);
        // The message is behind a flag and its length.
        calls
            .map(|(_, bytes)| T::decode(bytes.slice(5..)).expect("a request"))
            .collect()
    }

    /// Ends the answers that were stopped, as a connection does that breaks.
    pub fn break_off(&self) {
        self.broken.send_replace(());
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
async fn pass(
    request: Request,
    mut channel: Channel,
    seen: &Mutex<Seen>,
    mut is_broken: watch::Receiver<()>,
) -> Response {
    is_broken.mark_unchanged();
    let (head, body) = request.into_parts();
    let bytes = to_bytes(body, LARGEST).await.unwrap_or_default();
    let path = head.uri.path();
    let method = path.rsplit('/').next().unwrap_or_default().to_owned();
    let fault = {
        let mut seen = lock(seen);
        seen.calls.push((method.clone(), bytes.clone()));
        let mut rules = seen.rules.iter();
        let rule = rules.find(|rule| rule.method == method && has(&bytes, &rule.word));
        rule.map(|rule| rule.fault)
    };
    match fault {
        Some(Fault::Hold) => std::future::pending().await,
        Some(Fault::Refuse(code)) => answer(Status::new(code, "refused on the way").into_http()),
        Some(Fault::Stop) | None => {
            let body = Body::new(axum::body::Body::from(bytes));
            let passed = poll_fn(|context| channel.poll_ready(context)).await;
            let passed = match passed {
                Ok(()) => channel.call(http::Request::from_parts(head, body)).await,
                Err(error) => Err(error),
            };
            let passed =
                passed.unwrap_or_else(|error| Status::from_error(error.into()).into_http());
            match fault {
                Some(_) => answer(passed.map(|body| stopped(body, is_broken))),
                None => answer(passed),
            }
        }
    }
}

/// How many bytes of an answer are its first ones, at least: some messages of a stream, which may come one by one.
const FIRST: usize = 128;

/// The first bytes of a body; then nothing, until it breaks. The end of who sends it is none of that.
fn stopped(body: Body, is_broken: watch::Receiver<()>) -> Body {
    let parts = axum::body::Body::new(body).into_data_stream();
    let mut sent = 0;
    let first = parts.take_while(move |part| {
        let is_first = sent < FIRST && part.is_ok();
        sent += part.as_ref().map_or(0, Bytes::len);
        std::future::ready(is_first)
    });
    let first = first.map_err(|error| error.to_string());
    let broken = stream::once(async move {
        let mut is_broken = is_broken;
        let _ = is_broken.changed().await;
        Err("broken off on the way".to_owned())
    });
    Body::new(axum::body::Body::from_stream(first.chain(broken)))
}

fn answer(response: http::Response<Body>) -> Response {
    response.map(axum::body::Body::new)
}

fn has(bytes: &Bytes, word: &str) -> bool {
    let mut parts = bytes.windows(word.len().max(1));
    word.is_empty() || parts.any(|part| part == word.as_bytes())
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
