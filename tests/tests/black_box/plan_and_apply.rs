//! `drumlin plan` says what `drumlin apply --once` then does, and does nothing itself.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Output,
    time::Instant,
};

use drumlin_proto::csi::v1::DeleteVolumeRequest;
use drumlin_tests::{
    agent::{Agent, Options, write},
    relay::Relay,
    storage::Scratch,
};
use serde_json::Value;

use crate::{
    helpers::{get, ok, put, text},
    host::{absent, annotated, group, object, small, volume},
};

/// An agent without a reconciler, and a relay that sees the calls of commands.
struct Stage {
    agent: Agent,
    relay: Relay,
    manifests: PathBuf,
}

impl Stage {
    async fn start() -> Self {
        let scratch = Scratch::new();
        let images = scratch.directory("state/images");
        let class = format!("{{path: {}, longestFreeze: 60}}", images.display());
        let options = Options {
            config: Some(format!(
                "classes: [{{name: default, directory: {class}}}]\n"
            )),
            ..Options::default()
        };
        let agent = Agent::with(scratch, options).await;
        let manifests = agent.scratch.directory("manifests");
        let relay = Relay::start(agent.path("relay.sock"), &agent.socket());
        Self {
            agent,
            relay,
            manifests,
        }
    }

    fn write(&self, file: &str, documents: &[String]) {
        write(&self.manifests.join(file), &documents.join("---\n"));
    }

    fn path(&self, name: &str) -> String {
        text(self.agent.path("mnt").join(name))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let state = text(self.agent.path("state"));
        let manifests = text(self.manifests.clone());
        let socket = text(self.relay.socket().to_owned());
        let place = ["--state-dir", &state, "--manifests", &manifests];
        self.agent
            .command(&[arguments, &place, &["--endpoint", &socket]].concat())
    }

    /// The text of a plan, and its exit code.
    fn plan(&self) -> (String, i32) {
        let output = self.run(&["plan"]);
        assert!(output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        (text, output.status.code().unwrap())
    }

    /// The plan as JSON; the agent and the state directory are as before.
    fn planned(&self) -> Value {
        let (state, images) = (self.files("state/reconciler"), self.files("state/images"));
        let seen = self.relay.methods().len();
        let output = self.run(&["plan", "-o", "json"]);
        let sent = self.relay.methods().split_off(seen);
        assert!(sent.iter().all(|method| reads(method)), "{sent:?}");
        assert_eq!(self.files("state/reconciler"), state);
        assert_eq!(self.files("state/images"), images);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Applies the manifests; returns the exit code, and the calls that change something.
    fn apply(&self) -> (i32, BTreeSet<String>) {
        let seen = self.relay.methods().len();
        let output = self.run(&["apply", "--once"]);
        let sent = self.relay.methods().split_off(seen).into_iter();
        let changes = sent.filter(|method| !reads(method)).collect();
        (output.status.code().unwrap(), changes)
    }

    /// The plan names the calls that an apply then makes, and nothing is left to do after it.
    fn apply_as_planned(&self) -> Value {
        let plan = self.planned();
        let (code, made) = self.apply();
        assert_eq!(code, 0, "{plan:#}\n{}", self.agent.status().0);
        assert_eq!(made, rpcs(&plan), "{plan:#}");
        let (text, code) = self.plan();
        assert!(text.contains("Nothing to do"), "{text}");
        assert_eq!(code, 0);
        plan
    }

    /// The files below a directory of the agent, with what is in them.
    fn files(&self, below: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        collect(&self.agent.path(below), &mut found);
        found.sort();
        found
    }
}

fn collect(directory: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
            found.push((path, Vec::new()));
        } else {
            let content = fs::read(&path).unwrap();
            found.push((path, content));
        }
    }
}

/// True for the calls that change nothing.
fn reads(method: &str) -> bool {
    let words = ["Get", "List", "Probe", "Validate"];
    let method = method
        .trim_start_matches("Controller")
        .trim_start_matches("Node");
    words.iter().any(|word| method.starts_with(word))
}

/// All RPCs of a plan.
fn rpcs(plan: &Value) -> BTreeSet<String> {
    let changes = plan["changes"].as_array().unwrap().iter();
    let rpcs = changes.flat_map(|change| change["rpcs"].as_array().unwrap());
    rpcs.map(|rpc| rpc.as_str().unwrap().to_owned()).collect()
}

/// The changes of a plan: action, kind and name.
fn changes(plan: &Value) -> Vec<String> {
    let changes = plan["changes"].as_array().unwrap().iter();
    let word = |change: &Value, key: &str| change[key].as_str().unwrap().to_owned();
    changes
        .map(|one| [word(one, "action"), word(one, "kind"), word(one, "name")].join(" "))
        .collect()
}

