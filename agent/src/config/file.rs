//! The configuration file, and what flags and environment override in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use drumlin_core::{
    host::io_limits,
    ops::{OnGroupDelete, Settings},
    types::NodeName,
};
use drumlin_crd::yaml::YamlError;
use drumlin_proto::Endpoint;
use drumlin_reconciler::Prune;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    classes::{ClassPlan, FileClass, Labels, Nodes, node_labels},
    key::{AtKey, located},
    kubelet::{FileKubelet, Kubelet},
    manifests::{FileOwners, FilePrune, owners, prune},
    metrics::{self, FileMetrics},
};
use crate::{
    cli::AgentArguments,
    metrics::MetricsTargets,
    telemetry::{LogFormat, OtlpEndpoint},
};

/// Default state directory.
pub(crate) const STATE_DIR: &str = "/var/lib/drumlin";
/// Default endpoint.
pub(crate) const ENDPOINT: &str = "unix:///run/drumlin/csi.sock";
/// Default driver name.
pub(crate) const DRIVER: &str = "csi.drumlin.dev";

/// The contents of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    default,
    expecting = "a map of settings"
)]
struct File {
    node: Option<String>,
    endpoint: Option<String>,
    addons_endpoint: Option<String>,
    state_dir: Option<PathBuf>,
    manifests: Option<PathBuf>,
    prune: FilePrune,
    manifest_owner: FileOwners,
    attach: Option<bool>,
    volume_mount_group: Option<bool>,
    max_volumes_per_node: Option<u32>,
    on_group_delete: Option<OnGroup>,
    driver_name: Option<String>,
    cgroups: Option<PathBuf>,
    kubelet: FileKubelet,
    log: Log,
    tracing: Tracing,
    metrics: FileMetrics,
    node_labels: Option<Labels>,
    classes: Vec<FileClass>,
}

/// The keys of the file whose changes are applied while the agent runs.
const LIVE: [&str; 2] = ["classes", "nodeLabels"];

/// The values of a file that a running agent has for good, by their keys with those that they are in (`log.level`).
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Fixed(BTreeMap<String, Value>);

impl Fixed {
    /// Those of a file with these contents.
    fn of(mut file: Map<String, Value>) -> Self {
        file.retain(|key, _| !LIVE.contains(&key.as_str()));
        let mut fixed = Self::default();
        fixed.add("", file);
        fixed
    }

    fn add(&mut self, within: &str, values: Map<String, Value>) {
        for (key, value) in values {
            let key = format!("{within}{key}");
            match value {
                Value::Object(values) => self.add(&format!("{key}."), values),
                value => drop(self.0.insert(key, value)),
            }
        }
    }

    /// The keys whose values differ.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let keys: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let differs = |key: &&&String| self.0.get(**key) != other.0.get(**key);
        keys.iter()
            .filter(differs)
            .map(|key| (**key).clone())
            .collect()
    }
}

/// What happens to the members of a group that is deleted.
#[derive(Debug, Clone, Copy, Default, Deserialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(crate) enum OnGroup {
    /// They are kept, in no group.
    #[default]
    Unlink,
    /// A group with volumes is not deleted.
    Refuse,
    /// They are deleted with the group.
    Cascade,
}

impl From<OnGroup> for OnGroupDelete {
    fn from(file: OnGroup) -> Self {
        match file {
            OnGroup::Unlink => Self::Unlink,
            OnGroup::Refuse => Self::Refuse,
            OnGroup::Cascade => Self::Cascade,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    default,
    expecting = "a map such as {level: info, format: json}"
)]
struct Log {
    level: Option<String>,
    format: Option<LogFormat>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    default,
    expecting = "a map such as {otlpEndpoint: 'http://127.0.0.1:4317'}"
)]
struct Tracing {
    otlp_endpoint: Option<String>,
}

/// The effective configuration of the agent.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) endpoint: Endpoint,
    /// An additional endpoint that serves only the services beyond CSI.
    pub(crate) addons_endpoint: Option<Endpoint>,
    pub(crate) state_dir: PathBuf,
    pub(crate) manifests: Option<PathBuf>,
    /// What is pruned, if anything.
    pub(crate) prune: Option<Prune>,
    /// Users whose manifests are accepted besides those of root and of the user who runs the agent.
    pub(crate) manifest_owners: Vec<u32>,
    pub(crate) driver: String,
    pub(crate) kubelet: Kubelet,
    pub(crate) log_format: LogFormat,
    pub(crate) log_filter: String,
    /// The collector to which traces are exported.
    pub(crate) otlp_endpoint: Option<OtlpEndpoint>,
    /// Where metrics are published.
    pub(crate) metrics: MetricsTargets,
    pub(crate) settings: Settings,
    pub(crate) classes: ClassPlan,
    /// The file without what can change while the agent runs.
    pub(crate) fixed: Fixed,
}

