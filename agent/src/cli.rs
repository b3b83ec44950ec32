//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use drumlin_proto::Endpoint;
use drumlin_reconciler::Cluster;

use crate::{
    config::OnGroup,
    telemetry::{self, LogFormat},
};

/// Provisions local volumes from declarative manifests and serves them over CSI.
#[derive(Debug, Parser)]
#[command(version = crate::VERSION, about, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve CSI on a unix socket, and reconcile a directory of manifests or the objects of a Kubernetes API server.
    #[command(after_help = "Example:\n  drumlin agent --manifests /etc/drumlin/manifests.d")]
    Agent(AgentArguments),
    /// Reconcile a directory of manifests through the CSI socket of a separately running agent.
    #[command(
        after_help = "Example:\n  drumlin reconcile --endpoint unix:///run/drumlin/csi.sock --manifests /etc/drumlin/manifests.d"
    )]
    Reconcile(ReconcileArguments),
    /// Run the cluster-wide controller: resolves persistent volume claims of groups and reports lost nodes. One per cluster.
    #[command(after_help = "Example:\n  drumlin controller --kubeconfig ~/.kube/config")]
    Controller(ControllerArguments),
    /// Serve only driver name and capabilities on a socket, for the external-resizer sidecar. One per cluster.
    #[command(after_help = "Example:\n  drumlin driver-info --endpoint unix:///csi/csi.sock")]
    DriverInfo(DriverInfoArguments),
    /// Check that an agent responds, and print its name and version. Exits with 1 if it does not respond.
    #[command(after_help = "Example:\n  drumlin ping")]
    Ping(PingArguments),
    /// Validate manifests without an agent. Exits with 4 if one is invalid.
    #[command(after_help = "Example:\n  drumlin validate examples/quickstart")]
    Validate(ValidateArguments),
    /// Show the status of all objects, from the state files. Exits with 3 if any object is not ready.
    #[command(after_help = "Example:\n  drumlin status -o wide")]
    Status(StatusArguments),
    /// Print the manifests that restore a snapshot, from the state files. Does not apply them.
    #[command(
        after_help = "Example:\n  drumlin restore dgsnap db/before-upgrade --suffix -restored > restored.yaml"
    )]
    Restore(RestoreArguments),
    /// List resources of the agent that no object refers to: released ones, and those whose namespace or manifest was removed.
    #[command(after_help = "Example:\n  drumlin kept")]
    Kept(KeptArguments),
    /// Adopt a retained resource: the object gets it with its data instead of a new one.
    #[command(
        after_help = "Example:\n  drumlin adopt host-1/default/0f3c1c52-7d8e-5a2b-9d57-3b1c86d6e0a4 db/data"
    )]
    Adopt(AdoptArguments),
    /// Hand a retained resource over between manifest files and the API server, after its manifest was removed from one side.
    #[command(after_help = "Example:\n  drumlin handover Volume db/data")]
    Handover(HandoverArguments),
    /// Permanently delete a retained resource that no object refers to; shows it and asks for confirmation first.
    #[command(
        after_help = "Example:\n  drumlin delete host-1/default/0f3c1c52-7d8e-5a2b-9d57-3b1c86d6e0a4"
    )]
    Delete(DeleteArguments),
    /// Roll the volumes of a group snapshot back to its point in time, in place: all of them or none.
    #[command(after_help = "Example:\n  drumlin rollback dgsnap db/before-upgrade")]
    Rollback(RollbackArguments),
    /// Print the custom resource definitions of all kinds.
    #[command(after_help = "Example:\n  drumlin crds | kubectl apply -f -")]
    Crds,
    /// Thaw watchdog: thaws and resumes quiesced volumes if the agent dies. The agent starts this itself.
    #[command(hide = true)]
    ThawWatchdog,
    /// Print the completion script for a shell.
    #[command(after_help = "Example:\n  drumlin completions bash > /etc/bash_completion.d/drumlin")]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Explain a reason of a condition, a gRPC code or an error message: what it means and what to do.
    #[command(after_help = "Example:\n  drumlin explain MembersPending")]
    Explain {
        /// A reason (`MembersPending`), a gRPC code (`FAILED_PRECONDITION`), or a message or a part of one.
        what: String,
    },
    /// Write the man pages of all commands into a directory.
    #[command(after_help = "Example:\n  drumlin man /usr/local/share/man/man1")]
    Man {
        /// The directory, which must exist.
        directory: PathBuf,
    },
}

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
    /// Starts logging for a command that has no configuration file.
    ///
    /// # Errors
    /// If the filter is invalid.
    pub(crate) fn start(&self) -> anyhow::Result<()> {
        let level = self.log_level.as_deref().unwrap_or("info");
        telemetry::start(self.log_format.unwrap_or_default(), level, None)
    }
}

