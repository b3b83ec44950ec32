//! One object's trouble, and one class', is no trouble of the others.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Child,
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::{Agent, Options, eventually, write},
    programs::{drumlin, program, run},
    relay::{Fault, Relay},
    storage::{Kind, Scratch, mounts_below},
};
use serde_json::Value;
use tonic::Code;

use crate::{
    helpers::{get, put, text},
    host::{Host, absent, annotated, volume},
};

/// A reconciler that reaches its agent through a relay.
pub(crate) struct Reconciler {
    pub(crate) agent: Agent,
    pub(crate) relay: Relay,
    child: Child,
}

impl Reconciler {
    pub(crate) async fn start() -> Self {
        let agent = Agent::start().await;
        let relay = Relay::start(agent.path("relay.sock"), &agent.socket());
        let child = reconcile(&agent, relay.socket(), &[]);
        Self {
            agent,
            relay,
            child,
        }
    }

    pub(crate) fn write(&self, file: &str, documents: &[String]) {
        let path = self.agent.path("manifests").join(file);
        write(&path, &documents.join("---\n"));
    }

    /// Waits until the line of an object has all of these words.
    pub(crate) async fn until(&self, object: &str, words: &[&str]) {
        let is_shown = |(table, _): &(String, i32)| {
            let mut lines = table.lines();
            let line = lines.find(|line| line.split_whitespace().any(|word| word == object));
            line.is_some_and(|line| words.iter().all(|word| line.contains(word)))
        };
        eventually(|| self.agent.status(), is_shown).await;
    }
}

/// A reconciler beside an agent that answers at this socket, with more in its environment.
fn reconcile(agent: &Agent, socket: &Path, environment: &[(&str, &str)]) -> Child {
    let manifests = agent.scratch.directory("manifests");
    program(drumlin())
        .args(["reconcile", "--manifests", &text(manifests)])
        .args(["--endpoint", &socket.to_string_lossy()])
        .args(["--state-dir", &text(agent.path("state"))])
        .envs(environment.iter().copied())
        .stderr(fs::File::create(agent.path("reconciler.log")).unwrap())
        .spawn()
        .unwrap()
}

impl Drop for Reconciler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same manifest in another namespace.
fn within(namespace: &str, manifest: &str) -> String {
    manifest.replace(
        "metadata:\n",
        &format!("metadata:\n  namespace: {namespace}\n"),
    )
}

#[tokio::test]
async fn an_object_whose_call_is_refused_as_unavailable_says_so_and_holds_up_no_other() {
    let host = Reconciler::start().await;
    let unavailable = Fault::Refuse(Code::Unavailable);
    host.relay.on("CreateVolume", "sick", unavailable);
    host.write("a.yaml", &[volume("sick", "16Mi", "")]);
    host.until("sick", &["False", "Unavailable", "refused on the way"])
        .await;
    host.write("b.yaml", &[volume("well", "16Mi", "")]);
    host.until("well", &["True"]).await;
    let greeted = host.relay.calls("GetPluginInfo");
    assert_eq!(greeted, 1, "the agent was not taken for one that is away");
    host.relay.pass_all();
    host.until("sick", &["True"]).await;
}

#[tokio::test]
async fn calls_that_take_long_hold_up_neither_other_namespaces_nor_what_goes() {
    let host = Reconciler::start().await;
    let goes = volume("goes", "16Mi", "deletionPolicy: Delete");
    host.write("a.yaml", &[goes.clone()]);
    host.until("goes", &["True"]).await;
    host.relay.on("CreateVolume", "slow", Fault::Hold);
    let many: Vec<String> = (0..20)
        .map(|number| within("tenant", &volume(&format!("slow-{number}"), "16Mi", "")))
        .collect();
    host.write("tenant.yaml", &many);
    eventually(|| host.relay.calls("CreateVolume"), |calls| *calls > 4).await;
    host.write("a.yaml", &[absent(&goes)]);
    host.write("b.yaml", &[within("other", &volume("quick", "16Mi", ""))]);
    host.until("quick", &["True"]).await;
    host.until("goes", &["Deleted"]).await;
    // Who waits says what for, and the call is made again.
    host.until("slow-0", &["False", "OperationPending", "no answer within"])
        .await;
    host.relay.pass_all();
    for number in 0..20 {
        host.until(&format!("slow-{number}"), &["True"]).await;
    }
}

