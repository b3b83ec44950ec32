//! The layer that applies a mutation between the connections and the services.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use anyhow::Context as _;
use bytes::Bytes;
use drumlin_core::host::lock;
use futures::stream;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tonic::{
    Code, Status,
    body::Body,
    codegen::http::{HeaderMap, Request, Response},
};
use tower::{Layer, Service};

use super::{
    rule::{Change, Mutation},
    wire,
};
use crate::rpc::mutated;

/// The mutation that the environment asks for.
///
/// # Errors
/// If it cannot be understood.
pub(crate) fn layer() -> anyhow::Result<Option<MutationLayer>> {
    let Some(text) = std::env::var_os("DRUMLIN_MUTATE") else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    let mutation = Mutation::parse(&text).with_context(|| format!("DRUMLIN_MUTATE={text}"))?;
    tracing::warn!(mutation = %text, "responses are mutated on purpose: DRUMLIN_MUTATE is set");
    Ok(Some(MutationLayer(Arc::new(Mutating {
        mutation,
        answered: Mutex::default(),
    }))))
}

/// Applies a mutation to all services below it.
#[derive(Debug, Clone)]
pub(crate) struct MutationLayer(Arc<Mutating>);

#[derive(Debug)]
struct Mutating {
    mutation: Mutation,
    /// The requests that succeeded and were not undone since.
    answered: Mutex<Vec<Bytes>>,
}

impl<S> Layer<S> for MutationLayer {
    type Service = MutatedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        MutatedService {
            inner,
            mutating: Arc::clone(&self.0),
        }
    }
}

/// Services with a mutation.
#[derive(Debug, Clone)]
pub(crate) struct MutatedService<S> {
    inner: S,
    mutating: Arc<Mutating>,
}

impl<S> Service<Request<Body>> for MutatedService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The clone takes the place of the one that was polled ready.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let mutating = Arc::clone(&self.mutating);
        Box::pin(async move {
            let method = request.uri().path().trim_start_matches('/').to_owned();
            if method == mutating.mutation.method {
                return mutating
                    .mutated(request, |request| inner.call(request))
                    .await;
            }
            let response = inner.call(request).await?;
            let is_inverse = inverse(&method).is_some_and(|of| of == mutating.mutation.method);
            if is_inverse && refusal(response.headers()).is_none() {
                mutating.forget();
            }
            Ok(response)
        })
    }
}

/// The method that undoes what another one did, by its name.
fn inverse(method: &str) -> Option<String> {
    let pairs = [
        ("Unstage", "Stage"),
        ("Unpublish", "Publish"),
        ("Stage", "Unstage"),
        ("Publish", "Unpublish"),
        ("Create", "Delete"),
        ("Delete", "Create"),
    ];
    let (verb, undoes) = pairs.into_iter().find(|(verb, _)| method.contains(verb))?;
    Some(method.replacen(verb, undoes, 1))
}

/// The status of a response that failed.
fn refusal(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers).filter(|status| status.code() != Code::Ok)
}

impl Mutating {
    fn forget(&self) {
        lock(&self.answered).clear();
    }

    /// Returns true if the same request has succeeded, and was not undone since.
    fn is_repeat(&self, request: &Bytes) -> bool {
        lock(&self.answered).contains(request)
    }

    async fn mutated<F>(
        &self,
        request: Request<Body>,
        call: impl FnOnce(Request<Body>) -> F,
    ) -> Result<Response<Body>, Infallible>
    where
        F: Future<Output = Result<Response<Body>, Infallible>>,
    {
        let (head, body) = request.into_parts();
        let mut bytes = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(status) => return Ok(status.into_http()),
        };
        match &self.mutation.change {
            Change::Skip => return Ok(messages(wire::frame(&[]), succeeded())),
            Change::Repeat(code) if self.is_repeat(&bytes) => return Ok(mutated(*code, "")),
            Change::Request(edit) => bytes = wire::each_frame(&bytes, edit),
            _ => {}
        }
        let sent = Request::from_parts(head, messages(bytes.clone(), None).into_body());
        let response = call(sent).await?;
        if let Some(status) = refusal(response.headers()) {
            return Ok(self.refused(&status).unwrap_or(response));
        }
        let (head, body) = response.into_parts();
        let collected = match body.collect().await {
            Ok(collected) => collected,
            Err(status) => return Ok(status.into_http()),
        };
        let trailers = collected.trailers().cloned();
        // A stream that failed after its first message.
        if let Some(status) = trailers.as_ref().and_then(refusal)
            && let Some(response) = self.refused(&status)
        {
            return Ok(response);
        }
        let mut answer = collected.to_bytes();
        match &self.mutation.change {
            Change::Fail { containing, to } if contains(&bytes, containing) => {
                return Ok(mutated(*to, ""));
            }
            Change::Response(edit) => answer = wire::each_frame(&answer, edit),
            Change::Repeat(_) => lock(&self.answered).push(bytes),
            _ => {}
        }
        let body = messages(answer, trailers).into_body();
        Ok(Response::from_parts(head, body))
    }

    /// The response instead of an error, if it is another one.
    fn refused(&self, status: &Status) -> Option<Response<Body>> {
        match &self.mutation.change {
            Change::Code {
                from,
                containing,
                to,
            } if *from == status.code() && status.message().contains(containing.as_str()) => {
                Some(if *to == Code::Ok {
                    messages(wire::frame(&[]), succeeded())
                } else {
                    mutated(*to, status.message())
                })
            }
            Change::Mute => Some(mutated(status.code(), "")),
            _ => None,
        }
    }
}

/// Whether a text is in an encoded message: texts are as they are there.
fn contains(message: &[u8], text: &str) -> bool {
    let text = text.as_bytes();
    text.is_empty() || message.windows(text.len()).any(|part| part == text)
}

/// The trailers of a call that succeeded.
fn succeeded() -> Option<HeaderMap> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().ok()?);
    Some(trailers)
}

/// A response, or a request, of these bytes.
fn messages(bytes: Bytes, trailers: Option<HeaderMap>) -> Response<Body> {
    let frames = [Some(Frame::data(bytes)), trailers.map(Frame::trailers)];
    let frames = frames.into_iter().flatten().map(Ok::<_, Status>);
    let mut response = Response::new(Body::new(StreamBody::new(stream::iter(frames))));
    if let Ok(kind) = "application/grpc".parse() {
        response.headers_mut().insert("content-type", kind);
    }
    response
}

#[cfg(test)]
mod tests;
