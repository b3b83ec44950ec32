//! `drumlin get` and `drumlin wait`: objects as the state files have them, also while no daemon runs.

use std::{process::Output, time::Instant};

use drumlin_tests::{
    agent::eventually,
    programs::{drumlin, program},
};
use serde_json::Value;

use crate::{
    helpers::text,
    host::{Host, absent, object, small, volume},
};

impl Host {
    fn asked(&self, arguments: &[&str]) -> Output {
        let state = text(self.agent.path("state"));
        self.agent
            .command(&[arguments, &["--state-dir", &state]].concat())
    }

    /// What a command prints, which must succeed.
    fn printed(&self, arguments: &[&str]) -> String {
        let output = self.asked(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command complains of, and its exit code.
    fn complaint(&self, arguments: &[&str]) -> (String, Option<i32>) {
        let output = self.asked(arguments);
        assert!(output.stdout.is_empty(), "{output:?}");
        let complaint = String::from_utf8(output.stderr).unwrap();
        (complaint, output.status.code())
    }
}

#[tokio::test]
async fn objects_are_shown_as_kubectl_shows_them_also_without_a_daemon() {
    let mut host = Host::start().await;
    host.write("v.yaml", &[small("data"), small("log")]);
    host.printed(&["wait", "dv/data", "Volume/default/log", "--timeout=1m"]);
    host.agent.kill();

    let json = host.printed(&["get", "dv", "data", "-o", "json"]);
    let one: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(one["kind"], "Volume");
    assert_eq!(one["metadata"]["name"], "data");
    assert_eq!(one["status"]["conditions"][0]["status"], "True");
    assert_eq!(one.get("drumlin"), None, "what is private is not shown");
    let yaml = host.printed(&["get", "Volume", "default/data", "-o", "yaml"]);
    assert_eq!(serde_yaml::from_str::<Value>(&yaml).unwrap(), one);

    let all = host.printed(&["get", "volume", "-o", "json"]);
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["kind"], "List");
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&all), ["data", "log"]);
    assert_eq!(host.printed(&["get", "dv"]).lines().count(), 3);
    assert_eq!(host.printed(&["get", "dv", "log"]).lines().count(), 2);
    for name in ["dv/log", "Volume/default/log"] {
        assert_eq!(host.printed(&["get", name]).lines().count(), 2);
        let described = host.printed(&["describe", name]);
        let same = host.printed(&["describe", "dv", "log"]);
        assert_eq!(described.lines().next(), same.lines().next());
    }
    let (why, _) = host.complaint(&["get", "dv/log", "data"]);
    assert!(why.contains("two names"), "{why}");
    assert_eq!(host.printed(&["get", "dsnap"]), "no objects\n");

    let (why, code) = host.complaint(&["get", "dv", "nobody"]);
    assert!(
        why.contains("Volume/default/nobody does not exist"),
        "{why}"
    );
    assert_eq!(code, Some(1));
    let (why, code) = host.complaint(&["get", "dv", "../data"]);
    assert!(why.contains("not a valid name"), "{why}");
    assert_eq!(code, Some(1));
}