impl Config {
    /// Merges the arguments (including the environment) and the file.
    ///
    /// # Errors
    /// The error names the invalid argument, or the file, line and field.
    pub(crate) fn load(arguments: &AgentArguments) -> anyhow::Result<Self> {
        let Some(path) = &arguments.config else {
            return Self::merged(arguments, File::default(), Fixed::default());
        };
        let text = fs::read_to_string(path)
            .with_context(|| format!("could not read config file {}", path.display()))?;
        let (file, fixed) = read(path, &text)?;
        Self::merged(arguments, file, fixed).map_err(|error| located(error, path, &text))
    }

    fn merged(arguments: &AgentArguments, file: File, fixed: Fixed) -> anyhow::Result<Self> {
        let endpoint = arguments.endpoint.clone().or(file.endpoint);
        let endpoint = endpoint.as_deref().unwrap_or(ENDPOINT);
        let state_dir = state_dir(arguments, file.state_dir)?;
        let node = match arguments.node.clone().or(file.node) {
            Some(node) => node,
            // Kubernetes uses the host name in lower case as the name of a node.
            None if arguments.cluster.cluster().is_some() => host_name()?.to_ascii_lowercase(),
            None => host_name()?,
        };
        let node: Result<NodeName, _> = node.parse();
        let node = node.at_key_without(arguments.node.as_ref(), "node")?;
        let former = arguments.adopt_node.iter().map(|name| name.parse());
        let former: Vec<NodeName> = former.collect::<Result<_, _>>().context("--adopt-node")?;
        let nodes = Nodes {
            here: node.clone(),
            former: former.clone(),
        };
        nodes.check(&former).context("--adopt-node")?;
        let driver = arguments.driver_name.clone().or(file.driver_name);
        let driver = driver.unwrap_or_else(|| DRIVER.to_owned());
        let is_driver = check_driver(&driver);
        is_driver.at_key_without(arguments.driver_name.as_ref(), "driverName")?;
        let max_volumes = max_volumes(arguments, file.max_volumes_per_node)?;
        let endpoint: Result<Endpoint, _> = endpoint.parse();
        let endpoint = endpoint.at_key_without(arguments.endpoint.as_ref(), "endpoint")?;
        let addons_endpoint = second_endpoint(arguments, file.addons_endpoint, &endpoint)?;
        let cgroups = cgroups(arguments, file.cgroups)?;
        let labels = node_labels(&arguments.node_labels, file.node_labels)?;
        let otlp_endpoint = otlp_endpoint(arguments, file.tracing)?;
        let kubelet = Kubelet::load(&arguments.kubelet, file.kubelet, &driver, endpoint.path())?;
        Ok(Self {
            endpoint,
            addons_endpoint,
            manifests: arguments.manifests.clone().or(file.manifests),
            prune: prune(&arguments.prune, file.prune),
            manifest_owners: owners(&arguments.owners, file.manifest_owner),
            driver,
            kubelet,
            log_format: arguments
                .log
                .log_format
                .or(file.log.format)
                .unwrap_or_default(),
            log_filter: arguments
                .log
                .log_level
                .clone()
                .or(file.log.level)
                .unwrap_or_else(|| "info".to_owned()),
            otlp_endpoint,
            metrics: metrics::targets(&arguments.metrics, file.metrics)?,
            settings: Settings {
                node,
                attach: arguments.attach.or(file.attach).unwrap_or(false),
                mount_group: arguments
                    .volume_mount_group
                    .or(file.volume_mount_group)
                    .unwrap_or(true),
                max_volumes,
                on_group_delete: arguments
                    .on_group_delete
                    .or(file.on_group_delete)
                    .unwrap_or_default()
                    .into(),
                cgroups,
            },
            classes: ClassPlan::new(file.classes, nodes, labels, &state_dir)?,
            fixed,
            state_dir,
        })
    }
}

/// The endpoint of the services beyond CSI.
fn second_endpoint(
    arguments: &AgentArguments,
    file: Option<String>,
    first: &Endpoint,
) -> anyhow::Result<Option<Endpoint>> {
    let given = arguments.addons_endpoint.as_ref();
    let text = given.cloned().or(file);
    let second = text.map(|text| text.parse::<Endpoint>()).transpose();
    let second = second.at_key_without(given, "addonsEndpoint")?;
    if second.as_ref().map(Endpoint::path) == Some(first.path()) {
        let why = anyhow!(
            "equals the CSI endpoint, which already serves all services; leave addonsEndpoint out"
        );
        return Err(why).at_key_without(given, "addonsEndpoint");
    }
    Ok(second)
}