/// The names of the fields of an object, as the documentation has them.
fn keys(value: &Value) -> String {
    let keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.join(" ")
}

fn snapshot(name: &str, of: &str, more: &str) -> String {
    let spec = format!("source: {{volumeName: {of}}}{more}");
    object("Snapshot", name, "", &spec)
}

fn mounted(name: &str, capacity: &str, path: &str) -> String {
    volume(
        name,
        capacity,
        &format!("fsType: xfs\ndeletionPolicy: Delete\nmount: {{path: {path}}}"),
    )
}

/// Grows and moves a volume, changes a group and destroys a snapshot.
fn plan_changes(stage: &Stage, data: &str, restored: &str) {
    let moved = stage.path("moved");
    stage.write(
        "a.yaml",
        &[restored.to_owned(), absent(&snapshot("first", "data", ""))],
    );
    stage.write(
        "b.yaml",
        &[
            object("GroupSnapshot", "both", "", "groupName: pg"),
            group("pg", "data more"),
        ],
    );
    stage.write(
        "c.yaml",
        &[
            mounted("data", "400Mi", &moved),
            small("log"),
            small("more"),
        ],
    );
    let plan = stage.apply_as_planned();
    assert_eq!(
        changes(&plan),
        [
            "create Volume more",
            "grow Volume data",
            "members VolumeGroup pg",
            "destroy Snapshot first",
        ]
    );
    assert_eq!(
        keys(&plan),
        "changes directory elsewhere files ignoredFiles node objects problems shortages unreadable"
    );
    assert_eq!(
        keys(&plan["changes"][0]),
        "action detail file kind line name namespace rpcs"
    );
    assert_eq!(
        keys(&plan["changes"][3]),
        "action bytes detail file kind line name namespace rpcs since"
    );
    let detail = |index: usize| {
        plan["changes"][index]["detail"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(detail(1), format!("300Mi → 400Mi, {data} → {moved}"));
    assert_eq!(detail(2), "+more -log");
    assert_eq!(get(&moved, "file"), b"precious");
}

/// Releases one volume, and destroys another one with a group and its snapshot.
fn plan_deletions(stage: &Stage) {
    let moved = stage.path("moved");
    // What is released keeps its data; what is destroyed is shown apart, with its size and age.
    stage.write(
        "c.yaml",
        &[
            absent(&mounted("data", "400Mi", &moved)).replace("Delete", "Retain"),
            absent(&small("log")),
            small("more"),
        ],
    );
    stage.write(
        "b.yaml",
        &[
            absent(&object("GroupSnapshot", "both", "", "groupName: pg")),
            absent(&group("pg", "data more")),
        ],
    );
    let (text, code) = stage.plan();
    assert_eq!(code, 2);
    assert!(text.contains("- destroy  Volume/default/log"), "{text}");
    assert!(text.contains("16Mi, made "), "{text}");
    assert!(text.contains("~ release  Volume/default/data"), "{text}");
    assert!(
        text.contains("Plan: 0 create, 1 change, 3 destroy, 0 blocked, 0 waiting, 0 orphan"),
        "{text}"
    );
    stage.apply_as_planned();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_names_the_calls_that_an_apply_then_makes() {
    let stage = Stage::start().await;
    let (data, restored) = (stage.path("data"), stage.path("restored"));
    let from = |mount: &str| {
        volume(
            "restored",
            "300Mi",
            &format!("source: {{snapshotName: first}}\nmount: {{path: {mount}}}"),
        )
    };
    // In an order in which everything waits for something that comes later.
    stage.write("a.yaml", &[from(&restored), snapshot("first", "data", "")]);
    stage.write(
        "b.yaml",
        &[
            object("GroupSnapshot", "both", "", "groupName: pg"),
            group("pg", "data log"),
        ],
    );
    stage.write("c.yaml", &[mounted("data", "300Mi", &data), small("log")]);
    let plan = stage.apply_as_planned();
    assert_eq!(
        changes(&plan),
        [
            "create Volume data",
            "create Volume log",
            "create Volume restored",
            "create VolumeGroup pg",
            "create Snapshot first",
            "create GroupSnapshot both",
        ]
    );
    put(&data, "file", b"precious");

    plan_changes(&stage, &data, &from(&restored));
    plan_deletions(&stage);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_directory_is_that_of_the_configuration_file_until_one_was_followed() {
    let stage = Stage::start().await;
    let directory = text(stage.agent.path("state"));
    let socket = text(stage.agent.socket());
    let run = |command: &[&str], more: &[&str]| {
        let place = ["--state-dir", &directory, "--endpoint", &socket];
        let output = stage.agent.command(&[command, &place, more].concat());
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        (said, output.status.code())
    };
    let (plan, apply) = (&["plan"][..], &["apply", "--once"][..]);
    stage.write("a.yaml", &[small("data")]);
    for command in [plan, apply] {
        let (said, code) = run(command, &[]);
        assert!(
            said.contains("no directory of manifests is known"),
            "{said}"
        );
        assert_eq!(code, Some(1));
    }
    let config = stage.agent.path("other.yaml");
    write(&config, "log: {level: info}\n");
    let flag = format!("--config={}", config.display());
    let (said, code) = run(plan, &[&flag]);
    assert!(said.contains("other.yaml names none"), "{said}");
    assert_eq!(code, Some(1));
    write(
        &config,
        &format!("manifests: {}\n", stage.manifests.display()),
    );
    let (said, code) = run(plan, &[&flag]);
    assert!(said.contains("+ create   Volume/default/data"), "{said}");
    assert_eq!(code, Some(2));
    let (said, code) = run(apply, &[&flag]);
    assert_eq!(code, Some(0), "{said}");
    // It is known from then on.
    stage.write("a.yaml", &[small("data"), small("more")]);
    let (said, code) = run(apply, &[]);
    assert!(said.contains("more"), "{said}");
    assert_eq!(code, Some(0), "{said}");
    let (said, code) = run(plan, &[]);
    assert!(said.contains("Nothing to do"), "{said}");
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_asked_for_is_not_destroyed_and_what_cannot_be_is_said_with_its_place() {
    let stage = Stage::start().await;
    stage.write("a.yaml", &[small("kept"), small("data")]);
    stage.write("b.yaml", &[small("gone")]);
    stage.apply_as_planned();

    fs::remove_file(stage.manifests.join("b.yaml")).unwrap();
    let (text, code) = stage.plan();
    assert!(text.contains("? orphan   Volume/default/gone"), "{text}");
    let orphan = text.lines().find(|line| line.contains("? orphan"));
    let orphan = orphan.unwrap_or_default();
    assert!(orphan.contains("16Mi, in no manifest for "), "{text}");
    assert!(orphan.contains("s; kept"), "{text}");
    assert!(
        text.contains(
            "Nothing to do: 2 objects are as their manifests ask; 1 orphan stays as it is"
        ),
        "{text}"
    );
    assert_eq!(code, 0);

    // One refused change keeps its whole file from being applied.
    stage.write(
        "a.yaml",
        &[
            small("kept"),
            volume("data", "8Mi", "deletionPolicy: Delete"),
        ],
    );
    stage.write("c.yaml", &[small("new"), "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {name: x}\nspec: {capacty: 1Gi}\n".to_owned()]);
    let (text, code) = stage.plan();
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("! blocked  Volume/default/data"), "{text}");
    assert!(text.contains("can only grow"), "{text}");
    assert!(text.contains("(a.yaml:14:"), "{text}");
    assert!(text.contains("capacty"), "{text}");
    assert!(!text.contains("Volume/default/new "), "{text}");
    fs::remove_file(stage.manifests.join("c.yaml")).unwrap();

    // What waits for something that does not come.
    stage.write("a.yaml", &[small("kept"), small("data")]);
    stage.write(
        "d.yaml",
        &[
            snapshot("orphaned", "nobody", ""),
            annotated(&small("paused"), "drumlin.dev/paused: \"true\""),
        ],
    );
    let begun = Instant::now();
    let plan = stage.planned();
    assert_eq!(
        changes(&plan),
        [
            "waits Volume paused",
            "waits Snapshot orphaned",
            "orphan Volume gone"
        ]
    );
    assert_eq!(plan["changes"][1]["reason"], "DependencyNotFound");
    let (code, made) = stage.apply();
    assert_eq!((code, made), (3, BTreeSet::new()));
    assert!(
        begun.elapsed().as_secs() < 20,
        "it waits for nothing that does not come"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_planned_although_no_call_is_about_it() {
    let stage = Stage::start().await;
    let schedule = |more: &str| {
        let spec = format!("target: {{volumeName: data}}, schedule: '@hourly'{more}");
        object("SnapshotSchedule", "hourly", "", &spec)
    };
    stage.write("a.yaml", &[small("data"), schedule("")]);
    let plan = stage.apply_as_planned();
    assert_eq!(
        changes(&plan),
        ["create Volume data", "create SnapshotSchedule hourly"]
    );
    let detail = plan["changes"][1]["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("@hourly of Volume/data, next 2"),
        "{detail}"
    );
    stage.write("a.yaml", &[small("data"), schedule(", suspend: true")]);
    let plan = stage.apply_as_planned();
    assert_eq!(changes(&plan), ["update SnapshotSchedule hourly"]);
    stage.write("a.yaml", &[small("data"), absent(&schedule(""))]);
    let plan = stage.apply_as_planned();
    assert_eq!(changes(&plan), ["release SnapshotSchedule hourly"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_found_and_grows_is_planned_with_both_sizes() {
    let stage = Stage::start().await;
    let kept = volume("data", "16Mi", "");
    stage.write("a.yaml", std::slice::from_ref(&kept));
    stage.apply_as_planned();
    stage.write("a.yaml", &[absent(&kept)]);
    stage.apply_as_planned();
    stage.write("a.yaml", &[volume("data", "24Mi", "")]);
    let plan = stage.apply_as_planned();
    let detail = plan["changes"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("16Mi → 24Mi"), "{plan:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_directory_and_a_class_without_room_are_told() {
    let stage = Stage::start().await;
    stage.write("a.yaml", &[volume("huge", "500Ti", "")]);
    let (text, code) = stage.plan();
    assert_eq!(code, 2);
    assert!(text.contains("! capacity class (default)"), "{text}");
    assert!(text.contains("needs 500Ti, but "), "{text}");
    stage.write("a.yaml", &[small("data")]);
    stage.apply_as_planned();
    fs::remove_file(stage.manifests.join("a.yaml")).unwrap();
    let (text, code) = stage.plan();
    assert!(
        text.contains("is empty, but objects from it exist; no object is changed"),
        "{text}"
    );
    assert_eq!(code, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_finds_drift() {
    let stage = Stage::start().await;
    let path = stage.path("data");
    stage.write("a.yaml", &[mounted("data", "300Mi", &path), small("lost")]);
    stage.apply_as_planned();
    nix::mount::umount(path.as_str()).unwrap();
    let record = fs::read(
        stage
            .agent
            .path("state/reconciler/objects/Volume/default/lost.json"),
    )
    .unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let volume_id = record["status"]["volumeHandle"]
        .as_str()
        .unwrap()
        .to_owned();
    ok(stage
        .agent
        .controller()
        .delete_volume(DeleteVolumeRequest {
            volume_id,
            ..DeleteVolumeRequest::default()
        })
        .await);
    let plan = stage.planned();
    assert_eq!(changes(&plan), ["mount Volume data", "blocked Volume lost"]);
    assert_eq!(plan["changes"][1]["reason"], "VolumeLost");
    let (code, made) = stage.apply();
    assert_eq!((code, made), (3, rpcs(&plan)));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_agent_a_plan_is_made_of_the_state_files_and_an_apply_does_nothing() {
    let mut stage = Stage::start().await;
    stage.write(
        "a.yaml",
        &[small("data"), small("log"), group("pg", "data log")],
    );
    stage.apply_as_planned();
    stage.agent.kill();
    stage.write(
        "a.yaml",
        &[
            volume("data", "32Mi", ""),
            small("log"),
            small("more"),
            group("pg", "data log more"),
        ],
    );
    let output = stage.run(&["plan"]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("The agent does not answer ("), "{text}");
    assert!(text.contains("+ create   Volume/default/more"), "{text}");
    assert!(text.contains("~ grow     Volume/default/data"), "{text}");
    assert!(
        text.contains("~ members  VolumeGroup/default/pg  +more"),
        "{text}"
    );
    let before = stage.files("state/reconciler/objects");
    let output = stage.run(&["apply", "--once"]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(
        text_of(&output.stderr).contains("the agent does not answer"),
        "{output:?}"
    );
    assert_eq!(stage.files("state/reconciler/objects"), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_reconciler_at_a_time_applies_manifests_and_a_plan_disturbs_none() {
    let stage = Stage::start().await;
    stage.write("a.yaml", &[small("data")]);
    stage.apply_as_planned();
    let lock = fs::File::open(stage.agent.path("state/reconciler/LOCK")).unwrap();
    let _lock = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusiveNonblock).unwrap();
    assert_eq!(stage.plan().1, 0);
    let output = stage.run(&["apply", "--once"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        text_of(&output.stderr).contains("is locked by another reconciler, pid "),
        "{output:?}"
    );
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_follows_from_manifests_that_cannot_be_read() {
    let stage = Stage::start().await;
    stage.write("v.yaml", &[small("data")]);
    stage.apply_as_planned();
    stage.write("w.yaml", &[volume("huge", "8Ti", "")]);
    let readable = stage.planned();
    assert_eq!(readable["shortages"].as_array().unwrap().len(), 1);
    fs::rename(&stage.manifests, stage.agent.path("away")).unwrap();
    let plan = stage.planned();
    assert!(plan["unavailable"].is_string(), "{plan:#}");
    for empty in ["changes", "shortages"] {
        assert_eq!(plan[empty].as_array().unwrap().len(), 0, "{plan:#}");
    }
}
