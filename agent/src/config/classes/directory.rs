//! Classes of image files.

use std::path::PathBuf;

use anyhow::{Context, bail};
use drumlin_core::{
    backend::directory::{Allocation, DirectorySettings, Missing},
    ops::adoption,
};
use serde::{Deserialize, Serialize};

use super::values::{FileFreeze, FileNodes, Nodes, file_system};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
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
    /// Set for the built-in class only.
    #[serde(skip)]
    missing: FileMissing,
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
            missing: FileMissing::Create,
        }
    }

    pub(super) fn settings(&self, nodes: &Nodes) -> anyhow::Result<DirectorySettings> {
        if !self.path.is_absolute() {
            bail!(
                "directory.path {} must be an absolute path",
                self.path.display()
            );
        }
        Ok(DirectorySettings {
            path: self.path.clone(),
            allocation: match self.allocation {
                FileAllocation::Thin => Allocation::Thin,
                FileAllocation::Thick => Allocation::Thick,
            },
            file_system: file_system(self.fs_type.as_deref()).context("directory.fsType")?,
            missing: match self.missing {
                FileMissing::Refuse => Missing::Refuse,
                FileMissing::Create => Missing::Create,
            },
            longest_freeze: self
                .longest_freeze
                .limit()
                .context("directory.longestFreeze")?,
            node: nodes.here.clone(),
            adoption: adoption(self.adopt_node.of(nodes).context("directory.adoptNode")?),
        })
    }
}
