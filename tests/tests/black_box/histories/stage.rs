//! The host that a history happens to.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::{Options, PATIENCE},
    random::Random,
    sources,
    storage::{Scratch, mounts_below},
};
use serde_json::Value;

use super::{
    apart::Reconciler,
    model::{File, Holds, Key, Kind, MOUNTED, Manifest, Model, OBJECTS},
    time::FACTOR,
};
use crate::{helpers::text, host::Host};

/// A host, what it must come to, and what has happened so far.
pub(super) struct Stage {
    host: Host,
    model: Model,
    /// Where a process can be killed, and whether that is the reconciler's.
    points: Vec<(String, bool)>,
    /// The reconciler, where it has a process of its own.
    reconciler: Option<Reconciler>,
    /// Whether the processes are in a time lapse from their next start on.
    is_in_time_lapse: bool,
    /// How often the node was called otherwise.
    renamed: u32,
    /// What the file of an object is called.
    files: BTreeMap<Key, String>,
    told: Vec<String>,
    seed: u64,
    /// The volumes, by id, that were not there before this step.
    new: BTreeSet<String>,
    /// The bytes that are written next; none are written twice.
    next: u64,
}

impl Stage {
    pub(super) async fn set(seed: u64) -> Self {
        let scratch = Scratch::new();
        let disk = scratch.directory("disk");
        let options = Options {
            node: Some(node(0)),
            config: Some(format!(
                "classes:\n- {{name: default, default: true, directory: {{path: {}, longestFreeze: 30}}}}\n",
                disk.display()
            )),
            ..Options::default()
        };
        let reconcilers = sources::reconciler_points().into_iter();
        let agents = sources::operation_points().into_iter();
        let points = reconcilers
            .map(|point| (point, true))
            .chain(agents.map(|point| (point, false)))
            .collect();
        let host = Host::over(scratch, options).await;
        // A directory without a single file would be an accident.
        host.write("keep.yaml", &["# nothing\n".to_owned()]);
        let file = |key: Key| (key, format!("{}-{}.yaml", key.0.word(), key.1));
        let mut stage = Self {
            host,
            model: Model::new(),
            points,
            reconciler: None,
            is_in_time_lapse: false,
            renamed: 0,
            files: OBJECTS.map(file).into(),
            told: Vec::new(),
            seed,
            new: BTreeSet::new(),
            next: 1,
        };
        if stage.is_apart() {
            stage.restart(None).await;
        }
        stage
    }

    /// Whether the reconciler has a process of its own.
    fn is_apart(&self) -> bool {
        self.seed.is_multiple_of(3)
    }

    /// Something happens, and what must come of it does.
    pub(super) async fn step(&mut self, step: u64, random: &mut Random) {
        let roll = random.below(100);
        // At first there must be something that could be lost.
        match roll {
            _ if step == 0 => {
                for key in OBJECTS {
                    if random.chance(70) {
                        self.say(key, Manifest::new(random));
                    }
                }
            }
            0..40 => self.edit(random),
            40..50 => self.use_one(random),
            50..57 => self.hours_pass(random).await,
            57..75 => {
                let point = random.one(&self.points);
                self.told(format!("killed at {}, or soon", point.0));
                self.restart(Some(&point)).await;
                self.edit(random);
                let soon = Duration::from_millis(random.below(700));
                self.wait_for_the_end(soon).await;
                self.restart(None).await;
            }
            75..85 => {
                let point = random.chance(50).then(|| random.one(&self.points));
                self.told(format!("state lost, killed at {point:?}"));
                self.kill();
                fs::remove_dir_all(self.host.agent.path("state/reconciler")).unwrap();
                self.model.forget();
                self.restart(point.as_ref()).await;
                if point.is_some() {
                    self.wait_for_the_end(Duration::from_millis(500)).await;
                    self.restart(None).await;
                }
            }
            85..95 => {
                self.told("disk away".to_owned());
                let (disk, away) = self.disk_and_away();
                self.kill();
                fs::rename(&disk, &away).unwrap();
                self.restart(None).await;
                self.edit(random);
                self.wait_for_the_end(Duration::from_millis(random.below(700)))
                    .await;
                self.kill();
                self.told("disk back".to_owned());
                fs::rename(&away, &disk).unwrap();
                self.restart(None).await;
            }
            95..98 => {
                let before = node(self.renamed);
                self.renamed += 1;
                let now = node(self.renamed);
                self.told(format!("{before} is called {now}"));
                self.model.rename(&before, &now);
                self.restart(None).await;
            }
            _ => self.restart(None).await,
        }
        self.settle().await;
    }

