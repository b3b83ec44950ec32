//! What a configuration file says, and what is wrong with one.

use super::*;
use clap::Parser;

fn load(file: &str, arguments: &[&str]) -> anyhow::Result<Config> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("config.yaml");
    fs::write(&path, file)?;
    let config = path.to_string_lossy().into_owned();
    let mut all = vec!["drumlin", "agent", "--config", &config];
    all.extend(arguments);
    let cli = crate::cli::Cli::try_parse_from(all)?;
    let crate::cli::Command::Agent(arguments) = cli.command else {
        bail!("another command");
    };
    Config::load(&arguments)
}

fn wrong(file: &str) -> String {
    format!("{:#}", load(file, &[]).unwrap_err())
}

/// What is wrong with this line, which has that number in the file.
fn wrong_at(number: usize, line: &str) -> String {
    let error = wrong(&format!("node: n\n{line}\n"));
    let file = "config.yaml: ";
    assert!(
        error.contains(file) && error.contains(&format!("line {number}")),
        "{error}"
    );
    error
}

#[test]
fn a_value_that_is_not_valid_has_the_place_of_its_key() {
    let vg = "  thick:\n    volumeGroup: vg0";
    for (class, line, column, key) in [
        ("  trash: {keep: 7days}", 5, 11, "trash.keep: "),
        ("  trash:\n    maxFill: 100%", 6, 5, "trash.maxFill: "),
        ("  limits: {readIops: 1}", 5, 12, "limits.readIops: "),
        (
            "  limits: {writeBytesPerSecond: 1k}",
            5,
            12,
            "limits.writeBytesPerSecond: ",
        ),
        (
            "  encryption:\n    type: luks2\n    key: {file: /k, credential: c}",
            7,
            5,
            "encryption.key: has more than one source",
        ),
        (
            "  encryption: {type: luks2, key: {command: [key]}}",
            5,
            45,
            "encryption.key: command.0: ",
        ),
        (
            "  nodeSelector:\n    matchLabels:\n      example.com/disk: a b",
            7,
            7,
            "nodeSelector.matchLabels.example.com/disk: ",
        ),
        (
            "  directory: {path: /a}",
            2,
            3,
            "has more than one back end",
        ),
    ] {
        let error = wrong(&format!("classes:\n- name: a\n{vg}\n{class}\n"));
        let place = format!("config.yaml: line {line} column {column}: classes[0] (a): {key}");
        assert!(error.contains(&place), "{place}: {error}");
    }
    for (file, place) in [
        (
            "maxVolumesPerNode: 0",
            "line 2 column 1: maxVolumesPerNode: ",
        ),
        ("stateDir: state", "line 2 column 1: stateDir: "),
        ("cgroups: sys", "line 2 column 1: cgroups: "),
        (
            "nodeLabels: {a.b/c: d e}",
            "line 2 column 14: nodeLabels.a.b/c: ",
        ),
        (
            "kubelet: {endpoint: tcp}",
            "line 2 column 11: kubelet.endpoint: ",
        ),
        (
            "metrics:\n  textfile: a",
            "line 3 column 3: metrics.textfile: ",
        ),
        (
            "classes:\n- {name: a, thick: {volumeGroup: v}}\n- {name: b, thick: {volumeGroup: v}}",
            "line 2 column 1: classes: no class is the default",
        ),
    ] {
        let error = wrong(&format!("node: n\n{file}\n"));
        assert!(error.contains(&format!("config.yaml: {place}")), "{error}");
    }
}

