//! Which object is looked at when, and what a failure leads to.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex},
    time::Duration,
};

use drumlin_crd::{LastOperation, ObjectKey};
use tokio::{
    sync::{Notify, OnceCell, watch},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{
    Error,
    backoff::{self, rule},
    client::{Agent, Cause, Client, Failure},
    kinds::{Halt, Pass, is_held, stalled},
    queue::WORKERS,
    record::{Body, Record, State, Verdict, after, now},
    state::{Shared, lock},
};

/// How long an object waits for another one, if nothing wakes it before.
const DEPENDENCY: Duration = Duration::from_mins(1);
/// So long an agent may be away, to be restarted perhaps, before each object says that it waits for it.
const RESTART: Duration = Duration::from_mins(1);
/// The longest pause between two questions whether the agent is there.
const PROBE: Duration = Duration::from_secs(30);

/// Works on objects until it is told to stop.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: Client,
    agent: OnceCell<Agent>,
    retries: Mutex<HashMap<ObjectKey, Retry>>,
    /// Whether the agent answers; while it does not, no object is touched.
    gate: watch::Sender<bool>,
    /// A call was not answered in time: it takes long, or nobody answers any.
    suspicion: Notify,
}

/// The failures of one object in a row, all of the same code: another code is another trouble.
struct Retry {
    code: Code,
    attempts: u32,
    pause: Duration,
}

impl Engine {
    pub(crate) fn new(shared: Arc<Shared>, client: Client) -> Self {
        Self {
            shared,
            client,
            agent: OnceCell::new(),
            retries: Mutex::default(),
            gate: watch::Sender::new(false),
            suspicion: Notify::new(),
        }
    }

    /// The agent, if it has answered.
    pub(crate) fn known_agent(&self) -> Option<&Agent> {
        self.agent.get()
    }

