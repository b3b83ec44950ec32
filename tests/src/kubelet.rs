//! The part of kubelet that registers plugins, without the rest.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drumlin_proto::{
    csi::v1::{NodeGetInfoRequest, node_client::NodeClient},
    pluginregistration::{
        InfoRequest, PluginInfo, RegistrationStatus, registration_client::RegistrationClient,
    },
};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::agent::eventually;

/// How often the directory is looked at. Kubelet is told of changes; here nothing must be missed in between but what is
/// shorter.
const LOOK: Duration = Duration::from_millis(2);
/// How long `GetInfo` may take.
const INFO: Duration = Duration::from_secs(1);
/// Pause after a failure that this kubelet repeats.
const PAUSE: Duration = Duration::from_millis(100);

/// What becomes of a failed registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// 1.35 and older: nothing, until the socket is another one.
    NewSocketOnly,
    /// 1.36 and newer: it is repeated.
    SameSocket,
}

/// What is wrong with the next registrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `NodeGetInfo` fails.
    NodeGetInfo,
    /// The plugin is not told what came of it.
    LosesNotice,
}

/// What this kubelet has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It saw another socket than before.
    NewSocket,
    /// It saw none any more.
    NoSocket,
    /// Nobody answered at the socket.
    NotServed,
    /// The driver is registered.
    Registered(PluginInfo),
    /// The registration failed.
    Failed,
    /// The driver is registered no longer.
    Unregistered,
}

/// Which file is at a path; an inode may be used again.
type SocketId = (u64, i64, i64);

#[derive(Debug, Default)]
struct State {
    events: Vec<Event>,
    faults: Vec<Fault>,
    socket: Option<SocketId>,
    registered: Option<PluginInfo>,
    /// Nothing more is done about this socket.
    is_settled: bool,
}

/// A kubelet that registers the driver of one socket, until it is dropped.
#[derive(Debug)]
pub struct Kubelet {
    path: PathBuf,
    state: Arc<Mutex<State>>,
    retry: Retry,
    working: JoinHandle<()>,
}

impl Kubelet {
    /// Starts one that looks at this registration socket.
    pub fn start(path: PathBuf, retry: Retry) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let working = tokio::spawn(work(path.clone(), Arc::clone(&state), retry));
        Self {
            path,
            state,
            retry,
            working,
        }
    }

    /// Ends it and starts it again: it has forgotten all but what it has done.
    pub fn restart(&mut self) {
        self.working.abort();
        let events = lock(&self.state).events.clone();
        let state = State {
            events,
            ..State::default()
        };
        self.state = Arc::new(Mutex::new(state));
        self.working = tokio::spawn(work(self.path.clone(), Arc::clone(&self.state), self.retry));
    }

    /// Has the next registrations fail, one after the other.
    pub fn fail(&self, faults: &[Fault]) {
        lock(&self.state).faults.extend(faults);
    }

    /// What it has done so far.
    pub fn events(&self) -> Vec<Event> {
        lock(&self.state).events.clone()
    }

    /// How often it has done this.
    pub fn count(&self, event: &Event) -> usize {
        self.events().iter().filter(|one| *one == event).count()
    }

    /// The driver that is registered now.
    pub fn registered(&self) -> Option<PluginInfo> {
        lock(&self.state).registered.clone()
    }

    /// Waits until it has registered a driver so many times in all.
    pub async fn until_registered(&self, times: usize) -> PluginInfo {
        let seen = || {
            let events = self.events();
            (events, self.registered())
        };
        let is_there = |(events, now): &(Vec<Event>, Option<PluginInfo>)| {
            let registered = events
                .iter()
                .filter(|one| matches!(one, Event::Registered(_)));
            registered.count() >= times && now.is_some()
        };
        let (_, registered) = eventually(seen, is_there).await;
        registered.expect("it is registered")
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.working.abort();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn socket_id(path: &Path) -> Option<SocketId> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.ino(), found.ctime(), found.ctime_nsec()))
}

async fn work(path: PathBuf, state: Arc<Mutex<State>>, retry: Retry) {
    loop {
        let is_due = {
            let mut state = lock(&state);
            state.look(&path);
            state.socket.is_some() && !state.is_settled
        };
        if is_due && !register(&path, &state, retry).await {
            sleep(PAUSE).await;
        }
        sleep(LOOK).await;
    }
}

impl State {
    /// Compares what is at the path with what was there.
    fn look(&mut self, path: &Path) {
        let now = socket_id(path);
        if now == self.socket {
            return;
        }
        self.events.push(match now {
            Some(_) => Event::NewSocket,
            None => Event::NoSocket,
        });
        if self.registered.take().is_some() {
            self.events.push(Event::Unregistered);
        }
        self.socket = now;
        self.is_settled = false;
    }
}

/// One attempt; returns false if it is to be repeated.
async fn register(path: &Path, state: &Mutex<State>, retry: Retry) -> bool {
    let channel = drumlin_proto::connect(path).expect("the path is short");
    let mut plugin = RegistrationClient::new(channel);
    let asked = timeout(INFO, plugin.get_info(InfoRequest {})).await;
    let Ok(Ok(info)) = asked else {
        lock(state).events.push(Event::NotServed);
        return false;
    };
    let info = info.into_inner();
    let fault = {
        let mut state = lock(state);
        let is_faulty = !state.faults.is_empty();
        is_faulty.then(|| state.faults.remove(0))
    };
    let error = match driver(&info).await {
        _ if fault == Some(Fault::NodeGetInfo) => Some("NodeGetInfo failed".to_owned()),
        error => error,
    };
    {
        let mut state = lock(state);
        match &error {
            None => {
                state.registered = Some(info.clone());
                state.events.push(Event::Registered(info));
            }
            Some(_) => state.events.push(Event::Failed),
        }
        state.is_settled = error.is_none() || retry == Retry::NewSocketOnly;
    }
    let is_done = error.is_none() || retry == Retry::NewSocketOnly;
    if fault != Some(Fault::LosesNotice) {
        let status = RegistrationStatus {
            plugin_registered: error.is_none(),
            error: error.unwrap_or_default(),
        };
        // A plugin that has another socket by now need not know.
        let _ = plugin.notify_registration_status(status).await;
    }
    is_done
}

/// Asks the driver which node it is; returns what is wrong.
async fn driver(info: &PluginInfo) -> Option<String> {
    let channel = match drumlin_proto::connect(Path::new(&info.endpoint)) {
        Ok(channel) => channel,
        Err(error) => return Some(error.to_string()),
    };
    let node = NodeClient::new(channel)
        .node_get_info(NodeGetInfoRequest {})
        .await;
    node.err().map(|status| status.message().to_owned())
}
