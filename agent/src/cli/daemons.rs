//! Arguments of the agent, the reconciler and the controller, and of `drumlin ping`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use drumlin_reconciler::Cluster;

use super::{KubeletArguments, PruneArguments};
use crate::{
    config::OnGroup,
    metrics::Metrics,
    telemetry::{self, LogFormat},
};

/// Logging options.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LogArguments {
    /// Format of log lines.
    #[arg(long, env = "DRUMLIN_LOG_FORMAT", value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Log level: error, warn, info, debug, or a filter such as drumlin=debug.
    #[arg(long, env = "DRUMLIN_LOG", value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
}

impl LogArguments {
    /// Starts logging, and what it counts, for a command that has no configuration file.
    ///
    /// # Errors
    /// If the filter is invalid.
    pub(crate) fn start(&self, metrics: Option<&Metrics>) -> anyhow::Result<()> {
        let level = self.log_level.as_deref().unwrap_or("info");
        telemetry::start(self.log_format.unwrap_or_default(), level, None, metrics)
    }
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AgentArguments {
    /// The configuration file.
    #[arg(long, env = "DRUMLIN_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Socket to serve CSI on: `unix:///path.sock`, `unix:/path.sock` or `/path.sock` [default: `unix:///run/drumlin/csi.sock`]
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<String>,
    /// This node's name [default: the host's name]
    #[arg(long, env = "DRUMLIN_NODE", value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Former names of this node, or nodes whose disks were moved here permanently: their volumes are adopted by this node.
    #[arg(
        long,
        env = "DRUMLIN_ADOPT_NODE",
        value_name = "NAMES",
        value_delimiter = ','
    )]
    pub(crate) adopt_node: Vec<String>,
    /// Labels of this node, by which classes select their nodes; with an API server those of its Node count, too [default: none]
    #[arg(
        long,
        env = "DRUMLIN_NODE_LABELS",
        value_name = "KEY=VALUE,...",
        value_delimiter = ','
    )]
    pub(crate) node_labels: Vec<String>,
    /// State directory; also holds the images of the built-in class [default: /var/lib/drumlin]
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Directory of manifests to reconcile.
    #[arg(long, env = "DRUMLIN_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) owners: OwnerArguments,
    #[command(flatten)]
    pub(crate) prune: PruneArguments,
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    /// With --kubernetes or --kubeconfig: the namespace of the controller, whose calls to this node the agent runs.
    #[arg(
        long,
        env = "DRUMLIN_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "drumlin-system"
    )]
    pub(crate) namespace: String,
    /// Require `ControllerPublishVolume` before a volume can be staged or published.
    #[arg(
        long,
        env = "DRUMLIN_ATTACH",
        num_args = 0..=1,
        default_missing_value = "true",
        require_equals = true,
        value_parser = clap::builder::BoolishValueParser::new(),
        value_name = "BOOL"
    )]
    pub(crate) attach: Option<bool>,
    /// Advertise that the agent gives the files of a volume to the group that a caller names (`VOLUME_MOUNT_GROUP`); with
    /// `false`, kubelet does that itself for pods with an `fsGroup` [default: true]
    #[arg(
        long,
        env = "DRUMLIN_VOLUME_MOUNT_GROUP",
        num_args = 0..=1,
        default_missing_value = "true",
        require_equals = true,
        value_parser = clap::builder::BoolishValueParser::new(),
        value_name = "BOOL"
    )]
    pub(crate) volume_mount_group: Option<bool>,
    /// The name of the driver [default: csi.drumlin.dev]
    #[arg(long, env = "DRUMLIN_DRIVER_NAME", value_name = "NAME")]
    pub(crate) driver_name: Option<String>,
    /// The number of volumes that this node takes, enforced with `--attach` [default: no limit]
    #[arg(long, env = "DRUMLIN_MAX_VOLUMES_PER_NODE", value_name = "NUMBER")]
    pub(crate) max_volumes_per_node: Option<u32>,
    /// What happens to the volumes of a group that is deleted: they are kept, they keep the group from being deleted, or
    /// they are deleted with it [default: unlink]
    #[arg(long, env = "DRUMLIN_ON_GROUP_DELETE", value_name = "ACTION")]
    pub(crate) on_group_delete: Option<OnGroup>,
    /// Where the cgroup v2 hierarchy of the host is mounted, for limits of reads and writes [default: /sys/fs/cgroup]
    #[arg(long, env = "DRUMLIN_CGROUPS", value_name = "DIR")]
    pub(crate) cgroups: Option<PathBuf>,
    /// Second socket, which serves only the services beyond CSI [default: none]
    #[arg(long, env = "DRUMLIN_ADDONS_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) addons_endpoint: Option<String>,
    #[command(flatten)]
    pub(crate) kubelet: KubeletArguments,
    /// Export the traces of calls to this OpenTelemetry collector: OTLP over gRPC, such as `http://127.0.0.1:4317`
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
    #[command(flatten)]
    pub(crate) metrics: MetricsArguments,
    #[command(flatten)]
    pub(crate) log: LogArguments,
}

