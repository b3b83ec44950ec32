//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use drumlin_proto::Endpoint;
use drumlin_reconciler::Cluster;

use crate::telemetry::{self, LogFormat};

/// Keeps a machine's local volumes the way files say they should be, and serves them over CSI.
#[derive(Debug, Parser)]
#[command(version = crate::VERSION, about, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve CSI on a unix socket, and converge a directory of manifests or the objects of an API server.
    #[command(after_help = "Example:\n  drumlin agent --manifests /etc/drumlin/manifests.d")]
    Agent(AgentArguments),
    /// Converge a directory of manifests through the socket of an agent that runs elsewhere.
    #[command(
        after_help = "Example:\n  drumlin reconcile --endpoint unix:///run/drumlin/csi.sock --manifests /etc/drumlin/manifests.d"
    )]
    Reconcile(ReconcileArguments),
    /// Look after what is a cluster's and no node's: claims of users in groups, nodes that are gone. One for a cluster.
    #[command(after_help = "Example:\n  drumlin controller --kubeconfig ~/.kube/config")]
    Controller(ControllerArguments),
    /// Say on a socket who the driver is, and that its volumes grow at their nodes: for the stock resizer, one for a cluster.
    #[command(after_help = "Example:\n  drumlin driver-info --endpoint unix:///csi/csi.sock")]
    DriverInfo(DriverInfoArguments),
    /// Ask an agent who it is. Exits with 1 when none answers.
    #[command(after_help = "Example:\n  drumlin ping")]
    Ping(PingArguments),
    /// Check manifests without an agent. Exits with 4 if one is invalid.
    #[command(after_help = "Example:\n  drumlin validate examples/quickstart")]
    Validate(ValidateArguments),
    /// Show what became of the manifests, from the state files. Exits with 3 if anything is not ready.
    #[command(after_help = "Example:\n  drumlin status -o wide")]
    Status(StatusArguments),
    /// Print the manifests that restore a snapshot, from the state files. Applies nothing.
    #[command(
        after_help = "Example:\n  drumlin restore dgsnap db/before-upgrade --suffix -restored > restored.yaml"
    )]
    Restore(RestoreArguments),
    /// Show what the agent has and no object asks for: what was released, is left of former namespaces, or has no manifest.
    #[command(after_help = "Example:\n  drumlin kept")]
    Kept(KeptArguments),
    /// Give what is kept to an object: it has that then, with its bytes, and nothing new is made.
    #[command(
        after_help = "Example:\n  drumlin adopt host-1/default/0f3c1c52-7d8e-5a2b-9d57-3b1c86d6e0a4 db/data"
    )]
    Adopt(AdoptArguments),
    /// Let what is kept of an object whose manifest is away go to the other side: from a file to the API server, or back.
    #[command(after_help = "Example:\n  drumlin handover Volume db/data")]
    Handover(HandoverArguments),
    /// Destroy what is kept and no object asks for; shows what that is first.
    #[command(
        after_help = "Example:\n  drumlin delete host-1/default/0f3c1c52-7d8e-5a2b-9d57-3b1c86d6e0a4"
    )]
    Delete(DeleteArguments),
    /// Give the volumes of a group snapshot their bytes of its moment back, in place: all of them or none.
    #[command(after_help = "Example:\n  drumlin rollback dgsnap db/before-upgrade")]
    Rollback(RollbackArguments),
    /// Print the custom resource definitions of the kinds there are.
    #[command(after_help = "Example:\n  drumlin crds | kubectl apply -f -")]
    Crds,
    /// Let writers go on that wait for the agent, should it die meanwhile. The agent starts this itself.
    #[command(hide = true)]
    Guard,
    /// Print a script that completes commands in a shell.
    #[command(after_help = "Example:\n  drumlin completions bash > /etc/bash_completion.d/drumlin")]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// How to log.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LogArguments {
    /// How a log line looks.
    #[arg(long, env = "DRUMLIN_LOG_FORMAT", value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// What is logged: error, warn, info, debug, or a filter.
    #[arg(long, env = "DRUMLIN_LOG", value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
}

