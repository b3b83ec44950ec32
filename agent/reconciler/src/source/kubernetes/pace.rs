//! The pace at which watches are begun. One that is broken off is begun again at once by kube, which takes that for a
//! success: a server, or a proxy before it, that breaks off every watch would be asked hundreds of times a second.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use kube::client::Body;
use tokio::time::Instant;
use tower::{Layer, Service, layer::layer_fn};

use crate::shared::lock;

/// The same watch is begun at most this often.
const PACE: Duration = Duration::from_secs(5);

type Request = tonic::codegen::http::Request<Body>;

/// When each watch may be begun next.
#[derive(Debug, Default)]
struct Turns(Mutex<HashMap<String, Instant>>);

impl Turns {
    /// The turn of a request: now, unless it begins a watch that was begun a moment ago.
    fn of(&self, request: &Request) -> Instant {
        let now = Instant::now();
        let Some(watch) = watched(request) else {
            return now;
        };
        let mut turns = lock(&self.0);
        let next = turns.entry(watch).or_insert(now);
        let turn = (*next).max(now);
        *next = turn + PACE;
        turn
    }
}

/// What a request watches, if it does; from which version is not a part of that.
fn watched(request: &Request) -> Option<String> {
    let parts = || request.uri().query().unwrap_or_default().split('&');
    let fields = parts().find(|part| part.starts_with("fieldSelector="));
    let path = request.uri().path();
    parts()
        .any(|part| part == "watch=true")
        .then(|| format!("{path}?{}", fields.unwrap_or_default()))
}

/// Keeps the watches of a client to their pace.
pub(super) fn layer<S>() -> impl Layer<S, Service = Paced<S>> {
    let turns = Arc::new(Turns::default());
    layer_fn(move |inner| Paced {
        inner,
        turns: Arc::clone(&turns),
    })
}

/// A client whose watches wait for their turn.
#[derive(Debug)]
pub(super) struct Paced<S> {
    inner: S,
    turns: Arc<Turns>,
}

impl<S> Service<Request> for Paced<S>
where
    S: Service<Request, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let turn = self.turns.of(&request);
        // Nothing is sent before it is waited for.
        let answer = self.inner.call(request);
        Box::pin(async move {
            tokio::time::sleep_until(turn).await;
            answer.await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(uri: &str) -> Request {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = uri.parse().unwrap();
        request
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_watch_waits_for_its_turn_and_nothing_else_does() {
        let turns = Turns::default();
        let one = "/apis/drumlin.dev/v1alpha1/volumes?watch=true&fieldSelector=a&resourceVersion=";
        let begun = Instant::now();
        assert_eq!(turns.of(&asks(&format!("{one}1"))), begun);
        assert_eq!(turns.of(&asks(&format!("{one}2"))), begun + PACE);
        assert_eq!(turns.of(&asks(&format!("{one}2"))), begun + 2 * PACE);
        for other in [
            "/apis/drumlin.dev/v1alpha1/volumes?watch=true&fieldSelector=b",
            "/apis/drumlin.dev/v1alpha1/snapshots?watch=true&fieldSelector=a",
            "/apis/drumlin.dev/v1alpha1/volumes?fieldSelector=a",
            "/apis/drumlin.dev/v1alpha1/volumes",
        ] {
            assert_eq!(turns.of(&asks(other)), begun, "{other}");
        }
        // One that ends as watches do has no need to wait.
        tokio::time::advance(60 * PACE).await;
        assert_eq!(turns.of(&asks(one)), begun + 60 * PACE);
    }
}
