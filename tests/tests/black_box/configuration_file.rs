//! A configuration file that is cut off, wrong, or applied in part: what is done, and what is said of it.

use std::fs;

use drumlin_tests::{
    agent::{Agent, Options, eventually, write},
    doctor::Diagnosis,
    requests::{create, raw},
    storage::Scratch,
};
use nix::sys::signal::Signal;

use crate::{
    class_changes::{agent_with, both, file, in_class, made, rewrite, until, until_logged},
    classes::Watch,
    helpers::text,
    service_manager::Manager,
};

/// Files that have lost their classes, and what else they have.
const CUT_OFF: [(&str, &str); 5] = [
    ("empty", ""),
    ("blank", "\n \n"),
    ("comments alone", "# classes:\n# - {name: a}\n"),
    ("other keys alone", "nodeLabels: {disk: nvme}\n"),
    ("an empty list", "classes: []\n"),
];

/// Why an agent with the state and the file of this one, which does not run, does not start.
fn start_refused(agent: &Agent) -> String {
    let (state, config, socket) = (
        text(agent.path("state")),
        text(agent.path("config.yaml")),
        text(agent.socket()),
    );
    agent.complaint(&[
        "agent",
        "--node=node-a",
        &format!("--state-dir={state}"),
        &format!("--config={config}"),
        &format!("--endpoint={socket}"),
    ])
}

#[tokio::test]
async fn a_file_that_has_lost_its_classes_is_refused_by_a_reload_and_by_a_start() {
    let mut agent = agent_with("", both).await;
    let classes = file(&both(&agent.path("a"), &agent.path("b")));
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a b").await;
    let why = "config.yaml: it names no class, but before it named a, b: ";
    let cure = format!(
        "`classes: [{{name: default, directory: {{path: {}}}}}]`",
        text(agent.path("state/images"))
    );
    for (what, cut_off) in CUT_OFF {
        let refused = || agent.log().matches(why).count();
        let before = refused();
        rewrite(&agent, cut_off);
        agent.signal(Signal::SIGHUP);
        until_logged(&agent, &["ERROR", "configuration not applied", why, &cure]).await;
        eventually(refused, |now| *now > before).await;
        made(&agent, in_class("b", what)).await;
        let default = made(&agent, create(&format!("{what} in a"), 20, &raw())).await;
        assert!(default.volume_id.contains("/a/"), "{what}: {default:?}");
    }
    assert!(!agent.path("state/images").exists());

    agent.kill();
    for (what, cut_off) in CUT_OFF {
        write(&agent.path("config.yaml"), cut_off);
        let said = start_refused(&agent);
        assert!(said.contains(why) && said.contains(&cure), "{what}: {said}");
    }
    // As the error says.
    let said = start_refused(&agent);
    let (_, line) = said.split_once('`').unwrap();
    let (line, _) = line.split_once('`').unwrap();
    agent
        .restart_with(Options {
            config: Some(format!("{line}\n")),
            ..Options::default()
        })
        .await;
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "default").await;
    agent.kill();
    agent
        .restart_with(Options {
            config: Some(classes),
            ..Options::default()
        })
        .await;
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "a b").await;
}