impl LogArguments {
    /// Begins to log as they say, of a command that has no configuration file.
    ///
    /// # Errors
    /// When the filter is none.
    pub(crate) fn start(&self) -> anyhow::Result<()> {
        let level = self.log_level.as_deref().unwrap_or("info");
        telemetry::start(self.log_format.unwrap_or_default(), level)
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AgentArguments {
    /// The configuration file.
    #[arg(long, env = "DRUMLIN_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where to answer: `unix:///path.sock`, `unix:/path.sock` or `/path.sock` [default: `unix:///run/drumlin/csi.sock`]
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<String>,
    /// This node's name [default: the host's name]
    #[arg(long, env = "DRUMLIN_NODE", value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Former names of this node, or nodes whose disks came here for good: what they made becomes this node's.
    #[arg(
        long,
        env = "DRUMLIN_ADOPT_NODE",
        value_name = "NAMES",
        value_delimiter = ','
    )]
    pub(crate) adopt_node: Vec<String>,
    /// Where state is kept, and the images of the built-in class [default: /var/lib/drumlin]
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// A directory of manifests to converge.
    #[arg(long, env = "DRUMLIN_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) owners: OwnerArguments,
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    /// Volumes must be published by the controller before a node may use them.
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
    #[command(flatten)]
    pub(crate) log: LogArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PingArguments {
    /// Where the agent answers.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", default_value = crate::config::ENDPOINT)]
    pub(crate) endpoint: String,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DriverInfoArguments {
    /// Where to answer.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) endpoint: String,
    /// The name of the CSI driver, as in the configuration of the agents.
    #[arg(long, env = "DRUMLIN_DRIVER_NAME", value_name = "NAME", default_value = crate::config::DRIVER)]
    pub(crate) driver_name: String,
    #[command(flatten)]
    pub(crate) log: LogArguments,
}

/// The API server whose objects are converged.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClusterArguments {
    /// Converge the objects of this node that the Kubernetes API server has: that of this pod, or of the environment.
    #[arg(long, env = "DRUMLIN_KUBERNETES")]
    pub(crate) kubernetes: bool,
    /// The same, of the API server that this file names.
    #[arg(long, env = "DRUMLIN_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Mount volumes on this host where such objects ask for it: whoever may write them chooses paths of this host.
    #[arg(long, env = "DRUMLIN_ALLOW_HOST_MOUNTS")]
    pub(crate) allow_host_mounts: bool,
    /// With that: only below these directories, and through no link below them.
    #[arg(
        long,
        env = "DRUMLIN_MOUNT_ROOTS",
        value_name = "DIR,...",
        value_delimiter = ',',
        default_value = "/",
        requires = "allow_host_mounts"
    )]
    pub(crate) mount_roots: Vec<PathBuf>,
    /// With that: what their file systems may bring with them, which else is refused there (mounted `nosuid,nodev`).
    #[arg(
        long,
        env = "DRUMLIN_MOUNT_ALLOW",
        value_name = "WHAT,...",
        value_delimiter = ',',
        requires = "allow_host_mounts"
    )]
    mount_allow: Vec<MountRisk>,
    /// Wait up to so many seconds, at random, before the API server is asked first: very many agents that start together
    /// come one after the other.
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

/// What a file system that somebody else writes can bring onto a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MountRisk {
    /// Programs that run as who owns them, such as root (set-user-id, file capabilities).
    Suid,
    /// Nodes of the devices of this host.
    Dev,
}

impl MountRisk {
    /// The mount option that keeps it away.
    fn refusal(self) -> String {
        match self {
            Self::Suid => "nosuid".to_owned(),
            Self::Dev => "nodev".to_owned(),
        }
    }
}

/// What the agents and the controller must be told alike.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClaimArguments {
    /// Who gives a node to objects that name none: the agent that has their source, or the controller (for very many nodes).
    #[arg(
        long,
        env = "DRUMLIN_CLAIM",
        value_name = "WHO",
        default_value = "agent"
    )]
    claim: Claimant,
}

impl ClaimArguments {
    /// Whether that is left to the controller.
    pub(crate) fn are_the_controllers(&self) -> bool {
        self.claim == Claimant::Controller
    }
}

