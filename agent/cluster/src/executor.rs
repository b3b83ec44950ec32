//! The agent's side of [`NodeCall`]: runs the calls of its node on its own socket.
//!
//! **Invariant:** a call that changes something is begun only after `Taken` was written, conditional on the version of the
//! object that was read, and only while it is valid by the clock of the server: a withdrawn call never runs, nor does one
//! that is older than its caller's patience. What was taken and has expired is ended by its agent, not by others, since
//! something may exist by it.
//!
//! **Invariant:** what is `Taken` and not `Done` runs again after a restart. Every call is idempotent.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use drumlin_reconciler::{Hooks, api_server::watch, lock};
use futures::StreamExt;
use kube::{
    Client, ResourceExt,
    api::{Api, Patch, PatchParams},
    runtime::watcher::{Config, Event},
};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet, time::sleep};
use tonic::{Code, transport::Channel};

use crate::{
    code,
    method::{Effect, Method},
    node_call::{AGENT, NodeCall, Phase, Progress},
    proto_json, socket,
};

/// Maximum number of calls that run at the same time.
const AT_ONCE: usize = 16;
/// Pause after a request that the server has refused or not answered.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of characters of a message that is passed on.
const MESSAGE: usize = 4000;

/// Runs the calls of a node.
pub struct Executor {
    calls: Api<NodeCall>,
    node: String,
    channel: Channel,
    /// The UIDs of the calls that are in flight; true if one was asked for once more meanwhile.
    running: Mutex<HashMap<String, bool>>,
    room: Semaphore,
    hooks: Hooks,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// What has become of an attempt to take a call.
enum Take {
    /// It is ours to run.
    Run,
    /// Somebody has changed it: it has to be read again.
    Changed,
    /// It is too old: it is ended without being run.
    Expired,
    /// It was withdrawn or deleted, or is done.
    Over,
}

impl Executor {
    /// Runs the calls to `node` that are in `namespace`, on the socket behind `channel`. The fail points of a test build
    /// are `executor.<member>.taken`, `.run` and `.told`.
    pub fn new(
        client: Client,
        (namespace, node): (&str, &str),
        channel: Channel,
        hooks: Hooks,
    ) -> Arc<Self> {
        Arc::new(Self {
            calls: Api::namespaced(client, namespace),
            node: node.to_owned(),
            channel,
            running: Mutex::default(),
            room: Semaphore::new(AT_ONCE),
            hooks,
        })
    }