#[tokio::test]
async fn an_agent_that_never_had_classes_starts_with_an_empty_file_and_is_given_some_later() {
    let options = Options {
        config: Some("# classes:\nnodeLabels: {disk: nvme}\n".to_owned()),
        ..Options::default()
    };
    let mut agent = Agent::with(Scratch::new(), options).await;
    fs::write(agent.path("config.yaml"), "").unwrap();
    agent.signal(Signal::SIGHUP);
    until_logged(&agent, &["configuration read again"]).await;
    agent.kill();
    let config = Some("# classes:\n".to_owned());
    agent
        .restart_with(Options {
            config,
            ..Options::default()
        })
        .await;
    let mut watch = Watch::begin(&agent, 1).await;
    until(&mut watch, "default").await;
    let (a, b) = (agent.scratch.directory("a"), agent.scratch.directory("b"));
    rewrite(&agent, &file(&both(&a, &b)));
    until(&mut watch, "a b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_are_refused_are_named_in_the_log_the_status_and_by_the_doctor() {
    let scratch = Scratch::new();
    let (manager, environment) = Manager::new(&scratch);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| scratch.directory(name));
    let options = Options {
        config: Some(file(&both(&a, &b))),
        environment,
        ..Options::default()
    };
    let mut agent = Agent::with(scratch, options).await;
    manager.until(&["STATUS=serving"]);
    made(&agent, in_class("b", "v")).await;
    Diagnosis::of(&agent).lacks("change-not-applied");

    // The class that has no volume gets its other directory.
    rewrite(
        &agent,
        &format!("log: {{level: debug}}\n{}", file(&both(&c, &d))),
    );
    manager.until(&[
        "STATUS=configuration read again, but these changes need a restart: log.level, class b: directory.path\n",
    ]);
    until_logged(
        &agent,
        &["WARN", "class=b", "directory.path", "not applied"],
    )
    .await;
    until_logged(&agent, &["WARN", "log.level", "not applied"]).await;
    let found = Diagnosis::of(&agent);
    let told: Vec<_> = found.all("change-not-applied");
    assert_eq!(told.len(), 2, "{told:?}");
    let message = |index: usize| told[index]["message"].as_str().unwrap();
    assert!(message(0).ends_with(": log.level"), "{told:?}");
    assert!(
        message(1).ends_with(": class b: directory.path"),
        "{told:?}"
    );

    rewrite(&agent, &file(&both(&c, &b)[..1]));
    manager.until(&["STATUS=configuration read again; retired classes: b\n"]);
    Diagnosis::of(&agent).lacks("change-not-applied");

    rewrite(&agent, "");
    manager.until(&["STATUS=configuration not applied: ", "names no class"]);
    let found = Diagnosis::of(&agent);
    found.finds("invalid-configuration", "config.yaml");
    found.lacks("lost-volume");

    agent.kill();
    Diagnosis::of(&agent).lacks("change-not-applied");
    let config = Some(file(&both(&c, &b)));
    agent
        .restart_with(Options {
            config,
            ..Options::default()
        })
        .await;
    Diagnosis::of(&agent).lacks("change-not-applied");
}

#[tokio::test]
async fn all_that_is_wrong_in_a_file_is_told_at_once() {
    let mut agent = agent_with("", both).await;
    let config = text(agent.path("config.yaml"));
    let wrong = "\
noed: n
log: {level: info, colour: red}
classes:
- {name: a, default: true, directory: {path: a, longestFreeze: 0}, trash: {keep: soon}}
- {name: b, directory: {path: /b, alocation: thin}}
- {name: B, directory: {path: /c}}
";
    let places = [
        "line 1 column 1: noed: ",
        "line 2 column 20: log.colour: ",
        "line 4 column 40: classes[0] (a): directory.path: ",
        "line 4 column 49: classes[0] (a): directory.longestFreeze: ",
        "line 4 column 76: classes[0] (a): trash.keep: ",
        "line 5 column 35: classes.1.directory.alocation: ",
        "line 6 column 4: classes.2.name: ",
    ];
    rewrite(&agent, wrong);
    agent.signal(Signal::SIGHUP);
    for place in places {
        let place = format!("config file {config}: {place}");
        until_logged(&agent, &["ERROR", "configuration not applied", &place]).await;
    }
    let found = Diagnosis::of(&agent);
    assert_eq!(found.all("invalid-configuration").len(), places.len());

    agent.kill();
    let said = start_refused(&agent);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), places.len(), "{said}");
    for (line, place) in lines.iter().zip(places) {
        let place = format!("config file {config}: {place}");
        assert!(line.contains(&place), "{place}: {said}");
    }

    // What is no YAML ends there.
    write(
        &agent.path("config.yaml"),
        "noed: n\nlog: {level: info\nclasses: [\n",
    );
    let said = start_refused(&agent);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains(&format!("config file {config}: line ")),
        "{said}"
    );
}
