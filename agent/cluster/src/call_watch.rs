//! The open calls, as a watch shows them to those who wait for their answers.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard},
};

use drumlin_reconciler::lock;
use futures::StreamExt;
use kube::{
    ResourceExt,
    api::Api,
    runtime::watcher::{Config, Event},
};
use tokio::sync::mpsc;

use crate::{
    node_call::{NodeCall, Progress},
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

/// The calls of the cluster.
#[derive(Debug, Default)]
pub(crate) struct CallWatch {
    /// The names of the calls that there are.
    known: Mutex<HashSet<String>>,
    waiters: Mutex<HashMap<String, Vec<mpsc::UnboundedSender<Sight>>>>,
    reservations: Mutex<Reservations>,
}

impl CallWatch {
    /// Follows the calls, forever.
    pub(crate) async fn follow(&self, calls: Api<NodeCall>, listed: impl Fn()) {
        let mut events = drumlin_reconciler::api_server::watch(calls, Config::default());
        let (mut begun, mut names) = (Vec::new(), HashSet::new());
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
                    names.insert(call.name_any());
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
        lock(&self.known).insert(name.clone());
        self.tell(&name, || Sight::Changed(Box::new(call.clone())));
    }

    /// What is reserved by calls that are not in the report of their node yet.
    pub(crate) fn reservations(&self) -> MutexGuard<'_, Reservations> {
        lock(&self.reservations)
    }

    /// The names of all calls.
    pub(crate) fn known(&self) -> Vec<String> {
        lock(&self.known).iter().cloned().collect()
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
