//! Which object is looked at when, and what a failure leads to.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drumlin_crd::{LastOperation, ObjectKey};
use tokio::{
    sync::{OnceCell, watch},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{
    Error,
    backoff::{self, rule},
    client::{Agent, Client, Failure},
    kinds::{Halt, Pass},
    queue::Queue,
    record::{Body, Record, State, Verdict, now},
    store::Store,
};

/// How many objects are worked on at once.
const WORKERS: usize = 4;
/// How long an object waits for another one, if nothing wakes it before.
const DEPENDENCY: Duration = Duration::from_mins(1);

/// What all passes share: the records, on disk and in memory.
pub(crate) struct Shared {
    pub(crate) state_dir: PathBuf,
    pub(crate) boot: String,
    pub(crate) fail: fn(&str),
    pub(crate) queue: Queue,
    store: Store,
    records: Mutex<HashMap<ObjectKey, Record>>,
    doubted: Mutex<HashSet<ObjectKey>>,
}

/// Works on objects until it is told to stop.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: Client,
    agent: OnceCell<Agent>,
    attempts: Mutex<HashMap<ObjectKey, u32>>,
    /// Whether the agent answers; while it does not, no object is touched.
    gate: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(store: Store, state_dir: PathBuf, fail: fn(&str)) -> Result<Self, Error> {
        let (records, unreadable) = store.load()?;
        for one in unreadable {
            tracing::error!(path = %one.path.display(), error = %one.why, "state of an object cannot be read; it is left alone");
        }
        Ok(Self {
            state_dir,
            boot: boot(),
            fail,
            queue: Queue::default(),
            store,
            records: Mutex::new(
                records
                    .into_iter()
                    .map(|record| (record.key(), record))
                    .collect(),
            ),
            doubted: Mutex::default(),
        })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// One object as it was written last.
    pub(crate) fn record(&self, key: &ObjectKey) -> Option<Record> {
        lock(&self.records).get(key).cloned()
    }

    /// All objects.
    pub(crate) fn keys(&self) -> Vec<ObjectKey> {
        lock(&self.records).keys().cloned().collect()
    }

    /// Whether there is an object that was not destroyed.
    pub(crate) fn has_anything(&self) -> bool {
        lock(&self.records)
            .values()
            .any(|record| !record.drumlin.destroyed)
    }

    /// Writes an object down, and wakes those that wait for it.
    pub(crate) fn save(&self, record: &Record) -> Result<(), Error> {
        self.store.save(record)?;
        let key = record.key();
        let mut records = lock(&self.records);
        records.insert(key.clone(), record.clone());
        let dependants: Vec<ObjectKey> = records
            .values()
            .filter(|other| !other.is_settled() && depends(other, &key))
            .map(Record::key)
            .collect();
        drop(records);
        for dependant in dependants {
            self.queue.add(&dependant, Instant::now());
        }
        Ok(())
    }

    /// Forgets an object.
    pub(crate) fn forget(&self, key: &ObjectKey) -> Result<(), Error> {
        self.store.remove(key)?;
        lock(&self.records).remove(key);
        Ok(())
    }

    /// The mount of an object may be gone; it is looked at again.
    pub(crate) fn doubt_mount(&self, key: &ObjectKey) {
        lock(&self.doubted).insert(key.clone());
    }

    /// Whether the mount of an object may be gone.
    pub(crate) fn is_mount_doubted(&self, key: &ObjectKey) -> bool {
        lock(&self.doubted).contains(key)
    }

    /// The mount of an object was seen.
    pub(crate) fn mount_is_proven(&self, key: &ObjectKey) {
        lock(&self.doubted).remove(key);
    }

    /// Whether there may be something to do for an object: if not, nothing is called.
    pub(crate) fn needs_work(&self, record: &Record) -> bool {
        if record.drumlin.orphan_since.is_some() || record.is_paused() {
            return false;
        }
        let is_unproven = record.drumlin.mounted.is_some()
            && record.drumlin.boot.as_deref() != Some(self.boot.as_str());
        !record.is_settled() || is_unproven || self.is_mount_doubted(&record.key())
    }
}

impl Engine {
    pub(crate) fn new(shared: Arc<Shared>, client: Client) -> Self {
        Self {
            shared,
            client,
            agent: OnceCell::new(),
            attempts: Mutex::default(),
            gate: watch::Sender::new(false),
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

    /// Asks the agent, until it answers, whether it is there; then opens the gate. Asks nothing while it is open.
    async fn keep_gate(self: Arc<Self>) {
        let mut gate = self.gate.subscribe();
        let mut pause = Duration::from_secs(1);
        let mut is_told = false;
        loop {
            let answer = match self.client.probe().await {
                Ok(()) => self
                    .agent
                    .get_or_try_init(|| self.client.agent())
                    .await
                    .map(|_| ()),
                Err(failure) => Err(failure),
            };
            match answer {
                Ok(()) => {
                    if is_told {
                        tracing::info!("agent answers again");
                    }
                    (pause, is_told) = (Duration::from_secs(1), false);
                    self.gate.send_replace(true);
                    // Closed again by the first call that finds nobody there.
                    let _ = gate.wait_for(|open| !open).await;
                }
                Err(failure) => {
                    if !is_told && pause > Duration::from_secs(1) {
                        is_told = true;
                        tracing::warn!(rpc.code = ?failure.code, error = %failure.message, "agent does not answer");
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(30));
                }
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
            let key = self.shared.queue.next().await;
            self.one(&key).await;
            self.shared.queue.done(&key);
        }
    }

    async fn one(&self, key: &ObjectKey) {
        let (Some(record), Some(agent)) = (self.shared.record(key), self.agent.get()) else {
            return;
        };
        if !self.shared.needs_work(&record) {
            return;
        }
        if record.node().is_some_and(|node| node != agent.node) {
            // One directory may serve many hosts; this object is another's.
            if let Err(error) = self.shared.forget(key) {
                tracing::error!(object = %key, error = %error, "state could not be written");
            }
            return;
        }
        let mut pass = Pass {
            shared: &self.shared,
            client: &self.client,
            agent,
            record,
        };
        let result = match &pass.record.body {
            Body::Volume { .. } => pass.volume().await,
            Body::Snapshot { .. } => pass.snapshot().await,
        };
        self.conclude(pass.record, result);
    }

    /// Writes down what a pass came to, and when the next one is due.
    fn conclude(&self, mut record: Record, result: Result<Verdict, Halt>) {
        let key = record.key();
        let before = record.clone();
        let (verdict, again) = match result {
            Ok(verdict) => {
                lock(&self.attempts).remove(&key);
                *record.last_operation() = None;
                (verdict, None)
            }
            Err(Halt::State(error)) => {
                tracing::error!(object = %key, error = %error, "state could not be written");
                self.shared
                    .queue
                    .add(&key, Instant::now() + Duration::from_secs(5));
                return;
            }
            Err(Halt::Waiting(verdict)) => {
                let pause = match (verdict.state, verdict.reason) {
                    (State::Stalled, _) => None,
                    (_, "DependencyNotFound") => Some(DEPENDENCY),
                    _ => Some(self.pause(&key, Code::FailedPrecondition).1),
                };
                (verdict, pause)
            }
            Err(Halt::Failed(failure)) => {
                let (attempts, pause) = self.pause(&key, failure.code);
                if failure.code == Code::Unavailable {
                    self.gate.send_replace(false);
                }
                note(&mut record, &failure, attempts);
                (backoff::verdict(&failure), Some(pause))
            }
        };
        record.judge(&verdict);
        if record != before {
            if changed(&before, &record) {
                log(&key, &verdict);
            }
            if let Err(error) = self.shared.save(&record) {
                tracing::error!(object = %key, error = %error, "state could not be written");
            }
        }
        if let Some(pause) = again {
            self.shared.queue.add(&key, Instant::now() + pause);
        }
    }

    fn pause(&self, key: &ObjectKey, code: Code) -> (u32, Duration) {
        let mut attempts = lock(&self.attempts);
        let attempts = attempts.entry(key.clone()).or_insert(0);
        *attempts = attempts.saturating_add(1);
        (*attempts, rule(code).pause(*attempts, chance()))
    }

    /// An object is looked at anew: what failed before counts no more.
    pub(crate) fn reset(&self, key: &ObjectKey) {
        lock(&self.attempts).remove(key);
        self.shared.queue.add(key, Instant::now());
    }
}

impl Record {
    fn last_operation(&mut self) -> &mut Option<LastOperation> {
        match &mut self.body {
            Body::Volume { status, .. } => &mut status.last_operation,
            Body::Snapshot { status, .. } => &mut status.last_operation,
        }
    }
}

/// Notes a failed call; the same failure again is noted only when its attempts have doubled.
fn note(record: &mut Record, failure: &Failure, attempts: u32) {
    let noted = record.last_operation();
    let message: String = failure.message.chars().take(1024).collect();
    let code = format!("{:?}", failure.code);
    if let Some(noted) = noted
        && (noted.code.as_str(), noted.message.as_str()) == (code.as_str(), message.as_str())
        && attempts < noted.attempts.saturating_mul(2)
    {
        return;
    }
    *noted = Some(LastOperation {
        rpc: failure.rpc.to_owned(),
        code,
        message,
        attempts,
        start_time: Some(now()),
        next_retry_time: None,
    });
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

fn log(key: &ObjectKey, verdict: &Verdict) {
    match verdict.state {
        State::Stalled => {
            tracing::warn!(object = %key, reason = verdict.reason, message = %verdict.message, "object is stalled");
        }
        State::Ready => {
            tracing::info!(object = %key, reason = verdict.reason, detail = %verdict.message, "object is ready");
        }
        State::Gone => {
            tracing::info!(object = %key, reason = verdict.reason, detail = %verdict.message, "object is gone");
        }
        State::Reconciling => {
            tracing::info!(object = %key, reason = verdict.reason, detail = %verdict.message, "object is waiting");
        }
    }
}

/// Whether `record` is made from, or shows, the object `key`.
fn depends(record: &Record, key: &ObjectKey) -> bool {
    if record.metadata.namespace.as_deref() != Some(key.namespace.as_str()) {
        return false;
    }
    let name = Some(key.name.as_str());
    match &record.body {
        Body::Volume { spec, .. } => {
            spec.source
                .as_ref()
                .is_some_and(|source| match key.kind.as_str() {
                    "Snapshot" => source.snapshot_name.as_deref() == name,
                    "Volume" => source.volume_name.as_deref() == name,
                    _ => false,
                })
        }
        Body::Snapshot { spec, .. } => {
            key.kind == "Volume" && spec.source.volume_name.as_deref() == name
        }
    }
}

/// What tells this boot from others: after another one, no mount is there.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// A number between 0 and 1 that spreads retries; it needs no better source than the clock.
fn chance() -> f64 {
    let nanoseconds = std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    f64::from(nanoseconds % 1000) / 1000.0
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