#[derive(Debug, Clone, Args)]
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
    /// State directory; also holds the images of the built-in class [default: /var/lib/drumlin]
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Directory of manifests to reconcile.
    #[arg(long, env = "DRUMLIN_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) owners: OwnerArguments,
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
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
    /// Second socket, which serves only the services beyond CSI [default: none]
    #[arg(long, env = "DRUMLIN_ADDONS_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) addons_endpoint: Option<String>,
    /// Export the traces of calls to this OpenTelemetry collector: OTLP over gRPC, such as `http://127.0.0.1:4317`
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
    #[command(flatten)]
    pub(crate) log: LogArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PingArguments {
    /// CSI socket of the agent.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", default_value = crate::config::ENDPOINT)]
    pub(crate) endpoint: String,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DriverInfoArguments {
    /// Socket to serve on.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) endpoint: String,
    /// The name of the CSI driver, as in the configuration of the agents.
    #[arg(long, env = "DRUMLIN_DRIVER_NAME", value_name = "NAME", default_value = crate::config::DRIVER)]
    pub(crate) driver_name: String,
    #[command(flatten)]
    pub(crate) log: LogArguments,
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
    /// Kubeconfig file of the API server [default: the configuration of the pod or the environment]
    #[arg(long, env = "DRUMLIN_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The name of the CSI driver, as in the configuration of the agents.
    #[arg(long, env = "DRUMLIN_DRIVER_NAME", value_name = "NAME", default_value = crate::config::DRIVER)]
    pub(crate) driver_name: String,
    /// Namespace of the leader election lease.
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
#[derive(Debug, Clone, Args)]
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
fn user(text: &str) -> Result<u32, String> {
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
    pub(crate) cluster: ClusterArguments,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
    #[command(flatten)]
    pub(crate) log: LogArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ValidateArguments {
    /// Manifest files, or directories of them.
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) paths: Vec<PathBuf>,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table with more columns.
    Wide,
    /// All fields as JSON, for programs.
    Json,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArguments {
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<Output>,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

/// Kinds that can be restored, by short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SnapshotKind {
    /// A group snapshot: a volume for each member, and a group of them.
    #[value(name = "dgsnap", alias = "groupsnapshot")]
    Group,
    /// A snapshot: one volume.
    #[value(name = "dsnap", alias = "snapshot")]
    One,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RestoreArguments {
    /// Kind of the object.
    #[arg(value_name = "KIND")]
    pub(crate) kind: SnapshotKind,
    /// Name of the object: `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: String,
    /// Suffix of the names of the restored objects, so that they differ from the originals.
    #[arg(
        long,
        value_name = "SUFFIX",
        default_value = "-restored",
        allow_hyphen_values = true
    )]
    pub(crate) suffix: String,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

/// The agent and the state directory of the reconciler.
#[derive(Debug, Clone, Args)]
pub(crate) struct HostArguments {
    /// CSI socket of the agent.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", default_value = crate::config::ENDPOINT)]
    pub(crate) endpoint: Endpoint,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct KeptArguments {
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<Output>,
    /// Also list resources created by other callers of the agent, such as kubelet.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AdoptArguments {
    /// Handle of the resource (`NODE/CLASS/KEY`), as shown by `drumlin kept`.
    #[arg(value_name = "HANDLE")]
    pub(crate) handle: String,
    /// Object that adopts it: `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

/// Kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ObjectKind {
    #[value(name = "Volume", aliases = ["volume", "dv"])]
    Volume,
    #[value(name = "VolumeGroup", aliases = ["volumegroup", "dvg"])]
    VolumeGroup,
    #[value(name = "Snapshot", aliases = ["snapshot", "dsnap"])]
    Snapshot,
    #[value(name = "GroupSnapshot", aliases = ["groupsnapshot", "dgsnap"])]
    GroupSnapshot,
}

impl ObjectKind {
    /// The kind as spelled in manifests.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Volume => "Volume",
            Self::VolumeGroup => "VolumeGroup",
            Self::Snapshot => "Snapshot",
            Self::GroupSnapshot => "GroupSnapshot",
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct HandoverArguments {
    /// Kind of the object.
    #[arg(value_name = "KIND")]
    pub(crate) kind: ObjectKind,
    /// Name of the object: `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: String,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteArguments {
    /// Handle of the resource (`NODE/CLASS/KEY`), as shown by `drumlin kept`.
    #[arg(value_name = "HANDLE")]
    pub(crate) handle: String,
    /// Delete without asking for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

/// Kinds that volumes can be rolled back to, by short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GroupSnapshotKind {
    /// A group snapshot.
    #[value(name = "dgsnap", alias = "groupsnapshot")]
    Group,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RollbackArguments {
    /// Kind of the object.
    #[arg(value_name = "KIND")]
    pub(crate) kind: GroupSnapshotKind,
    /// Name of the group snapshot: `NAMESPACE/NAME`, `NAME` in the namespace `default`, or its handle (`NODE/CLASS/KEY`).
    #[arg(value_name = "NAMESPACE/NAME|ID")]
    pub(crate) which: String,
    /// Name of this rollback, and of the group snapshot that keeps the previous contents. Repeating a call with the same name
    /// does not roll back again [default: `rollback-` and the time]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Do not keep the previous contents.
    #[arg(long)]
    pub(crate) discard: bool,
    /// CSI socket of the agent.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", default_value = crate::config::ENDPOINT)]
    pub(crate) endpoint: String,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_makes_sense_and_every_command_has_an_example() {
        Cli::command().debug_assert();
        let command = Cli::command();
        // What nobody types is not shown.
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
        for command in shown {
            let help = command.get_after_help().map(ToString::to_string);
            assert!(
                help.is_some_and(|help| help.contains("Example")),
                "{}",
                command.get_name()
            );
        }
    }

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

    #[test]
    fn a_suffix_may_begin_as_an_option_does() {
        let line = ["drumlin", "restore", "dgsnap", "db/pg", "--suffix", "-x"];
        let Command::Restore(arguments) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command");
        };
        assert_eq!(arguments.kind, SnapshotKind::Group);
        assert_eq!(
            (arguments.name.as_str(), arguments.suffix.as_str()),
            ("db/pg", "-x")
        );
        let line = ["drumlin", "restore", "snapshot", "pg"];
        let Command::Restore(arguments) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command");
        };
        assert_eq!(arguments.kind, SnapshotKind::One);
        assert_eq!(arguments.suffix, "-restored");
        assert!(Cli::try_parse_from(["drumlin", "restore", "volume", "pg"]).is_err());
    }
}
