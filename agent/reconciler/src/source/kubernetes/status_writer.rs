//! Writes the status of objects to an API server: only changes, with a rate limit.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use drumlin_crd::ObjectKey;
use futures::future;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};

use super::server::{EventNote, FieldManager, Refusal, Server};
use crate::{
    queue::{Lane, Queue},
    record::{Record, Served, State, Verdict},
    state::{Shared, lock},
};

/// Minimum interval between two writes of an object that is being reconciled.
const BUSY: Duration = Duration::from_secs(5);
/// Debounce for an unsettled object, which may settle soon.
const MOMENT: Duration = Duration::from_millis(200);
/// Maximum number of writes at once: a slow request must not delay the others.
const AT_ONCE: usize = 4;
/// Rate limit: the burst, and the writes per second after it.
const BURST: f64 = 20.0;
const RATE: f64 = 5.0;
/// Initial and maximum backoff after a failed write.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// The known status of each object on the server, and the pending writes.
pub(crate) struct StatusWriter {
    shared: Arc<Shared>,
    server: Server,
    node: String,
    queue: Queue,
    known: Mutex<HashMap<ObjectKey, ServerStatus>>,
}

/// The known status of an object on the server.
#[derive(Debug, Clone, Default)]
struct ServerStatus {
    uid: String,
    status: Value,
    written: Option<Instant>,
    pause: Option<Duration>,
    /// The status of a rejected object, which has no record.
    refused: Option<Value>,
    /// True if only our finalizer is to be removed.
    is_released: bool,
}

impl StatusWriter {
    pub(crate) fn new(shared: Arc<Shared>, server: Server, node: String) -> Self {
        Self {
            shared,
            server,
            node,
            queue: Queue::default(),
            known: Mutex::default(),
        }
    }

    /// Notes that the server has an object with this status.
    pub(crate) fn saw(&self, key: &ObjectKey, uid: &str, status: Value) {
        let mut known = lock(&self.known);
        let now = known.entry(key.clone()).or_default();
        if now.uid != uid {
            *now = ServerStatus::default();
            uid.clone_into(&mut now.uid);
        }
        now.status = status;
    }

    /// Notes that the server has deleted an object.
    pub(crate) fn lost(&self, key: &ObjectKey) {
        lock(&self.known).remove(key);
    }

    /// Writes why an object was rejected.
    pub(crate) fn refuse(&self, key: &ObjectKey, generation: i64, verdict: &Verdict) {
        let mut known = lock(&self.known);
        let Some(known) = known.get_mut(key) else {
            return;
        };
        let status = told_status(&known.status, generation, verdict);
        known.refused = Some(status);
        self.queue.add(key, Instant::now());
    }

    /// Removes our finalizer: the object has no resources here.
    pub(crate) fn release(&self, key: &ObjectKey) {
        if let Some(known) = lock(&self.known).get_mut(key) {
            known.is_released = true;
        }
        self.queue.add(key, Instant::now());
    }

    /// Notes that a rejected object was accepted.
    pub(crate) fn accept(&self, key: &ObjectKey) {
        if let Some(known) = lock(&self.known).get_mut(key) {
            known.refused = None;
            known.is_released = false;
        }
        self.changed(key);
    }

    /// Notes that the record of an object has changed.
    pub(crate) fn changed(&self, key: &ObjectKey) {
        let is_done =
            |record: &Record| record.is_settled() || record.condition("Stalled").is_some();
        let Some(is_done) = self.shared.with(key, is_done) else {
            return;
        };
        let pause = if is_done { Duration::ZERO } else { MOMENT };
        self.queue.add(key, Instant::now() + pause);
    }