#[tokio::test]
async fn a_call_that_takes_longer_than_is_waited_for_ends_once() {
    // The agent stands still in the midst of a creation, and goes on after the reconciler has asked again.
    let mut host = Reconciler::start().await;
    host.write("warm.yaml", &[volume("warm", "16Mi", "")]);
    host.until("warm", &["True"]).await;
    host.agent.kill();
    let options = Options::default().stopped_at("create-volume.made");
    host.agent.restart_with(options).await;
    host.write("a.yaml", &[volume("data", "16Mi", "")]);
    eventually(|| host.agent.is_stopped(), |stopped| *stopped).await;
    // Nobody answers any call: that is no object's trouble.
    eventually(
        || host.relay.calls("GetPluginInfo"),
        |greetings| *greetings > 1,
    )
    .await;
    host.agent.signal(nix::sys::signal::Signal::SIGCONT);
    host.until("data", &["True"]).await;
    assert_eq!(host.agent.status().1, 0);
}

/// What a boot leaves: nothing is mounted, and the records are of another boot.
fn boot(host: &mut Host) {
    host.agent.kill();
    for mount in mounts_below(&text(host.agent.scratch.path().to_owned()))
        .iter()
        .rev()
    {
        run("umount", &[mount]);
    }
    let objects = host.agent.path("state/reconciler/objects/Volume/default");
    for entry in fs::read_dir(objects).unwrap() {
        let path = entry.unwrap().path();
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert!(record["drumlin"]["boot"].is_string(), "{record}");
        record["drumlin"]["boot"] = "another".into();
        fs::write(&path, record.to_string()).unwrap();
    }
}

/// A host with the classes `a` and `b`, and where these are.
async fn with_two_classes() -> (Host, PathBuf, PathBuf) {
    let scratch = Scratch::new();
    let (a, b) = (scratch.directory("a"), scratch.directory("b"));
    let options = Options {
        config: Some(format!(
            "classes:\n- {{name: a, default: true, directory: {{path: {}}}}}\n- {{name: b, directory: {{path: {}}}}}\n",
            a.display(),
            b.display()
        )),
        ..Options::default()
    };
    (Host::over(scratch, options).await, a, b)
}

#[tokio::test]
async fn what_is_lost_is_seen_while_another_class_is_away() {
    let (mut host, a, b) = with_two_classes().await;
    let away = volume("away", "16Mi", "deviceClass: a");
    host.write("v.yaml", &[away, volume("lost", "16Mi", "deviceClass: b")]);
    host.until("away", &["True"]).await;
    host.until("lost", &["True"]).await;
    let lost = host.object("Volume", "lost");
    let lost = lost["status"]["volumeHandle"].as_str().unwrap();
    let key = lost.rsplit('/').next().unwrap();
    host.agent.kill();
    fs::remove_dir_all(b.join("volumes").join(key)).unwrap();
    fs::rename(&a, a.with_extension("gone")).unwrap();
    host.restart(None).await;
    host.until("lost", &["False", "VolumeLost"]).await;
    host.until("away", &["True"]).await;
}

#[tokio::test]
async fn a_class_that_is_away_after_a_boot_holds_up_no_other() {
    let (mut host, a, _) = with_two_classes().await;
    let of = |host: &Host, name: &str, class: &str| {
        let path = host.path(name);
        volume(
            name,
            "32Mi",
            &format!("deviceClass: {class}\nmount: {{path: {path}}}\ndeletionPolicy: Delete"),
        )
    };
    let manifests = [of(&host, "away", "a"), of(&host, "here", "b")];
    host.write("v.yaml", &manifests);
    for name in ["away", "here"] {
        host.until(name, &["True", "Published"]).await;
        put(&host.path(name), "file", name.as_bytes());
    }
    boot(&mut host);
    let gone = a.with_extension("gone");
    fs::rename(&a, &gone).unwrap();
    host.restart(None).await;
    eventually(|| mounts_below(&host.path("")), |mounts| mounts.len() == 1).await;
    assert_eq!(get(&host.path("here"), "file"), b"here");
    host.until("away", &["False", "FailedPrecondition", "is missing"])
        .await;
    // What is of the other class is made, and goes, as ever.
    host.write("new.yaml", &[volume("new", "16Mi", "deviceClass: b")]);
    host.until("new", &["True"]).await;
    host.write("v.yaml", &[manifests[0].clone(), absent(&manifests[1])]);
    host.until("here", &["Deleted"]).await;
    let log = host.agent.log();
    let told = log.matches("class unavailable").count();
    assert!(
        (1..=2).contains(&told),
        "{told} times, of which one by the start\n{log}"
    );
    // It comes back, and what it has is there at once.
    fs::rename(&gone, &a).unwrap();
    host.until("away", &["True", "Published"]).await;
    assert_eq!(get(&host.path("away"), "file"), b"away");
    assert!(Path::new(&host.path("away")).is_dir());
}