/// Where metrics are published.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MetricsArguments {
    /// Serve metrics at `/metrics` over HTTP on this address, such as 127.0.0.1:9464, or unix socket [default: none]
    #[arg(long, env = "DRUMLIN_METRICS_LISTEN", value_name = "ENDPOINT")]
    pub(crate) metrics_listen: Option<String>,
    /// Write metrics to this file once a minute, for the textfile collector of `node_exporter`: an absolute path that ends in
    /// `.prom` [default: none]
    #[arg(long, env = "DRUMLIN_METRICS_TEXTFILE", value_name = "FILE")]
    pub(crate) metrics_textfile: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ThawWatchdogArguments {
    /// Watch nothing: wait until all thaw watchdogs of this control group have ended, for so many seconds at most.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wait: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PingArguments {
    /// CSI socket of the agent [default: that of the file, or `unix:///run/drumlin/csi.sock`].
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<String>,
    /// The configuration file of the agent.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check that every class of the agent can be used, too. Exits with 1 and names the classes that cannot.
    #[arg(long)]
    pub(crate) ready: bool,
}

/// The API server whose objects are reconciled.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClusterArguments {
    /// Reconcile the objects of this node from the Kubernetes API server that is configured by the pod or the environment.
    #[arg(long, env = "DRUMLIN_KUBERNETES")]
    pub(crate) kubernetes: bool,
    /// Reconcile the objects of this node from the Kubernetes API server that this kubeconfig file names.
    #[arg(long, env = "DRUMLIN_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Mount volumes on this host where objects of the API server request it. Users who may write these objects can then choose
    /// mount paths on this host.
    #[arg(long, env = "DRUMLIN_ALLOW_HOST_MOUNTS")]
    pub(crate) allow_host_mounts: bool,
    /// With --allow-host-mounts: mount only below these directories; symbolic links below them are not followed.
    #[arg(
        long,
        env = "DRUMLIN_MOUNT_ROOTS",
        value_name = "DIR,...",
        value_delimiter = ',',
        default_value = "/",
        requires = "allow_host_mounts"
    )]
    pub(crate) mount_roots: Vec<PathBuf>,
    /// With --allow-host-mounts: features that these mounts may use; by default they are mounted `nosuid,nodev`.
    #[arg(
        long,
        env = "DRUMLIN_MOUNT_ALLOW",
        value_name = "WHAT,...",
        value_delimiter = ',',
        requires = "allow_host_mounts"
    )]
    mount_allow: Vec<MountRisk>,
    /// Maximum random delay, in seconds, before the first request to the API server: spreads the load of many agents that start
    /// at the same time.
    #[arg(
        long,
        env = "DRUMLIN_START_JITTER",
        value_name = "SECONDS",
        default_value_t = 0
    )]
    pub(crate) start_jitter: u64,
    #[command(flatten)]
    pub(crate) claims: ClaimArguments,
}

/// A feature of a file system with tenant-controlled contents that can endanger a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MountRisk {
    /// Programs that run with the rights of their owner, such as root (set-user-id, file capabilities).
    Suid,
    /// Device nodes of this host.
    Dev,
}

impl MountRisk {
    /// The mount option that disables the feature.
    fn refusal(self) -> String {
        match self {
            Self::Suid => "nosuid".to_owned(),
            Self::Dev => "nodev".to_owned(),
        }
    }
}

/// Options that the agents and the controller must agree on.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClaimArguments {
    /// Component that sets the node of objects without spec.nodeName: the agent that has their source, or the controller (for
    /// clusters with very many nodes).
    #[arg(
        long,
        env = "DRUMLIN_CLAIM",
        value_name = "WHO",
        default_value = "agent"
    )]
    claim: Claimant,
}

impl ClaimArguments {
    /// Returns true if the controller assigns nodes.
    pub(crate) fn are_the_controllers(&self) -> bool {
        self.claim == Claimant::Controller
    }
}

