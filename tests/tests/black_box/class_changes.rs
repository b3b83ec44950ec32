//! Classes that come and go while the agent serves: by its file, by a signal, by labels.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use drumlin_proto::{
    csi::v1::{CreateVolumeRequest, GetCapacityRequest, ListVolumesRequest, ProbeRequest, Volume},
    drumlin::v1::{DeviceClass, WatchClassesRequest},
};
use drumlin_tests::{
    agent::{Agent, Options, eventually, write},
    doctor::Diagnosis,
    requests::{create, delete, delete_snapshot, expand, from_volume, mounted, raw, snapshot},
    storage::Scratch,
};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::{
    classes::Watch,
    helpers::{mount, ok, refused, text, unmount, volume},
};

/// A class over a directory, `more` beside it.
pub(crate) fn class(name: &str, path: &Path, more: &str) -> String {
    let path = path.display();
    format!("- {{name: {name}, directory: {{path: {path}}}{more}}}\n")
}

/// A file with these classes.
pub(crate) fn file(classes: &[String]) -> String {
    format!("classes:\n{}", classes.concat())
}

/// An agent with a directory `b`, and one class `a`.
pub(crate) async fn agent_with(more: &str, classes: impl Fn(&Path, &Path) -> Vec<String>) -> Agent {
    let scratch = Scratch::new();
    let (a, b) = (scratch.directory("a"), scratch.directory("b"));
    let options = Options {
        config: Some(format!("{more}{}", file(&classes(&a, &b)))),
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

fn only_a(a: &Path, _: &Path) -> Vec<String> {
    vec![class("a", a, ", default: true")]
}

pub(crate) fn both(a: &Path, b: &Path) -> Vec<String> {
    vec![class("a", a, ", default: true"), class("b", b, "")]
}

/// Replaces the file of an agent, as editors and configuration management do.
pub(crate) fn rewrite(agent: &Agent, text: &str) {
    write(&agent.path("config.yaml"), text);
}

/// The names of the classes, those that are retired in brackets.
fn names(classes: &[DeviceClass]) -> String {
    let name = |class: &DeviceClass| {
        if class.retired {
            format!("({})", class.name)
        } else {
            class.name.clone()
        }
    };
    classes.iter().map(name).collect::<Vec<_>>().join(" ")
}

/// Waits until an agent has these classes; returns them.
pub(crate) async fn until(watch: &mut Watch, wanted: &str) -> Vec<DeviceClass> {
    loop {
        let classes = watch.next().await.unwrap();
        if names(&classes) == wanted {
            return classes;
        }
    }
}

pub(crate) fn in_class(class: &str, name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        parameters: [("class".to_owned(), class.to_owned())].into(),
        ..create(name, 20, &mounted("ext4"))
    }
}

pub(crate) async fn made(agent: &Agent, request: CreateVolumeRequest) -> Volume {
    let answer = agent.controller().create_volume(request).await;
    ok(answer).volume.unwrap()
}

async fn capacity(agent: &Agent, class: &str) -> i64 {
    let request = GetCapacityRequest {
        parameters: [("class".to_owned(), class.to_owned())].into(),
        ..GetCapacityRequest::default()
    };
    ok(agent.controller().get_capacity(request).await).available_capacity
}

/// The ids of all volumes.
async fn listed(agent: &Agent) -> Vec<String> {
    let request = ListVolumesRequest::default();
    let answer = ok(agent.controller().list_volumes(request).await);
    let ids = answer.entries.into_iter();
    ids.map(|entry| entry.volume.unwrap().volume_id).collect()
}

/// Waits until the log has a line with all these words.
pub(crate) async fn until_logged(agent: &Agent, words: &[&str]) {
    let has = |log: &String| {
        let mut lines = log.lines();
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    };
    eventually(|| agent.log(), has).await;
}

#[tokio::test]
async fn a_class_that_leaves_the_file_serves_its_volumes_until_the_last_is_deleted() {
    let mut agent = agent_with("", only_a).await;
    let (a, b) = (agent.path("a"), agent.path("b"));
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a").await;
    let answer = agent.controller().create_volume(in_class("b", "v")).await;
    refused(answer, Code::InvalidArgument);

    rewrite(&agent, &file(&both(&a, &b)));
    until(&mut watch, "a b").await;
    let id = made(&agent, in_class("b", "v")).await.volume_id;
    assert!(capacity(&agent, "b").await > 0);

    rewrite(&agent, &file(&only_a(&a, &b)));
    let classes = until(&mut watch, "a (b)").await;
    assert_eq!((classes[1].volumes, classes[1].available_bytes), (1, 0));
    for round in ["as it is retired", "after a restart"] {
        // A repeat of the call that created it.
        assert_eq!(made(&agent, in_class("b", "v")).await.volume_id, id);
        let answer = agent.controller().create_volume(in_class("b", "w")).await;
        let message = refused(answer, Code::ResourceExhausted);
        assert!(message.contains("class b is retired"), "{message}");
        let copy = CreateVolumeRequest {
            volume_content_source: from_volume(&id),
            ..create("copy", 20, &mounted("ext4"))
        };
        refused(
            agent.controller().create_volume(copy).await,
            Code::ResourceExhausted,
        );
        assert_eq!(capacity(&agent, "b").await, 0);
        assert_eq!(listed(&agent).await, [id.clone()], "{round}");
        ok(agent.identity().probe(ProbeRequest {}).await);
        let mounted = mount(&agent, "v", &id, &mounted("ext4")).await;
        fs::write(PathBuf::from(&mounted.1).join(round), "kept").unwrap();
        ok(agent
            .controller()
            .controller_expand_volume(expand(&id, 24))
            .await);
        unmount(&agent, &id, &mounted).await;
        let taken = ok(agent.controller().create_snapshot(snapshot("s", &id)).await);
        let taken = taken.snapshot.unwrap().snapshot_id;
        ok(agent
            .controller()
            .delete_snapshot(delete_snapshot(&taken))
            .await);
        if round == "as it is retired" {
            agent.kill();
            let config = Some(file(&only_a(&a, &b)));
            agent
                .restart_with(Options {
                    config,
                    ..Options::default()
                })
                .await;
        }
    }
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a (b)").await;
    ok(agent.controller().delete_volume(delete(&id)).await);
    until(&mut watch, "a").await;
    ok(agent.controller().delete_volume(delete(&id)).await);
    let answer = agent.controller().create_volume(in_class("b", "v")).await;
    refused(answer, Code::InvalidArgument);
}

#[tokio::test]
async fn a_retired_class_that_comes_back_takes_volumes_again() {
    let mut agent = agent_with("", both).await;
    let (a, b) = (agent.path("a"), agent.path("b"));
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a b").await;
    made(&agent, in_class("b", "v")).await;
    rewrite(&agent, &file(&only_a(&a, &b)));
    until(&mut watch, "a (b)").await;
    rewrite(&agent, &file(&both(&a, &b)));
    until(&mut watch, "a b").await;
    made(&agent, in_class("b", "w")).await;
    assert_eq!(listed(&agent).await.len(), 2);

    // The same by a start.
    rewrite(&agent, &file(&only_a(&a, &b)));
    until(&mut watch, "a (b)").await;
    agent.kill();
    agent.restart().await;
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a b").await;
    made(&agent, in_class("b", "x")).await;
}

#[tokio::test]
async fn a_file_that_is_not_valid_and_what_only_a_start_applies_change_nothing() {
    let agent = agent_with("", both).await;
    let (a, b) = (agent.path("a"), agent.path("b"));
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a b").await;
    let kept = volume(&agent, "v", 20, &raw()).await;
    rewrite(&agent, &file(&[class("a", &a, ", defalt: true")]));
    until_logged(&agent, &["configuration not applied", "defalt"]).await;
    assert!(capacity(&agent, "b").await > 0);

    // Another path: refused for the class that has a volume, applied to the one that has none.
    let (c, d) = (agent.scratch.directory("c"), agent.scratch.directory("d"));
    rewrite(&agent, &format!("attach: true\n{}", file(&both(&c, &d))));
    until_logged(&agent, &["changed settings not applied", "attach"]).await;
    until_logged(
        &agent,
        &["changed settings of the class not applied", "class=a"],
    )
    .await;
    assert_eq!(listed(&agent).await, [kept]);
    let volumes = |path: &Path| fs::read_dir(path.join("volumes")).map_or(0, Iterator::count);
    eventually(
        || agent.log().matches("class added").count(),
        |&added| added == 1,
    )
    .await;
    while capacity(&agent, "b").await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    made(&agent, in_class("b", "in d")).await;
    volume(&agent, "in a", 20, &raw()).await;
    assert_eq!([&a, &b, &c, &d].map(|path| volumes(path)), [2, 0, 0, 1]);
}

#[tokio::test]
async fn what_is_said_beside_a_change_that_is_refused_is_applied() {
    let agent = agent_with("", both).await;
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a b").await;
    let kept = volume(&agent, "v", 20, &raw()).await;
    let other = agent.scratch.directory("c");
    let changed = class("a", &other, ", default: true, trash: {keep: 1d}");
    rewrite(&agent, &file(&[changed]));
    until_logged(&agent, &["not applied", "class=a", "directory.path"]).await;
    ok(agent.controller().delete_volume(delete(&kept)).await);
    let endpoint = text(agent.socket());
    let trash = agent.command(&["trash", "-o", "json", "--endpoint", &endpoint]);
    let trash: serde_json::Value = serde_json::from_slice(&trash.stdout).unwrap();
    assert_eq!(trash["volumes"].as_array().unwrap().len(), 1, "{trash:#}");
}

#[tokio::test]
async fn a_class_that_was_never_there_is_said_to_be_retired_until_it_can_be_read() {
    let agent = agent_with("", only_a).await;
    let (a, never) = (agent.path("a"), agent.path("never"));
    let both = both(&a, &never);
    rewrite(&agent, &file(&both));
    until_logged(&agent, &["class added", "class=b"]).await;
    rewrite(&agent, &file(&both[..1]));
    until_logged(&agent, &["class retired", "class=b"]).await;
    let found = Diagnosis::of(&agent);
    let message = found.text("directory-missing", "never", "message");
    assert!(message.contains("class b, which is retired,"), "{message}");
    fs::create_dir(&never).unwrap();
    eventually(
        || Diagnosis::of(&agent).all("directory-missing").len(),
        |count| *count == 0,
    )
    .await;
    until_logged(&agent, &["class removed", "class=b"]).await;
}

#[tokio::test]
async fn each_setting_that_only_a_start_applies_is_named_when_it_changes() {
    let agent = agent_with("", both).await;
    let (a, b) = (agent.path("a"), agent.path("b"));
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a b").await;
    let changed = "
node: other
endpoint: /tmp/other.sock
addonsEndpoint: /tmp/more.sock
stateDir: /other
manifests: /other
prune: {mode: auto, grace: 1h, kinds: [Volume]}
manifestOwner: [65533]
attach: true
volumeMountGroup: false
maxVolumesPerNode: 3
onGroupDelete: refuse
driverName: other.example.com
kubelet: {register: true, registrationDir: /other, endpoint: /other.sock}
log: {level: debug, format: json}
tracing: {otlpEndpoint: 'http://127.0.0.1:4317'}
metrics: {listen: '127.0.0.1:9464', textfile: /other/drumlin.prom}
";
    rewrite(&agent, &format!("{changed}{}", file(&only_a(&a, &b))));
    let keys = "addonsEndpoint, attach, driverName, endpoint, kubelet.endpoint, kubelet.register, \
        kubelet.registrationDir, log.format, log.level, manifestOwner, manifests, maxVolumesPerNode, \
        metrics.listen, metrics.textfile, node, onGroupDelete, prune.grace, prune.kinds, prune.mode, \
        stateDir, tracing.otlpEndpoint, volumeMountGroup";
    let keys = format!("keys=\"{keys}\"");
    until_logged(&agent, &["WARN", "restart the agent to apply them", &keys]).await;
    // What can be applied is.
    until(&mut watch, "a").await;
    ok(agent.identity().probe(ProbeRequest {}).await);
}

#[tokio::test]
async fn a_signal_reads_a_file_that_cannot_be_watched_where_it_is() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.directory("a"), scratch.directory("b"));
    let (real, link) = (
        scratch.directory("real").join("r.yaml"),
        scratch.path().join("l.yaml"),
    );
    write(&real, &file(&only_a(&a, &b)));
    symlink(&real, &link).unwrap();
    let options = Options {
        arguments: vec![format!("--config={}", text(link))],
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a").await;
    write(&real, &file(&both(&a, &b)));
    watch.is_silent().await;
    agent.signal(Signal::SIGHUP);
    until(&mut watch, "a b").await;
}

