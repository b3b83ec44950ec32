//! The rate limit of watches. kube restarts an interrupted watch at once, because it takes the interruption for a
//! success: a server, or a proxy before it, that interrupts every watch would receive hundreds of requests a second.
//! And a server that restarts interrupts those of all nodes at once.

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

use super::watch::LASTS;
use crate::{engine::chance, state::lock};

/// Minimum interval between two starts of the same watch, and maximum random addition after an interruption.
const PACE: Duration = Duration::from_secs(5);

type Request = http::Request<Body>;

/// The time of the last start of each watch.
#[derive(Debug, Default)]
struct WatchTimes(Mutex<HashMap<String, Instant>>);

impl WatchTimes {
    /// When a request may be sent: now, unless it starts a watch that was just started.
    fn of(&self, request: &Request) -> Instant {
        let now = Instant::now();
        let Some(watch) = watched(request) else {
            return now;
        };
        let mut turns = lock(&self.0);
        let is_broken = |last: &&Instant| now < **last + LASTS;
        let last = turns.get(&watch).filter(is_broken);
        let turn = last.map_or(now, |last| now.max(*last + PACE) + PACE.mul_f64(chance()));
        turns.insert(watch, turn);
        turn
    }
}

/// Identifies the watch that a request starts, if any, without the resource version.
fn watched(request: &Request) -> Option<String> {
    let parts = || request.uri().query().unwrap_or_default().split('&');
    let fields = parts().find(|part| part.starts_with("fieldSelector="));
    // If a server does not support streaming lists, another request for the same follows at once.
    let streamed = parts().find(|part| part.starts_with("sendInitialEvents="));
    let path = request.uri().path();
    parts()
        .any(|part| part == "watch=true")
        .then(|| format!("{path}?{fields:?}{streamed:?}"))
}

/// A layer that applies the rate limit to the watches of a client.
pub(super) fn layer<S>() -> impl Layer<S, Service = RateLimited<S>> {
    let turns = Arc::new(WatchTimes::default());
    layer_fn(move |inner| RateLimited {
        inner,
        turns: Arc::clone(&turns),
    })
}

/// A client whose watches are rate limited.
#[derive(Debug)]
pub(super) struct RateLimited<S> {
    inner: S,
    turns: Arc<WatchTimes>,
}

impl<S> Service<Request> for RateLimited<S>
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
        // No request is sent before the future is polled.
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
        let turns = WatchTimes::default();
        let one = "/apis/drumlin.dev/v1alpha1/volumes?watch=true&fieldSelector=a&resourceVersion=";
        let begun = Instant::now();
        assert_eq!(turns.of(&asks(&format!("{one}1"))), begun);
        let second = turns.of(&asks(&format!("{one}2")));
        assert!((begun + PACE..=begun + 2 * PACE).contains(&second));
        let third = turns.of(&asks(&format!("{one}2")));
        assert!((second + PACE..=second + 2 * PACE).contains(&third));
        for other in [
            "/apis/drumlin.dev/v1alpha1/volumes?watch=true&fieldSelector=b",
            "/apis/drumlin.dev/v1alpha1/snapshots?watch=true&fieldSelector=a",
            "/apis/drumlin.dev/v1alpha1/volumes?fieldSelector=a",
            "/apis/drumlin.dev/v1alpha1/volumes",
        ] {
            assert_eq!(turns.of(&asks(other)), begun, "{other}");
        }
        // A watch that ended normally need not wait.
        tokio::time::advance(60 * PACE).await;
        assert_eq!(turns.of(&asks(one)), begun + 60 * PACE);
    }

    #[tokio::test(start_paused = true)]
    async fn watches_that_are_broken_off_at_once_are_begun_again_one_after_the_other() {
        let watch = asks("/apis/drumlin.dev/v1alpha1/volumes?watch=true&fieldSelector=a");
        let clients: Vec<WatchTimes> = (0..8).map(|_| WatchTimes::default()).collect();
        for client in &clients {
            client.of(&watch);
        }
        tokio::time::advance(10 * PACE).await;
        let turns = clients.iter().map(|client| client.of(&watch));
        let turns: std::collections::HashSet<Instant> = turns.collect();
        assert!(turns.len() > 4, "{turns:?}");
    }
}
