//! The report: for people, and for programs.

use std::{fs, os::unix::fs::PermissionsExt};

use drumlin_tests::{
    agent::Agent,
    doctor::{Diagnosis, arguments},
    programs::{drumlin, program},
    terminal::on_terminal,
};
use serde_json::Value;

use crate::host::Host;

#[tokio::test]
async fn whoever_is_not_root_is_told_so_and_nothing_is_taken_for_missing() {
    let host = Host::start().await;
    for (path, mode) in [("", 0o755), ("state", 0o700)] {
        fs::set_permissions(host.agent.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let words = |more: &[&str]| {
        let mut command = program("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(drumlin()).arg("doctor");
        let command = command.args(arguments(&host.agent)).args(more);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let text = words(&[]);
    assert!(text.contains("run `drumlin doctor` as root"), "{text}");
    assert!(!text.contains("no agent runs"), "{text}");
    assert!(text.contains("could not be determined"), "{text}");
    for check in ["directory-missing", "agent-down", "other-configuration"] {
        assert!(!text.contains(check), "{text}");
    }
    let json: Value = serde_json::from_str(&words(&["-o", "json"])).unwrap();
    assert_eq!(
        (&json["agent"], &json["agentUnknown"]),
        (&Value::Null, &true.into())
    );
    let json = Diagnosis::of(&host.agent).report;
    assert_eq!(json.get("agentUnknown"), None);
}

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
    let yaml: Value = serde_yaml::from_slice(&output.stdout).unwrap();
    assert_eq!(yaml, report);
}