#[tokio::test]
async fn a_config_map_is_read_when_its_links_are_replaced() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.directory("a"), scratch.directory("b"));
    let mounted = scratch.directory("mounted");
    let version = |number: u32, classes: &[String]| {
        let data = mounted.join(format!("..{number}"));
        fs::create_dir(&data).unwrap();
        write(&data.join("agent.yaml"), &file(classes));
        symlink(&data, mounted.join("..data_tmp")).unwrap();
        fs::rename(mounted.join("..data_tmp"), mounted.join("..data")).unwrap();
    };
    version(1, &only_a(&a, &b));
    symlink("..data/agent.yaml", mounted.join("agent.yaml")).unwrap();
    let options = Options {
        arguments: vec![format!("--config={}", text(mounted.join("agent.yaml")))],
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a").await;
    version(2, &both(&a, &b));
    until(&mut watch, "a b").await;
}

#[tokio::test]
async fn the_labels_in_the_file_decide_which_classes_there_are() {
    let classes = |a: &Path, b: &Path| {
        let on = |disk: &str| format!(", nodeSelector: {{matchLabels: {{disk: {disk}}}}}");
        vec![
            class("a", a, &format!(", default: true{}", on("nvme"))),
            class("b", b, &on("hdd")),
        ]
    };
    let mut agent = agent_with("nodeLabels: {disk: hdd}\n", classes).await;
    let selected = file(&classes(&agent.path("a"), &agent.path("b")));
    let mut watch = Watch::begin(&agent, 1).await;
    let found = until(&mut watch, "b").await;
    assert!(!found[0].default, "the default class is on other nodes");
    // Whose parameters name no class gets no other one than the default.
    let answer = agent
        .controller()
        .create_volume(create("v", 20, &raw()))
        .await;
    let message = refused(answer, Code::ResourceExhausted);
    assert!(message.contains("class a is not on this node"), "{message}");
    assert_eq!(capacity(&agent, "a").await, 0);
    let id = made(&agent, in_class("b", "v")).await.volume_id;

    // A node without any class is ready.
    rewrite(&agent, &format!("nodeLabels: {{disk: none}}\n{selected}"));
    until(&mut watch, "(b)").await;
    ok(agent.identity().probe(ProbeRequest {}).await);
    ok(agent.controller().delete_volume(delete(&id)).await);
    until(&mut watch, "").await;
    ok(agent.identity().probe(ProbeRequest {}).await);
    let ready = agent.command(&[
        "ping",
        "--ready",
        "--endpoint",
        &agent.socket().to_string_lossy(),
    ]);
    assert!(ready.status.success(), "{ready:?}");
    assert!(listed(&agent).await.is_empty());

    // The arguments go before the file.
    let arguments = vec!["--node-labels=disk=nvme,rack=1".to_owned()];
    agent.kill();
    agent
        .restart_with(Options {
            arguments,
            ..Options::default()
        })
        .await;
    let mut watch = Watch::begin(&agent, 1).await;
    let found = until(&mut watch, "a").await;
    assert!(found[0].default);
    volume(&agent, "v", 20, &raw()).await;
}

