//! The front's side of [`NodeCall`]: creates calls, waits for their answers, and withdraws those that nobody will run.
//!
//! **Invariant:** an answer is that of a run which ended after its caller had asked: a call that is `Done` when it is found
//! is asked for once more, and what a late watch shows of an earlier call or attempt is not believed.
//!
//! **Invariant:** a call is given up only if it was withdrawn before the agent had ever begun, or if its node is gone.
//! Otherwise its outcome is unknown, and the caller is told so. A call whose outcome is unknown stays, so that the next one
//! of its name is not taken for one that was never begun.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use drumlin_reconciler::Hooks;
use kube::{
    Client, ResourceExt,
    api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tonic::Code;

use crate::{
    call_watch::{CallWatch, Sight},
    method::{Effect, Method},
    node_call::{CONTROLLER, NodeCall, Progress},
    view::ClusterView,
};

/// Time for an agent that is away to take a call, before the call is withdrawn.
const AWAY: Duration = Duration::from_secs(15);
/// Interval at which it is checked whether the agent is away.
const ROUND: Duration = Duration::from_secs(2);
/// Maximum number of calls that are found in the way of one, one after the other.
const ATTEMPTS: u32 = 20;

/// A call to the agent of a node.
#[derive(Debug, Clone)]
pub(crate) struct Ask<'a> {
    pub(crate) node: &'a str,
    pub(crate) method: &'static Method,
    /// The name of what is created, or the id of what is changed.
    pub(crate) key: &'a str,
    pub(crate) request: Value,
}

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The agent has answered with this code and message.
    Answer(Code, String),
    /// The agent is away, and has not begun: the call was withdrawn.
    Withdrawn,
    /// The node is not a part of the cluster any more.
    NodeGone,
    /// No answer before the deadline: the call is open.
    Pending,
    /// A call of the same name and other arguments is open on this node.
    Conflict(String),
    /// The API server refuses, or does not answer.
    Server(String),
}