    /// All ends as it should, once more after a restart.
    pub(super) async fn end(mut self) {
        self.restart(None).await;
        self.settle().await;
    }

    /// Starts both processes so that hours pass in seconds, until they are started again.
    pub(super) async fn start_time_lapse(&mut self) {
        self.is_in_time_lapse = true;
        self.kill();
        self.restart(None).await;
        self.is_in_time_lapse = false;
    }

    pub(super) fn told(&mut self, what: String) {
        self.told.push(what);
    }

    fn disk(&self) -> PathBuf {
        self.host.agent.path("disk")
    }

    /// Where the disk is, and where it is while it is away.
    pub(super) fn disk_and_away(&self) -> (PathBuf, PathBuf) {
        (self.disk(), self.host.agent.path("away"))
    }

    /// Where the volume with a file system is mounted.
    pub(super) fn mount_point(&self) -> PathBuf {
        PathBuf::from(self.host.path("mounted"))
    }

    fn kill(&mut self) {
        self.reconciler = None;
        self.host.agent.kill();
    }

    /// Starts again what may have ended: with a point of the reconciler's the agent goes on, where they are apart.
    async fn restart(&mut self, point: Option<&(String, bool)>) {
        let is_apart = self.is_apart();
        let manifests = text(self.host.manifests.clone());
        let of = |is_reconcilers: bool| {
            let point = point.filter(|point| !is_apart || point.1 == is_reconcilers);
            point.map(|(point, _)| ("DRUMLIN_FAIL".to_owned(), point.clone()))
        };
        let lapse = self.time_lapse();
        self.reconciler = None;
        if !(is_apart && of(true).is_some()) || self.host.agent.has_ended() {
            self.host.agent.kill();
            let mut arguments = Vec::new();
            if let Some(before) = self.renamed.checked_sub(1) {
                arguments.extend(["--adopt-node".to_owned(), node(before)]);
            }
            if !is_apart {
                arguments.extend(["--manifests".to_owned(), manifests.clone()]);
            }
            let options = Options {
                node: Some(node(self.renamed)),
                arguments,
                environment: of(false).into_iter().chain(lapse.clone()).collect(),
                ..Options::default()
            };
            self.host.agent.try_restart_with(options).await;
        }
        if is_apart {
            let environment = of(true).into_iter().chain(lapse);
            let started = Reconciler::start(&self.host.agent, &manifests, environment);
            self.reconciler = Some(started);
        }
    }

    fn time_lapse(&self) -> Option<(String, String)> {
        let is_so = self.is_in_time_lapse;
        is_so.then(|| ("DRUMLIN_TIME_LAPSE".to_owned(), FACTOR.to_string()))
    }

    fn has_ended(&mut self) -> bool {
        let mut reconciler = self.reconciler.as_mut();
        let is_apart = reconciler.as_mut().is_some_and(|one| one.has_ended());
        is_apart || self.host.agent.has_ended()
    }