    /// Writes changed statuses, forever.
    pub(crate) async fn run(self: Arc<Self>, mut changed: mpsc::UnboundedReceiver<ObjectKey>) {
        let listening = async {
            while let Some(key) = changed.recv().await {
                self.changed(&key);
            }
        };
        let left = Mutex::new((BURST, Instant::now()));
        let writing = (0..AT_ONCE).map(async |_| {
            loop {
                let key = self.queue.next(|_| Lane::Making).await;
                if self.one(&key).await {
                    let pause = spend(&mut lock(&left));
                    tokio::time::sleep(pause).await;
                }
                self.queue.done(&key);
            }
        });
        future::join(listening, future::join_all(writing)).await;
    }

    /// Writes the changes of one object; returns true if there was a write.
    async fn one(&self, key: &ObjectKey) -> bool {
        let Some(known) = lock(&self.known).get(key).cloned() else {
            return false;
        };
        let record = self.shared.record(key);
        let served = record.as_ref().and_then(Record::served);
        let is_over = |served: &Served| {
            served.uid == known.uid
                && served.is_deleting
                && served.has_finalizer
                // Not an object that was released but shall be deleted since.
                && record.as_ref().is_some_and(Record::is_destroyed)
        };
        if known.is_released || served.is_some_and(is_over) {
            let gone = self.server.let_go(key, &known.uid).await;
            self.shared.fail("status.let-go");
            self.note(key, &known.uid, gone);
            return true;
        }
        let status = match (&known.refused, &record, served) {
            (Some(refused), ..) => refused.clone(),
            (None, Some(record), Some(served)) if served.uid == known.uid => {
                // An object without conditions was not reconciled yet.
                if record.condition("Ready").is_none() {
                    return false;
                }
                let is_busy = !record.is_settled() && record.condition("Stalled").is_none();
                if let Some(due) = known.written.filter(|_| is_busy).map(|at| at + BUSY)
                    && due > Instant::now()
                {
                    self.queue.add(key, due);
                    return false;
                }
                record.status()
            }
            _ => return false,
        };
        if ordered(&status) == ordered(&known.status) {
            return false;
        }
        let written = self
            .server
            .write_status(key, &known.uid, &status, FieldManager::Agent)
            .await;
        if written.is_ok() {
            self.shared.fail("status.told");
            if let Some(now) = lock(&self.known).get_mut(key)
                && now.uid == known.uid
            {
                now.status.clone_from(&status);
                now.written = Some(Instant::now());
            }
            self.tell(key, &known, &status).await;
        }
        self.note(key, &known.uid, written);
        true
    }

    /// Publishes an event if the `Ready` condition changed.
    async fn tell(&self, key: &ObjectKey, before: &ServerStatus, status: &Value) {
        let (was, is) = (ready(&before.status), ready(status));
        let seen = |ready: &Option<Condition>| {
            let ready = ready.as_ref();
            ready.map(|ready| (ready.status.clone(), ready.reason.clone()))
        };
        if seen(&was) == seen(&is) {
            return;
        }
        let Some(is) = is else {
            return;
        };
        let told = EventNote {
            is_trouble: condition(status, "Stalled").is_some(),
            reason: is.reason,
            message: is.message,
        };
        if let Err(refusal) = self.server.tell(key, &before.uid, &self.node, told).await {
            tracing::debug!(object = %key, error = %refusal, "event could not be published");
        }
    }

    /// Retries a failed write later, unless the object does not exist: the watch reports that.
    fn note(&self, key: &ObjectKey, uid: &str, result: Result<(), Refusal>) {
        let mut known = lock(&self.known);
        let Some(known) = known.get_mut(key).filter(|known| known.uid == uid) else {
            return;
        };
        match result {
            Ok(()) | Err(Refusal::Gone) => known.pause = None,
            Err(Refusal::Other(why)) => {
                let (first, last) = PAUSES;
                let pause = known.pause.map_or(first, |pause| (pause * 2).min(last));
                known.pause = Some(pause);
                tracing::warn!(object = %key, error = %why, "API server update failed");
                self.queue.add(key, Instant::now() + pause);
            }
        }
    }
}

/// Takes one token of the rate limit; returns how long to wait if none is left.
fn spend((left, at): &mut (f64, Instant)) -> Duration {
    *left = (*left + at.elapsed().as_secs_f64() * RATE).min(BURST) - 1.0;
    *at = Instant::now();
    Duration::from_secs_f64((-*left / RATE).max(0.0))
}

