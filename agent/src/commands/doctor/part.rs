//! The parts of the checks: each is made in a process of its own, which can be left behind.

use clap::ValueEnum;

use super::{
    agent, clock, directory_class, finding::Finding, frozen, kernel, loop_devices, lvm, lvm_tools,
    mounts, permissions, programs, settings, state, subject::Subject, two_agents,
};

/// A part of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The socket, and whoever serves it.
    Agent,
    /// Other agents over the same storage.
    Agents,
    /// The configuration, flags and environment.
    Settings,
    /// Owners and modes of files.
    Permissions,
    /// The state files and manifests.
    State,
    /// What the running agent has and no object refers to.
    Inventory,
    /// Directory classes.
    Directories,
    /// Loop devices of images.
    LoopDevices,
    /// Mounts of volumes, and their file systems.
    Mounts,
    /// File systems whose writers wait, and thaw watchdogs.
    Frozen,
    /// Volume groups, their volumes and devices.
    VolumeGroups,
    /// LVM's programs and settings.
    Lvm,
    /// Programs that classes need.
    Programs,
    /// What the kernel has.
    Kernel,
    /// Times in the future.
    Clock,
}

impl Part {
    /// Its name, as an argument and in findings.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Makes its checks, which may block forever.
    pub(super) async fn check(self, subject: &Subject) -> Vec<Finding> {
        match self {
            Self::Agent => agent::check(subject).await,
            Self::Agents => two_agents::check(subject),
            Self::Settings => settings::check(subject),
            Self::Permissions => permissions::check(subject),
            Self::State => state::check(subject),
            Self::Inventory => state::check_inventory(subject).await,
            Self::Directories => directory_class::check(subject),
            Self::LoopDevices => loop_devices::check(subject),
            Self::Mounts => mounts::check(subject),
            Self::Frozen => frozen::check(subject),
            Self::VolumeGroups => lvm::check(subject),
            Self::Lvm => lvm_tools::check(subject).await,
            Self::Programs => programs::check(subject),
            Self::Kernel => kernel::check(subject),
            Self::Clock => clock::check(subject),
        }
    }
}