/// Component that sets the node of objects that name none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Claimant {
    /// The agent that has their source.
    #[default]
    Agent,
    /// The controller.
    Controller,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ControllerArguments {
    /// Socket on which to serve CSI for the whole cluster, to the sidecars beside this controller. Without it none is served.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<String>,
    /// Kubeconfig file of the API server [default: the configuration of the pod or the environment]
    #[arg(long, env = "DRUMLIN_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The name of the CSI driver, as in the configuration of the agents.
    #[arg(long, env = "DRUMLIN_DRIVER_NAME", value_name = "NAME", default_value = crate::config::DRIVER)]
    pub(crate) driver_name: String,
    /// Namespace of the leader election lease, and of the calls to the agents.
    #[arg(
        long,
        env = "DRUMLIN_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "drumlin-system"
    )]
    pub(crate) namespace: String,
    /// Identity in the leader election, such as the name of the pod [default: the host's name and the process id]
    #[arg(long, env = "DRUMLIN_IDENTITY", value_name = "NAME")]
    pub(crate) identity: Option<String>,
    #[command(flatten)]
    pub(crate) claims: ClaimArguments,
    /// Grace period in seconds before the objects of a lost node report it.
    #[arg(
        long,
        env = "DRUMLIN_NODE_GRACE",
        value_name = "SECONDS",
        default_value_t = 900
    )]
    pub(crate) node_grace: u64,
    #[command(flatten)]
    pub(crate) metrics: MetricsArguments,
    #[command(flatten)]
    pub(crate) log: LogArguments,
}

impl ClusterArguments {
    /// The settings of the reconciler for the API server.
    pub(crate) fn cluster(&self) -> Option<Cluster> {
        (self.kubernetes || self.kubeconfig.is_some()).then(|| Cluster {
            kubeconfig: self.kubeconfig.clone(),
            mount_roots: if self.allow_host_mounts {
                self.mount_roots.clone()
            } else {
                Vec::new()
            },
            mount_options: MountRisk::value_variants()
                .iter()
                .filter(|risk| !self.mount_allow.contains(risk))
                .map(|risk| risk.refusal())
                .collect(),
            leaves_claims: self.claims.are_the_controllers(),
            start_jitter: Duration::from_secs(self.start_jitter),
        })
    }
}

/// Users whose manifests are accepted.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OwnerArguments {
    /// Additional user, by name or number, whose manifest files are accepted besides those of root and of the user running
    /// this command, such as 65533 for git-sync; may be repeated.
    #[arg(
        long = "manifest-owner",
        env = "DRUMLIN_MANIFEST_OWNER",
        value_name = "USER",
        value_delimiter = ',',
        value_parser = user
    )]
    pub(crate) manifest_owners: Vec<u32>,
}

/// Parses a user name or number to its number.
///
/// # Errors
/// Why the name is not that of a user.
pub(crate) fn user(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err("this user does not exist on this host".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ReconcileArguments {
    /// CSI socket of the agent.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", default_value = crate::config::ENDPOINT)]
    pub(crate) endpoint: String,
    /// Directory of manifests to reconcile.
    #[arg(long, env = "DRUMLIN_MANIFESTS", value_name = "DIR", required_unless_present_any = ["kubernetes", "kubeconfig"])]
    pub(crate) manifests: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) owners: OwnerArguments,
    #[command(flatten)]
    pub(crate) prune: PruneArguments,
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
    #[command(flatten)]
    pub(crate) log: LogArguments,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::{Cli, Command};

    #[test]
    fn mounts_of_objects_refuse_what_the_administrator_does_not_allow() {
        let options = |more: &[&str]| {
            let line = ["drumlin", "agent", "--kubernetes", "--allow-host-mounts"];
            let parsed = Cli::try_parse_from(line.iter().chain(more)).unwrap();
            let Command::Agent(arguments) = parsed.command else {
                panic!("another command");
            };
            arguments.cluster.cluster().unwrap().mount_options
        };
        assert_eq!(options(&[]), ["nosuid", "nodev"]);
        assert_eq!(options(&["--mount-allow=dev"]), ["nosuid"]);
        assert!(options(&["--mount-allow=suid,dev"]).is_empty());
        for bad in [
            vec!["drumlin", "agent", "--mount-allow=suid"],
            vec![
                "drumlin",
                "agent",
                "--allow-host-mounts",
                "--mount-allow=exec",
            ],
        ] {
            assert!(Cli::try_parse_from(bad).is_err());
        }
    }
}
