//! The open calls, as a watch shows them to those who wait for their answers.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard},
};

use drumlin_reconciler::lock;
use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::{
    ResourceExt,
    api::Api,
    runtime::watcher::{Config, Event},
};
use tokio::sync::mpsc;

use crate::{
    node_call::{NodeCall, Progress, is_over},
    reservations::Reservations,
};

/// What the watch shows of a call.
#[derive(Debug)]
pub(crate) enum Sight {
    /// The object, created or changed.
    Changed(Box<NodeCall>),
    /// The object may be gone: the server has to be asked.
    Unsure,
}

/// What is kept of a call.
#[derive(Debug, Clone, Copy)]
struct KnownCall {
    progress: Progress,
    created: Option<Timestamp>,
}

impl KnownCall {
    fn of(call: &NodeCall) -> Self {
        let created = call.metadata.creation_timestamp.as_ref();
        Self {
            progress: call.progress(),
            created: created.map(|time| time.0),
        }
    }
}

/// The calls of the cluster.
#[derive(Debug, Default)]
pub(crate) struct CallWatch {
    /// The calls that there are, by their names.
    known: Mutex<HashMap<String, KnownCall>>,
    waiters: Mutex<HashMap<String, Vec<mpsc::UnboundedSender<Sight>>>>,
    reservations: Mutex<Reservations>,
}

impl CallWatch {
    /// Follows the calls, forever.
    pub(crate) async fn follow(&self, calls: Api<NodeCall>, listed: impl Fn()) {
        let mut events = drumlin_reconciler::api_server::watch(calls, Config::default());
        let (mut begun, mut names) = (Vec::new(), HashMap::new());
        while let Some(event) = events.next().await {
            match event {
                Event::Apply(call) => self.see(&call),
                Event::Delete(call) => {
                    self.reservations().end(&call);
                    lock(&self.known).remove(&call.name_any());
                    self.tell(&call.name_any(), || Sight::Unsure);
                }
                Event::Init => {
                    begun.clear();
                    names.clear();
                }
                Event::InitApply(call) => {
                    begun.extend(call.uid());
                    names.insert(call.name_any(), KnownCall::of(&call));
                    self.see(&call);
                }
                Event::InitDone => {
                    self.reservations().retain(&begun);
                    *lock(&self.known) = std::mem::take(&mut names);
                    self.doubt_all();
                    listed();
                }
            }
        }
    }

    /// Notes a call as the watch shows it.
    pub(crate) fn see(&self, call: &NodeCall) {
        if call.progress() == Progress::Done {
            self.reservations().end(call);
        } else {
            self.reservations().begin(call);
        }
        let name = call.name_any();
        lock(&self.known).insert(name.clone(), KnownCall::of(call));
        self.tell(&name, || Sight::Changed(Box::new(call.clone())));
    }

    /// What is reserved by calls that are not in the report of their node yet.
    pub(crate) fn reservations(&self) -> MutexGuard<'_, Reservations> {
        lock(&self.reservations)
    }

    /// The names of all calls.
    pub(crate) fn known(&self) -> Vec<String> {
        lock(&self.known).keys().cloned().collect()
    }

    /// Number of calls by how far they are.
    pub(crate) fn progress(&self) -> BTreeMap<&'static str, usize> {
        let mut counts: BTreeMap<_, _> = Progress::ALL.iter().map(|one| (one.name(), 0)).collect();
        for call in lock(&self.known).values() {
            *counts.entry(call.progress.name()).or_default() += 1;
        }
        counts
    }

    /// Number of calls that nobody has begun, and nobody may any more.
    pub(crate) fn expired(&self) -> usize {
        let known = lock(&self.known);
        let fresh = known
            .values()
            .filter(|call| call.progress == Progress::Fresh);
        fresh
            .filter(|call| call.created.is_some_and(is_over))
            .count()
    }

    /// What is seen of the call `name` from now on.
    pub(crate) fn wait_for(&self, name: &str) -> mpsc::UnboundedReceiver<Sight> {
        let (tell, told) = mpsc::unbounded_channel();
        let mut waiters = lock(&self.waiters);
        waiters.entry(name.to_owned()).or_default().push(tell);
        told
    }

    fn tell(&self, name: &str, sight: impl Fn() -> Sight) {
        let mut waiters = lock(&self.waiters);
        if let Some(those) = waiters.get_mut(name) {
            those.retain(|one| one.send(sight()).is_ok());
            if those.is_empty() {
                waiters.remove(name);
            }
        }
    }

    /// A new list may lack what was deleted without a watch.
    fn doubt_all(&self) {
        let names: Vec<String> = lock(&self.waiters).keys().cloned().collect();
        for name in names {
            self.tell(&name, || Sight::Unsure);
        }
    }

    /// Forgets those who wait no more.
    pub(crate) fn tidy(&self, name: &str) {
        let mut waiters = lock(&self.waiters);
        if let Some(those) = waiters.get_mut(name) {
            those.retain(|one| !one.is_closed());
            if those.is_empty() {
                waiters.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::SignedDuration};
    use serde_json::json;

    use super::*;
    use crate::{
        method::CREATE_VOLUME,
        node_call::{NodeCallStatus, Phase},
    };

    #[test]
    fn calls_are_counted_by_their_progress_and_expire_only_if_nobody_has_begun_them() {
        let watch = CallWatch::default();
        let see = |key: &str, minutes: i64, phase: Option<Phase>| {
            let mut call = NodeCall::of("one", &CREATE_VOLUME, key, json!({}));
            let created = Timestamp::now() - SignedDuration::from_mins(minutes);
            call.metadata.creation_timestamp = Some(Time(created));
            call.status = phase.map(|phase| NodeCallStatus {
                phase: Some(phase),
                attempt: call.spec.attempt,
                ..NodeCallStatus::default()
            });
            watch.see(&call);
        };
        see("new", 1, None);
        see("old", 11, None);
        see("taken", 11, Some(Phase::Taken));
        let wanted = [("done", 0), ("fresh", 2), ("running", 1), ("waiting", 0)];
        assert_eq!(watch.progress(), wanted.into());
        assert_eq!(watch.expired(), 1);
        see("old", 11, Some(Phase::Done));
        assert_eq!(watch.progress()["done"], 1);
        assert_eq!(watch.expired(), 0);
    }
}
