//! Calls whose watch is late, against a server that stores one call.

use std::sync::Mutex;

use drumlin_reconciler::lock;

use super::*;
use crate::{fake_server::FakeServer, method::DELETE_VOLUME};

/// What a server stores: one call.
type Stored = Arc<Mutex<Option<Value>>>;

/// A client of a server with one call, whose nodes all exist.
fn client_of(stored: Stored) -> Client {
    FakeServer::client(move |method, path, body| {
        if path.contains("/nodes/") {
            return Ok(json!({"metadata": {"name": "node-a"}}));
        }
        let refusal = if method == "POST" { 409 } else { 404 };
        served(&mut lock(&stored), method, body).ok_or(refusal)
    })
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
    let stored = Arc::new(Mutex::new(before.clone()));
    let client = client_of(Arc::clone(&stored));
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
        while *lock(&stored) == before {
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