#[tokio::test]
async fn a_class_with_volumes_that_a_start_does_not_select_is_retired() {
    let mut agent = agent_with("", both).await;
    let (a, b) = (agent.path("a"), agent.path("b"));
    let id = made(&agent, in_class("b", "v")).await.volume_id;
    agent.kill();
    let away = agent.path("away");
    fs::rename(&b, &away).unwrap();
    let elsewhere = ", nodeSelector: {matchLabels: {disk: nvme}}";
    let classes = [class("a", &a, ", default: true"), class("b", &b, elsewhere)];
    let config = Some(file(&classes));
    agent
        .restart_with(Options {
            config,
            ..Options::default()
        })
        .await;
    // Most nodes have no storage for the classes of others. If there was a volume in it, is not known.
    let answer = agent.controller().delete_volume(delete(&id)).await;
    refused(answer, Code::FailedPrecondition);
    ok(agent.identity().probe(ProbeRequest {}).await);
    fs::rename(&away, &b).unwrap();
    agent.kill();
    agent.restart().await;
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a (b)").await;
    ok(agent.controller().delete_volume(delete(&id)).await);
    until(&mut watch, "a").await;
}

/// A kubeconfig of a server that is away.
fn server_that_is_away(scratch: &Scratch) -> String {
    let path = scratch.path().join("kubeconfig");
    let config = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n";
    fs::write(&path, config).unwrap();
    text(path)
}

