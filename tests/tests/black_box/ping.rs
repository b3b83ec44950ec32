//! `drumlin ping`: whether an agent is alive, and whether it is ready.

use std::{fs, process::Output};

use drumlin_tests::{
    agent::{Agent, Options},
    storage::Scratch,
};

use crate::helpers::text;

/// Runs it beside an agent.
fn ping(agent: &Agent, more: &[&str]) -> Output {
    let socket = text(agent.socket());
    let words = [&["ping", "--endpoint", &socket], more].concat();
    agent.command(&words)
}

#[tokio::test]
async fn an_agent_is_alive_while_it_answers_and_ready_while_all_its_classes_can_be_used() {
    let scratch = Scratch::new();
    let (used, away) = (scratch.directory("used"), scratch.path().join("away"));
    let other = scratch.directory("other");
    let options = Options {
        config: Some(format!(
            "classes:\n- {{name: a, default: true, directory: {{path: {}}}}}\n- {{name: b, directory: {{path: {}}}}}\n",
            text(other),
            text(used.clone())
        )),
        ..Options::default()
    };
    let mut agent = Agent::with(scratch, options).await;
    for more in [&[][..], &["--ready"]] {
        let answer = ping(&agent, more);
        assert!(answer.status.success(), "{answer:?}");
        let said = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert!(said.starts_with("csi.drumlin.dev "), "{said}");
    }
    // A file that names the socket is as good as its name.
    let named = agent.path("named.yaml");
    fs::write(
        &named,
        format!("endpoint: unix://{}\n", text(agent.socket())),
    )
    .unwrap();
    let answer = agent.command(&["ping", "--config", &text(named)]);
    assert!(answer.status.success(), "{answer:?}");
    fs::rename(&used, &away).unwrap();
    let alive = ping(&agent, &[]);
    assert!(alive.status.success(), "{alive:?}");
    let ready = ping(&agent, &["--ready"]);
    assert_eq!(ready.status.code(), Some(1), "{ready:?}");
    let said = String::from_utf8_lossy(&ready.stderr).into_owned();
    assert!(
        said.contains("class b") && !said.contains("class a"),
        "{said}"
    );
    fs::rename(&away, &used).unwrap();
    let ready = ping(&agent, &["--ready"]);
    assert!(ready.status.success(), "{ready:?}");
    agent.kill();
    for more in [&[][..], &["--ready"]] {
        assert_eq!(ping(&agent, more).status.code(), Some(1), "{more:?}");
    }
}