    /// Waits until a process has come to its fail point, at most so long.
    async fn wait_for_the_end(&mut self, most: Duration) {
        let end = Instant::now() + most;
        while Instant::now() < end && !self.has_ended() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// One object's file is changed, broken or taken away.
    pub(super) fn edit(&mut self, random: &mut Random) {
        let key = random.one(&OBJECTS);
        let wanted = &self.model.objects[&key];
        let roll = random.below(100);
        let file = self.files[&key].clone();
        match roll {
            // Whose a broken one is only its name says.
            _ if matches!(wanted.file, File::Valid(_)) && random.chance(8) => {
                self.told(format!("the file of {key:?} is called otherwise"));
                let now = format!("a{file}");
                let home = &self.host.manifests;
                fs::rename(home.join(&file), home.join(&now)).unwrap();
                self.files.insert(key, now);
            }
            0..12 if wanted.file != File::Away => {
                self.told(format!("{key:?} away"));
                fs::remove_file(self.host.manifests.join(file)).unwrap();
                self.model.write(key, File::Away);
            }
            12..24 => {
                self.told(format!("{key:?} broken"));
                let broken = ["kind: [", "apiVersion: drumlin.dev/v1alpha1\nkind: Vol"];
                self.host.write(&file, &[random.one(&broken).to_owned()]);
                self.model.write(key, File::Broken);
            }
            24..48 if wanted.asks() => {
                let manifest = Manifest {
                    is_absent: true,
                    is_deleted: random.chance(50),
                    capacity: wanted.capacity,
                };
                self.say(key, manifest);
            }
            _ => {
                let mut manifest = Manifest::new(random);
                // A mounted ext4 grows by a capability that not every machine gives to tests.
                let is_longer = random.chance(40) && key != MOUNTED;
                let grown = if is_longer { 16 } else { 0 };
                manifest.capacity = (wanted.capacity + grown).min(96);
                self.say(key, manifest);
            }
        }
    }

    fn say(&mut self, key: Key, manifest: Manifest) {
        self.told(format!("{key:?} says {manifest:?}"));
        let file = self.files[&key].clone();
        let path = self.host.path("mounted");
        self.host.write(&file, &[manifest.text(key, &path)]);
        self.model.write(key, File::Valid(manifest));
    }

    /// Somebody writes to a volume.
    pub(super) fn use_one(&mut self, random: &mut Random) {
        let key = random.one(&OBJECTS);
        if key.0 != Kind::Volume || !self.model.is_to_be_ready(key) {
            return;
        }
        let Some(handle) = self.model.objects[&key].image.clone() else {
            return;
        };
        self.told(format!("{key:?} is written to"));
        self.stamp(key, &handle);
    }

    fn stamp(&mut self, key: Key, handle: &str) {
        let bytes = self.next;
        self.next += 1;
        let holds = if key == MOUNTED {
            let file = fs::File::create(self.file()).unwrap();
            file.write_all_at(&bytes.to_le_bytes(), 0).unwrap();
            file.sync_all().unwrap();
            Holds::File(bytes)
        } else {
            let path = self.image(key.0, handle);
            let file = fs::File::options().write(true).open(path).unwrap();
            file.write_all_at(&bytes.to_le_bytes(), 0).unwrap();
            file.sync_all().unwrap();
            Holds::Bytes(bytes)
        };
        self.used(key, handle, holds);
    }

    fn used(&mut self, key: Key, handle: &str, holds: Holds) {
        self.model.wanted(key).image = Some(handle.to_owned());
        self.model.images.insert(handle.to_owned(), (key.0, holds));
    }

    /// The file in the volume that is mounted.
    fn file(&self) -> PathBuf {
        self.mount_point().join("file")
    }

    /// Where the agent has something.
    fn home(&self, kind: Kind, handle: &str) -> PathBuf {
        let key = handle.rsplit('/').next().unwrap();
        self.disk().join(kind.directory()).join(key)
    }

    fn image(&self, kind: Kind, handle: &str) -> PathBuf {
        self.home(kind, handle).join("image")
    }

    /// The bytes of an image; none when it is not there.
    fn bytes(&self, kind: Kind, handle: &str) -> Option<u64> {
        let file = fs::File::open(self.image(kind, handle)).ok()?;
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).unwrap();
        Some(u64::from_le_bytes(bytes))
    }

    /// What an image has, as far as it can be seen now.
    fn holds(&self, kind: Kind, handle: &str, wanted: Holds) -> Option<Holds> {
        match wanted {
            Holds::Bytes(_) => self.bytes(kind, handle).map(Holds::Bytes),
            Holds::File(_) if self.model.is_to_be_ready(MOUNTED) => {
                let bytes = fs::read(self.file()).ok()?;
                Some(Holds::File(u64::from_le_bytes(bytes.try_into().ok()?)))
            }
            Holds::File(_) | Holds::Something => self.home(kind, handle).exists().then_some(wanted),
        }
    }