#[tokio::test]
async fn without_an_api_server_a_node_has_the_classes_of_the_labels_that_it_had() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.directory("a"), scratch.directory("b"));
    let on = |operator: &str| {
        format!(", nodeSelector: {{matchExpressions: [{{key: disk, operator: {operator}}}]}}")
    };
    let classes = [
        class("a", &a, &format!(", default: true{}", on("Exists"))),
        class("b", &b, &on("DoesNotExist")),
    ];
    let kubeconfig = server_that_is_away(&scratch);
    let options = Options {
        config: Some(file(&classes)),
        arguments: vec![format!("--kubeconfig={kubeconfig}")],
        ..Options::default()
    };
    let mut agent = Agent::with(scratch, options).await;
    // Labels that are not known are not those of a node without labels.
    let request = WatchClassesRequest::default();
    let message = refused(
        agent.classes().watch_classes(request).await,
        Code::Unavailable,
    );
    assert!(message.contains("labels of the Node"), "{message}");
    let answer = agent.identity().probe(ProbeRequest {}).await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("labels of the Node"), "{message}");
    let answer = agent.controller().create_volume(in_class("b", "v")).await;
    let message = refused(answer, Code::ResourceExhausted);
    assert!(message.contains("labels of the Node"), "{message}");
    for (labels, wanted) in [(r#"{"disk": "nvme"}"#, "a"), ("{}", "b")] {
        agent.kill();
        let record = format!(r#"{{"nodeLabels": {labels}, "retired": []}}"#);
        fs::write(agent.path("state/classes.json"), record).unwrap();
        agent.restart().await;
        let mut watch = Watch::begin(&agent, 1).await;
        until(&mut watch, wanted).await;
        ok(agent.identity().probe(ProbeRequest {}).await);
    }
}

#[tokio::test]
async fn no_volume_is_lost_that_is_created_while_its_class_comes_and_goes() {
    let agent = agent_with("", both).await;
    let (a, b) = (agent.path("a"), agent.path("b"));
    let mut controller = agent.controller();
    let creating = tokio::spawn(async move {
        let mut ids = Vec::new();
        for number in 0..120 {
            let request = CreateVolumeRequest {
                parameters: [("class".to_owned(), "b".to_owned())].into(),
                ..create(&format!("v{number}"), 1, &raw())
            };
            match controller.create_volume(request).await {
                Ok(made) => ids.push(made.into_inner().volume.unwrap().volume_id),
                Err(status) => assert!(
                    matches!(
                        status.code(),
                        Code::ResourceExhausted | Code::InvalidArgument
                    ),
                    "{status:?}"
                ),
            }
            // All are deleted now and then, so that the class may leave.
            if number % 10 == 9 {
                for id in ids.drain(..) {
                    controller.delete_volume(delete(&id)).await.unwrap();
                }
                tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            }
        }
        ids
    });
    let mut classes = both(&a, &b);
    while !creating.is_finished() {
        classes = if classes.len() == 2 {
            only_a(&a, &b)
        } else {
            both(&a, &b)
        };
        rewrite(&agent, &file(&classes));
        agent.signal(Signal::SIGHUP);
        tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    }
    let mut ids = creating.await.unwrap();
    rewrite(&agent, &file(&both(&a, &b)));
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a b").await;
    let mut found = listed(&agent).await;
    ids.sort();
    found.sort();
    assert_eq!(found, ids);
    let log = agent.log();
    assert!(log.contains("class retired"), "{log}");
}

#[tokio::test]
async fn a_value_that_is_not_valid_is_told_with_its_file_line_and_key() {
    let agent = agent_with("", only_a).await;
    let directory = agent.path("a").display().to_string();
    let given = format!(
        "classes:\n- name: a\n  directory: {{path: {directory}}}\n  trash:\n    keep: 7days\n"
    );
    rewrite(&agent, &given);
    agent.signal(Signal::SIGHUP);
    let file = text(agent.path("config.yaml"));
    let place = format!("config file {file}: line 5 column 5: classes[0] (a): trash.keep: ");
    until_logged(&agent, &["configuration not applied", &place]).await;
}
