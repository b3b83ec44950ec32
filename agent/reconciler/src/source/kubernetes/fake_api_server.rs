//! An API server for tests that have to see what it is asked, or to have it refuse.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use kube::{Client, client::Body};
use serde_json::{Value, json};
use tonic::codegen::http::{Request, Response};

use crate::state::lock;

/// What it was asked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

/// What it answers.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// It says so, with this code.
    Says(u16, Value),
    /// It never does.
    Hangs,
}

impl Answer {
    /// It takes a change.
    fn consent() -> Self {
        let object = json!({
            "apiVersion": "drumlin.dev/v1alpha1", "kind": "Volume", "metadata": {"name": "one"},
        });
        Self::Says(200, object)
    }

    /// It says that it cannot.
    pub(crate) fn refusal() -> Self {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 500,
            "reason": "InternalError", "message": "not now",
        });
        Self::Says(500, status)
    }
}

/// What some requests are answered, and not as all others are.
type Script = Arc<dyn Fn(&Asked) -> Option<Answer> + Send + Sync>;

/// A server that answers everything alike, but for what a script says of some requests.
#[derive(Clone)]
pub(crate) struct Fake {
    asked: Arc<Mutex<Vec<Asked>>>,
    answer: Arc<Mutex<Answer>>,
    script: Arc<Mutex<Option<Script>>>,
    /// The claims that there are, each with its id.
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

    /// One that takes every change.
    pub(crate) fn willing() -> Self {
        Self::new(Answer::consent())
    }

    /// Has it refuse everything from now on.
    pub(crate) fn refuse(&self) {
        *lock(&self.answer) = Answer::refusal();
    }

    /// Has it take every change from now on.
    pub(crate) fn comply(&self) {
        *lock(&self.answer) = Answer::consent();
    }

    /// Has it answer some requests as a script says from now on.
    pub(crate) fn follow(&self, script: impl Fn(&Asked) -> Option<Answer> + Send + Sync + 'static) {
        *lock(&self.script) = Some(Arc::new(script));
    }

    /// Has a claim of this name have this id.
    pub(crate) fn has_claim(&self, name: &str, uid: &str) {
        lock(&self.claims).insert(name.to_owned(), uid.to_owned());
    }

    /// What it was asked since it was looked at last.
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