#[test]
fn all_problems_are_told_and_none_that_follows_from_another() {
    let file = "
noed: n
maxVolumesPerNode: 0
log: {level: info, colour: red}
nodeLabels: {a.b/c: d e, disk: nvme}
classes:
- {name: A, default: true, directory: {path: /a}}
- name: b
  directory: {path: b, alocation: thin, longestFreeze: 0}
  trash: {keep: soon, maxFill: 8%%}
- {name: c, thin: {volumeGroup: [v], pool: p}}
- name: d
  limits: {readIops: 1, writeIops: many}
  thin: {volumeGroup: -v, pool: p, overcommit: 0.5, create: {size: 80%VG, chunk: 3Ki}}
- {name: e, default: yes}
- {name: f, directory: {path: /f}, thick: {volumeGroup: v}}
prune: {kinds: [Volumes]}
";
    let error = wrong(file);
    let told: Vec<(usize, &str)> = error
        .lines()
        .map(|line| {
            let (_, place) = line.split_once("config.yaml: line ").unwrap();
            let (number, rest) = place.split_once(" column ").unwrap();
            let (_, message) = rest.split_once(": ").unwrap();
            (number.parse().unwrap(), message)
        })
        .collect();
    let expected = [
        (2, "noed: unknown field `noed`"),
        (3, "maxVolumesPerNode: is 0"),
        (4, "log.colour: unknown field"),
        (5, "nodeLabels.a.b/c: "),
        (7, "classes.0.name: "),
        (9, "classes[1] (b): directory.path: "),
        (9, "classes.1.directory.alocation: "),
        (9, "classes[1] (b): directory.longestFreeze: "),
        (10, "classes[1] (b): trash.keep: "),
        (10, "classes[1] (b): trash.maxFill: "),
        (11, "classes.2.thin.volumeGroup: "),
        (13, "classes[3] (d): limits.readIops: "),
        (13, "classes.3.limits.writeIops: "),
        (14, "classes[3] (d): thin.volumeGroup: "),
        (14, "classes[3] (d): thin.overcommit: "),
        (14, "classes[3] (d): thin.create.chunk: "),
        (15, "classes.4.default: "),
        (16, "classes[5] (f): has more than one back end"),
        (17, "prune.kinds"),
    ];
    for (line, message) in expected {
        let is_told = |(at, told): &&(usize, &str)| *at == line && told.starts_with(message);
        assert!(
            told.iter().any(|told| is_told(&told)),
            "{line} {message}: {error}"
        );
    }
    assert_eq!(told.len(), expected.len(), "{error}");
    assert!(told.is_sorted_by_key(|(line, _)| *line));
}

#[test]
fn what_is_expected_is_said_in_words_of_the_documentation() {
    let of_class = |rest: &str| format!("classes: [{{name: a, {rest}}}]");
    let thin = |rest: &str| of_class(&format!("thin: {{volumeGroup: v, pool: p, {rest}}}"));
    for (file, expected) in [
        (
            "log: info".to_owned(),
            "a map such as {level: info, format: json}",
        ),
        ("tracing: x".to_owned(), "a map such as {otlpEndpoint: "),
        ("prune: auto".to_owned(), "a map such as {mode: auto"),
        ("prune: {mode: 5}".to_owned(), "a word"),
        ("kubelet: true".to_owned(), "a map such as {register: true}"),
        ("metrics: 9808".to_owned(), "a map such as {listen: "),
        ("classes: {a: b}".to_owned(), "a list"),
        ("classes: [a]".to_owned(), "a map such as {name: fast"),
        ("maxVolumesPerNode: -1".to_owned(), "a whole number"),
        ("onGroupDelete: 5".to_owned(), "a word"),
        (
            of_class("directory: /a"),
            "a map such as {path: /srv/images}",
        ),
        (
            of_class("thin: vg0"),
            "a map such as {volumeGroup: vg0, pool: pool0}",
        ),
        (of_class("thick: vg0"), "a map such as {volumeGroup: vg0}"),
        (
            of_class("trash: 7d"),
            "a map such as {keep: 7d, maxFill: 80%}",
        ),
        (of_class("limits: 5"), "a map such as {readIops: 1000}"),
        (of_class("limits: {readIops: x}"), "a whole number"),
        (of_class("encryption: luks2"), "a map such as {type: luks2"),
        (
            of_class("encryption: {type: luks2, key: /k}"),
            "a map with file, credential or command",
        ),
        (of_class("nodeSelector: a"), "a map such as {matchLabels: "),
        (
            of_class("nodeSelector: {matchExpressions: [a]}"),
            "a map such as {key: app",
        ),
        (thin("create: 5"), "a map such as {size: 80%VG}"),
        (
            thin("adoptNode: 5"),
            "expected the name of a node, or a list of them",
        ),
        (thin("overcommit: x"), "a number"),
        (thin("longestFreeze: x"), "a whole number"),
    ] {
        let error = wrong(&format!("node: n\n{file}\n"));
        assert!(error.contains(expected), "{file}: {error}");
        for word in ["struct", "enum", "variant", "Option", "u32", "u64", "f64"] {
            assert!(!error.contains(word), "{file}: {error}");
        }
    }
    assert!(wrong("text").contains("a map of settings"));
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let file = "node: from-file\nendpoint: /tmp/file.sock\nattach: true\nstateDir: /file\n";
    let config = load(file, &["--node", "from-flag"]).unwrap();
    assert_eq!(config.settings.node.as_str(), "from-flag");
    assert_eq!(config.endpoint.path(), Path::new("/tmp/file.sock"));
    assert_eq!(config.state_dir, Path::new("/file"));
    assert!(config.settings.attach);
    assert_eq!(config.driver, DRIVER);
}