    /// Follows the calls of the node, forever.
    pub async fn run(self: Arc<Self>) {
        let config = Config::default().fields(&format!("spec.nodeName={}", self.node));
        let mut events = watch(self.calls.clone(), config);
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                Some(event) = events.next() => {
                    if let Event::Apply(call) | Event::InitApply(call) = event
                        && let Some(uid) = self.begin(&call)
                    {
                        let this = Arc::clone(&self);
                        tasks.spawn(async move { this.carry(call, &uid).await });
                    }
                }
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    /// Notes that a call is in flight; returns its UID unless it is already, or is over.
    fn begin(&self, call: &NodeCall) -> Option<String> {
        let uid = call.uid()?;
        if call.is_over() {
            return None;
        }
        let progress = call.progress();
        let mut running = self.in_flight();
        if let Some(is_asked_again) = running.get_mut(&uid) {
            *is_asked_again |= progress == Progress::Waiting;
            return None;
        }
        running.insert(uid.clone(), false);
        Some(uid)
    }

    /// Notes that a call is in flight no more; returns false if it is to be run once more, and then it still is.
    fn end(&self, uid: &str) -> bool {
        let mut running = self.in_flight();
        let is_asked_again = running.get_mut(uid).is_some_and(std::mem::take);
        if !is_asked_again {
            running.remove(uid);
        }
        !is_asked_again
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        lock(&self.running)
    }

    /// Runs a call that is in flight until nobody has asked for it once more.
    async fn carry(&self, call: NodeCall, uid: &str) {
        self.settle(call.clone()).await;
        // What was asked for once more may have run already, if it was read before its event came: it is in flight as long
        // as `end` has not removed it.
        while !self.end(uid) {
            if let Some(now) = self.read(&call).await {
                self.settle(now).await;
            }
        }
    }

    /// Runs a call and writes its answer, unless it is over.
    async fn settle(&self, mut call: NodeCall) {
        let Ok(_room) = self.room.acquire().await else {
            return;
        };
        loop {
            let Some((method, request)) = call.request() else {
                let message =
                    "this call is unknown to the agent, which may be older than the controller";
                return self
                    .finish(&call, answer(Code::Unimplemented, message))
                    .await;
            };
            let taken = match method.effect {
                Effect::Changes => self.take(&call).await,
                Effect::Reads => Take::Run,
            };
            match taken {
                Take::Run => {
                    let step = |step| method.fail(self.hooks, "executor", step);
                    step("taken");
                    let status = self.execute(method, request).await;
                    let code = status.get("code").and_then(Value::as_str);
                    tracing::debug!(
                        call = call.name_any(),
                        rpc.method = method.rpc,
                        rpc.code = code,
                        "call of the cluster completed"
                    );
                    step("run");
                    self.finish(&call, status).await;
                    step("told");
                    return;
                }
                Take::Over => return,
                Take::Expired => {
                    tracing::warn!(
                        call = call.name_any(),
                        "expired call of the cluster not run"
                    );
                    let message = "the call was not run in time; repeat it";
                    return self.finish(&call, answer(Code::Aborted, message)).await;
                }
                Take::Changed => match self.read(&call).await {
                    Some(now) => call = now,
                    None => return,
                },
            }
        }
    }

    /// Records that a call has begun, conditional on the version that was read.
    async fn take(&self, call: &NodeCall) -> Take {
        let runs = call.runs().saturating_add(1);
        let body = json!({
            "metadata": {"uid": call.uid(), "resourceVersion": call.resource_version()},
            "status": {"phase": Phase::Taken, "attempt": call.spec.attempt, "runs": runs},
        });
        match self.patch(call, &body).await {
            Ok(taken) => match taken.was_taken_late() {
                Some(false) => Take::Run,
                Some(true) => Take::Expired,
                None => {
                    tracing::error!(
                        call = call.name_any(),
                        "the API server does not tell when a call of the cluster was taken"
                    );
                    Take::Expired
                }
            },
            Err(Some(404)) => Take::Over,
            Err(Some(409)) => Take::Changed,
            Err(_) => {
                sleep(PAUSE).await;
                Take::Changed
            }
        }
    }

    /// Reads a call again; none if it is gone or over. Waits for a server that does not answer.
    async fn read(&self, call: &NodeCall) -> Option<NodeCall> {
        loop {
            match self.calls.get_opt(&call.name_any()).await {
                Ok(found) => {
                    return found.filter(|now| now.uid() == call.uid() && !now.is_over());
                }
                Err(error) => {
                    tracing::debug!(call = call.name_any(), error = %error, "call of the cluster could not be read");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Sends a request to the socket; returns the status to write.
    async fn execute(&self, method: &'static Method, request: &Value) -> Value {
        let Some(descriptor) = method.descriptor() else {
            return answer(Code::Unimplemented, "this call is unknown to the agent");
        };
        let request = match proto_json::from_json(descriptor.input(), request) {
            Ok(request) => request,
            Err(error) => return answer(Code::InvalidArgument, &error.to_string()),
        };
        match socket::send(self.channel.clone(), method, request).await {
            Ok(response) => match proto_json::to_json(descriptor.output(), &response) {
                Ok(response) => json!({
                    "phase": Phase::Done,
                    "code": code::name(Code::Ok),
                    method.member: response,
                }),
                Err(error) => answer(Code::Internal, &error.to_string()),
            },
            Err(status) => answer(status.code(), status.message()),
        }
    }

    /// Writes the status of a call that has ended, until it is written, or the call is gone.
    async fn finish(&self, call: &NodeCall, mut status: Value) {
        loop {
            if let Value::Object(fields) = &mut status {
                fields.insert("attempt".to_owned(), call.spec.attempt.into());
            }
            let body = json!({"metadata": {"uid": call.uid()}, "status": status});
            match self.patch(call, &body).await {
                Ok(_) | Err(Some(404 | 409)) => return,
                Err(Some(422 | 413)) if status.get("message").is_none() => {
                    let message = "the answer does not fit into an object of the API server";
                    status = answer(Code::Internal, message);
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// Patches the status of a call.
    ///
    /// # Errors
    /// The HTTP code of a refusal; none if the server did not answer.
    async fn patch(&self, call: &NodeCall, body: &Value) -> Result<NodeCall, Option<u16>> {
        let how = PatchParams {
            field_manager: Some(AGENT.to_owned()),
            ..PatchParams::default()
        };
        let (name, patch) = (call.name_any(), Patch::Merge(body));
        let written = self.calls.patch_status(&name, &how, &patch);
        written.await.map_err(|error| {
            let code = match &error {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            };
            if !matches!(code, Some(404 | 409)) {
                tracing::warn!(call = name, error = %error, "status of a call of the cluster could not be written");
            }
            code
        })
    }
}

/// The status of a call that has failed.
fn answer(code: Code, message: &str) -> Value {
    let message: String = message.chars().take(MESSAGE).collect();
    json!({"phase": Phase::Done, "code": code::name(code), "message": message})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fake_server::FakeServer, method::DELETE_VOLUME};

    /// A call as the server has it: asked for so often, with a version that says as much.
    fn asked(attempt: i32) -> NodeCall {
        let mut call = NodeCall::of("node-a", &DELETE_VOLUME, "v", json!({"volumeId": "v"}));
        call.metadata.uid = Some("one".to_owned());
        call.metadata.resource_version = Some(attempt.to_string());
        call.spec.attempt = attempt;
        call
    }

    /// An executor without a socket, and the one call of its server.
    fn beside(call: &NodeCall) -> (Arc<Executor>, Arc<Mutex<Value>>) {
        let stored = Arc::new(Mutex::new(serde_json::to_value(call).unwrap()));
        let of_server = Arc::clone(&stored);
        let client = FakeServer::client(move |method, _, body| {
            let mut stored = lock(&of_server);
            if method == "PATCH" {
                let version = body.pointer("/metadata/resourceVersion");
                if version.is_some_and(|version| *version != stored["metadata"]["resourceVersion"])
                {
                    return Err(409);
                }
                stored["status"] = body["status"].clone();
                let written = json!([
                    {"manager": AGENT, "subresource": "status", "time": "2030-01-01T00:00:00Z"},
                ]);
                stored["metadata"]["creationTimestamp"] = json!("2030-01-01T00:00:00Z");
                stored["metadata"]["managedFields"] = written;
            }
            Ok(stored.clone())
        });
        let nowhere = tonic::transport::Endpoint::from_static("http://127.0.0.1:1");
        let to = nowhere.connect_lazy();
        let executor = Executor::new(client, ("drumlin", "node-a"), to, Hooks::default());
        (executor, stored)
    }

    #[tokio::test]
    async fn a_call_that_was_asked_for_once_more_before_it_was_taken_can_be_asked_for_again() {
        // The front has asked a second time, and the first event is on its way still.
        let mut now = asked(2);
        now.status = Some(status_of(1));
        let (executor, stored) = beside(&now);
        let first = asked(1);
        let uid = executor.begin(&first).expect("it is new");
        assert_eq!(executor.begin(&now), None, "it is in flight");
        executor.carry(first, &uid).await;
        let answered: NodeCall = serde_json::from_value(lock(&stored).clone()).unwrap();
        assert_eq!(answered.progress(), Progress::Done);
        assert_eq!(
            answered.status.as_ref().map(|status| status.attempt),
            Some(2)
        );

        let mut again = answered;
        again.spec.attempt = 3;
        assert_eq!(executor.begin(&again), Some(uid), "nothing is in flight");
    }

    fn status_of(attempt: i32) -> crate::node_call::NodeCallStatus {
        let status = json!({"phase": "Done", "attempt": attempt, "code": "ABORTED"});
        serde_json::from_value(status).unwrap()
    }
}