    /// Waits until all is as the model wants it, and checks every byte.
    pub(super) async fn settle(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        for key in OBJECTS {
            while let Some(why) = self.lacks(key) {
                assert!(!self.has_ended(), "a process ended: {}", self.all());
                assert!(Instant::now() < deadline, "{key:?}: {why}: {}", self.all());
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
        }
        self.new.clear();
        // Volumes before the snapshots that are made of them.
        for key in OBJECTS {
            self.check(key);
        }
        let images = self.model.images.clone();
        for (handle, (kind, wanted)) in images {
            let found = self.holds(kind, &handle, wanted);
            assert_eq!(found, Some(wanted), "{kind:?} {handle}: {}", self.all());
        }
        let log = self.log();
        assert!(!log.contains("AlreadyExists"), "{}", self.all());
    }

    /// What is not yet so of an object, if anything.
    fn lacks(&self, key: Key) -> Option<String> {
        let wanted = &self.model.objects[&key];
        let record = self.host.find(key.0.word(), key.1);
        let Some(says) = &wanted.says else {
            // Until that is seen, a file that comes back means the object that was released.
            let is_known = record.is_some_and(|record| record["drumlin"]["destroyed"] == true);
            return is_known.then(|| "is not forgotten".to_owned());
        };
        let Some(record) = record else {
            return Some("there is no record".to_owned());
        };
        let book = &record["drumlin"];
        if wanted.is_orphan {
            return book["orphanSince"]
                .is_null()
                .then(|| "is no orphan".to_owned());
        }
        // Whose a broken file is only its name says, and that must have been seen before it breaks.
        if matches!(wanted.file, File::Valid(_)) && book["file"] != self.files[&key].as_str() {
            return Some("is in a file of another name".to_owned());
        }
        let policy = if says.is_deleted { "Delete" } else { "Retain" };
        let absent = &record["metadata"]["annotations"]["drumlin.dev/state"];
        let status = &record["status"];
        let is_followed = record["spec"]["deletionPolicy"] == policy
            && (absent == "absent") == says.is_absent
            && status["observedGeneration"] == record["metadata"]["generation"]
            && book["orphanSince"].is_null();
        if !is_followed {
            return Some("does not say what its file says".to_owned());
        }
        let handle = status[key.0.handle()].as_str();
        let here = format!("{}/", node(self.renamed));
        if handle.is_some_and(|handle| !handle.starts_with(&here)) {
            return Some("has an id of a former name of the node".to_owned());
        }
        let ready = condition(status);
        if says.is_absent {
            let reason = if says.destroys() {
                "Deleted"
            } else {
                "Released"
            };
            let is_so = ready["reason"] == reason
                || says.destroys()
                    && self.model.may_be_held(key)
                    && ready["reason"] == "DeletionBlocked";
            return (!is_so).then(|| format!("is not {reason}"));
        }
        if !self.model.is_to_be_ready(key) {
            return None;
        }
        if ready["status"] != "True" {
            return Some("is not ready".to_owned());
        }
        // Who unmounts it does so behind the back of the agent, which sees it soon.
        if key == MOUNTED && !is_mounted(&self.mount_point()) {
            return Some("is not mounted".to_owned());
        }
        let capacity = format!("{}Mi", wanted.capacity);
        let is_grown = key.0 != Kind::Volume || status["capacity"] == capacity;
        (!is_grown).then(|| format!("has not {capacity}"))
    }

    /// Whether an object has the bytes that it must have.
    fn check(&mut self, key: Key) {
        let wanted = self.model.objects[&key].clone();
        let Some(says) = &wanted.says else {
            return;
        };
        if says.destroys() && !wanted.is_orphan {
            let record = self.host.object(key.0.word(), key.1);
            if condition(&record["status"])["reason"] == "DeletionBlocked" {
                return;
            }
            for handle in wanted.image.iter().chain(&wanted.members) {
                let kind = self.model.images.remove(handle).map(|(kind, _)| kind);
                let is_left = kind.is_some_and(|kind| self.home(kind, handle).exists());
                assert!(!is_left, "{key:?} is left: {}", self.all());
            }
            let wanted = self.model.wanted(key);
            (wanted.image, wanted.capacity) = (None, 16);
            wanted.members.clear();
            return;
        }
        let status = self.host.find(key.0.word(), key.1);
        let status = status.map_or(Value::Null, |record| record["status"].clone());
        let is_taken = self.model.may_be_ready(key) && condition(&status)["status"] == "True";
        if !is_taken && !self.model.is_to_be_ready(key) {
            return;
        }
        let handle = status[key.0.handle()].as_str().unwrap().to_owned();
        if let Some(had) = wanted.image {
            assert_eq!(handle, had, "{key:?}: {}", self.all());
            assert_eq!(members(&status), wanted.members, "{key:?}: {}", self.all());
            return;
        }
        let is_used = self.model.images.contains_key(&handle);
        assert!(!is_used, "{key:?} has what was used: {}", self.all());
        match key.0 {
            Kind::Volume => {
                let is_new = if key == MOUNTED {
                    !self.file().exists()
                } else {
                    self.bytes(key.0, &handle) == Some(0)
                };
                assert!(is_new, "{key:?} is not new: {}", self.all());
                self.stamp(key, &handle);
                self.new.insert(handle);
            }
            Kind::Group => self.used(key, &handle, Holds::Something),
            Kind::Snapshot => {
                let of = status["sourceVolumeHandle"].as_str().unwrap().to_owned();
                let shown = self.shown(&handle, &of);
                self.used(key, &handle, shown);
            }
            Kind::GroupSnapshot => {
                for member in status["members"].as_array().unwrap() {
                    let text = |field: &str| member[field].as_str().unwrap().to_owned();
                    let snapshot = text("snapshotHandle");
                    let shown = self.shown(&snapshot, &text("volumeHandle"));
                    let held = (Kind::Snapshot, shown);
                    self.model.images.insert(snapshot, held);
                }
                self.used(key, &handle, Holds::Something);
                self.model.wanted(key).members = members(&status);
            }
        }
    }

    /// What a new snapshot of a volume must have, and has.
    fn shown(&self, snapshot: &str, volume: &str) -> Holds {
        let held = self.model.images.get(volume).map(|(_, holds)| *holds);
        let shown = match held {
            // It was taken before anybody could write to it.
            Some(Holds::Bytes(_)) if self.new.contains(volume) => Holds::Bytes(0),
            Some(Holds::Bytes(bytes)) => Holds::Bytes(bytes),
            Some(_) => Holds::Something,
            None => panic!(
                "{snapshot} is of {volume}, which is nobody's: {}",
                self.all()
            ),
        };
        let found = self.holds(Kind::Snapshot, snapshot, shown);
        assert_eq!(found, Some(shown), "another moment: {}", self.all());
        shown
    }

    fn log(&self) -> String {
        let apart = fs::read_to_string(self.host.agent.path("reconciler.log"));
        self.host.agent.log() + &apart.unwrap_or_default()
    }

    /// All that there is to say of a failure.
    fn all(&self) -> String {
        let log = self.log();
        let last: Vec<&str> = log.lines().rev().take(30).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        format!(
            "history DRUMLIN_HISTORY={}\n{}\n{}\n{}",
            self.seed,
            self.told.join("\n"),
            self.host.agent.status().0,
            last.join("\n")
        )
    }
}

impl Manifest {
    /// One of an object that is to be there.
    fn new(random: &mut Random) -> Self {
        Self {
            capacity: 16,
            is_absent: false,
            is_deleted: random.chance(50),
        }
    }
}

fn is_mounted(path: &Path) -> bool {
    mounts_below(&path.to_string_lossy()).len() == 1
}

fn condition(status: &Value) -> Value {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    ready.cloned().unwrap_or_default()
}

/// What the node is called when it was called otherwise so many times.
fn node(renamed: u32) -> String {
    format!("node-{renamed}")
}

/// The snapshots that a group snapshot has, by their ids: they are listed by the names of their volumes, which are not
/// known any more when the state is lost and a volume is gone.
fn members(status: &Value) -> Vec<String> {
    let members = status["members"].as_array().into_iter().flatten();
    let handles = members.filter_map(|member| member["snapshotHandle"].as_str());
    let mut handles: Vec<String> = handles.map(str::to_owned).collect();
    handles.sort();
    handles
}