#[test]
fn a_second_endpoint_is_another_one() {
    let config = load("node: n\naddonsEndpoint: unix:///tmp/b.sock\n", &[]).unwrap();
    let second = config.addons_endpoint.unwrap();
    assert_eq!(second.path(), Path::new("/tmp/b.sock"));
    let same = "node: n\nendpoint: /tmp/a.sock\naddonsEndpoint: unix:///tmp/a.sock\n";
    let error = load(same, &[]).unwrap_err();
    assert!(format!("{error:#}").contains("addonsEndpoint"), "{error:#}");
    let error = load("node: n\naddonsEndpoint: tcp://a\n", &[]).unwrap_err();
    assert!(format!("{error:#}").contains("addonsEndpoint"), "{error:#}");
}

#[test]
fn a_collector_is_read_and_a_wrong_one_is_named_with_its_field() {
    let file = "node: n\ntracing: {otlpEndpoint: http://file:4317}\n";
    let endpoint = |arguments: &[&str]| load(file, arguments).unwrap().otlp_endpoint;
    let shown = |arguments| endpoint(arguments).map(|endpoint| endpoint.to_string());
    assert_eq!(shown(&[]).unwrap(), "http://file:4317");
    let flag = shown(&["--otlp-endpoint", "http://flag:4317"]);
    assert_eq!(flag.unwrap(), "http://flag:4317");
    assert_eq!(shown(&["--otlp-endpoint", ""]), None);
    let error = wrong("node: n\ntracing: {otlpEndpoint: collector}\n");
    assert!(error.contains("tracing.otlpEndpoint"), "{error}");
    let error = load("node: n\n", &["--otlp-endpoint", "https://a"]).unwrap_err();
    assert!(
        format!("{error:#}").contains("--otlp-endpoint"),
        "{error:#}"
    );
}

#[test]
fn every_form_of_endpoint_is_read() {
    for form in ["unix:///tmp/a.sock", "unix:/tmp/a.sock", "/tmp/a.sock"] {
        let config = load("node: n\n", &["--endpoint", form]).unwrap();
        assert_eq!(config.endpoint.path(), Path::new("/tmp/a.sock"));
    }
    let long = format!("/tmp/{}.sock", "x".repeat(120));
    let error = load("node: n\n", &["--endpoint", &long]).unwrap_err();
    assert!(format!("{error:#}").contains("107"), "{error:#}");
}

#[test]
fn what_is_wrong_in_the_file_is_named_with_its_line() {
    let error = wrong("node: n\nnoed: m\n");
    assert!(
        error.contains("line 2") && error.contains("noed"),
        "{error}"
    );
    let error = wrong("classes:\n- name: a\n  directory:\n    path: /a\n    alocation: thin\n");
    assert!(
        error.contains("line 5") && error.contains("alocation"),
        "{error}"
    );
    let error = wrong("node: n\nattach: maybe\n");
    assert!(
        error.contains("line 2") && error.contains("attach"),
        "{error}"
    );
}

#[test]
fn pruning_and_owners_are_read_and_what_is_wrong_is_named_with_its_line() {
    let file = "node: n\nprune: {mode: auto, grace: 1h}\nmanifestOwner: [65533, root]\n";
    let config = load(file, &[]).unwrap();
    assert_eq!(config.prune.unwrap().grace_seconds, 3600);
    assert_eq!(config.manifest_owners, [65533, 0]);
    let config = load(file, &["--prune=never", "--manifest-owner=65532"]).unwrap();
    assert_eq!((config.prune, config.manifest_owners), (None, vec![65532]));
    for (wrong, field) in [
        ("prune: {mode: sometimes}", "prune.mode"),
        ("prune: {mode: auto, grace: 7}", "prune.grace"),
        ("prune: {mode: auto, grace: soon}", "prune.grace"),
        ("prune: {kinds: [Volume, Pod]}", "prune.kinds.1"),
        ("prune: {kinds: []}", "prune.kinds"),
        ("prune: {grade: 1h}", "prune.grade"),
        ("prune: auto", "prune"),
        ("manifestOwner: no-such-user", "manifestOwner"),
        ("manifestOwner: [root, no-such-user]", "manifestOwner.1"),
    ] {
        let error = wrong_at(2, wrong);
        assert!(error.contains(field), "{wrong}: {error}");
    }
}

#[test]
fn two_classes_share_no_directory() {
    for (first, second) in [("/a", "/a"), ("/a", "/a/b"), ("/a/b/c", "/a/b/")] {
        let error = wrong(&format!(
            "node: n\nclasses:\n- {{name: a, default: true, directory: {{path: {first}}}}}\n- {{name: b, directory: {{path: {second}}}}}\n"
        ));
        assert!(
            error.contains("give each class its own directory"),
            "{error}"
        );
    }
}