    /// Works until `stop`; a call that runs then is let go, and repeated by the next start.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let gate = tokio::spawn(
            stop.clone()
                .run_until_cancelled_owned(Arc::clone(&self).keep_gate()),
        );
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                tokio::spawn(
                    stop.clone()
                        .run_until_cancelled_owned(Arc::clone(&self).work()),
                )
            })
            .collect();
        for task in workers.into_iter().chain([gate]) {
            let _ = task.await;
        }
    }

    /// Asks the agent, until it answers, whether it is there; then opens the gate. While it is open it asks only when a call was not answered in time.
    async fn keep_gate(self: Arc<Self>) {
        let mut gate = self.gate.subscribe();
        loop {
            self.reach().await;
            self.gate.send_replace(true);
            // Closed again by the first call that finds nobody there.
            loop {
                tokio::select! {
                    _ = gate.wait_for(|open| !open) => break,
                    () = self.suspicion.notified() => {}
                }
                if self.client.greet().await.is_err() {
                    self.gate.send_replace(false);
                }
            }
            // Whoever answers this question and refuses all others is not asked without end.
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Asks until the agent answers.
    async fn reach(&self) {
        let since = Instant::now();
        let mut pause = Duration::from_secs(1);
        let mut is_told = false;
        let mut is_noted = false;
        while let Err(failure) = self.greet().await {
            // The first answer may fail because both have just been started.
            if !is_told && since.elapsed() >= Duration::from_secs(1) {
                is_told = true;
                tracing::warn!(rpc.code = ?failure.code, error = %failure.message, "agent does not answer");
            }
            if !is_noted && since.elapsed() >= RESTART {
                is_noted = true;
                self.note_unreachable(&failure);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PROBE);
        }
        if is_told {
            tracing::info!("agent answers again");
        }
    }

    async fn greet(&self) -> Result<(), Failure> {
        self.client.greet().await?;
        let is_known = self.agent.initialized();
        let agent = self.agent.get_or_try_init(|| self.client.agent()).await?;
        if !is_known {
            self.look_at_renamed(&agent.node);
            self.look_at_groups(agent);
        }
        Ok(())
    }

    /// Has what was made under another name of this node be looked at, though it may be as it should.
    fn look_at_renamed(&self, here: &str) {
        let keys = self.shared.keys_of(|record| record.is_of_former_name(here));
        for key in keys {
            self.shared.doubt(&key);
            self.reset(&key);
        }
    }

    /// Has groups be looked at whose volumes have changed when nobody was left to tell them.
    fn look_at_groups(&self, agent: &Agent) {
        let is_group = |record: &Record| matches!(record.body, Body::Group { .. });
        for key in self.shared.keys_of(is_group) {
            let Some(record) = self.shared.record(&key) else {
                continue;
            };
            let pass = self.pass(agent, record, false);
            if pass.may_change_members(&pass.record) {
                self.shared.doubt(&key);
                self.reset(&key);
            }
        }
    }

    fn pass<'a>(&'a self, agent: &'a Agent, record: Record, is_doubted: bool) -> Pass<'a> {
        Pass {
            shared: &self.shared,
            client: &self.client,
            agent,
            record,
            is_doubted,
        }
    }

    /// Writes on every object that has something to do that it waits for the agent: once for each absence.
    fn note_unreachable(&self, failure: &Failure) {
        let verdict = Verdict {
            state: State::Reconciling,
            reason: "AgentUnreachable",
            message: format!("the agent does not answer: {}", failure.message),
        };
        for key in self.shared.keys_of(|record| self.shared.needs_work(record)) {
            if let Err(error) = self.shared.edit(&key, |record| record.judge(&verdict)) {
                tracing::error!(object = %key, error = %error, "state could not be written");
            }
        }
    }

    /// Waits until the agent answers.
    pub(crate) async fn open(&self) {
        let _ = self.gate.subscribe().wait_for(|open| *open).await;
    }

    async fn work(self: Arc<Self>) {
        loop {
            self.open().await;
            let key = self.shared.queue.next(|key| self.shared.lane(key)).await;
            self.one(&key).await;
            self.shared.queue.done(&key);
        }
    }

    async fn one(&self, key: &ObjectKey) {
        let (Some(record), Some(agent)) = (self.shared.record(key), self.agent.get()) else {
            return;
        };
        if !self.shared.needs_work(&record) {
            self.follow_alone(key, record, agent).await;
            return;
        }
        let is_elsewhere = record.node().is_some_and(|node| node != agent.node);
        if is_elsewhere && !record.is_begun() {
            // One directory may serve many hosts; this object is another's.
            self.shared
                .note_elsewhere(key, record.node().unwrap_or_default());
            if let Err(error) = self.shared.forget(key) {
                tracing::error!(object = %key, error = %error, "state could not be written");
            }
            return;
        }
        let is_doubted = self.shared.take_doubt(key);
        let mut pass = self.pass(agent, record, is_doubted);
        let result = if is_elsewhere {
            // This host was renamed, or its state was carried to another: what was begun is not forgotten.
            let message = format!(
                "object was created on this agent under another node name, and this node is {node}; if the node was renamed, set spec.nodeName to {node}",
                node = agent.node
            );
            Err(stalled("NotThisNode", message))
        } else if let Err(halt) = pass.follow_node().await {
            Err(halt)
        } else if let Err(halt) = pass.keep_finalizer().await {
            Err(halt)
        } else if let Err(halt) = pass.confirm_end().await {
            Err(halt)
        } else if let Err(halt) = pass.tell_wanted().await {
            Err(halt)
        } else {
            match &pass.record.body {
                Body::Volume { .. } => pass.volume().await,
                Body::Snapshot { .. } => pass.snapshot().await,
                Body::Group { .. } => pass.group().await,
                Body::GroupSnapshot { .. } => pass.group_snapshot().await,
            }
        };
        if result.is_err() && pass.is_doubted {
            self.shared.doubt(key);
        }
        self.conclude(pass.record, result);
    }

    /// Orphans and paused objects follow the name of their node, and are left alone otherwise: groups and whoever asks for
    /// what is kept know them by their ids.
    async fn follow_alone(&self, key: &ObjectKey, record: Record, agent: &Agent) {
        if !record.is_of_former_name(&agent.node) {
            return;
        }
        let mut pass = self.pass(agent, record, false);
        if pass.follow_node().await.is_ok() {
            lock(&self.retries).remove(key);
            return;
        }
        // What is told of them stays as it is.
        let (_, pause) = self.pause(key, Code::Unavailable);
        self.shared.queue.add(key, Instant::now() + pause);
    }

    /// Writes down what a pass came to, and when the next one is due.
    fn conclude(&self, mut record: Record, result: Result<Verdict, Halt>) {
        let key = record.key();
        let due = |pause| self.shared.queue.add(&key, Instant::now() + pause);
        let mut code = Code::Ok;
        let (verdict, again) = match result {
            Ok(verdict) => {
                lock(&self.retries).remove(&key);
                *record.last_operation() = None;
                (verdict, None)
            }
            // What is there now is looked at by itself.
            Err(Halt::State(Error::Replaced(_))) => return due(Duration::ZERO),
            Err(Halt::State(error)) => {
                tracing::error!(object = %key, error = %error, "state could not be written");
                return due(Duration::from_secs(5));
            }
            Err(Halt::Failed(failure)) if failure.cause == Cause::Transport => {
                // No object is to blame, and none is written: a restart of the agent would write to all of them.
                self.gate.send_replace(false);
                return due(self.pause(&key, Code::Unavailable).1);
            }
            Err(Halt::Waiting(verdict)) => {
                let pause = match (verdict.state, verdict.reason) {
                    // Who has a volume may be a group that no manifest is about.
                    (_, "DependencyNotFound" | "MembersPending" | "MemberConflict") => {
                        Some(DEPENDENCY)
                    }
                    // An administrator may have given it away, or deleted it, at the agent.
                    (State::Stalled, reason) if is_held(reason) => Some(DEPENDENCY),
                    // The server comes back by itself, and sooner than what a person has to look at.
                    (_, "FinalizerPending" | "DeletionPending") => {
                        Some(self.pause(&key, Code::Unavailable).1)
                    }
                    (State::Stalled, _) => None,
                    _ => Some(self.pause(&key, Code::FailedPrecondition).1),
                };
                (verdict, pause)
            }
            Err(Halt::Failed(failure)) => {
                let (attempts, pause) = self.pause(&key, failure.code);
                if failure.cause == Cause::Deadline {
                    self.suspicion.notify_one();
                }
                // The agent works on it, which is no failure.
                if failure.code != Code::Aborted && failure.cause != Cause::Deadline {
                    note(&mut record, &failure, attempts, pause);
                }
                code = failure.code;
                (backoff::verdict(&failure), Some(pause))
            }
        };
        record.judge(&verdict);
        // Not what the pass began with: it may have written more down meanwhile, or have changed what it wrote.
        let stored = self.shared.record(&key);
        if let Some(stored) = stored
            && stored != record
            && stored.drumlin.incarnation == record.drumlin.incarnation
        {
            if changed(&stored, &record) {
                log(&key, &verdict, code);
            }
            if let Err(error) = self.shared.save(&record) {
                tracing::error!(object = %key, error = %error, "state could not be written");
            }
        }
        if let Some(pause) = again {
            due(pause);
        }
    }

    fn pause(&self, key: &ObjectKey, code: Code) -> (u32, Duration) {
        let mut retries = lock(&self.retries);
        let before = retries.get(key).filter(|retry| retry.code == code);
        let attempts = before.map_or(1, |retry| retry.attempts.saturating_add(1));
        let pause = rule(code).pause(before.map(|retry| retry.pause), chance());
        let retry = Retry {
            code,
            attempts,
            pause,
        };
        retries.insert(key.clone(), retry);
        (attempts, pause)
    }

    /// An object is looked at anew: what failed before counts no more.
    pub(crate) fn reset(&self, key: &ObjectKey) {
        lock(&self.retries).remove(key);
        self.shared.queue.add(key, Instant::now());
    }
}

/// Notes a failed call that is made again after `pause`; the same failure again is noted only when its attempts have doubled.
fn note(record: &mut Record, failure: &Failure, attempts: u32, pause: Duration) {
    let noted = record.last_operation();
    let message: String = failure.message.chars().take(1024).collect();
    let code = format!("{:?}", failure.code);
    let before = noted.take();
    let same = before.as_ref().filter(|before| {
        // The same trouble goes on since it began, whatever is said of it.
        before.rpc == failure.rpc && before.code == code
    });
    let since = same.and_then(|before| before.start_time.clone());
    let is_news = same.is_none_or(|before| {
        before.message != message || attempts >= before.attempts.saturating_mul(2)
    });
    *noted = if is_news {
        Some(LastOperation {
            rpc: failure.rpc.to_owned(),
            code,
            message,
            attempts,
            start_time: Some(since.unwrap_or_else(now)),
            next_retry_time: Some(after(pause)),
        })
    } else {
        before
    };
}

/// Whether an operator would say that something happened.
fn changed(before: &Record, after: &Record) -> bool {
    let shown = |record: &Record| {
        record.condition("Ready").map(|ready| {
            (
                ready.status.clone(),
                ready.reason.clone(),
                ready.message.clone(),
            )
        })
    };
    shown(before) != shown(after)
}

fn log(key: &ObjectKey, verdict: &Verdict, code: Code) {
    let Verdict {
        state,
        reason,
        message,
    } = verdict;
    match state {
        State::Stalled => {
            tracing::warn!(object = %key, reason, rpc.code = ?code, detail = %message, "object is stalled");
        }
        State::Ready => {
            tracing::info!(object = %key, reason, rpc.code = ?code, detail = %message, "object is ready");
        }
        State::Gone if *reason == "Released" => {
            tracing::info!(object = %key, reason, rpc.code = ?code, detail = %message, "object released");
        }
        State::Gone => {
            tracing::info!(object = %key, reason, rpc.code = ?code, detail = %message, "object deleted");
        }
        State::Reconciling => {
            tracing::info!(object = %key, reason, rpc.code = ?code, detail = %message, "object is waiting");
        }
    }
}

/// A number between 0 and 1 that spreads what would come all at once.
pub(crate) fn chance() -> f64 {
    let random = RandomState::new().build_hasher().finish() % 1000;
    u32::try_from(random).map_or(0.5, |random| f64::from(random) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use drumlin_crd::read;

    #[test]
    fn the_last_operation_says_since_when_it_fails_and_when_it_is_tried_next() {
        let text = "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {name: a}\nspec: {capacity: 1Gi}\n";
        let object = read(text).unwrap().documents.remove(0).object;
        let mut record = Record::new(&object, "a.yaml", 1);
        let mut noted = |rpc, code, message: &str, attempts| {
            let failure = Failure {
                rpc,
                code,
                message: message.to_owned(),
                cause: Cause::Answer,
            };
            note(&mut record, &failure, attempts, Duration::from_secs(5));
            record.last_operation().clone().unwrap()
        };
        let first = noted("CreateVolume", Code::Internal, "x", 1);
        assert_ne!(first.next_retry_time, first.start_time);
        let second = noted("CreateVolume", Code::Internal, "x", 2);
        assert_eq!(
            (second.attempts, &second.start_time),
            (2, &first.start_time)
        );
        assert_ne!(second.next_retry_time, first.next_retry_time);
        // Written again only when the attempts have doubled, or it says something else.
        assert_eq!(noted("CreateVolume", Code::Internal, "x", 3), second);
        let other = noted("CreateVolume", Code::Internal, "y", 4);
        assert_eq!(other.start_time, first.start_time);
        let another = noted("NodeStageVolume", Code::Internal, "y", 1);
        assert_ne!(another.start_time, first.start_time);
    }
}
