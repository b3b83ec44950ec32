//! Arguments of the commands about snapshots.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{DataOutput, HostArguments, NamespaceArguments};

/// Kinds that can be restored, by short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SnapshotKind {
    /// A group snapshot: a volume for each member, and a group of them.
    #[value(name = "dgsnap", aliases = ["groupsnapshot", "groupsnapshots"])]
    Group,
    /// A snapshot: one volume.
    #[value(name = "dsnap", aliases = ["snapshot", "snapshots"])]
    One,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RestoreArguments {
    /// Kind of the object.
    #[arg(value_name = "KIND", ignore_case = true)]
    pub(crate) kind: SnapshotKind,
    /// Name of the object: `NAMESPACE/NAME`, or `NAME` in the namespace of `--namespace`.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArguments,
    /// Suffix of the names of the restored objects, so that they differ from the originals.
    #[arg(
        long,
        value_name = "SUFFIX",
        default_value = "-restored",
        allow_hyphen_values = true
    )]
    pub(crate) suffix: String,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

/// Kinds that volumes can be rolled back to, by short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GroupSnapshotKind {
    /// A group snapshot.
    #[value(name = "dgsnap", aliases = ["groupsnapshot", "groupsnapshots"])]
    Group,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RollbackArguments {
    /// Kind of the object.
    #[arg(value_name = "KIND", ignore_case = true)]
    pub(crate) kind: GroupSnapshotKind,
    /// Name of the group snapshot: `NAMESPACE/NAME`, `NAME` in the namespace of `--namespace`, or its handle (`NODE/CLASS/KEY`).
    #[arg(value_name = "NAMESPACE/NAME|ID")]
    pub(crate) which: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArguments,
    /// Name of this rollback, and of the group snapshot that keeps the previous contents. Repeating a call with the same name
    /// does not roll back again [default: `rollback-` and the time]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Do not keep the previous contents.
    #[arg(long)]
    pub(crate) discard: bool,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    /// CSI socket of the agent.
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", default_value = crate::config::ENDPOINT)]
    pub(crate) endpoint: String,
    /// State directory.
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR", default_value = crate::config::STATE_DIR)]
    pub(crate) state_dir: PathBuf,
}

/// Kinds that can be compared, by short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ComparedKind {
    /// A snapshot.
    #[value(name = "dsnap", aliases = ["snapshot", "snapshots"])]
    Snapshot,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DiffArguments {
    /// Kind of the objects.
    #[arg(value_name = "KIND", ignore_case = true)]
    pub(crate) kind: ComparedKind,
    /// The earlier snapshot: `NAMESPACE/NAME`, `NAME` in the namespace of `--namespace`, or its handle (`NODE/CLASS/KEY`).
    #[arg(value_name = "BASE")]
    pub(crate) base: String,
    /// The later snapshot of the same volume, named in the same way.
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArguments,
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

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
