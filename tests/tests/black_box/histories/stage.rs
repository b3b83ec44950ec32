//! The host that a history happens to.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::{Options, PATIENCE},
    storage::Scratch,
};
use serde_json::Value;

use super::{
    model::{File, Key, Kind, Manifest, Model, OBJECTS, source},
    random::Random,
};
use crate::{
    host::Host,
    kit::{points, text},
};

/// A host, what it must come to, and what has happened so far.
pub(super) struct Stage {
    host: Host,
    model: Model,
    points: Vec<String>,
    told: Vec<String>,
    seed: u64,
    /// The volumes that were not there before this step.
    new: BTreeSet<&'static str>,
    /// The bytes that are written next; none are written twice.
    next: u64,
}

impl Stage {
    pub(super) async fn set(seed: u64) -> Self {
        let scratch = Scratch::new();
        let disk = scratch.directory("disk");
        let options = Options {
            config: Some(format!(
                "classes:\n- {{name: default, default: true, directory: {{path: {}}}}}\n",
                disk.display()
            )),
            ..Options::default()
        };
        let calls = [".save(\"", ".point(\"", ".fail)(\""];
        let mut found = points("agent/reconciler/src", &calls);
        found.extend(points("agent/core/src/ops", &["fail::point(\""]));
        let host = Host::over(scratch, options).await;
        // A directory without a single file would be an accident.
        host.write("keep.yaml", &["# nothing\n".to_owned()]);
        Self {
            host,
            model: Model::new(),
            points: found.into_iter().collect(),
            told: Vec::new(),
            seed,
            new: BTreeSet::new(),
            next: 1,
        }
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
            0..45 => self.edit(random),
            45..55 => self.use_one(random),
            55..75 => {
                let point = random.one(&self.points);
                self.told(format!("killed at {point}, or soon"));
                self.restart(Some(&point)).await;
                self.edit(random);
                let soon = Duration::from_millis(random.below(700));
                self.wait_for_the_end(soon).await;
                self.restart(None).await;
            }
            75..85 => {
                let point = random.chance(50).then(|| random.one(&self.points));
                self.told(format!("state lost, killed at {point:?}"));
                self.host.agent.kill();
                fs::remove_dir_all(self.host.agent.path("state/reconciler")).unwrap();
                self.model.forget();
                self.restart(point.as_deref()).await;
                if point.is_some() {
                    self.wait_for_the_end(Duration::from_millis(500)).await;
                    self.restart(None).await;
                }
            }
            85..95 => {
                self.told("disk away".to_owned());
                let (disk, away) = (self.disk(), self.host.agent.path("away"));
                self.host.agent.kill();
                fs::rename(&disk, &away).unwrap();
                self.restart(None).await;
                self.edit(random);
                self.wait_for_the_end(Duration::from_millis(random.below(700)))
                    .await;
                self.host.agent.kill();
                self.told("disk back".to_owned());
                fs::rename(&away, &disk).unwrap();
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

    fn told(&mut self, what: String) {
        self.told.push(what);
    }

    fn disk(&self) -> PathBuf {
        self.host.agent.path("disk")
    }

    async fn restart(&mut self, point: Option<&str>) {
        self.host.agent.kill();
        let point = point.map(|point| ("DRUMLIN_FAIL".to_owned(), point.to_owned()));
        let manifests = text(self.host.manifests.clone());
        let options = Options {
            arguments: vec!["--manifests".to_owned(), manifests],
            environment: point.into_iter().collect(),
            ..Options::default()
        };
        self.host.agent.try_restart_with(options).await;
    }

    /// Waits until the agent has come to its fail point, at most so long.
    async fn wait_for_the_end(&mut self, most: Duration) {
        let end = Instant::now() + most;
        while Instant::now() < end && !self.host.agent.has_ended() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// One object's file is changed, broken or taken away.
    fn edit(&mut self, random: &mut Random) {
        let key = random.one(&OBJECTS);
        let wanted = &self.model.objects[&key];
        let roll = random.below(100);
        let file = format!("{}-{}.yaml", key.0.word(), key.1);
        match roll {
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
                let grown = if random.chance(40) { 16 } else { 0 };
                manifest.capacity = (wanted.capacity + grown).min(96);
                self.say(key, manifest);
            }
        }
    }

    fn say(&mut self, key: Key, manifest: Manifest) {
        self.told(format!("{key:?} says {manifest:?}"));
        let file = format!("{}-{}.yaml", key.0.word(), key.1);
        self.host.write(&file, &[manifest.text(key)]);
        self.model.write(key, File::Valid(manifest));
    }

    /// Somebody writes to a volume.
    fn use_one(&mut self, random: &mut Random) {
        let key = random.one(&OBJECTS);
        if key.0 != Kind::Volume || !self.model.is_to_be_ready(key) {
            return;
        }
        let Some((handle, _)) = self.model.objects[&key].image.clone() else {
            return;
        };
        self.told(format!("{key:?} is written to"));
        self.stamp(key, &handle);
    }

    fn stamp(&mut self, key: Key, handle: &str) {
        let bytes = self.next;
        self.next += 1;
        let path = self.image(key.0, handle);
        let file = fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(&bytes.to_le_bytes(), 0).unwrap();
        file.sync_all().unwrap();
        self.model.wanted(key).image = Some((handle.to_owned(), bytes));
        self.model.images.insert(handle.to_owned(), (key.0, bytes));
    }

    fn image(&self, kind: Kind, handle: &str) -> PathBuf {
        let directory = match kind {
            Kind::Volume => "volumes",
            Kind::Snapshot => "snapshots",
        };
        let key = handle.rsplit('/').next().unwrap();
        self.disk().join(directory).join(key).join("image")
    }

    /// The bytes of an image; none when it is not there.
    fn bytes(&self, kind: Kind, handle: &str) -> Option<u64> {
        let file = fs::File::open(self.image(kind, handle)).ok()?;
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).unwrap();
        Some(u64::from_le_bytes(bytes))
    }

    /// Waits until all is as the model wants it, and checks every byte.
    async fn settle(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        for key in OBJECTS {
            while let Some(why) = self.lacks(key) {
                assert!(
                    !self.host.agent.has_ended(),
                    "the agent ended: {}",
                    self.all()
                );
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
        for (handle, (kind, bytes)) in images {
            let found = self.bytes(kind, &handle);
            assert_eq!(found, Some(bytes), "{handle}: {}", self.all());
        }
        let log = self.host.agent.log();
        assert!(!log.contains("AlreadyExists"), "{}", self.all());
    }

    /// What is not yet so of an object, if anything.
    fn lacks(&self, key: Key) -> Option<String> {
        let wanted = &self.model.objects[&key];
        let record = self.host.find(key.0.word(), key.1);
        let Some(says) = &wanted.says else {
            return None;
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
        let ready = condition(status);
        if says.is_absent {
            let reason = if says.destroys() {
                "Deleted"
            } else {
                "Released"
            };
            return (ready["reason"] != reason).then(|| format!("is not {reason}"));
        }
        if !self.model.is_to_be_ready(key) {
            return None;
        }
        if ready["status"] != "True" {
            return Some("is not ready".to_owned());
        }
        let capacity = format!("{}Mi", wanted.capacity);
        let is_grown = key.0 == Kind::Snapshot || status["capacity"] == capacity;
        (!is_grown).then(|| format!("has not {capacity}"))
    }

    /// Whether an object has the bytes that it must have.
    fn check(&mut self, key: Key) {
        let wanted = self.model.objects[&key].clone();
        let Some(says) = &wanted.says else {
            return;
        };
        if says.destroys() && !wanted.is_orphan {
            if let Some((handle, _)) = wanted.image {
                self.model.images.remove(&handle);
                let left = self.bytes(key.0, &handle);
                assert_eq!(left, None, "{key:?} is left: {}", self.all());
                let wanted = self.model.wanted(key);
                (wanted.image, wanted.capacity) = (None, 16);
            }
            return;
        }
        if !self.model.is_to_be_ready(key) {
            return;
        }
        let record = self.host.object(key.0.word(), key.1);
        let field = match key.0 {
            Kind::Volume => "volumeHandle",
            Kind::Snapshot => "snapshotHandle",
        };
        let handle = record["status"][field].as_str().unwrap().to_owned();
        let found = self.bytes(key.0, &handle);
        if let Some((had, bytes)) = wanted.image {
            let has = (handle, found);
            assert_eq!(has, (had, Some(bytes)), "{key:?}: {}", self.all());
            return;
        }
        let is_used = self.model.images.contains_key(&handle);
        assert!(!is_used, "{key:?} has what was used: {}", self.all());
        match key.0 {
            Kind::Volume => {
                assert_eq!(found, Some(0), "{key:?} is not new: {}", self.all());
                self.stamp(key, &handle);
                self.new.insert(key.1);
            }
            Kind::Snapshot => {
                let volume = &self.model.objects[&(Kind::Volume, source(key.1))];
                let (is_new, shown) = (self.new.contains(source(key.1)), &volume.image);
                let shown = shown.as_ref().map(|(_, bytes)| *bytes);
                // It was taken before anybody could write to it.
                let shown = if is_new { Some(0) } else { shown };
                assert_eq!(found, shown, "{key:?} shows another moment: {}", self.all());
                let bytes = found.unwrap();
                self.model.wanted(key).image = Some((handle.clone(), bytes));
                self.model.images.insert(handle, (Kind::Snapshot, bytes));
            }
        }
    }

    /// All that there is to say of a failure.
    fn all(&self) -> String {
        let log = self.host.agent.log();
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

fn condition(status: &Value) -> Value {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    ready.cloned().unwrap_or_default()
}
