//! The report: for people, and for programs.

use drumlin_tests::{
    agent::Agent,
    doctor::{Diagnosis, arguments},
    terminal::on_terminal,
};

#[tokio::test]
async fn people_get_a_line_for_each_finding_and_colours_on_a_terminal_alone() {
    let mut agent = Agent::start().await;
    agent.kill();
    let words: Vec<String> = arguments(&agent);
    let words: Vec<&str> = ["doctor"]
        .into_iter()
        .chain(words.iter().map(String::as_str))
        .collect();
    let output = agent.command(&words);
    let plain = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{plain}");
    let socket = agent.socket().display().to_string();
    assert!(plain.contains(&format!("run: rm {socket}\n")), "{plain}");
    assert!(
        plain
            .lines()
            .any(|line| line.starts_with("WARNING  agent-down ") && line.ends_with(&socket)),
        "{plain}"
    );
    assert!(plain.ends_with("; no agent runs\n"), "{plain}");
    assert!(!plain.contains('\x1b'), "{plain}");
    assert!(on_terminal(&words, &[]).contains("\x1b[33mWARNING"));
    assert!(!on_terminal(&words, &[("NO_COLOR", "1")]).contains('\x1b'));
}

#[tokio::test]
async fn programs_get_one_object_with_these_fields() {
    let mut agent = Agent::start().await;
    agent.kill();
    let Diagnosis { report, code } = Diagnosis::of(&agent);
    let fields: Vec<&str> = report
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(fields, ["agent", "errors", "findings", "node", "warnings"]);
    let may = [
        "advice", "check", "command", "message", "object", "severity", "since",
    ];
    for finding in report["findings"].as_array().unwrap() {
        for field in finding.as_object().unwrap().keys() {
            assert!(may.contains(&field.as_str()), "{finding}");
        }
        for field in ["check", "message", "object", "severity"] {
            assert!(finding[field].is_string(), "{finding}");
        }
    }
    assert_eq!((report["errors"].as_u64(), code), (Some(0), 1));
    let words: Vec<String> = arguments(&agent);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.splice(0..0, ["doctor", "-o", "yaml"]);
    let output = agent.command(&words);
    assert_eq!(output.status.code(), Some(code));
    let yaml: serde_json::Value = serde_yaml::from_slice(&output.stdout).unwrap();
    assert_eq!(yaml, report);
}
