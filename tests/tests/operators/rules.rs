//! The alert rules: what raises each, and what does not, by Prometheus itself.

use std::fs;

use drumlin_tests::{
    programs::{run, workspace},
    sources::read,
};

use crate::lab;

pub(crate) const FOLDER: &str = "manifests/components/prometheus-rule";

/// The names of the alerts of the rules.
pub(crate) fn alerts() -> Vec<String> {
    let rules = read(format!("{FOLDER}/rules.yaml"));
    let names = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

#[test]
fn each_alert_is_raised_by_what_it_is_about_and_by_nothing_else() {
    let promtool = lab("operators", "promtool");
    let folder = workspace().join(FOLDER);
    let promtool = promtool.to_string_lossy();
    let rules = folder.join("rules.yaml");
    run(&promtool, &["check", "rules", &rules.to_string_lossy()]);
    let tests = folder.join("rules-test.yaml");
    run(&promtool, &["test", "rules", &tests.to_string_lossy()]);
}

#[test]
fn each_alert_is_tested_both_ways_and_documented() {
    let tests = read(format!("{FOLDER}/rules-test.yaml"));
    let page = read("docs/src/metrics.md");
    let alerts = alerts();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        let raised = tests.contains(&format!("  - alertname: {alert}\n"));
        let silent = tests.contains(&format!("  - {{alertname: {alert},"));
        assert!(raised && silent, "{alert} is not tested both ways");
        let heading = format!("\n### {alert}\n");
        assert!(
            page.contains(&heading),
            "{alert} is not in docs/src/metrics.md"
        );
    }
}

/// `DRUMLIN_UPDATE=1` writes it anew.
#[test]
fn the_rules_of_the_operators_kind_are_those_of_the_file() {
    const HEAD: &str = "\
# Written from rules.yaml by a test.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: drumlin
  namespace: drumlin-system
  labels: {app.kubernetes.io/name: drumlin}
spec:
";
    let rules = read(format!("{FOLDER}/rules.yaml"));
    // Its first line is about the file.
    let lines = rules.lines().skip(1).map(|line| format!("  {line}\n"));
    let wanted: String = std::iter::once(HEAD.to_owned()).chain(lines).collect();
    let path = workspace().join(FOLDER).join("rule.yaml");
    if std::env::var_os("DRUMLIN_UPDATE").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let update = "DRUMLIN_UPDATE=1 cargo test -p drumlin-tests --test operators rules::";
    assert_eq!(fs::read_to_string(&path).unwrap(), wanted, "{update}");
}