/// Who gives a node to objects that name none.
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
    /// The file that names the API server [default: that of this pod, or of the environment]
    #[arg(long, env = "DRUMLIN_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The name of the CSI driver, as in the configuration of the agents.
    #[arg(long, env = "DRUMLIN_DRIVER_NAME", value_name = "NAME", default_value = crate::config::DRIVER)]
    pub(crate) driver_name: String,
    /// The namespace of the lease that only one of several controllers holds.
    #[arg(
        long,
        env = "DRUMLIN_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "drumlin-system"
    )]
    pub(crate) namespace: String,
    /// What this one is called among them, such as the name of its pod [default: the host's name and the process id]
    #[arg(long, env = "DRUMLIN_IDENTITY", value_name = "NAME")]
    pub(crate) identity: Option<String>,
    #[command(flatten)]
    pub(crate) claims: ClaimArguments,
    /// So many seconds a node may be gone before its objects say so.
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
    /// What the reconciler is told of it.
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

/// Whose manifests are believed.
#[derive(Debug, Clone, Args)]
pub(crate) struct OwnerArguments {
    /// A user, by name or number, whose manifests are believed beside those of root and of the user who runs this, such as
    /// 65533 where git-sync writes them; may be repeated.
    #[arg(
        long = "manifest-owner",
        env = "DRUMLIN_MANIFEST_OWNER",
        value_name = "USER",
        value_delimiter = ',',
        value_parser = user
    )]
    pub(crate) manifest_owners: Vec<u32>,
}

/// The number of a user.
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
    /// Where the agent answers.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", default_value = crate::config::ENDPOINT)]
    pub(crate) endpoint: String,
    /// The directory of manifests to converge.
    #[arg(long, env = "DRUMLIN_MANIFESTS", value_name = "DIR", required_unless_present_any = ["kubernetes", "kubeconfig"])]
    pub(crate) manifests: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) owners: OwnerArguments,
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    /// Where state is kept.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
    #[command(flatten)]
    pub(crate) log: LogArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ValidateArguments {
    /// Files, or directories of files.
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) paths: Vec<PathBuf>,
}

/// How status is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table with more columns.
    Wide,
    /// All there is, for programs.
    Json,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArguments {
    /// How to show it.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<Output>,
    /// Where state is kept.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

/// What can be restored, by its short name.
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
    /// What it is.
    #[arg(value_name = "KIND")]
    pub(crate) kind: SnapshotKind,
    /// Which one: `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: String,
    /// What stands behind the name of whatever is made, so that it is another one.
    #[arg(
        long,
        value_name = "SUFFIX",
        default_value = "-restored",
        allow_hyphen_values = true
    )]
    pub(crate) suffix: String,
    /// Where state is kept.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

/// The agent, and what the reconciler knows.
#[derive(Debug, Clone, Args)]
pub(crate) struct HostArguments {
    /// Where the agent answers.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", default_value = crate::config::ENDPOINT)]
    pub(crate) endpoint: Endpoint,
    /// Where state is kept.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct KeptArguments {
    /// How to show it.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<Output>,
    /// Also what other callers of the agent have made, such as kubelet.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AdoptArguments {
    /// The agent's id of it (`NODE/CLASS/KEY`), as `drumlin kept` shows it.
    #[arg(value_name = "HANDLE")]
    pub(crate) handle: String,
    /// The object that shall have it: `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

/// The kinds there are.
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
    /// As manifests call it.
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
    /// What it is.
    #[arg(value_name = "KIND")]
    pub(crate) kind: ObjectKind,
    /// Which one: `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: String,
    /// Where state is kept.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteArguments {
    /// The agent's id of it (`NODE/CLASS/KEY`), as `drumlin kept` shows it.
    #[arg(value_name = "HANDLE")]
    pub(crate) handle: String,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

/// What can be rolled back to, by its short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GroupSnapshotKind {
    /// A group snapshot.
    #[value(name = "dgsnap", alias = "groupsnapshot")]
    Group,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RollbackArguments {
    /// What it is.
    #[arg(value_name = "KIND")]
    pub(crate) kind: GroupSnapshotKind,
    /// Which one: `NAMESPACE/NAME`, `NAME` in the namespace `default`, or the agent's id of it (`NODE/CLASS/KEY`).
    #[arg(value_name = "NAMESPACE/NAME|ID")]
    pub(crate) which: String,
    /// What this rollback is called, and the group snapshot of what was there before: the same name is done once
    /// [default: `rollback-` and the time]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Keep nothing of what was there before.
    #[arg(long)]
    pub(crate) discard: bool,
    /// Where the agent answers.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", default_value = crate::config::ENDPOINT)]
    pub(crate) endpoint: String,
    /// Where state is kept.
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
