//! An API server for tests, which a function answers.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use kube::client::{Body, Client};
use serde_json::{Value, json};
use tonic::codegen::{
    Service,
    http::{Request, Response},
};

/// Says what becomes of a request by its method, its path and its body: an object, or the HTTP code of a refusal.
type Answer = dyn Fn(&str, &str, Value) -> Result<Value, u16> + Send + Sync;

/// The server.
#[derive(Clone)]
pub(crate) struct FakeServer(Arc<Answer>);

impl FakeServer {
    /// A client of a server that answers so.
    pub(crate) fn client(
        answer: impl Fn(&str, &str, Value) -> Result<Value, u16> + Send + Sync + 'static,
    ) -> Client {
        Client::new(Self(Arc::new(answer)), "drumlin")
    }
}

impl Service<Request<Body>> for FakeServer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = Arc::clone(&self.0);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (code, answer) = match answer(head.method.as_str(), head.uri.path(), body) {
                Ok(object) => (200, object),
                Err(code) => {
                    let status = json!({"kind": "Status", "status": "Failure", "reason": "", "message": "", "code": code});
                    (code, status)
                }
            };
            let body = Body::from(answer.to_string().into_bytes());
            Ok(Response::builder().status(code).body(body).unwrap())
        })
    }
}
