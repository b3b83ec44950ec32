//! Random histories of names that a file and an object of the server may both ask for, in a namespace that is made again:
//! who has a volume keeps it, and nobody comes to have another one's.
//!
//! One seed gives one history; `DRUMLIN_HISTORY=<seed>` tells it alone, `DRUMLIN_HISTORIES` as many.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::{Agent, Options, PATIENCE, write},
    cluster::{Cluster, Namespace, is_ready},
    random::{Random, number},
    sources,
    storage::Scratch,
};
use serde_json::Value;

use crate::{helpers::bytes_of, node::Node, owners::make_again};

/// The seed of the first history in CI.
const SEED: u64 = 0x0d12_0a12;
/// So many there are in CI.
const MANY: u64 = 12;
/// So many steps a history has.
const STEPS: u64 = 7;
/// What both sources may ask for.
const NAMES: [&str; 2] = ["v0", "v1"];

/// Whose a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    File,
    /// An object of the namespace as it was made for the nth time.
    Object(u32),
}

/// A volume that was used.
#[derive(Debug, Clone)]
struct Used {
    name: &'static str,
    owner: Owner,
    bytes: u64,
}

/// What a file or an object says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Says {
    is_absent: bool,
    is_deleted: bool,
}

struct Stage<'a> {
    cluster: &'a Cluster,
    space: Namespace<'a>,
    node: Node,
    manifests: PathBuf,
    points: Vec<String>,
    /// How often the namespace was made.
    made: u32,
    files: BTreeMap<&'static str, Says>,
    objects: BTreeMap<&'static str, Says>,
    /// Who has asked for a name since it was last known to be nobody's.
    asked: BTreeMap<&'static str, BTreeSet<Owner>>,
    used: BTreeMap<String, Used>,
    next: u64,
    seed: u64,
    told: Vec<String>,
}

impl<'a> Stage<'a> {
    async fn set(cluster: &'a Cluster, seed: u64) -> Self {
        let scratch = Scratch::new();
        let manifests = scratch.directory("manifests");
        // A directory without a single file would be an accident.
        write(&manifests.join("keep.yaml"), "# nothing\n");
        let name = cluster.name("node");
        let points = sources::reconciler_points().into_iter().collect();
        let options = Options {
            node: Some(name.clone()),
            arguments: arguments(cluster, &manifests),
            ..Options::default()
        };
        let agent = Agent::with(scratch, options).await;
        Self {
            cluster,
            space: cluster.namespace(),
            node: Node { agent, name },
            manifests,
            points,
            made: 0,
            files: BTreeMap::new(),
            objects: BTreeMap::new(),
            asked: NAMES.map(|name| (name, BTreeSet::new())).into(),
            used: BTreeMap::new(),
            next: 1,
            seed,
            told: Vec::new(),
        }
    }

    async fn step(&mut self, step: u64, random: &mut Random) {
        match random.below(100) {
            _ if step == 0 => {
                self.say_in_a_file("v0", random);
                self.apply("v1", random);
            }
            0..30 => self.edit_a_file(random),
            30..60 => self.edit_an_object(random),
            60..75 => {
                let point = random.one(&self.points);
                self.told.push(format!("killed at {point}, or soon"));
                self.restart(Some(&point)).await;
                if random.chance(50) {
                    self.edit_a_file(random);
                } else {
                    self.edit_an_object(random);
                }
                tokio::time::sleep(Duration::from_millis(random.below(700))).await;
                self.restart(None).await;
            }
            75..85 => {
                self.told.push("state lost".to_owned());
                self.node.agent.kill();
                fs::remove_dir_all(self.node.agent.path("state/reconciler")).unwrap();
                self.restart(None).await;
            }
            _ => {
                let is_away = random.chance(50);
                self.make_again(is_away).await;
            }
        }
        self.settle().await;
    }

