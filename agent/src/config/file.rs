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
use drumlin_crd::yaml::{self, Leniently, leniently};
use drumlin_proto::Endpoint;
use drumlin_reconciler::{Prune, manifest_scan::Manifests};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    classes::{ClassPlan, FileClass, Labels, Nodes, node_labels},
    invalid::{InvalidFile, PROBLEMS, refuse},
    key::AtKey,
    kubelet::{FileKubelet, Kubelet},
    manifests::{FileOwners, FilePrune, owners, prune},
    metrics::{self, FileMetrics},
};
use crate::{
    cli::{AgentArguments, OwnerArguments},
    metrics::MetricsTargets,
    telemetry::{LogFormat, OtlpEndpoint},
};

/// Default state directory.
pub(crate) const STATE_DIR: &str = "/var/lib/drumlin";
/// The configuration of the agent that the packages install.
pub(crate) const PACKAGED: &str = "/etc/drumlin/config.yaml";
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
    pub(super) fn of(mut file: Map<String, Value>) -> Self {
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
    /// The error names the invalid argument, or all that is wrong in the file, each with its line and field: see
    /// [`problems`](super::problems).
    pub(crate) fn load(arguments: &AgentArguments) -> anyhow::Result<Self> {
        let Some(path) = &arguments.config else {
            return Self::merged(arguments, File::default(), Fixed::default());
        };
        let text = text_of(path)?;
        let (mut read, fixed) = read(path, &text)?;
        loop {
            let Some(file) = read.value.take() else {
                return Err(InvalidFile::new(path, read.problems).into());
            };
            let why = match Self::merged(arguments, file, fixed.clone()) {
                Ok(config) if read.problems.is_empty() => return Ok(config),
                Ok(_) => return Err(InvalidFile::new(path, read.problems).into()),
                Err(why) => why,
            };
            // The rest may have more that is wrong.
            if let Err(why) = refuse(&mut read, &text, why) {
                return Err(if read.problems.is_empty() {
                    why
                } else {
                    InvalidFile::new(path, read.problems).into()
                });
            }
        }
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

/// The manifests that the agent with this file reconciles, if it does, for a command that needs nothing else of it.
///
/// # Errors
/// As those of [`Config::load`].
pub(crate) fn configured(path: &Path) -> anyhow::Result<Option<Manifests>> {
    let file = valid(path)?;
    let owners = owners(&OwnerArguments::default(), file.manifest_owner);
    let directory = file.manifests;
    Ok(directory.map(|directory| Manifests { directory, owners }))
}

/// The endpoint that this file names, for a command that needs nothing else of it.
///
/// # Errors
/// As those of [`Config::load`].
pub(crate) fn configured_endpoint(path: &Path) -> anyhow::Result<Option<String>> {
    Ok(valid(path)?.endpoint)
}

/// The name of this node for a command while no agent tells it: that of `DRUMLIN_NODE`, of the configuration file, or of the
/// host.
///
/// # Errors
/// As those of [`Config::load`], of a file that is named.
pub(crate) fn node_name(config: Option<&Path>) -> anyhow::Result<String> {
    if let Ok(node) = std::env::var("DRUMLIN_NODE") {
        return Ok(node);
    }
    let packaged = Path::new(PACKAGED);
    let configured = match config {
        Some(config) => valid(config)?.node,
        // What is wrong with it is told by the agent, and by those who need it.
        None => valid(packaged).ok().and_then(|file| file.node),
    };
    Ok(configured.unwrap_or_else(|| host_name().unwrap_or_default()))
}

/// A file whose keys and types are valid.
fn valid(path: &Path) -> anyhow::Result<File> {
    let (read, _) = read(path, &text_of(path)?)?;
    match read.value {
        Some(file) if read.problems.is_empty() => Ok(file),
        _ => Err(InvalidFile::new(path, read.problems).into()),
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

/// The text of the file, without the mark that some editors put before it.
fn text_of(path: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("could not read config file {}", path.display()))?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}

/// What the file says, without what is wrong.
///
/// # Errors
/// Where it is no YAML.
fn read(path: &Path, text: &str) -> anyhow::Result<(Leniently<File>, Fixed)> {
    let parsed = yaml::parse(text).map_err(|error| InvalidFile::new(path, vec![error]))?;
    let values = serde_json::to_value(&parsed.value).unwrap_or_default();
    let values = values.as_object().cloned().unwrap_or_default();
    let read = leniently(parsed.value, text, &[], PROBLEMS);
    Ok((read, Fixed::of(values)))
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
mod tests;