/// A status without the fields of others, in a canonical order: lists with map semantics have none.
fn ordered(status: &Value) -> Value {
    let mut status = status.clone();
    if let Value::Object(map) = &mut status {
        map.remove("candidates");
        for list in ["conditions", "members"] {
            if let Some(Value::Array(items)) = map.get_mut(list) {
                items.sort_by_key(|item| {
                    ["type", "kind", "name"].map(|field| item.get(field).map(Value::to_string))
                });
            }
        }
    }
    status
}

/// The status of a rejected object: the previous one, with the reason of the rejection.
fn told_status(before: &Value, generation: i64, verdict: &Verdict) -> Value {
    let mut status = before.clone();
    let mut conditions: Vec<Condition> = conditions(before);
    crate::record::judge(&mut conditions, verdict, generation);
    if !status.is_object() {
        status = Value::Object(serde_json::Map::new());
    }
    if let Value::Object(map) = &mut status {
        map.remove("candidates");
        map.insert("observedGeneration".to_owned(), generation.into());
        let conditions = serde_json::to_value(conditions).unwrap_or_default();
        map.insert("conditions".to_owned(), conditions);
    }
    status
}

fn conditions(status: &Value) -> Vec<Condition> {
    let told = status.get("conditions").cloned().unwrap_or_default();
    serde_json::from_value(told).unwrap_or_default()
}

fn condition(status: &Value, kind: &str) -> Option<Condition> {
    let mut all = conditions(status).into_iter();
    all.find(|condition| condition.type_ == kind && condition.status == "True")
}

fn ready(status: &Value) -> Option<Condition> {
    let mut all = conditions(status).into_iter();
    all.find(|condition| condition.type_ == "Ready")
}

/// It is stalled until something is changed.
pub(crate) fn refusal(reason: &'static str, message: String) -> Verdict {
    Verdict {
        state: State::Stalled,
        reason,
        message,
    }
}

#[cfg(test)]
mod tests {
    use drumlin_crd::Object;
    use serde_json::json;

    use super::*;
    use crate::{
        Hooks,
        source::kubernetes::fake_api_server::{Answer, Fake},
        store::Store,
    };

    #[tokio::test(start_paused = true)]
    async fn one_write_that_is_not_answered_holds_up_no_other() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        let shared = Shared::new(store, state.path().to_owned(), Hooks::default()).unwrap();
        let shared = Arc::new(shared);
        let fake = Fake::willing();
        fake.follow(|asked| asked.path.contains("/slow").then_some(Answer::Hangs));
        let server = Server::known_by(fake.client());
        let mirror = StatusWriter::new(Arc::clone(&shared), server, "node-a".to_owned());
        for name in ["slow", "other"] {
            let metadata = serde_json::from_value(json!({"name": name, "namespace": "db"}));
            let spec = json!({"nodeName": "node-a", "capacity": "1Gi"});
            let object = Object::served("Volume", metadata.unwrap(), spec).unwrap();
            let said = Served {
                uid: name.to_owned(),
                ..Served::default()
            };
            let mut record = Record::of_server(&object, said);
            record.judge(&refusal("InvalidArgument", "no".to_owned()));
            shared.put(&record).unwrap();
            mirror.saw(&record.key(), name, Value::Null);
            mirror.changed(&record.key());
            tokio::time::sleep(MOMENT).await;
        }
        let (_changes, changed) = mpsc::unbounded_channel();
        let second = Duration::from_secs(1);
        let _ = tokio::time::timeout(second, Arc::new(mirror).run(changed)).await;
        let asked = fake.asked();
        let is_told = |name: &str| {
            let path = format!("/volumes/{name}/status");
            asked.iter().any(|one| one.path.ends_with(&path))
        };
        assert!(is_told("slow") && is_told("other"), "{asked:?}");
    }
}
