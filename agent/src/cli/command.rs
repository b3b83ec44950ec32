//! The commands, each with its help and an example.

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use super::{
    AdoptArguments, AgentArguments, ApplyArguments, ControllerArguments, DeleteArguments,
    DescribeArguments, DiffArguments, DoctorArguments, EventsArguments, GetArguments,
    HandoverArguments, KeptArguments, PingArguments, PlanArguments, ReconcileArguments,
    RestoreArguments, RollbackArguments, StatusArguments, ThawWatchdogArguments, TrashArguments,
    UndeleteArguments, ValidateArguments, WaitArguments,
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
    Agent(Box<AgentArguments>),
    /// Reconcile a directory of manifests through the CSI socket of a separately running agent.
    #[command(
        after_help = "Example:\n  drumlin reconcile --endpoint unix:///run/drumlin/csi.sock --manifests /etc/drumlin/manifests.d"
    )]
    Reconcile(ReconcileArguments),
    /// Run the cluster-wide controller: serves CSI for all nodes to the sidecars beside it, resolves persistent volume claims of groups,
    /// and reports lost nodes.
    #[command(after_help = "Example:\n  drumlin controller --kubeconfig ~/.kube/config")]
    Controller(ControllerArguments),
    /// Check that an agent responds, and print its name and version. Exits with 1 if it does not respond.
    #[command(after_help = "Examples:\n  drumlin ping\n  drumlin ping --ready")]
    Ping(PingArguments),
    /// Validate manifests without an agent. Exits with 4 if one is invalid.
    #[command(after_help = "Example:\n  drumlin validate examples/quickstart")]
    Validate(ValidateArguments),
    /// Show what a pass over a directory of manifests would do, and do nothing. Exits with 0 if there is nothing to do, 2 if there is,
    /// 4 if a manifest is invalid, and 5 if the agent does not answer: it is planned from the state files then.
    #[command(
        after_help = "Examples:\n  drumlin plan --manifests /etc/drumlin/manifests.d\n  drumlin plan -o json"
    )]
    Plan(PlanArguments),
    /// Apply a directory of manifests once, for scripts: ends when each object is ready, or is not and will not be by itself, and shows the status.
    /// Exits with 3 if any object is not ready, and 5 if the agent does not answer.
    #[command(
        after_help = "Examples:\n  drumlin apply --once\n  drumlin apply --once --manifests /etc/drumlin/manifests.d"
    )]
    Apply(Box<ApplyArguments>),
    /// Show the status of all objects, from the state files. Exits with 3 if any object is not ready.
    #[command(after_help = "Example:\n  drumlin status -o wide")]
    Status(StatusArguments),
    /// Print objects of one kind or several with their status, from the state files. Exits with 1 if there is no object of that name.
    #[command(
        after_help = "Examples:\n  drumlin get dv\n  drumlin get all -n db\n  drumlin get dgsnap db/before-upgrade -o yaml"
    )]
    Get(GetArguments),
    /// Describe an object: its state, what it waits for, what belongs to it, and its last ten events; from the state files.
    #[command(after_help = "Example:\n  drumlin describe dv db/data")]
    Describe(DescribeArguments),
    /// Show the last transitions of all objects, or of one, oldest first, from the state files: at most ten of each.
    #[command(after_help = "Examples:\n  drumlin events\n  drumlin events dv/db/data -o json")]
    Events(EventsArguments),
    /// Wait until objects have a condition as their manifests are now, or are deleted; from the state files and the manifests.
    /// Exits with 3 if they are not in time.
    #[command(
        after_help = "Examples:\n  drumlin wait dv/db/data dv/db/log --timeout 2m\n  drumlin wait --mounts"
    )]
    Wait(WaitArguments),
    /// Print the manifests that restore a snapshot, from the state files. Does not apply them.
    #[command(
        after_help = "Example:\n  drumlin restore dgsnap db/before-upgrade --suffix -restored > restored.yaml"
    )]
    Restore(RestoreArguments),
    /// List resources of the agent that no object refers to: released ones, and those whose namespace or manifest was removed.
    #[command(after_help = "Example:\n  drumlin kept")]
    Kept(KeptArguments),
    /// Adopt a retained resource: the object gets it with its data instead of a new one. Or adopt a volume that others made,
    /// in place: a logical volume or an image file; its data is never written, and what is mounted stays mounted.
    #[command(
        after_help = "Examples:\n  drumlin adopt host-1/default/0f3c1c52-7d8e-5a2b-9d57-3b1c86d6e0a4 db/data\n  drumlin adopt\n  drumlin adopt vg0/data db/data > data.yaml\n  drumlin adopt vg0/data db/data --yes"
    )]
    Adopt(AdoptArguments),
    /// Hand a retained resource over between manifest files and the API server, after its manifest was removed from one side.
    /// With `--to-host`, hand a volume back to the host.
    #[command(
        after_help = "Examples:\n  drumlin handover Volume db/data\n  drumlin handover dv db/data --to-host --yes"
    )]
    Handover(HandoverArguments),
    /// Permanently delete a retained resource that no object refers to, or an orphan; shows it and asks for confirmation first.
    #[command(
        after_help = "Examples:\n  drumlin delete host-1/default/0f3c1c52-7d8e-5a2b-9d57-3b1c86d6e0a4\n  drumlin delete dv db/old"
    )]
    Delete(DeleteArguments),
    /// List deleted volumes that can be undeleted, those that are destroyed next first; or destroy some of them now.
    #[command(after_help = "Examples:\n  drumlin trash\n  drumlin trash --destroy db/old")]
    Trash(TrashArguments),
    /// Make a volume in the trash a volume again, with its data. The object that it belonged to gets it when it is declared again, unless it has a new one.
    #[command(after_help = "Example:\n  drumlin undelete db/data")]
    Undelete(UndeleteArguments),
    /// Roll the volumes of a group snapshot back to its point in time, in place: all of them or none.
    #[command(after_help = "Example:\n  drumlin rollback dgsnap db/before-upgrade")]
    Rollback(RollbackArguments),
    /// Show the ranges in which two snapshots of a volume differ, from the agent. Exits with 1 if it cannot show all of them.
    #[command(
        after_help = "Example:\n  drumlin diff dsnap db/monday db/tuesday -o json > changes.json"
    )]
    Diff(DiffArguments),
    /// Look for what is wrong on this host: leaked devices and mounts, half-made things, full pools, wrong settings. Changes
    /// nothing, and needs no running agent. Exits with 0 if nothing is wrong, 1 with warnings, 2 with errors (and, as every
    /// command, 2 if its arguments are wrong).
    #[command(
        after_help = "Examples:\n  drumlin doctor\n  drumlin doctor --config /etc/drumlin/config.yaml -o json"
    )]
    Doctor(DoctorArguments),
    /// Print the custom resource definitions of all kinds.
    #[command(after_help = "Example:\n  drumlin crds | kubectl apply -f -")]
    Crds,
    /// Thaw watchdog: thaws and resumes quiesced volumes if the agent dies. The agent starts this itself.
    #[command(hide = true)]
    ThawWatchdog(ThawWatchdogArguments),
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
        /// The directory; it is created if it is missing.
        directory: PathBuf,
    },
}

impl Command {
    /// The state directory of which it shows what the reconciler saw last, without asking anybody.
    pub(crate) fn state_shown(&self) -> Option<&Path> {
        let state_dir = match self {
            Self::Status(arguments) => &arguments.state_dir,
            Self::Get(arguments) => &arguments.state_dir,
            Self::Describe(arguments) => &arguments.state_dir,
            Self::Events(arguments) => &arguments.state_dir,
            Self::Wait(arguments) => &arguments.state_dir,
            _ => return None,
        };
        Some(state_dir)
    }
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
}
