//! The parts of the checks: each is made in a process of its own, which can be left behind.

use clap::ValueEnum;

use super::{
    agent, clock, decrypted_devices, directory_class, encryption, finding::Finding, frozen, kernel,
    limits, loop_devices, lvm, lvm_tools, mounts, permissions, programs, settings, state,
    subject::Subject, two_agents,
};

/// A part of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The socket, whoever serves it, and what the running agent has that no object refers to.
    Agent,
    /// Other agents over the same storage.
    Agents,
    /// The configuration, flags and environment, and what classes need of this host.
    Settings,
    /// Owners and modes of files.
    Permissions,
    /// The state files and manifests, and times in the future.
    State,
    /// Directory classes.
    Directories,
    /// Loop devices of images.
    LoopDevices,
    /// Decrypted devices of encrypted volumes.
    DecryptedDevices,
    /// Mounts of volumes, and their file systems.
    Mounts,
    /// File systems whose writers wait, and thaw watchdogs.
    Frozen,
    /// Volume groups, their volumes and devices.
    VolumeGroups,
    /// LVM's programs and settings.
    Lvm,
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
            Self::Agent => {
                let both = (agent::check(subject), state::check_inventory(subject));
                let (found, kept) = tokio::join!(both.0, both.1);
                [found, kept].concat()
            }
            Self::Agents => two_agents::check(subject),
            Self::Settings => [
                settings::check(subject),
                programs::check(subject),
                kernel::check(subject),
                encryption::check(subject),
                Vec::from_iter(limits::check(subject)),
            ]
            .concat(),
            Self::Permissions => permissions::check(subject),
            Self::State => [state::check(subject), clock::check(subject)].concat(),
            Self::Directories => directory_class::check(subject),
            Self::LoopDevices => loop_devices::check(subject),
            Self::DecryptedDevices => decrypted_devices::check(subject),
            Self::Mounts => mounts::check(subject),
            Self::Frozen => frozen::check(subject),
            Self::VolumeGroups => lvm::check(subject),
            Self::Lvm => lvm_tools::check(subject).await,
        }
    }
}
