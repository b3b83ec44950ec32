//! The alerts and the dashboard of hosts without a cluster: those of a cluster, by host instead of by pod, without what only
//! a controller or an API server has.

use std::{collections::BTreeSet, fs, path::PathBuf};

use drumlin_tests::{
    agent::write,
    programs::{run, workspace},
    sources::read,
    storage::Scratch,
};
use serde_json::{Value, json};

use crate::{
    lab,
    rules::{FOLDER, alerts},
};

const RULES: &str = "examples/metrics/rules.yaml";
const DASHBOARD: &str = "examples/metrics/drumlin.json";
const UPDATE: &str = "DRUMLIN_UPDATE=1 cargo test -p drumlin-tests --test operators hosts::";
const HEAD: &str = "\
# Alerts of hosts without a cluster; docs/src/metrics.md has what to do about each. A Prometheus reads this file as one of
# its rule_files. Written from manifests/components/prometheus-rule/rules.yaml by a test.
";
/// Where a rule begins.
const RULE: &str = "  - alert: ";
/// Where a case of the tests of rules begins.
const CASE: &str = "- interval: ";

/// The metrics that no host has: those of a controller, as the page says, and of watches of an API server.
fn foreign_metrics() -> BTreeSet<String> {
    let page = read("docs/src/metrics.md");
    let row = |line: &str| {
        let (metric, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        rest.starts_with("controller |").then(|| metric.to_owned())
    };
    let mut metrics: BTreeSet<String> = page.lines().filter_map(row).collect();
    assert!(metrics.len() > 5, "{metrics:?}");
    metrics.insert("drumlin_watch_failures_total".to_owned());
    metrics
}

/// Returns true if a text names a metric that no host has.
fn is_foreign(text: &str) -> bool {
    let metrics = foreign_metrics();
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let mut words = text.split(|letter| !is_letter(letter));
    words.any(|word| metrics.contains(word))
}

/// The same by host: Prometheus gives each target the label `instance`.
fn by_host(text: &str) -> String {
    let mut text = text.to_owned();
    for (pod, host) in [
        ("$labels.pod", "$labels.instance"),
        ("{{pod}}", "{{instance}}"),
        ("(namespace, pod, ", "(instance, "),
        ("(pod, ", "(instance, "),
        (r#"namespace=\"$namespace\""#, r#"instance=~\"$instance\""#),
        (r#"namespace="n",pod="#, "instance="),
        ("namespace: n, pod: ", "instance: "),
    ] {
        text = text.replace(pod, host);
    }
    text
}

/// The name of the alert that a rule or a case begins with.
fn alert(text: &str) -> &str {
    text.split_once('\n').map_or(text, |(first, _)| first)
}

/// The rules of hosts, and the names of the alerts that are not among them.
fn rules() -> (String, BTreeSet<String>) {
    let cluster = read(format!("{FOLDER}/rules.yaml"));
    let mut parts = cluster.split(RULE);
    let group = parts.next().unwrap().split_once('\n').unwrap().1;
    let (mut rules, mut others) = (format!("{HEAD}{group}"), BTreeSet::new());
    for rule in parts {
        if is_foreign(rule) {
            others.insert(alert(rule).to_owned());
        } else {
            rules.extend([RULE, &by_host(rule)]);
        }
    }
    (rules, others)
}

/// What raises each alert of a host, and a host that is well: there, all alerts are silent.
fn cases(others: &BTreeSet<String>) -> String {
    let cluster = read(format!("{FOLDER}/rules-test.yaml"));
    let mut parts = cluster.split(CASE);
    let mut cases = parts.next().unwrap().to_owned();
    for case in parts {
        let raised = case.split_once("  - alertname: ");
        if raised.is_some_and(|(_, rest)| others.contains(alert(rest))) {
            continue;
        }
        let lines = case.lines();
        let lines = lines.filter(|line| !(line.contains("{series: ") && is_foreign(line)));
        let lines: Vec<String> = lines.map(|line| by_host(line) + "\n").collect();
        cases.extend([CASE, &lines.concat()]);
    }
    cases
}

/// The dashboard of hosts.
fn dashboard() -> Value {
    let cluster = by_host(&read("manifests/components/grafana-dashboard/drumlin.json"));
    let mut dashboard: Value = serde_json::from_str(&cluster).unwrap();
    dashboard["title"] = json!("Drumlin on hosts");
    dashboard["uid"] = json!("drumlin-hosts");
    let variable = &mut dashboard["templating"]["list"][1];
    assert_eq!(variable["name"], "namespace");
    variable["name"] = json!("instance");
    variable["label"] = json!("Host");
    variable["query"] = json!("label_values(drumlin_build_info, instance)");
    variable["multi"] = json!(true);
    variable["includeAll"] = json!(true);
    let panels = dashboard["panels"].as_array_mut().unwrap();
    for panel in &mut *panels {
        let targets = panel["targets"].as_array_mut().unwrap();
        targets.retain(|target| !is_foreign(target["expr"].as_str().unwrap()));
    }
    panels.retain(|panel| panel["targets"] != json!([]));
    // Two beside each other.
    for (index, panel) in panels.iter_mut().enumerate() {
        panel["id"] = json!(index + 1);
        panel["gridPos"] = json!({"h": 8, "w": 12, "x": index % 2 * 12, "y": index / 2 * 8});
    }
    dashboard
}

/// The file of a host; `DRUMLIN_UPDATE=1` writes it anew.
fn file(path: &str, wanted: &str) -> (PathBuf, String) {
    let file = workspace().join(path);
    if std::env::var_os("DRUMLIN_UPDATE").is_some() {
        fs::write(&file, wanted).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    (file, found)
}

#[test]
fn the_rules_of_hosts_are_those_of_a_cluster_without_what_only_a_cluster_has() {
    let (wanted, others) = rules();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    assert_eq!(
        others,
        [
            "DrumlinAgentsNotReady",
            "DrumlinCallsExpired",
            "DrumlinControllerMissing",
            "DrumlinPolicyNotInForce",
            "DrumlinVolumesUnclaimed",
            "DrumlinWatchesFail",
        ]
    );
    for word in ["pod", "namespace", "absent"] {
        assert!(!wanted.contains(word), "{word}: {wanted}");
    }
    let (_, found) = file(RULES, &wanted);
    assert_eq!(found, wanted, "{UPDATE}");
}

#[test]
fn each_alert_of_a_host_is_raised_by_what_it_is_about_and_none_by_a_host_that_is_well() {
    let (wanted, others) = rules();
    let (rules, _) = file(RULES, &wanted);
    let cases = cases(&others);
    assert!(!cases.contains("pod"), "{cases}");
    for alert in alerts() {
        let raised = cases.contains(&format!("  - alertname: {alert}\n"));
        assert_eq!(raised, !others.contains(&alert), "{alert}");
        // Also of the alerts that a host has not.
        let silent = cases.contains(&format!("  - {{alertname: {alert},"));
        assert!(silent, "{alert}");
    }
    let scratch = Scratch::new();
    fs::copy(rules, scratch.path().join("rules.yaml")).unwrap();
    let tests = scratch.path().join("rules-test.yaml");
    write(&tests, &cases);
    let promtool = lab("operators", "promtool");
    let promtool = promtool.to_string_lossy();
    let rules = scratch.path().join("rules.yaml");
    run(&promtool, &["check", "rules", &rules.to_string_lossy()]);
    run(&promtool, &["test", "rules", &tests.to_string_lossy()]);
}

#[test]
fn the_dashboard_of_hosts_is_that_of_a_cluster_without_what_only_a_cluster_has() {
    let wanted = dashboard();
    let text = serde_json::to_string_pretty(&wanted).unwrap() + "\n";
    for word in ["pod", "namespace"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    let all = wanted["panels"].as_array().unwrap().iter();
    let expressions = all.flat_map(|panel| panel["targets"].as_array().unwrap());
    for target in expressions {
        let expression = target["expr"].as_str().unwrap();
        assert!(expression.contains(r#"{instance=~"$instance""#), "{target}");
    }
    let (_, found) = file(DASHBOARD, &text);
    let found: Value = serde_json::from_str(&found).unwrap_or_default();
    assert_eq!(found, wanted, "{UPDATE}");
}
