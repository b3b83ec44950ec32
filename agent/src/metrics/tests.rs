//! That what is defined is exposed, what is exposed is documented, and what is asked for is there.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use drumlin_cluster::ClusterState;

use super::{
    Metrics, agent, controller,
    definitions::{ALL, Definition, Kind, Of},
};

/// The labels that a scraper adds to each series, and that of the bounds of a histogram.
const OF_SCRAPER: [&str; 7] = [
    "container",
    "instance",
    "job",
    "le",
    "namespace",
    "node",
    "pod",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The names of the families of a text.
fn families(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names = types.map(|line| {
        let (name, kind) = line.split_once(' ').unwrap();
        match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        }
    });
    names.collect()
}

fn defined(of: Of) -> BTreeSet<String> {
    let mine = ALL.iter().filter(|one| one.of == of || one.of == Of::Both);
    mine.map(ToString::to_string).collect()
}

#[test]
fn what_is_defined_is_exposed_and_nothing_else() {
    let metrics = Metrics::of_agent();
    metrics.answered("p.S/M", "Ok", Duration::ZERO);
    metrics.ran("mkfs.ext4", Duration::ZERO);
    metrics.commanded("lvs", Duration::ZERO);
    metrics.quiesced(Duration::ZERO);
    let mut whole = agent::tests::class("fast", None);
    whole.utilization.space.metadata_percent = Some(1);
    let agent = families(&(metrics.text() + &agent::tests::of_classes(&[whole])));
    assert_eq!(agent, defined(Of::Agent));

    let metrics = Metrics::of_controller();
    metrics.answered("p.S/M", "Ok", Duration::ZERO);
    metrics.ran("mkfs.ext4", Duration::ZERO);
    let cluster = ClusterState {
        calls: [("fresh", 1)].into(),
        ..ClusterState::default()
    };
    let cluster = controller::tests::of_cluster(Some([("one", true)].into()), &cluster);
    let mut controller = families(&(metrics.text() + &cluster));
    // Those of the watches are added as an agent adds them.
    controller.insert("drumlin_watch_failures_total".to_owned());
    assert_eq!(controller, defined(Of::Controller));
}

/// The rows of the documentation.
fn table() -> String {
    let row = |one: &&Definition| {
        let of = match one.of {
            Of::Agent => "agent",
            Of::Controller => "controller",
            Of::Both => "both",
        };
        let labels: Vec<_> = one
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let kind = format!("{:?}", one.kind).to_lowercase();
        let labels = labels.join(", ");
        format!("| `{one}` | {of} | {kind} | {labels} | {} |\n", one.help)
    };
    ALL.iter().map(row).collect()
}

/// `DRUMLIN_UPDATE=1 cargo test -p drumlin --lib` writes it anew.
#[test]
fn the_documentation_lists_all_metrics() {
    const HEAD: &str = "| metric | of | type | labels | |\n|---|---|---|---|---|\n";
    let path = workspace().join("docs/src/metrics.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(HEAD).unwrap();
    let end = rest.find("\n\n").map_or(rest.len(), |at| at + 1);
    let (rows, after) = rest.split_at(end);
    if std::env::var_os("DRUMLIN_UPDATE").is_some() {
        fs::write(&path, format!("{before}{HEAD}{}{after}", table())).unwrap();
    } else {
        let update = "DRUMLIN_UPDATE=1 cargo test -p drumlin --lib";
        assert_eq!(rows, table(), "{update}");
    }
}

/// The metrics that a text names, each with the labels that stand in braces behind it.
fn named(text: &str) -> Vec<(String, Vec<String>)> {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let mut found = Vec::new();
    for (at, _) in text.match_indices("drumlin_") {
        if text[..at].ends_with(|last: char| last.is_ascii_alphanumeric() || "_-".contains(last)) {
            continue;
        }
        let rest = &text[at..];
        let name = rest.split(|letter| !is_letter(letter)).next().unwrap();
        let braces = rest[name.len()..].strip_prefix('{');
        let braces = braces
            .and_then(|rest| rest.split('}').next())
            .unwrap_or_default();
        let labels = braces
            .split(',')
            .filter_map(|one| one.split(['=', '!']).next());
        let labels = labels.map(|label| label.trim().to_owned());
        found.push((
            name.to_owned(),
            labels.filter(|label| !label.is_empty()).collect(),
        ));
    }
    found
}

/// The metric whose series have a name.
fn definition(series: &str) -> Option<&'static Definition> {
    let is_of = |one: &&&Definition| {
        let family = one.to_string();
        let rest = series.strip_prefix(&family);
        rest.is_some_and(|rest| match one.kind {
            Kind::Histogram => ["_bucket", "_sum", "_count"].contains(&rest),
            _ => rest.is_empty(),
        })
    };
    ALL.iter().find(is_of).copied()
}

#[test]
fn what_rules_and_the_dashboard_ask_for_is_exposed() {
    for file in [
        "manifests/components/prometheus-rule/rules.yaml",
        "manifests/components/prometheus-rule/rules-test.yaml",
        "manifests/components/grafana-dashboard/drumlin.json",
        "examples/metrics/rules.yaml",
        "examples/metrics/drumlin.json",
    ] {
        let text = fs::read_to_string(workspace().join(file)).unwrap();
        let named = named(&text);
        assert!(named.len() > 8, "{file}: {named:?}");
        for (series, labels) in named {
            let found = definition(&series);
            let found = found.unwrap_or_else(|| panic!("{file}: there is no metric {series}"));
            for label in labels {
                let is_known = found.labels.contains(&&*label) || OF_SCRAPER.contains(&&*label);
                assert!(is_known, "{file}: {series} has no label {label}");
            }
        }
    }
}

#[test]
fn a_metric_that_there_is_not_is_found() {
    let text = r#"sum by (x) (rate(drumlin_rpc_duration_seconds_bucket{code!="Ok", le="1"}[5m])) + drumlin_none"#;
    let named = named(text);
    assert_eq!(named[0].1, ["code", "le"]);
    assert_eq!(
        definition(&named[0].0).map(|one| one.name),
        Some("rpc_duration")
    );
    assert_eq!(definition(&named[1].0), None);
    assert_eq!(definition("drumlin_rpc_duration_seconds"), None);
    assert_eq!(definition("drumlin_build_info_count"), None);
}