/// Creates calls and waits for their answers.
pub(crate) struct Calls {
    api: Api<NodeCall>,
    watch: Arc<CallWatch>,
    view: Arc<ClusterView>,
    withdrawn: AtomicU64,
    hooks: Hooks,
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

/// What comes of waiting for a call.
enum Waited {
    /// It is done.
    Done(Box<NodeCall>),
    /// It was deleted before it was done.
    Vanished,
    /// There is nothing to wait for any more.
    Failed(Failure),
}

impl Calls {
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        watch: Arc<CallWatch>,
        view: Arc<ClusterView>,
        hooks: Hooks,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            watch,
            view,
            withdrawn: AtomicU64::new(0),
            hooks,
        }
    }

    /// Runs a call on its node; returns the response as JSON.
    pub(crate) async fn run(&self, ask: &Ask<'_>, deadline: Instant) -> Result<Value, Failure> {
        let wanted = NodeCall::of(ask.node, ask.method, ask.key, ask.request.clone());
        let name = wanted.name_any();
        let mut sights = self.watch.wait_for(&name);
        let answer = self.run_watched(ask, &wanted, &mut sights, deadline).await;
        drop(sights);
        self.watch.tidy(&name);
        answer
    }

    async fn run_watched(
        &self,
        ask: &Ask<'_>,
        wanted: &NodeCall,
        sights: &mut mpsc::UnboundedReceiver<Sight>,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        for _ in 0..ATTEMPTS {
            if self.view.is_gone(ask.node).await.map_err(Failure::Server)? {
                return Err(Failure::NodeGone);
            }
            let Some(open) = self.open(wanted).await? else {
                continue;
            };
            ask.method.fail(self.hooks, "front", "created");
            match self.wait(open, sights, deadline).await {
                Waited::Done(call) => {
                    ask.method.fail(self.hooks, "front", "answered");
                    if call.is_settled() || ask.method.effect == Effect::Reads {
                        self.delete_later(&call);
                    }
                    return answered(ask.method, &call);
                }
                Waited::Vanished => {}
                Waited::Failed(failure) => return Err(failure),
            }
        }
        Err(Failure::Pending)
    }

    /// The open call with these arguments: created, or joined. `None` if another one was in the way, and is gone now.
    async fn open(&self, wanted: &NodeCall) -> Result<Option<NodeCall>, Failure> {
        let how = PostParams {
            field_manager: Some(CONTROLLER.to_owned()),
            ..PostParams::default()
        };
        match self.api.create(&how, wanted).await {
            Ok(made) => return Ok(Some(made)),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(kube::Error::Api(status)) if status.code == 422 => {
                return Err(Failure::Answer(Code::InvalidArgument, status.message));
            }
            Err(error) => return Err(Failure::Server(error.to_string())),
        }
        let found = self.find(&wanted.name_any()).await?;
        let Some(found) = found else {
            return Ok(None);
        };
        if found.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        if found.asks_as(wanted) {
            return match found.progress() {
                // Its answer may be older than this request.
                Progress::Done => self.ask_again(&found).await,
                _ => Ok(Some(found)),
            };
        }
        if found.is_settled() || self.view.is_gone(&found.spec.node_name).await == Ok(true) {
            self.delete(&found).await?;
            return Ok(None);
        }
        Err(Failure::Conflict(found.spec.node_name))
    }

    /// Asks for one more run of a call, conditional on the version that was read; none if it has changed.
    async fn ask_again(&self, call: &NodeCall) -> Result<Option<NodeCall>, Failure> {
        let how = PatchParams {
            field_manager: Some(CONTROLLER.to_owned()),
            ..PatchParams::default()
        };
        let body = json!({
            "metadata": {"uid": call.uid(), "resourceVersion": call.resource_version()},
            "spec": {"attempt": call.next_attempt()},
        });
        let (name, patch) = (call.name_any(), Patch::Merge(&body));
        match self.api.patch(&name, &how, &patch).await {
            Ok(asked) => Ok(Some(asked)),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
            Err(error) => Err(Failure::Server(error.to_string())),
        }
    }

    /// Waits until a call is done, or will not be. A watch that is late shows what was of its name before: that is no
    /// answer to what was asked.
    async fn wait(
        &self,
        mut call: NodeCall,
        sights: &mut mpsc::UnboundedReceiver<Sight>,
        deadline: Instant,
    ) -> Waited {
        let mut round = Instant::now() + AWAY;
        loop {
            if call.progress() == Progress::Done {
                return Waited::Done(Box::new(call));
            }
            tokio::select! {
                sight = sights.recv() => match sight {
                    Some(Sight::Changed(now)) if now.continues(&call) => call = *now,
                    Some(_) => match self.find(&call.name_any()).await {
                        Ok(Some(now)) if now.continues(&call) => call = now,
                        Ok(_) => return Waited::Vanished,
                        // The next sight, or the deadline, ends it.
                        Err(_) => {}
                    },
                    None => return Waited::Failed(Failure::Pending),
                },
                () = sleep_until(deadline) => return Waited::Failed(Failure::Pending),
                () = sleep_until(round) => {
                    round = Instant::now() + ROUND;
                    if let Some(failure) = self.give_up(&call).await {
                        return Waited::Failed(failure);
                    }
                }
            }
        }
    }

    /// Gives a call up if its node is gone, or withdraws it if the agent is away and has not begun.
    async fn give_up(&self, call: &NodeCall) -> Option<Failure> {
        let node = &call.spec.node_name;
        if self.view.is_gone(node).await == Ok(true) {
            return Some(Failure::NodeGone);
        }
        if call.progress() != Progress::Fresh || !self.view.is_away(node) {
            return None;
        }
        self.withdraw(call).await.then_some(Failure::Withdrawn)
    }

    /// Deletes a call that the agent has not begun: it cannot begin any more. Returns false if it has begun, or if that is
    /// not known.
    pub(crate) async fn withdraw(&self, call: &NodeCall) -> bool {
        let is_withdrawn = call.progress() == Progress::Fresh
            && self.api.delete(&call.name_any(), &own(call)).await.is_ok();
        if is_withdrawn {
            self.withdrawn.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                call = call.name_any(),
                node = call.spec.node_name,
                "call withdrawn"
            );
        }
        is_withdrawn
    }

    /// Number of calls that were withdrawn since the start.
    pub(crate) fn withdrawn(&self) -> u64 {
        self.withdrawn.load(Ordering::Relaxed)
    }

    /// The call of a name, from the server's store; none if there is none.
    pub(crate) async fn find(&self, name: &str) -> Result<Option<NodeCall>, Failure> {
        let found = self.api.get_opt(name).await;
        found.map_err(|error| Failure::Server(error.to_string()))
    }

    /// Deletes this very call; one that is gone is none.
    pub(crate) async fn delete(&self, call: &NodeCall) -> Result<(), Failure> {
        match self.api.delete(&call.name_any(), &own(call)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(Failure::Server(error.to_string())),
        }
    }

    /// Deletes an answered call without having its caller wait; what is left is swept.
    fn delete_later(&self, call: &NodeCall) {
        let (api, name, how) = (self.api.clone(), call.name_any(), own(call));
        tokio::spawn(async move {
            let _ = api.delete(&name, &how).await;
        });
    }
}

/// Deletes a call only if it is this one and nobody has asked for it once more.
fn own(call: &NodeCall) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions {
        uid: call.uid(),
        resource_version: call.resource_version(),
    })
}

/// The answer of a call that is done.
fn answered(method: &Method, call: &NodeCall) -> Result<Value, Failure> {
    let status = call.status.clone().unwrap_or_default();
    let code = call.code();
    if code == Code::Ok {
        // An empty response may be left out.
        let response = status.response.get(method.member).cloned();
        return Ok(response.unwrap_or_else(|| json!({})));
    }
    Err(Failure::Answer(code, status.message.unwrap_or_default()))
}

#[cfg(test)]
mod tests;
