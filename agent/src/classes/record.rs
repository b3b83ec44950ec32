//! What an agent remembers of its classes from one start to the next.

use std::{fs, io, path::Path};

use anyhow::Context;
use drumlin_reconciler::state_file;
use serde::{Deserialize, Serialize};

use crate::config::{FileClass, Labels};

/// The file in the state directory.
const FILE: &str = "classes.json";

/// What an agent remembers of its classes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClassRecord {
    /// The labels of the Node, as far as they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node_labels: Option<Labels>,
    /// The retired classes, which the configuration need not have any more.
    #[serde(default)]
    pub(crate) retired: Vec<FileClass>,
}

impl ClassRecord {
    /// The record in a state directory; empty if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn load(state_dir: &Path) -> anyhow::Result<Self> {
        let path = state_dir.join(FILE);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.with_context(|| format!("could not read {}", path.display()))?,
        };
        serde_json::from_str(&text).with_context(|| format!("could not read {}", path.display()))
    }

    /// Writes the record.
    ///
    /// # Errors
    /// If it cannot be written; then the former one is there.
    pub(super) fn save(&self, state_dir: &Path) -> anyhow::Result<()> {
        Ok(state_file::write(&state_dir.join(FILE), self)?)
    }
}