#[tokio::test]
async fn a_mount_that_somebody_takes_away_is_made_again_at_once_unless_the_object_is_paused() {
    let host = Host::start().await;
    // By a link, and with a word that the mount table writes otherwise.
    fs::create_dir_all(host.path("real one")).unwrap();
    std::os::unix::fs::symlink(host.path("real one"), host.path("link")).unwrap();
    let path = host.path("link/data");
    let real = host.path("real one/data");
    let data = volume("data", "32Mi", &format!("mount: {{path: {path}}}"));
    host.write("a.yaml", &[data.clone()]);
    host.until("data", &["True", "Published"]).await;
    put(&path, "file", b"precious");
    let before = fs::read_to_string("/proc/self/mountinfo").unwrap();
    for _ in 0..2 {
        run("umount", &[&real]);
        eventually(|| fs::read(format!("{path}/file")).ok(), Option::is_some).await;
    }
    let log = host.agent.log();
    assert_eq!(log.matches("mount missing").count(), 2, "{log}");
    assert!(before.contains("real\\040one"), "{before}");
    // What the reconciler unmounts itself is nobody's trouble.
    let elsewhere = host.path("elsewhere");
    let moved = volume("data", "32Mi", &format!("mount: {{path: {elsewhere}}}"));
    host.write("a.yaml", &[moved.clone()]);
    host.until("data", &["True", &elsewhere]).await;
    let paused = moved.replace(
        "metadata:\n",
        "metadata:\n  annotations: {drumlin.dev/paused: \"true\"}\n",
    );
    host.write("a.yaml", &[paused]);
    let annotations = || host.object("Volume", "data")["metadata"]["annotations"].to_string();
    eventually(annotations, |said| said.contains("paused")).await;
    run("umount", &[&elsewhere]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(mounts_below(&elsewhere).is_empty());
    host.write("a.yaml", &[moved]);
    eventually(|| mounts_below(&elsewhere).len(), |mounts| *mounts == 1).await;
    let log = host.agent.log();
    assert_eq!(log.matches("mount missing").count(), 3, "{log}");
}

#[tokio::test]
async fn a_volume_without_room_is_made_as_soon_as_others_have_given_room_back() {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", Kind::Ext4, 128);
    let taken = images.join("taken");
    fs::write(&taken, vec![7; 80 << 20]).unwrap();
    let class = format!("{{path: {}, allocation: thick}}", images.display());
    let options = Options {
        config: Some(format!(
            "classes: [{{name: default, directory: {class}}}]\n"
        )),
        ..Options::default()
    };
    let host = Host::over(scratch, options).await;
    host.write("v.yaml", &[volume("v", "64Mi", "")]);
    host.until("v", &["False", "InsufficientCapacity"]).await;
    fs::remove_file(&taken).unwrap();
    let since = Instant::now();
    host.until("v", &["True"]).await;
    // The second attempt of its own comes after 22 s at the soonest.
    let waited = since.elapsed();
    assert!(waited < Duration::from_secs(18), "{waited:?}");
}

#[tokio::test]
async fn objects_that_wait_for_an_agent_that_is_away_say_so() {
    let mut host = Reconciler::start().await;
    // What is between them would answer in its place.
    let _ = host.child.kill();
    let _ = host.child.wait();
    // A minute is a second.
    let lapse = [("DRUMLIN_TIME_LAPSE", "60")];
    host.child = reconcile(&host.agent, &host.agent.socket(), &lapse);
    host.write("a.yaml", &[volume("a", "16Mi", "")]);
    host.until("a", &["True"]).await;
    host.agent.kill();
    host.write("b.yaml", &[volume("b", "16Mi", "")]);
    host.until("b", &["False", "AgentUnreachable"]).await;
    // There is nothing to do for it.
    host.until("a", &["True", "Created"]).await;
    host.agent.restart().await;
    host.until("b", &["True", "Created"]).await;
}

#[tokio::test]
async fn a_volume_that_the_agent_reports_as_abnormal_is_drifted_until_it_is_well() {
    let host = Host::start().await;
    let manifest = |turn: u32| {
        let asked = format!("drumlin.dev/reconcile-at: \"{turn}\"");
        annotated(&volume("v", "16Mi", "volumeMode: Block"), &asked)
    };
    host.write("v.yaml", &[manifest(1)]);
    host.until("v", &["True", "Created"]).await;
    let drifted = || {
        let conditions = host.object("Volume", "v")["status"]["conditions"].clone();
        let mut conditions = conditions.as_array().unwrap().clone().into_iter();
        conditions.find(|condition| condition["type"] == "Drifted")
    };
    assert_eq!(drifted(), None);
    let handle = host.object("Volume", "v")["status"]["volumeHandle"].clone();
    let key = handle.as_str().unwrap().rsplit('/').next().unwrap();
    let image = host
        .agent
        .path("state/images/volumes")
        .join(key)
        .join("image");
    let set_size = |mebibytes: u64| {
        let file = fs::File::options().write(true).open(&image).unwrap();
        file.set_len(mebibytes << 20).unwrap();
    };
    set_size(8);
    host.write("v.yaml", &[manifest(2)]);
    let told = eventually(drifted, Option::is_some).await.unwrap();
    assert_eq!(told["status"], "True");
    let why = told["message"].as_str().unwrap();
    assert!(why.contains("truncated"), "{why}");
    set_size(16);
    host.write("v.yaml", &[manifest(3)]);
    eventually(drifted, Option::is_none).await;
}

#[tokio::test]
async fn a_mounted_file_system_that_shut_down_is_told_until_it_is_mounted_anew() {
    let options = Options {
        environment: vec![("DRUMLIN_TIME_LAPSE".to_owned(), "600".to_owned())],
        ..Options::default()
    };
    let host = Host::with(options).await;
    let path = host.path("v");
    let mount = format!("fsType: xfs\nmount: {{path: {path}}}");
    host.write("v.yaml", &[volume("v", "300Mi", &mount)]);
    host.until("v", &["True", "Published"]).await;
    run("xfs_io", &["-x", "-c", "shutdown", &path]);
    let conditions = || host.object("Volume", "v")["status"]["conditions"].to_string();
    let told = eventually(conditions, |told| told.contains("Drifted")).await;
    assert!(told.contains("does not respond"), "{told}");
    // As an administrator would: where it is mounted, and where it is staged.
    let mounts = run("findmnt", &["-rno", "TARGET", "-t", "xfs"]);
    let state = text(host.agent.path("state"));
    let staged = mounts.lines().find(|mount| mount.starts_with(&state));
    let staged = staged.unwrap().to_owned();
    run("umount", &[&path]);
    run("umount", &[&staged]);
    eventually(conditions, |told| !told.contains("Drifted")).await;
    host.until("v", &["True", "Published"]).await;
    fs::write(format!("{path}/file"), "x").unwrap();
}

#[tokio::test]
async fn volumes_of_a_class_that_went_away_say_so_until_it_is_back() {
    let options = Options {
        environment: vec![("DRUMLIN_TIME_LAPSE".to_owned(), "600".to_owned())],
        ..Options::default()
    };
    let host = Host::with(options).await;
    host.write("v.yaml", &[volume("v", "16Mi", "volumeMode: Block")]);
    host.until("v", &["True", "Created"]).await;
    let images = host.agent.path("state/images");
    let aside = host.agent.path("aside");
    fs::rename(&images, &aside).unwrap();
    let conditions = || host.object("Volume", "v")["status"]["conditions"].to_string();
    let told = eventually(conditions, |told| told.contains("Drifted")).await;
    assert!(told.contains("class default cannot be read"), "{told}");
    fs::rename(&aside, &images).unwrap();
    eventually(conditions, |told| !told.contains("Drifted")).await;
}
