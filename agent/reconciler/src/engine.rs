//! The work loop: which object is reconciled when, and how a failure is retried.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex},
    time::Duration,
};

use drumlin_crd::{LastOperation, ObjectKey};
use k8s_openapi::jiff::Timestamp;
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

/// Delay before an object that waits for another one is reconciled again, if nothing wakes it earlier.
const DEPENDENCY: Duration = Duration::from_mins(1);
/// How long the agent may be unreachable, for a restart, before each object reports that it waits for it.
const RESTART: Duration = Duration::from_mins(1);
/// Maximum time that an object is queued for: no clock is right for longer.
const LONGEST_WAIT: Duration = Duration::from_hours(24 * 365);
/// Maximum delay between two probes of the agent.
const PROBE: Duration = Duration::from_secs(30);

/// Reconciles objects until it is stopped.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: Client,
    agent: OnceCell<Agent>,
    retries: Mutex<HashMap<ObjectKey, Retry>>,
    /// Number of retries since the start, by the name of their code.
    retried: Mutex<BTreeMap<String, u64>>,
    /// True while the agent answers; otherwise no object is reconciled.
    gate: watch::Sender<bool>,
    /// Notified when a call timed out: it is slow, or the agent answers no calls.
    suspicion: Notify,
}

/// Consecutive failures of one object with the same code; another code starts a new sequence.
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
            retried: Mutex::default(),
            gate: watch::Sender::new(false),
            suspicion: Notify::new(),
        }
    }

    /// The identity of the agent, if it has answered.
    pub(crate) fn known_agent(&self) -> Option<&Agent> {
        self.agent.get()
    }

    /// Runs until `stop`; a call that is in flight then is abandoned, and repeated after the next start.
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
        let engine = Arc::clone(&self);
        let writing = async move { engine.shared.keep_writing().await };
        let writing = tokio::spawn(stop.run_until_cancelled_owned(writing));
        for task in workers.into_iter().chain([gate, writing]) {
            let _ = task.await;
        }
        if let Err(error) = self.shared.write_all() {
            tracing::error!(error = %error, "state could not be written");
        }
    }

    /// Probes the agent until it answers, then opens the gate. While the gate is open, it probes only after a call
    /// timed out.
    async fn keep_gate(self: Arc<Self>) {
        let mut gate = self.gate.subscribe();
        loop {
            self.reach().await;
            self.gate.send_replace(true);
            // Closed again by the first call that cannot reach the agent.
            loop {
                tokio::select! {
                    _ = gate.wait_for(|open| !open) => break,
                    () = self.suspicion.notified() => {}
                }
                if self.client.greet().await.is_err() {
                    self.gate.send_replace(false);
                }
            }
            // Limits the rate for an agent that answers this probe but refuses all other calls.
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Probes until the agent answers.
    async fn reach(&self) {
        let since = Instant::now();
        let mut pause = Duration::from_secs(1);
        let mut is_told = false;
        let mut is_noted = false;
        while let Err(failure) = self.greet().await {
            // The first probe may fail because both have just been started.
            if !is_told && since.elapsed() >= Duration::from_secs(1) {
                is_told = true;
                tracing::warn!(rpc.code = ?failure.code, error = %failure.message, "agent does not answer");
            }
            if !is_noted && since.elapsed() >= self.shared.time_lapse(RESTART) {
                is_noted = true;
                self.note_unreachable(&failure);
            }
            sleep(self.shared.time_lapse(pause)).await;
            pause = (pause * 2).min(PROBE);
        }
        if is_told {
            tracing::info!("agent answers again");
        }
    }

    /// Asks the agent who it is; the first time also which objects its answer concerns.
    pub(crate) async fn greet(&self) -> Result<(), Failure> {
        self.client.greet().await?;
        let is_known = self.agent.initialized();
        let agent = self.agent.get_or_try_init(|| self.client.agent()).await?;
        if !is_known {
            self.look_at_renamed(&agent.node);
            self.look_at_groups(agent);
        }
        Ok(())
    }

    /// Queues objects whose handles contain another name of this node, even if they need no other work.
    fn look_at_renamed(&self, here: &str) {
        let keys = self.shared.keys_of(|record| record.is_of_former_name(here));
        for key in keys {
            self.shared.doubt(&key);
            self.reset(&key);
        }
    }

    /// Queues groups whose volumes changed while the reconciler was stopped.
    fn look_at_groups(&self, agent: &Agent) {
        let is_group = |record: &Record| matches!(record.body, Body::Group(_));
        for key in self.shared.keys_of(is_group) {
            let Some(record) = self.shared.record(&key) else {
                continue;
            };
            let pass = self.pass(agent, record);
            if pass.may_change_members(&pass.record) {
                self.shared.doubt(&key);
                self.reset(&key);
            }
        }
    }

    fn pass<'a>(&'a self, agent: &'a Agent, record: Record) -> Pass<'a> {
        Pass {
            shared: &self.shared,
            client: &self.client,
            agent,
            record,
            is_doubted: false,
            wake: None,
        }
    }

    /// Sets the `AgentUnreachable` condition on every object with pending work: once for each outage.
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

    /// Runs one pass that is due now; returns its object, or `None` if none is due. For a caller that is the only worker.
    pub(crate) async fn step(&self) -> Option<ObjectKey> {
        let key = self.shared.queue.next_due(|key| self.shared.lane(key))?;
        self.one(&key).await;
        self.shared.queue.done(&key);
        Some(key)
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
        if record.is_spent() {
            if let Err(error) = self.shared.forget(key) {
                tracing::error!(object = %key, error = %error, "state could not be written");
            }
            return;
        }
        if !self.shared.needs_work(&record) && !record.is_timed() {
            self.follow_alone(key, record, agent).await;
            return;
        }
        let is_elsewhere = record.node().is_some_and(|node| node != agent.node);
        if is_elsewhere && !record.is_begun() {
            // One directory may serve many hosts; this object belongs to another node.
            self.shared
                .note_elsewhere(key, record.node().unwrap_or_default());
            if let Err(error) = self.shared.forget(key) {
                tracing::error!(object = %key, error = %error, "state could not be written");
            }
            return;
        }
        let mut pass = self.pass(agent, record);
        pass.is_doubted = self.shared.take_doubt(key);
        let result = if is_elsewhere {
            // This host was renamed, or its state directory was copied from another host: the record is kept.
            let message = format!(
                "spec.nodeName is not this node, {node}, but the object was created here; if the node was renamed, set spec.nodeName to {node}",
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
                Body::Volume(_) => pass.volume().await,
                Body::Snapshot(_) => pass.snapshot().await,
                Body::Group(_) => pass.group().await,
                Body::GroupSnapshot(_) => pass.group_snapshot().await,
                Body::Schedule(_) => pass.schedule().await,
            }
        };
        if result.is_err() && pass.is_doubted {
            self.shared.doubt(key);
        }
        if let Some(wake) = pass.wake {
            self.queue_at(key, wake);
        }
        self.conclude(pass.record, result);
    }

    /// Updates the node name in orphans and paused objects, and changes nothing else: groups and the inventory know
    /// them by their handles.
    async fn follow_alone(&self, key: &ObjectKey, record: Record, agent: &Agent) {
        if !record.is_of_former_name(&agent.node) {
            return;
        }
        let mut pass = self.pass(agent, record);
        if pass.follow_node().await.is_ok() {
            lock(&self.retries).remove(key);
            return;
        }
        // Their conditions stay unchanged.
        let (_, pause) = self.pause(key, Code::Unavailable);
        self.queue_after(key, pause);
    }

    /// Queues an object for a pass after a pause.
    fn queue_after(&self, key: &ObjectKey, pause: Duration) {
        let pause = self.shared.time_lapse(pause);
        self.shared.queue.add(key, Instant::now() + pause);
    }

    /// Queues an object for a pass at a time of the day.
    fn queue_at(&self, key: &ObjectKey, time: Timestamp) {
        let pause = time.duration_since(self.shared.now());
        let pause = Duration::try_from(pause).unwrap_or(Duration::ZERO);
        self.queue_after(key, pause.min(LONGEST_WAIT));
    }

    /// Records the result of a pass and queues the next one.
    fn conclude(&self, mut record: Record, result: Result<Verdict, Halt>) {
        let key = record.key();
        let due = |pause| self.queue_after(&key, pause);
        let mut code = Code::Ok;
        let (verdict, again) = match result {
            Ok(verdict) => {
                lock(&self.retries).remove(&key);
                *record.last_operation() = None;
                (verdict, None)
            }
            // The new object has its own pass.
            Err(Halt::State(Error::Replaced(_))) => return due(Duration::ZERO),
            Err(Halt::State(error)) => {
                tracing::error!(object = %key, error = %error, "state could not be written");
                return due(Duration::from_secs(5));
            }
            Err(Halt::Failed(failure)) if failure.cause == Cause::Transport => {
                // The agent is unreachable, which is no failure of an object: no condition is written, because a
                // restart of the agent would write to all objects.
                self.gate.send_replace(false);
                return due(self.pause(&key, Code::Unavailable).1);
            }
            Err(Halt::Waiting(verdict)) => {
                let pause = match (verdict.state, verdict.reason) {
                    // The volume may be in a group that has no manifest, whose changes wake nothing.
                    (
                        _,
                        "DependencyNotFound" | "MembersPending" | "MemberConflict"
                        | "MountConflict",
                    ) => Some(DEPENDENCY),
                    // An administrator may have reassigned or deleted the resource at the agent.
                    (State::Stalled, reason) if is_held(reason) => Some(DEPENDENCY),
                    // The API server recovers by itself, so retry sooner than for conditions that need a person.
                    (_, "FinalizerPending" | "DeletionPending" | "SnapshotPending") => {
                        Some(self.pause(&key, Code::Unavailable).1)
                    }
                    // The snapshot itself is retried, and its schedule has a next time.
                    (State::Stalled, _) | (_, "SnapshotFailed") => None,
                    _ => Some(self.pause(&key, Code::FailedPrecondition).1),
                };
                (verdict, pause)
            }
            Err(Halt::Failed(failure)) => {
                let (attempts, pause) = self.pause(&key, failure.code);
                if failure.cause == Cause::Deadline {
                    self.suspicion.notify_one();
                }
                // The operation is in flight in the agent, which is no failure; how far it is is told.
                let is_in_flight =
                    failure.code == Code::Aborted || failure.cause == Cause::Deadline;
                if !is_in_flight || failure.progress.is_some() {
                    note(&mut record, &failure, attempts, pause);
                }
                code = failure.code;
                (backoff::verdict(&failure), Some(pause))
            }
        };
        record.judge(&verdict);
        // Compare with the stored record, not the one that the pass began with: the pass may have saved more since, or
        // changed what it saved.
        let stored = self.shared.record(&key);
        if let Some(stored) = stored
            && stored != record
            && stored.drumlin.incarnation == record.drumlin.incarnation
        {
            if changed(&stored, &record) {
                log(&key, &verdict, code);
            }
            if let Err(error) = self.shared.save_behind(&record) {
                tracing::error!(object = %key, error = %error, "state could not be written");
            }
            self.forget_pruned(&key);
        }
        if let Some(pause) = again {
            due(pause);
        } else if record.is_spent() {
            due(Duration::ZERO);
        }
    }

    /// Removes the record of an object that was pruned: no manifest is left that could ask what became of it.
    fn forget_pruned(&self, key: &ObjectKey) {
        let is_over = |record: &Record| record.drumlin.is_pruned && record.is_nothing();
        if self.shared.with(key, is_over) == Some(true)
            && let Err(error) = self.shared.forget(key)
        {
            tracing::error!(object = %key, error = %error, "state could not be written");
        }
    }

    fn pause(&self, key: &ObjectKey, code: Code) -> (u32, Duration) {
        *lock(&self.retried).entry(format!("{code:?}")).or_default() += 1;
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

    /// Number of retries since the start, by the name of their code.
    pub(crate) fn retried(&self) -> BTreeMap<String, u64> {
        lock(&self.retried).clone()
    }

    /// Queues an object immediately and resets its backoff.
    pub(crate) fn reset(&self, key: &ObjectKey) {
        lock(&self.retries).remove(key);
        self.shared.queue.add(key, Instant::now());
    }
}

/// Records a failed call that is retried after `pause`; a repeated failure is recorded only when its attempts have
/// doubled.
fn note(record: &mut Record, failure: &Failure, attempts: u32, pause: Duration) {
    let noted = record.last_operation();
    let message: String = failure.message.chars().take(1024).collect();
    let code = format!("{:?}", failure.code);
    let before = noted.take();
    let same = before.as_ref().filter(|before| {
        // The same failure continues since its first occurrence, even if its message differs.
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
            progress: failure.progress.clone(),
        })
    } else {
        before
    };
}

/// Returns true if the `Ready` condition changed.
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

/// A random number between 0 and 1, for jitter.
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
                progress: None,
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
        // Written again only when the attempts have doubled, or the message differs.
        assert_eq!(noted("CreateVolume", Code::Internal, "x", 3), second);
        let other = noted("CreateVolume", Code::Internal, "y", 4);
        assert_eq!(other.start_time, first.start_time);
        let another = noted("NodeStageVolume", Code::Internal, "y", 1);
        assert_ne!(another.start_time, first.start_time);
    }
}