#[test]
fn other_nodes_to_adopt_are_one_or_several_and_never_this_one() {
    let class = |adopt: &str| {
        format!(
            "node: n\nclasses: [{{name: a, thin: {{volumeGroup: g, pool: p, adoptNode: {adopt}}}}}]\n"
        )
    };
    let directory = |adopt: &str| {
        format!("node: n\nclasses: [{{name: a, directory: {{path: /d, adoptNode: {adopt}}}}}]\n")
    };
    for fine in ["old", "[old, older]", "[]"] {
        load(&class(fine), &[]).unwrap();
        load(&directory(fine), &[]).unwrap();
    }
    for bad in ["n", "[old, n]", "a/b"] {
        let error = wrong(&class(bad));
        assert!(error.contains("thin.adoptNode"), "{error}");
        let error = wrong(&directory(bad));
        assert!(error.contains("directory.adoptNode"), "{error}");
    }
    load("node: n\n", &["--adopt-node", "old,older"]).unwrap();
    for bad in ["n", "old,n", "a/b"] {
        let error = load("node: n\n", &["--adopt-node", bad]).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("--adopt-node"), "{error}");
    }
}

#[test]
fn what_is_wrong_with_a_pool_to_be_made_is_named() {
    let class = |create: &str| {
        format!(
            "node: n\nclasses: [{{name: a, thin: {{volumeGroup: g, pool: p, create: {create}}}}}]\n"
        )
    };
    for fine in [
        "{size: 80%VG, chunk: 64Ki, metadata: auto}",
        "{size: 100%FREE, chunk: 1Gi, metadata: 1Gi}",
        "{size: 400Gi}",
    ] {
        let plan = load(&class(fine), &[]).unwrap().classes;
        // The former spelling is the same value.
        let former = load(&class(&fine.replace("Ki", "KiB").replace("Gi", "GiB")), &[]);
        assert_eq!(plan, former.unwrap().classes);
    }
    for (bad, field) in [
        ("{size: 0%VG}", "thin.create.size"),
        ("{size: 101%FREE}", "thin.create.size"),
        ("{size: 80%}", "thin.create.size"),
        ("{size: '0'}", "thin.create.size"),
        ("{size: 400GB}", "thin.create.size"),
        ("{size: 80%VG, chunk: 96KiB}", "thin.create.chunk"),
        ("{size: 80%VG, chunk: 32KiB}", "thin.create.chunk"),
        ("{size: 80%VG, chunk: 2GiB}", "thin.create.chunk"),
        ("{size: 80%VG, metadata: 1MiB}", "thin.create.metadata"),
        ("{size: 80%VG, metadata: 17GiB}", "thin.create.metadata"),
        ("{chunk: 64KiB}", "size"),
    ] {
        let error = wrong(&class(bad));
        assert!(error.contains(field), "{bad}: {error}");
    }
}

#[test]
fn the_values_that_only_a_start_applies_are_told_apart_from_classes_and_labels() {
    let fixed = |file: &str| load(file, &[]).unwrap().fixed;
    let before = fixed("node: n\nstateDir: /a\nlog: {level: debug}\n");
    let live = "node: n\nstateDir: /a\nlog: {level: debug}\nnodeLabels: {disk: nvme}\nclasses: [{name: b, directory: {path: /b}}]\n";
    assert!(before.differences(&fixed(live)).is_empty());
    let after = fixed("node: n\nstateDir: /b\nattach: true\nlog: {level: debug}\n");
    assert_eq!(before.differences(&after), ["attach", "stateDir"]);
    let after = fixed("node: n\nstateDir: /a\nlog: {level: info, format: json}\n");
    assert_eq!(before.differences(&after), ["log.format", "log.level"]);
}

#[test]
fn there_is_one_default_class() {
    let two = |first: &str, second: &str| {
        format!(
            "node: n\nclasses:\n- {{name: a, directory: {{path: /a}}{first}}}\n- {{name: b, directory: {{path: /b}}{second}}}\n"
        )
    };
    assert!(load(&two(", default: true", ""), &[]).is_ok());
    assert!(wrong(&two("", "")).contains("no class is the default"));
    assert!(
        wrong(&two(", default: true", ", default: true"))
            .contains("more than one class is the default")
    );
    assert!(wrong("node: n\nclasses: [{name: a}]\n").contains("no back end"));
    assert!(
        wrong("node: n\nclasses: [{name: a, directory: {path: b}}]\n")
            .contains("must be an absolute path")
    );
    assert!(wrong("node: n\nclasses: [{name: A, directory: {path: /b}}]\n").contains("DNS label"));
}
