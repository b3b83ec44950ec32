//! A fake API server for tests that inspect its requests, or make it refuse some.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use kube::{Client, client::Body};
use serde_json::{Value, json};
use tonic::codegen::http::{Request, Response};

use crate::state::lock;

/// A received request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// Answers with this code and body.
    Says(u16, Value),
    /// Never answers.
    Hangs,
}

impl Answer {
    /// Accepts a change.
    fn consent() -> Self {
        let object = json!({
            "apiVersion": "drumlin.dev/v1alpha1", "kind": "Volume", "metadata": {"name": "one"},
        });
        Self::Says(200, object)
    }

    /// Answers with a failure.
    pub(crate) fn refusal() -> Self {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 500,
            "reason": "InternalError", "message": "not now",
        });
        Self::Says(500, status)
    }
}

/// Returns the answer to a request that differs from the default.
type Script = Arc<dyn Fn(&Asked) -> Option<Answer> + Send + Sync>;

/// A server that answers all requests alike, except those that a script answers.
#[derive(Clone)]
pub(crate) struct Fake {
    asked: Arc<Mutex<Vec<Asked>>>,
    answer: Arc<Mutex<Answer>>,
    script: Arc<Mutex<Option<Script>>>,
    /// The existing claims, each with its UID.
    claims: Arc<Mutex<HashMap<String, String>>>,
}

impl Fake {
    pub(crate) fn new(answer: Answer) -> Self {
        Self {
            asked: Arc::default(),
            answer: Arc::new(Mutex::new(answer)),
            script: Arc::default(),
            claims: Arc::default(),
        }
    }

    /// Starts a server that accepts every change.
    pub(crate) fn willing() -> Self {
        Self::new(Answer::consent())
    }

    /// Refuses all requests from now on.
    pub(crate) fn refuse(&self) {
        *lock(&self.answer) = Answer::refusal();
    }

    /// Accepts every change from now on.
    pub(crate) fn comply(&self) {
        *lock(&self.answer) = Answer::consent();
    }

    /// Answers some requests as a script says from now on.
    pub(crate) fn follow(&self, script: impl Fn(&Asked) -> Option<Answer> + Send + Sync + 'static) {
        *lock(&self.script) = Some(Arc::new(script));
    }

    /// Sets the UID of the claim of this name.
    pub(crate) fn has_claim(&self, name: &str, uid: &str) {
        lock(&self.claims).insert(name.to_owned(), uid.to_owned());
    }

    /// Returns the requests received since the last call.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *lock(&self.asked))
    }

    pub(crate) fn client(&self) -> Client {
        let fake = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let fake = fake.clone();
            async move { Ok::<_, Infallible>(fake.take(request).await) }
        });
        Client::new(service, "default")
    }

    async fn take(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let asked = Asked {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        };
        let claim = asked.path.split_once("/persistentvolumeclaims/");
        let uid = claim.and_then(|(_, name)| lock(&self.claims).get(name).cloned());
        let script = lock(&self.script).clone();
        let told = script.and_then(|script| script(&asked));
        let answer = match (told, uid) {
            (Some(told), _) => told,
            (None, Some(uid)) => Answer::Says(200, json!({"metadata": {"uid": uid}})),
            (None, None) => lock(&self.answer).clone(),
        };
        lock(&self.asked).push(asked);
        match answer {
            Answer::Says(code, value) => Response::builder()
                .status(code)
                .body(Body::from(value.to_string().into_bytes()))
                .unwrap(),
            Answer::Hangs => std::future::pending().await,
        }
    }
}
