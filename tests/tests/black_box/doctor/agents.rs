//! The agent: whether it runs and answers, and whether there are several.

use std::{
    fs,
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::{Agent, Options, write},
    doctor::Diagnosis,
    requests::raw,
    storage::Scratch,
};
use nix::sys::signal::Signal;

use crate::{
    helpers::{text, two_classes, volume},
    stalled_paths::Silent,
};

/// What a healthy host may have, too: it depends on where the tests run.
const ANYWHERE: [&str; 4] = [
    "unknown-variable",
    "no-reflinks",
    "low-space",
    "missing-program",
];

#[tokio::test]
async fn nothing_is_wrong_with_an_agent_that_works() {
    let agent = Agent::start().await;
    volume(&agent, "v", 16, &raw()).await;
    let found = Diagnosis::of(&agent);
    let findings = found.report["findings"].as_array().unwrap().iter();
    let other: Vec<_> = findings
        .filter(|one| !ANYWHERE.contains(&one["check"].as_str().unwrap()))
        .collect();
    assert!(other.is_empty(), "{other:#?}");
    assert_eq!(found.report["agent"]["pid"], agent.pid());
    assert_eq!(found.report["node"], "node-a");
}

#[tokio::test]
async fn an_agent_that_was_killed_is_down_and_its_socket_stale() {
    let mut agent = Agent::start().await;
    agent.kill();
    let found = Diagnosis::of(&agent);
    found.finds("agent-down", "csi.sock");
    assert!(found.code >= 1, "{found:?}");
    assert!(found.report["agent"].is_null());
    found.mend("stale-socket", "csi.sock");
    let found = Diagnosis::of(&agent);
    found.lacks("stale-socket");
    found.finds("agent-down", "csi.sock");
    agent.restart().await;
    Diagnosis::of(&agent).lacks("agent-down");
}

#[tokio::test]
async fn an_agent_that_does_not_answer_is_silent() {
    let agent = Agent::start().await;
    agent.signal(Signal::SIGSTOP);
    let found = Diagnosis::of(&agent);
    agent.signal(Signal::SIGCONT);
    found.finds("agent-silent", "csi.sock");
    assert_eq!(found.code, 2);
    let inventory = found.text("not-checked", "inventory", "message");
    assert!(inventory.contains("not answered"), "{inventory}");
    Diagnosis::of(&agent).lacks("agent-silent");
}

#[tokio::test]
async fn a_class_whose_directory_is_away_is_unavailable() {
    let agent = two_classes().await;
    let (here, away) = (agent.path("b"), agent.path("away"));
    fs::rename(&here, &away).unwrap();
    let found = Diagnosis::of(&agent);
    let message = found.text("class-unavailable", "csi.sock", "message");
    assert!(message.contains(&text(here.clone())), "{message}");
    found.finds("directory-missing", &text(here.clone()));
    fs::rename(&away, &here).unwrap();
    let found = Diagnosis::of(&agent);
    found.lacks("class-unavailable");
    found.lacks("directory-missing");
}

#[tokio::test]
async fn a_part_that_does_not_answer_is_not_checked_and_holds_nothing_up() {
    let agent = two_classes().await;
    let silent = Silent::new(agent.scratch.directory("b"));
    let begun = Instant::now();
    let found = Diagnosis::of(&agent);
    assert!(
        begun.elapsed() < Duration::from_secs(50),
        "{:?}",
        begun.elapsed()
    );
    let message = found.text("not-checked", "directories", "message");
    assert!(
        message.starts_with("not checked: not done within"),
        "{message}"
    );
    // The other parts are done.
    found.finds("class-unavailable", "csi.sock");
    drop(silent);
}

#[tokio::test]
async fn another_socket_than_the_agents_is_told() {
    let agent = Agent::start().await;
    let other = format!("--endpoint={}", agent.path("other.sock").display());
    let found = Diagnosis::with(&agent, &[]);
    found.lacks("other-configuration");
    let state = format!("--state-dir={}", agent.path("state").display());
    let output = agent.command(&["doctor", &state, &other, "-o", "json"]);
    let report = String::from_utf8(output.stdout).unwrap();
    let of_holder = format!("process {} holds the state directory", agent.pid());
    assert!(report.contains("other-configuration"), "{report}");
    assert!(report.contains(&of_holder), "{report}");
    assert!(report.contains("--endpoint is"), "{report}");
}

#[tokio::test]
async fn a_file_that_the_agent_was_given_relatively_is_the_same_one() {
    let scratch = Scratch::new();
    let manifests = scratch.directory("manifests");
    let images = text(scratch.directory("images"));
    let at = text(scratch.path().to_owned());
    let config = format!("classes: [{{name: default, directory: {{path: {images}}}}}]\n");
    write(&scratch.path().join("here.yaml"), &config);
    let within = ["sh", "-c", "cd \"$0\" && exec \"$@\"", &at];
    let options = Options {
        arguments: ["--config=here.yaml", "--manifests=manifests"]
            .map(str::to_owned)
            .into(),
        within: within.map(str::to_owned).into(),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let named = |file: &str, manifests: &str| {
        let config = format!("--config={at}/{file}");
        Diagnosis::with(&agent, &[&config, &format!("--manifests={manifests}")])
    };
    let found = named("here.yaml", &text(manifests.clone()));
    found.lacks("other-configuration");
    found.lacks("invalid-configuration");
    // Nor is one that has two names.
    fs::hard_link(agent.path("here.yaml"), agent.path("other.yaml")).unwrap();
    std::os::unix::fs::symlink("here.yaml", agent.path("link.yaml")).unwrap();
    named("link.yaml", &text(manifests.clone())).lacks("other-configuration");
    let found = named("other.yaml", &text(manifests));
    let message = found.text("other-configuration", "other.yaml", "message");
    assert!(message.contains("--config is"), "{message}");
}

#[tokio::test]
async fn manifests_that_nothing_reconciles_are_told() {
    let agent = Agent::start().await;
    let manifests = agent.scratch.directory("manifests");
    let found = Diagnosis::with(&agent, &[&format!("--manifests={}", manifests.display())]);
    found.finds("no-reconciler", &text(manifests));
}

#[tokio::test]
async fn a_second_agent_over_one_directory_is_told() {
    let first = Agent::start().await;
    volume(&first, "v", 16, &raw()).await;
    let images = text(first.path("state/images"));
    Diagnosis::of(&first).lacks("other-agent");
    let options = Options {
        config: Some(format!(
            "classes: [{{name: default, directory: {{path: {images}}}}}]\n"
        )),
        ..Options::default()
    };
    let second = Agent::with(Scratch::new(), options).await;
    for (one, other) in [(&first, &second), (&second, &first)] {
        let found = Diagnosis::of(one);
        let message = found.text("other-agent", &images, "message");
        assert!(
            message.contains(&format!("process {}", other.pid())),
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_directory_that_another_process_has_locked_is_told() {
    let mut agent = Agent::start().await;
    volume(&agent, "v", 16, &raw()).await;
    agent.kill();
    let images = agent.path("state/images");
    let file = fs::File::open(&images).unwrap();
    let arg = nix::fcntl::FlockArg::LockExclusiveNonblock;
    let lock = nix::fcntl::Flock::lock(file, arg).unwrap();
    let found = Diagnosis::of(&agent);
    let message = found.text("other-agent", &text(images), "message");
    assert!(
        message.contains(&format!("process {}", std::process::id())),
        "{message}"
    );
    drop(lock);
    Diagnosis::of(&agent).lacks("other-agent");
}
