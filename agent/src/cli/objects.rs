//! Arguments of the commands about objects: their manifests, their status, and what is kept for them.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use drumlin_proto::Endpoint;
use drumlin_reconciler::status::Form;

use super::{
    KindsWord, KindsWordParser, LogArguments, ManifestsArguments, NamespaceArguments, ObjectWord,
    ObjectWordParser, OwnerArguments, SelectionArguments,
};
use crate::duration::duration;

#[derive(Debug, Clone, Args)]
pub(crate) struct ValidateArguments {
    /// Manifest files, or directories of them.
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) paths: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    /// State directory, which says which directory of manifests the reconciler follows: there owner and mode of files must be right.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
    /// The configuration file, where no reconciler has followed a directory yet [default: /etc/drumlin/config.yaml, if there is one].
    #[arg(long, env = "DRUMLIN_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) owners: OwnerArguments,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table with more columns.
    Wide,
    /// All fields as JSON, for programs.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Output {
    /// The form of what is printed.
    pub(crate) fn form(output: Option<Self>) -> Form {
        match output {
            None => Form::Table,
            Some(Self::Wide) => Form::Wide,
            Some(Self::Json) => Form::Json,
            Some(Self::Yaml) => Form::Yaml,
        }
    }

    /// The format for programs; none for people.
    pub(crate) fn data(self) -> Option<DataOutput> {
        match self {
            Self::Wide => None,
            Self::Json => Some(DataOutput::Json),
            Self::Yaml => Some(DataOutput::Yaml),
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArguments {
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<Output>,
    /// Show the status again whenever it has changed, until the command is stopped.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    pub(crate) manifests: ManifestsArguments,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ApplyArguments {
    /// Apply the manifests once and end. Required: `drumlin reconcile` and `drumlin agent` follow them for as long as they run.
    #[arg(long, required = true)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) manifests: ManifestsArguments,
    /// Maximum time to work, such as `30s` or `5m`.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5m")]
    pub(crate) timeout: Duration,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<Output>,
    #[command(flatten)]
    pub(crate) host: HostArguments,
    #[command(flatten)]
    pub(crate) log: LogArguments,
}

/// Output format for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataOutput {
    /// All fields as JSON, for programs.
    Json,
    /// The same as YAML.
    Yaml,
}

impl DataOutput {
    /// The form of what is printed.
    pub(crate) fn form(output: Option<Self>) -> Form {
        match output {
            None => Form::Table,
            Some(Self::Json) => Form::Json,
            Some(Self::Yaml) => Form::Yaml,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GetArguments {
    /// Kind of the objects, also by its short name (dv, dvg, dsnap, dgsnap, dsched) or its plural; `KIND/NAME` and
    /// `KIND/NAMESPACE/NAME` are one of them, `KIND,KIND` is several kinds, and `all` is every kind.
    #[arg(value_name = "KIND", value_parser = KindsWordParser)]
    pub(crate) objects: KindsWord,
    /// Name of the object: `NAMESPACE/NAME`, or `NAME` in the namespace of `--namespace`; not with several kinds [default: all
    /// objects of the kinds].
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArguments,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<GetOutput>,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

/// Output format of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GetOutput {
    /// A table with more columns.
    Wide,
    /// The whole objects as JSON; several are a `List`.
    Json,
    /// The same as YAML.
    Yaml,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DescribeArguments {
    /// Kind of the object, also by its short name (dv, dvg, dsnap, dgsnap, dsched), with or without `/NAME` or
    /// `/NAMESPACE/NAME`.
    #[arg(value_name = "KIND", value_parser = ObjectWordParser)]
    pub(crate) object: ObjectWord,
    /// Name of the object: `NAMESPACE/NAME`, or `NAME` in the namespace of `--namespace`; not with a name behind the kind.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArguments,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct EventsArguments {
    /// Object: `KIND/NAMESPACE/NAME`, or `KIND/NAME` in the namespace of `--namespace` [default: all objects].
    #[arg(value_name = "OBJECT")]
    pub(crate) object: Option<String>,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArguments,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WaitArguments {
    /// Objects: `KIND/NAMESPACE/NAME`, or `KIND/NAME` in the namespace `default`, such as `dv/db/data`.
    #[arg(value_name = "OBJECT", required_unless_present = "mounts")]
    pub(crate) objects: Vec<String>,
    /// What to wait for: `condition=TYPE`, `condition=TYPE=STATUS` or `delete`.
    #[arg(long = "for", value_name = "WHAT", default_value = "condition=Ready")]
    pub(crate) awaited: String,
    /// Wait until every volume with a mount on this host is mounted, since the host was started.
    #[arg(long, conflicts_with_all = ["objects", "awaited"])]
    pub(crate) mounts: bool,
    /// Time to wait, such as `30s` or `5m`.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
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
    /// Handle of a retained resource (`NODE/CLASS/KEY`), as shown by `drumlin kept`; or a volume of others: `GROUP/NAME` of a
    /// logical volume, or the absolute path of an image file [default: list all volumes of others].
    #[arg(value_name = "HANDLE|GROUP/NAME|FILE")]
    pub(crate) what: Option<String>,
    /// Object that adopts it: `NAMESPACE/NAME`, or `NAME` in the namespace `default` [default for a volume of others: its own
    /// name, in the namespace `default`].
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: Option<String>,
    /// Adopt the volume of others. Without it, everything is checked and the manifest is printed, and nothing is changed.
    #[arg(long, requires = "what")]
    pub(crate) yes: bool,
    /// Class that the volume of others comes to [default: the first one that can have it].
    #[arg(long, value_name = "CLASS", requires = "what")]
    pub(crate) class: Option<String>,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

/// Kinds of objects of manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ObjectKind {
    #[value(name = "Volume", aliases = ["volume", "volumes", "dv"])]
    Volume,
    #[value(name = "VolumeGroup", aliases = ["volumegroup", "volumegroups", "dvg"])]
    VolumeGroup,
    #[value(name = "Snapshot", aliases = ["snapshot", "snapshots", "dsnap"])]
    Snapshot,
    #[value(name = "GroupSnapshot", aliases = ["groupsnapshot", "groupsnapshots", "dgsnap"])]
    GroupSnapshot,
    #[value(name = "SnapshotSchedule", aliases = ["snapshotschedule", "snapshotschedules", "dsched"])]
    SnapshotSchedule,
}

impl ObjectKind {
    /// A kind by any of its names, in upper or lower case, also with our API group behind it.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let group = format!(".{}", drumlin_crd::names::GROUP);
        Self::from_str(word.strip_suffix(&group).unwrap_or(word), true).ok()
    }

    /// The kind as spelled in manifests.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Volume => "Volume",
            Self::VolumeGroup => "VolumeGroup",
            Self::Snapshot => "Snapshot",
            Self::GroupSnapshot => "GroupSnapshot",
            Self::SnapshotSchedule => "SnapshotSchedule",
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct HandoverArguments {
    /// Kind of the object, or with `--to-host` the handle of a volume (`NODE/CLASS/KEY`).
    #[arg(value_name = "KIND|HANDLE")]
    pub(crate) what: String,
    /// Name of the object: `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: Option<String>,
    /// Hand a volume back to the host: Drumlin does not manage it any more. Its data, its name and its mounts stay.
    #[arg(long)]
    pub(crate) to_host: bool,
    /// Where an image file is moved to, on the same file system [default: where it was adopted].
    #[arg(long, value_name = "FILE", requires = "to_host")]
    pub(crate) path: Option<PathBuf>,
    /// Hand the volume back. Without it, everything is checked and shown, and nothing is changed.
    #[arg(long, requires = "to_host")]
    pub(crate) yes: bool,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteArguments {
    /// Handle of the resource (`NODE/CLASS/KEY`), as shown by `drumlin kept`, or the kind of an orphan (`dv`, `dsnap`, …).
    #[arg(value_name = "HANDLE|KIND")]
    pub(crate) what: String,
    /// Name of the orphan: `NAMESPACE/NAME`, or `NAME` in the namespace of `--namespace`.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArguments,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

/// The confirmation of a permanent deletion.
#[derive(Debug, Clone, Args)]
pub(crate) struct Confirmation {
    /// Delete without asking for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct TrashArguments {
    /// Destroy these volumes for good: ids as listed, CSI names, or `NAMESPACE/NAME` of their objects or claims.
    #[arg(long, value_name = "WHICH", num_args = 1..)]
    pub(crate) destroy: Vec<String>,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<Output>,
    /// CSI socket of the agent.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", default_value = crate::config::ENDPOINT)]
    pub(crate) endpoint: Endpoint,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct UndeleteArguments {
    /// The volume: its id as listed by `drumlin trash`, its CSI name, or `NAMESPACE/NAME` of its object or claim.
    #[arg(value_name = "WHICH")]
    pub(crate) which: String,
    /// CSI name of the volume [default: the one that it had].
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}