#[tokio::test]
async fn several_kinds_are_shown_as_kubectl_shows_them() {
    let host = Host::start().await;
    let source = "source: {volumeName: data}";
    host.write(
        "v.yaml",
        &[small("data"), object("Snapshot", "first", "", source)],
    );
    host.printed(&["wait", "dv/data", "dsnap/first", "--timeout=1m"]);
    for (words, names) in [
        ("dv,dsnap", &["data", "first"][..]),
        ("dsnap,Volumes,dsnap", &["first", "data"]),
        ("all", &["data", "first"]),
        ("drumlin", &["data", "first"]),
        ("volumes,dvg", &["data"]),
        ("snapshots.drumlin.dev", &["first"]),
    ] {
        let table = host.printed(&["get", words]);
        let parts: Vec<&str> = table.split("\n\n").collect();
        assert_eq!(parts.len(), names.len(), "{words}: {table}");
        for (part, name) in parts.iter().zip(names) {
            let mut lines = part.lines();
            assert!(lines.next().unwrap().starts_with("KIND "), "{table}");
            let line = lines.next().unwrap();
            assert_eq!(line.split_whitespace().nth(2), Some(*name), "{table}");
        }
        let list = host.printed(&["get", words, "-o", "json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        assert_eq!(list["kind"], "List");
        let items = list["items"].as_array().unwrap().iter();
        let found: Vec<_> = items
            .map(|item| item["metadata"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(found, names, "{words}");
    }
    assert_eq!(host.printed(&["get", "dvg,dgsnap"]), "no objects\n");
    for words in [
        &["dv,dsnap", "data"][..],
        &["all", "data"],
        &["dv,dsnap/data"],
    ] {
        let (why, code) = host.complaint(&[&["get"][..], words].concat());
        assert!(why.contains("one kind"), "{words:?}: {why}");
        assert_eq!(code, Some(1));
    }
    let (why, _) = host.complaint(&["get", "dv", "dsnap"]);
    assert!(
        why.contains("Volume/default/dsnap does not exist") && why.contains("commas"),
        "{why}"
    );
    let (why, code) = host.complaint(&["get", "dv,pods"]);
    assert!(why.contains("pods") && why.contains("Volume"), "{why}");
    assert_eq!(code, Some(2));
}

#[tokio::test]
async fn waiting_ends_when_an_object_is_there_and_when_it_is_deleted() {
    let host = Host::start().await;
    let (why, code) = host.complaint(&["wait", "dv/data", "--timeout=300ms"]);
    assert!(
        why.contains("Volume/default/data: does not exist yet"),
        "{why}"
    );
    assert_eq!(code, Some(3));
    host.printed(&["wait", "dv/data", "--for=delete", "--timeout=0s"]);

    host.write("v.yaml", &[small("data")]);
    host.printed(&[
        "wait",
        "dv/data",
        "--for=condition=Ready=True",
        "--timeout=1m",
    ]);
    // It waits all the time that it is given, and no longer.
    let begun = Instant::now();
    let (why, code) = host.complaint(&["wait", "dv/data", "--for=delete", "--timeout=600ms"]);
    assert!(begun.elapsed().as_millis() >= 600);
    assert!(why.contains("Ready is True"), "{why}");
    assert_eq!(code, Some(3));

    host.write("v.yaml", &[absent(&small("data"))]);
    host.printed(&["wait", "dv/data", "--for=delete", "--timeout=1m"]);
    for (wrong, why, exit) in [
        (&["wait", "dv"][..], "names no object", 1),
        (&["wait", "pv/data"], "there is no kind \"pv\"", 1),
        (&["wait", "dv/data", "--for=Ready"], "condition=TYPE", 1),
        (
            &["wait", "dv/data", "--for=condition="],
            "condition=TYPE",
            1,
        ),
        (&["wait", "dv/data", "--timeout=-1s"], "negative", 2),
    ] {
        let (complaint, code) = host.complaint(wrong);
        assert!(complaint.contains(why), "{complaint}");
        assert_eq!(code, Some(exit), "{wrong:?}");
    }
}

#[tokio::test]
async fn mounts_are_those_of_this_start_of_the_host() {
    let mut host = Host::start().await;
    let mount = format!("mount: {{path: {}}}", host.path("data"));
    host.write("v.yaml", &[volume("data", "32Mi", &mount), small("other")]);
    host.printed(&["wait", "dv/data", "dv/other", "--timeout=1m"]);
    host.printed(&["wait", "--mounts", "--timeout=0s"]);
    host.agent.kill();
    // As it is when the host was started anew and nothing is mounted yet: what was said before says nothing.
    let path = host
        .agent
        .path("state/reconciler/objects/Volume/default/data.json");
    let record = std::fs::read_to_string(&path).unwrap();
    let mut record: Value = serde_json::from_str(&record).unwrap();
    record["drumlin"]["boot"] = "another".into();
    std::fs::write(&path, record.to_string()).unwrap();
    for words in [&["wait", "--mounts"][..], &["wait", "dv/data"]] {
        let (why, code) = host.complaint(&[words, &["--timeout=300ms"]].concat());
        assert!(
            why.contains("not mounted since the host was started"),
            "{why}"
        );
        assert_eq!(code, Some(3));
    }
    host.restart(None).await;
    host.printed(&["wait", "--mounts", "--timeout=1m"]);
    eventually(|| host.agent.status().1, |code| *code == 0).await;
}

/// A reload, or a pause between two scans, is no proof that an edit was read: what is on record may be that of before.
#[tokio::test]
async fn an_edit_that_was_not_read_yet_is_waited_for() {
    let mut host = Host::start().await;
    let mounted = |name: &str, path: &str| {
        let mount = format!("mount: {{path: {}}}", host.path(path));
        volume(name, "32Mi", &mount)
    };
    let (here, there) = (mounted("data", "here"), mounted("data", "there"));
    let second = mounted("second", "second");
    let mounts = &["wait", "--mounts", "--timeout=300ms"][..];
    let unread = "its manifest was not read yet";
    host.write("v.yaml", &[here]);
    host.printed(&["wait", "dv/data", "--timeout=1m"]);
    host.agent.kill();

    host.write("v.yaml", std::slice::from_ref(&there));
    for words in [mounts, &["wait", "dv/data", "--timeout=300ms"]] {
        let (why, code) = host.complaint(words);
        assert!(
            why.contains(&format!("Volume/default/data: {unread}")),
            "{why}"
        );
        assert_eq!(code, Some(3), "{words:?}");
    }
    host.restart(None).await;
    host.printed(&["wait", "--mounts", "--timeout=1m"]);
    assert!(std::path::Path::new(&host.path("there")).is_dir());
    host.agent.kill();

    // What the reconciler does not take over keeps no host from starting, for the last valid version applies. Who waits for
    // the object itself is told.
    for refused in ["kind: [", &there.replace("32Mi", "16Mi")] {
        host.write("v.yaml", &[refused.to_owned()]);
        host.printed(mounts);
        let (why, code) = host.complaint(&["wait", "dv/data", "--timeout=300ms"]);
        assert!(
            why.contains("its manifest v.yaml cannot be used: "),
            "{why}"
        );
        assert_eq!(code, Some(3));
    }
    host.write("v.yaml", &[there]);
    host.write("w.yaml", std::slice::from_ref(&second));
    let (why, code) = host.complaint(mounts);
    assert!(
        why.contains(&format!("Volume/default/second: {unread}")),
        "{why}"
    );
    assert_eq!(code, Some(3));
    // One directory may serve many hosts.
    host.write("w.yaml", &[second + "  nodeName: another\n"]);
    host.printed(mounts);
}

#[tokio::test]
async fn a_state_directory_or_an_agent_that_is_not_there_is_named() {
    let mut host = Host::start().await;
    let nowhere = text(host.agent.path("nowhere"));
    let said = host.agent.complaint(&["status", "--state-dir", &nowhere]);
    let wanted = format!("state directory {nowhere} does not exist");
    assert!(said.contains(&wanted), "{said}");
    let socket = format!("unix://{}", host.agent.socket().display());
    host.agent.kill();
    let said = host.agent.complaint(&["trash", "--endpoint", &socket]);
    assert!(
        said.contains("the agent does not answer: ListTrash"),
        "{said}"
    );
    assert!(said.contains("--endpoint"), "{said}");
}

#[tokio::test]
async fn what_nobody_reconciles_any_more_is_shown_with_a_note_that_says_so() {
    let mut host = Host::start().await;
    host.write("v.yaml", &[small("data")]);
    host.printed(&["wait", "dv/data", "--timeout=1m"]);
    let commands: [&[&str]; 5] = [
        &["status"],
        &["get", "dv"],
        &["describe", "dv/data"],
        &["events"],
        &["wait", "dv/data"],
    ];
    let told = |arguments: &[&str]| String::from_utf8(host.asked(arguments).stderr).unwrap();
    for arguments in commands {
        assert!(!told(arguments).contains("no reconciler"), "{arguments:?}");
    }
    host.agent.kill();
    let told = |arguments: &[&str]| String::from_utf8(host.asked(arguments).stderr).unwrap();
    for arguments in commands {
        let told = told(arguments);
        assert!(told.contains("no reconciler runs"), "{arguments:?}: {told}");
    }
}

/// The unit `drumlin-mounts.service` waits without capabilities, and may not see what files the reconciler has open.
#[tokio::test]
async fn whoever_may_not_see_the_reconciler_is_not_told_that_none_runs() {
    let host = Host::start().await;
    host.write("v.yaml", &[small("data")]);
    host.printed(&["wait", "dv/data", "--timeout=1m"]);
    let output = program("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all"])
        .arg(drumlin())
        .args(["wait", "--mounts", "--timeout=0s", "--state-dir"])
        .arg(host.agent.path("state"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[tokio::test]
async fn objects_are_selected_by_namespace_and_label_as_with_kubectl() {
    let host = Host::start().await;
    let of = |namespace: &str, name: &str, label: &str| {
        let metadata = format!("namespace: {namespace}\n  labels: {{app: {label}}}\n  name: ");
        small(name).replace("name: ", &metadata)
    };
    host.write(
        "v.yaml",
        &[
            of("db", "data", "pg"),
            of("db", "log", "redis"),
            of("web", "data", "pg"),
        ],
    );
    let all = ["dv/db/data", "dv/db/log", "dv/web/data", "--timeout=1m"];
    host.printed(&[&["wait"][..], &all].concat());
    let names = |arguments: &[&str]| -> Vec<String> {
        let printed = host.printed(&[&["get", "dv"], arguments].concat());
        let lines = printed.lines().skip(1).map(|line| {
            let mut words = line.split_whitespace().skip(1);
            format!("{}/{}", words.next().unwrap(), words.next().unwrap())
        });
        lines.collect()
    };
    let everything = ["db/data", "db/log", "web/data"];
    assert_eq!(names(&[]), everything);
    assert_eq!(names(&["-A"]), everything);
    assert_eq!(names(&["-n", "db"]), ["db/data", "db/log"]);
    assert_eq!(names(&["-l", "app=pg"]), ["db/data", "web/data"]);
    assert_eq!(names(&["-n", "db", "-l", "app=pg"]), ["db/data"]);
    assert_eq!(names(&["data", "-n", "web"]), ["web/data"]);
    assert_eq!(names(&["web/data", "-n", "web"]), ["web/data"]);
    let (why, _) = host.complaint(&["get", "dv", "db/data", "-n", "web"]);
    assert!(why.contains("not in namespace"), "{why}");
    let (why, _) = host.complaint(&["get", "dv", "-l", "app"]);
    assert!(why.contains("KEY=VALUE"), "{why}");
    let described = host.printed(&["describe", "dv", "data", "-n", "web"]);
    assert!(described.contains("web"), "{described}");
    let events = host.printed(&["events", "-n", "web", "-o", "json"]);
    let events: Vec<Value> = serde_json::from_str(&events).unwrap();
    assert!(!events.is_empty() && events.iter().all(|event| event["namespace"] == "web"));
}
