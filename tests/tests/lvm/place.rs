//! Where a class of a test has its volumes: in logical volumes of the kind that is asked for, or in image files.

use drumlin_tests::{
    agent::{Agent, Options, Volumes},
    storage::{Scratch, lvm},
};

/// Where a class has its volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In logical volumes of the kind that the tests are run over.
    Lvm,
    /// In image files, on ext4.
    Images,
}

/// The places of the tests that are of both: image files are the same whichever kind of logical volumes is tested.
pub(crate) fn places() -> &'static [Place] {
    match Volumes::asked() {
        Volumes::Thin => &[Place::Lvm, Place::Images],
        Volumes::Linear | Volumes::Raid1 => &[Place::Lvm],
    }
}

impl Place {
    /// The storage of a class, as the configuration says it.
    pub(crate) fn storage(self, scratch: &Scratch) -> String {
        if self == Self::Images {
            let path = scratch.directory("images");
            return format!("directory: {{path: {}}}", path.display());
        }
        let group = scratch.group().unwrap_or_else(|| {
            let group = scratch.volume_group(300);
            if Volumes::asked() == Volumes::Thin {
                lvm("lvcreate", &["-L", "500M", "-T", &format!("{group}/pool")]);
            }
            group
        });
        match Volumes::asked() {
            Volumes::Thin => format!("thin: {{volumeGroup: {group}, pool: pool}}"),
            Volumes::Linear => format!("thick: {{volumeGroup: {group}}}"),
            Volumes::Raid1 => format!("thick: {{volumeGroup: {group}, layout: raid1}}"),
        }
    }

    /// The configuration of one class, with the rest of its keys.
    pub(crate) fn config(self, scratch: &Scratch, rest: &str) -> String {
        let storage = self.storage(scratch);
        format!("classes:\n- {{name: default, {storage}{rest}}}\n")
    }
}

/// Starts an agent again with another configuration.
pub(crate) async fn restart_with(agent: &mut Agent, config: String) {
    agent.kill();
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    agent.restart_with(options).await;
}
