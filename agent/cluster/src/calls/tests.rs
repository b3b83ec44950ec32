//! Calls whose watch is late, against a server that stores one call.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Mutex,
    task::{Context, Poll},
};

use drumlin_reconciler::lock;
use kube::client::Body;
use tonic::codegen::{
    Service,
    http::{Request, Response},
};

use super::*;
use crate::method::DELETE_VOLUME;

/// A server that stores one call, and whose nodes all exist.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Option<Value>>>);

impl Service<Request<Body>> for Server {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let stored = Arc::clone(&self.0);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let answer = if head.uri.path().contains("/nodes/") {
                Some(json!({"metadata": {"name": "node-a"}}))
            } else {
                served(&mut lock(&stored), head.method.as_str(), body)
            };
            let refusal = |code| json!({"kind": "Status", "status": "Failure", "reason": "", "message": "", "code": code});
            let (code, answer) = match (answer, head.method.as_str()) {
                (Some(answer), _) => (200, answer),
                (None, "POST") => (409, refusal(409)),
                (None, _) => (404, refusal(404)),
            };
            let body = Body::from(answer.to_string().into_bytes());
            Ok(Response::builder().status(code).body(body).unwrap())
        })
    }
}

/// Serves a request about the stored call.
fn served(stored: &mut Option<Value>, method: &str, body: Value) -> Option<Value> {
    match method {
        "POST" if stored.is_some() => return None,
        "POST" => {
            let mut made = body;
            made["metadata"]["uid"] = json!("new");
            *stored = Some(made);
        }
        "PATCH" => stored.as_mut()?["spec"]["attempt"] = body["spec"]["attempt"].clone(),
        "DELETE" => return stored.take(),
        _ => {}
    }
    stored.clone()
}

/// The answer of a call, as its agent writes it.
fn answered_call(uid: &str, attempt: i32, code: &str) -> NodeCall {
    let mut call = NodeCall::of("node-a", &DELETE_VOLUME, "v", json!({"volumeId": "v"}));
    call.metadata.uid = Some(uid.to_owned());
    call.spec.attempt = attempt;
    let status = json!({"phase": "Done", "attempt": attempt, "code": code, "message": uid});
    call.status = serde_json::from_value(status).unwrap();
    call
}

/// What a front makes of `late`, which its watch shows after the server has stored what it asks for, and of `answer`,
/// which it shows then; `found` is there when it asks.
async fn with_late_watch(
    found: Option<NodeCall>,
    late: NodeCall,
    answer: NodeCall,
) -> Result<Value, Failure> {
    let before = found.map(|call| serde_json::to_value(call).unwrap());
    let server = Server(Arc::new(Mutex::new(before.clone())));
    let client = Client::new(server.clone(), "drumlin");
    let watch = Arc::new(CallWatch::default());
    let view = Arc::new(ClusterView::new(client.clone(), "drumlin"));
    let calls = Calls::new(
        client,
        "drumlin",
        Arc::clone(&watch),
        view,
        Hooks::default(),
    );
    let ask = Ask {
        node: "node-a",
        method: &DELETE_VOLUME,
        key: "v",
        request: json!({"volumeId": "v"}),
    };
    let shown = async {
        while *lock(&server.0) == before {
            tokio::task::yield_now().await;
        }
        watch.see(&late);
        watch.see(&answer);
    };
    let deadline = Instant::now() + AWAY * 2;
    tokio::join!(calls.run(&ask, deadline), shown).0
}

#[tokio::test]
async fn an_answer_to_an_earlier_attempt_is_none() {
    let late = answered_call("one", 1, "OK");
    let answer = answered_call("one", 2, "NOT_FOUND");
    let given = with_late_watch(Some(late.clone()), late, answer).await;
    let wanted = Failure::Answer(Code::NotFound, "one".to_owned());
    assert_eq!(given, Err(wanted));
}

#[tokio::test]
async fn an_answer_of_an_earlier_call_of_the_name_is_none() {
    let late = answered_call("old", 1, "OK");
    let answer = answered_call("new", 1, "NOT_FOUND");
    let given = with_late_watch(None, late, answer).await;
    let wanted = Failure::Answer(Code::NotFound, "new".to_owned());
    assert_eq!(given, Err(wanted));
}
