//! What an agent remembers of its classes from one start to the next.

use std::{fs, io, path::Path};

use anyhow::{Context, bail};
use drumlin_core::types::ClassName;
use drumlin_reconciler::state_file;
use serde::{Deserialize, Serialize};

use crate::{
    cli::AgentArguments,
    config::{ClassPlan, FileClass, Labels},
};

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
    /// The classes that the configuration file named when it named some last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) configured: Vec<ClassName>,
    /// The changes of the configuration that the running agent has not applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unapplied: Vec<String>,
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

    /// Refuses the plan of a configuration file that names no class, where one was named before: a file that was cut off
    /// would have volumes of the agent's own class made in place of theirs, and theirs not found. Not with an API server: a
    /// ConfigMap is never cut off, and the former one is applied by taking the classes back out.
    ///
    /// # Errors
    /// What the file has lost, and how to do without it.
    pub(crate) fn check(&self, plan: &ClassPlan, arguments: &AgentArguments) -> anyhow::Result<()> {
        let Some(file) = &arguments.config else {
            return Ok(());
        };
        let is_of_cluster = arguments.cluster.cluster().is_some();
        if plan.is_of_file() || is_of_cluster || self.configured.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = self.configured.iter().map(ClassName::as_str).collect();
        bail!(
            "config file {}: it names no class, but before it named {}: restore it; or, to go on with the class that an agent without classes has, name that: {}",
            file.display(),
            names.join(", "),
            plan.in_words()
        )
    }

    /// Writes the record.
    ///
    /// # Errors
    /// If it cannot be written; then the former one is there.
    pub(super) fn save(&self, state_dir: &Path) -> anyhow::Result<()> {
        Ok(state_file::write(&state_dir.join(FILE), self)?)
    }
}