    async fn restart(&mut self, point: Option<&str>) {
        self.node.agent.kill();
        let options = Options {
            node: Some(self.node.name.clone()),
            arguments: arguments(self.cluster, &self.manifests),
            ..Options::default()
        };
        let options = options.perhaps_killed_at(point);
        self.node.agent.try_restart_with(options).await;
    }

    fn edit_a_file(&mut self, random: &mut Random) {
        let name = random.one(&NAMES);
        if self.files.contains_key(name) && random.chance(40) {
            self.told.push(format!("file {name} away"));
            fs::remove_file(self.file(name)).unwrap();
            self.files.remove(name);
        } else {
            self.say_in_a_file(name, random);
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.manifests.join(format!("{name}.yaml"))
    }

    fn say_in_a_file(&mut self, name: &'static str, random: &mut Random) {
        let says = Says {
            is_absent: random.chance(25),
            is_deleted: random.chance(50),
        };
        self.told.push(format!("file {name} says {says:?}"));
        let space = format!("name: {name}, namespace: {}", self.space.name);
        let text = self.text(name, says);
        let text = text.replace(&format!("name: {name}"), &space);
        write(&self.file(name), &text);
        self.files.insert(name, says);
        self.asks(name, Owner::File);
    }

    fn text(&self, name: &str, says: Says) -> String {
        let policy = if says.is_deleted { "Delete" } else { "Retain" };
        let more = format!("volumeMode: Block\n  deletionPolicy: {policy}");
        let text = self.node.volume(name, "16Mi", &more);
        if !says.is_absent {
            return text;
        }
        let absent = format!("name: {name}, annotations: {{drumlin.dev/state: absent}}");
        text.replace(&format!("name: {name}"), &absent)
    }

    fn asks(&mut self, name: &'static str, owner: Owner) {
        self.asked.get_mut(name).unwrap().insert(owner);
    }

    fn edit_an_object(&mut self, random: &mut Random) {
        let name = random.one(&NAMES);
        if self.objects.contains_key(name) && random.chance(50) {
            self.told.push(format!("object {name} deleted"));
            self.space
                .kubectl(&["delete", &format!("dv/{name}"), "--wait=false"]);
            self.let_go(name);
        } else {
            self.apply(name, random);
        }
    }

    fn apply(&mut self, name: &'static str, random: &mut Random) {
        let says = Says {
            is_absent: false,
            is_deleted: random.chance(50),
        };
        self.told.push(format!("object {name} says {says:?}"));
        // One that is on its way out is waited for, as `kubectl replace` would.
        if !self.objects.contains_key(name) && self.space.find(&format!("dv/{name}")).is_some() {
            return;
        }
        self.space.apply(&self.text(name, says));
        self.objects.insert(name, says);
        self.asks(name, Owner::Object(self.made));
    }

    /// What an object has may go with it.
    fn let_go(&mut self, name: &'static str) {
        let says = self.objects.remove(name).unwrap();
        let owner = Owner::Object(self.made);
        if says.is_deleted {
            self.used
                .retain(|_, used| used.name != name || used.owner != owner);
        }
    }

    /// The namespace goes with all that is in it, while the agent looks on, or by force while it is away.
    async fn make_again(&mut self, is_away: bool) {
        self.told
            .push(format!("namespace made again, agent away: {is_away}"));
        if is_away {
            self.node.agent.kill();
        }
        let names: Vec<_> = self.objects.keys().copied().collect();
        for name in NAMES {
            let object = format!("dv/{name}");
            if self.space.find(&object).is_none() {
                continue;
            }
            self.space.kubectl(&["delete", &object, "--wait=false"]);
            if is_away {
                let bare = r#"{"metadata": {"finalizers": null}}"#;
                let patch = [
                    "-n",
                    &self.space.name,
                    "patch",
                    &object,
                    "--type=merge",
                    "-p",
                ];
                let _ = self.cluster.try_kubectl(&[&patch[..], &[bare]].concat());
            }
            self.space.until_gone(&object);
        }
        for name in names {
            if is_away {
                self.objects.remove(name);
            } else {
                self.let_go(name);
            }
        }
        make_again(self.cluster, &self.space);
        self.made += 1;
        if is_away {
            self.restart(None).await;
        }
    }

    /// Whether nobody else has ever asked for a name, so that who asks must come to have it.
    fn is_alone(&self, name: &str, owner: Owner) -> bool {
        self.asked[name].iter().all(|one| *one == owner)
    }

    /// Waits until who must have a volume has it, and looks who has which.
    async fn settle(&mut self) {
        let deadline = Instant::now() + 2 * PATIENCE;
        while let Some(why) = self.lacks() {
            assert!(
                !self.node.agent.has_ended(),
                "the agent ended: {}",
                self.all()
            );
            assert!(Instant::now() < deadline, "{why}: {}", self.all());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // Who would take what is not its own has a moment for it.
        tokio::time::sleep(Duration::from_millis(500)).await;
        for name in NAMES {
            self.look(name);
        }
        for (handle, used) in &self.used {
            let found = self.bytes(handle);
            assert_eq!(found, Some(used.bytes), "{handle} {used:?}: {}", self.all());
        }
    }

    fn lacks(&self) -> Option<String> {
        NAMES.iter().find_map(|name| {
            let made = Owner::Object(self.made);
            let object = self.space.find(&format!("dv/{name}"));
            if self.objects.contains_key(name) && self.is_alone(name, made) {
                let is_so = object.as_ref().is_some_and(is_ready);
                return (!is_so).then(|| format!("object {name} is not ready"));
            }
            if !self.objects.contains_key(name) && object.is_some() {
                return Some(format!("object {name} does not go"));
            }
            let says = self.files.get(name)?;
            if !self.is_alone(name, Owner::File) {
                return None;
            }
            let record = self.record(name).unwrap_or_default();
            let reason = record
                .pointer("/status/conditions")
                .and_then(Value::as_array)
                .and_then(|all| all.iter().find(|one| one["type"] == "Ready"))
                .map(|ready| (ready["status"].clone(), ready["reason"].clone()));
            let (ready, reason) = reason.unwrap_or_default();
            let is_so = match (says.is_absent, says.is_deleted) {
                (false, _) => ready == "True",
                (true, true) => reason == "Deleted",
                (true, false) => reason == "Released",
            };
            let policy = if says.is_deleted { "Delete" } else { "Retain" };
            let is_followed = record["spec"]["deletionPolicy"] == policy;
            (!is_so || !is_followed).then(|| format!("file {name} has not what it says"))
        })
    }

    /// The record of a name on the node.
    fn record(&self, name: &str) -> Option<Value> {
        let path = format!(
            "state/reconciler/objects/Volume/{}/{name}.json",
            self.space.name
        );
        let text = fs::read(self.node.agent.path(&path)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Who has a volume under a name has its own, or a new one.
    fn look(&mut self, name: &'static str) {
        let record = self.record(name);
        let of_file = record.filter(|record| record["drumlin"]["served"].is_null());
        let object = self.space.find(&format!("dv/{name}"));
        let says = self.files.get(name).copied();
        if says.is_some_and(|says| says.is_absent && says.is_deleted)
            && self.is_alone(name, Owner::File)
        {
            let gone = |used: &Used| used.name == name && used.owner == Owner::File;
            for (handle, used) in &self.used {
                let is_left = gone(used) && self.bytes(handle).is_some();
                assert!(!is_left, "{handle} is left: {}", self.all());
            }
            self.used.retain(|_, used| !gone(used));
            self.asked.get_mut(name).unwrap().clear();
            self.asks(name, Owner::File);
        } else if says.is_some_and(|says| says.is_absent && says.is_deleted) {
            // Where the other one had it, it had to stay; where the file had it, it may have gone.
            let own = |used: &Used| used.name == name && used.owner == Owner::File;
            let gone: Vec<String> = self
                .used
                .iter()
                .filter(|(handle, used)| own(used) && self.bytes(handle).is_none())
                .map(|(handle, _)| handle.clone())
                .collect();
            self.used.retain(|handle, _| !gone.contains(handle));
        }
        let has = [
            (Owner::File, of_file.filter(|_| says.is_some())),
            (Owner::Object(self.made), object),
        ];
        for (owner, object) in has {
            let Some(handle) = object.filter(is_ready).and_then(|object| {
                let handle = object["status"]["volumeHandle"].as_str()?;
                Some(handle.to_owned())
            }) else {
                continue;
            };
            match self.used.get(&handle) {
                Some(used) => assert_eq!(
                    (used.name, used.owner),
                    (name, owner),
                    "{handle} is another's: {}",
                    self.all()
                ),
                None => self.stamp(&handle, name, owner),
            }
        }
    }

    fn stamp(&mut self, handle: &str, name: &'static str, owner: Owner) {
        let found = self.bytes(handle);
        assert_eq!(found, Some(0), "{handle} is not new: {}", self.all());
        let bytes = self.next;
        self.next += 1;
        let path = bytes_of(&self.node.agent, handle);
        let file = fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(&bytes.to_le_bytes(), 0).unwrap();
        let used = Used { name, owner, bytes };
        self.used.insert(handle.to_owned(), used);
    }

    /// What a volume has at its beginning; none when it is gone.
    fn bytes(&self, handle: &str) -> Option<u64> {
        let key = handle.rsplit('/').next().unwrap();
        let home = self.node.agent.path("state/images/volumes");
        let file = fs::File::open(home.join(key).join("image")).ok()?;
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).unwrap();
        Some(u64::from_le_bytes(bytes))
    }

    /// All that there is to say of a failure.
    fn all(&self) -> String {
        let log = self.node.agent.log();
        let last: Vec<&str> = log.lines().rev().take(30).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        format!(
            "history DRUMLIN_HISTORY={}\n{}\n{:?}\n{}\n{}\n{}",
            self.seed,
            self.told.join("\n"),
            self.used,
            self.node.agent.status().0,
            self.space.kubectl(&["get", "dv", "-o", "wide"]),
            last.join("\n")
        )
    }
}

fn arguments(cluster: &Cluster, manifests: &std::path::Path) -> Vec<String> {
    let mut arguments = cluster.arguments();
    arguments.extend([
        "--manifests".to_owned(),
        manifests.to_string_lossy().into_owned(),
    ]);
    arguments
}

/// Tells the history that a seed gives; `kubectl` keeps a thread of its own waiting.
fn tell(seed: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let cluster = Cluster::of_the_lab();
        let mut random = Random::new(seed);
        let mut stage = Stage::set(&cluster, seed).await;
        for step in 0..STEPS {
            stage.step(step, &mut random).await;
        }
    });
}

#[test]
fn what_a_file_or_an_object_has_is_never_given_to_the_other_or_to_a_later_namespace() {
    if let Some(seed) = number("DRUMLIN_HISTORY") {
        return tell(seed);
    }
    let many = number("DRUMLIN_HISTORIES").unwrap_or(MANY);
    let first = number("DRUMLIN_HISTORIES_FROM").unwrap_or(SEED);
    // Half of them at a time: each waits for most of its time.
    let mut failed = 0;
    let seeds: Vec<u64> = (first..first + many).collect();
    for some in seeds.chunks(6) {
        let tellers: Vec<_> = some
            .iter()
            .map(|&seed| std::thread::spawn(move || tell(seed)))
            .collect();
        let ended = tellers.into_iter().map(std::thread::JoinHandle::join);
        failed += ended.filter(Result::is_err).count();
    }
    assert_eq!(failed, 0, "histories failed; their seeds are above");
}