/// The maximum number of volumes.
fn max_volumes(arguments: &AgentArguments, file: Option<u32>) -> anyhow::Result<Option<u32>> {
    let given = arguments.max_volumes_per_node.as_ref();
    let most = given.copied().or(file);
    if most == Some(0) {
        let why = anyhow!("is 0; leave it out for no limit");
        return Err(why).at_key_without(given, "maxVolumesPerNode");
    }
    Ok(most)
}

/// The state directory.
fn state_dir(arguments: &AgentArguments, file: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let given = arguments.state_dir.as_ref();
    let directory = given.cloned().or(file);
    let directory = directory.unwrap_or_else(|| PathBuf::from(STATE_DIR));
    if !directory.is_absolute() {
        let why = anyhow!("{} must be an absolute path", directory.display());
        return Err(why).at_key_without(given, "stateDir");
    }
    Ok(directory)
}

/// Where the cgroup v2 hierarchy is mounted.
fn cgroups(arguments: &AgentArguments, file: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let given = arguments.cgroups.as_ref();
    let cgroups = given.cloned().or(file);
    let cgroups = cgroups.unwrap_or_else(|| PathBuf::from(io_limits::ROOT));
    if !cgroups.is_absolute() {
        let why = anyhow!("{} must be an absolute path", cgroups.display());
        return Err(why).at_key_without(given, "cgroups");
    }
    Ok(cgroups)
}

/// The collector; the error names where it is configured. An empty one is none, as in other programs that read this
/// variable.
fn otlp_endpoint(
    arguments: &AgentArguments,
    file: Tracing,
) -> anyhow::Result<Option<OtlpEndpoint>> {
    let given = arguments.otlp_endpoint.as_ref();
    let endpoint = given.cloned().or(file.otlp_endpoint);
    let endpoint = endpoint.filter(|endpoint| !endpoint.is_empty());
    let endpoint = endpoint.map(|endpoint| endpoint.parse()).transpose();
    match given {
        Some(_) => endpoint.context("--otlp-endpoint (OTEL_EXPORTER_OTLP_ENDPOINT)"),
        None => endpoint.at_key("tracing.otlpEndpoint"),
    }
}

fn read(path: &Path, text: &str) -> anyhow::Result<(File, Fixed)> {
    if text.trim().is_empty() {
        return Ok(Default::default());
    }
    let parsed = || {
        let file = drumlin_crd::yaml::from_str(text)?;
        let values: Option<Map<String, Value>> = drumlin_crd::yaml::from_str(text)?;
        Ok((file, Fixed::of(values.unwrap_or_default())))
    };
    parsed().map_err(|error: YamlError| anyhow::anyhow!("config file {}: {error}", path.display()))
}

/// The host name, as a node name.
pub(crate) fn host_name() -> anyhow::Result<String> {
    let name = nix::unistd::gethostname().context("could not read the host name")?;
    Ok(name.to_string_lossy().into_owned())
}

/// Checks a driver name by the rules of CSI `GetPluginInfo`, and of the conformance tool, which requires a letter at
/// the end.
/// A domain name of at most 63 characters (CSI, `GetPluginInfo`).
pub(crate) fn check_driver(name: &str) -> anyhow::Result<()> {
    let is_label = |label: &str| {
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        let bytes = label.as_bytes();
        label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && edge(bytes.first().copied())
            && edge(bytes.last().copied())
    };
    if name.len() <= 63 && name.split('.').all(is_label) {
        return Ok(());
    }
    bail!(
        "{name:?} must be a domain name of at most 63 characters: letters, digits and '-' between dots, each part beginning and ending with a letter or a digit"
    )
}

#[cfg(test)]
mod tests {
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
            format!(
                "node: n\nclasses: [{{name: a, directory: {{path: /d, adoptNode: {adopt}}}}}]\n"
            )
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
            "{size: 80%VG, chunk: 64KiB, metadata: auto}",
            "{size: 100%FREE, chunk: 1GiB, metadata: 1Gi}",
            "{size: 400GiB}",
        ] {
            load(&class(fine), &[]).unwrap();
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
        assert!(
            wrong("node: n\nclasses: [{name: A, directory: {path: /b}}]\n").contains("DNS label")
        );
    }
}
