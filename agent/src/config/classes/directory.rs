//! Classes of image files.

use std::path::{Path, PathBuf};

use drumlin_core::{
    backend::directory::{Allocation, DirectorySettings, Missing},
    ops::adoption,
};
use serde::{Deserialize, Serialize};

use super::{
    super::key::{AtKey, refused},
    values::{FileFreeze, FileNodes, Nodes, file_system},
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a map such as {path: /srv/images}"
)]
pub(super) struct FileDirectory {
    pub(super) path: PathBuf,
    #[serde(default)]
    adopt_node: FileNodes,
    #[serde(default)]
    fs_type: Option<String>,
    #[serde(default)]
    allocation: FileAllocation,
    #[serde(default)]
    longest_freeze: FileFreeze,
    /// Not in the file: it depends on where the directory is.
    #[serde(skip)]
    missing: FileMissing,
    /// Not in the file either: the directory of the agent's memory of directories.
    #[serde(skip)]
    memory: Option<PathBuf>,
}

/// What becomes of a directory that is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum FileMissing {
    #[default]
    Refuse,
    Create,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileAllocation {
    #[default]
    Thin,
    Thick,
}

impl FileDirectory {
    /// The directory of the built-in class.
    pub(super) fn built_in(path: PathBuf) -> Self {
        Self {
            path,
            adopt_node: FileNodes::default(),
            fs_type: None,
            allocation: FileAllocation::Thin,
            longest_freeze: FileFreeze::default(),
            missing: FileMissing::Refuse,
            memory: None,
        }
    }

    /// Has the directory created when it is missing, if it lies directly in the state directory, which is the agent's
    /// own. Elsewhere, and further below, it may be missing for a file system that is not mounted. What was used is
    /// remembered there.
    pub(super) fn create_in(&mut self, state_dir: &Path) {
        self.memory = Some(state_dir.join("directories"));
        if self.path.parent() == Some(state_dir) {
            self.missing = FileMissing::Create;
        }
    }

    pub(super) fn settings(&self, nodes: &Nodes) -> anyhow::Result<DirectorySettings> {
        let settings = DirectorySettings {
            path: self.path.clone(),
            allocation: match self.allocation {
                FileAllocation::Thin => Allocation::Thin,
                FileAllocation::Thick => Allocation::Thick,
            },
            file_system: file_system(self.fs_type.as_deref()).at_key("directory.fsType")?,
            missing: match self.missing {
                FileMissing::Refuse => Missing::Refuse,
                FileMissing::Create => Missing::Create,
            },
            memory: self.memory.clone(),
            longest_freeze: self
                .longest_freeze
                .limit()
                .at_key("directory.longestFreeze")?,
            node: nodes.here.clone(),
            adoption: adoption(self.adopt_node.of(nodes).at_key("directory.adoptNode")?),
        };
        // Last, since it cannot be left out: whatever else is wrong is told, too.
        if !self.path.is_absolute() {
            return refused(
                "directory.path",
                format!("{} must be an absolute path", self.path.display()),
            );
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_the_state_directory_is_created_and_no_other_one() {
        for (path, missing) in [
            ("/state/images", Missing::Create),
            ("/state", Missing::Refuse),
            ("/state/disk/images", Missing::Refuse),
            ("/srv/images", Missing::Refuse),
        ] {
            let mut directory = FileDirectory::built_in(path.into());
            directory.create_in(Path::new("/state"));
            let nodes = Nodes {
                here: "n".parse().unwrap(),
                former: Vec::new(),
            };
            assert_eq!(
                directory.settings(&nodes).unwrap().missing,
                missing,
                "{path}"
            );
        }
    }
}
