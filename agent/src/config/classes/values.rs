//! Values that several back ends have.

use std::time::Duration;

use anyhow::{Context, bail};
use drumlin_core::{backend::Adoption, host::FileSystem, ops::adoption, types::NodeName};
use drumlin_crd::Quantity;
use serde::{Deserialize, Deserializer, Serialize};

/// Maximum duration of the freeze barrier of a group snapshot, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct FileFreeze(Option<u64>);

/// Bytes as a quantity of Kubernetes such as `64Ki`. The unit may end with a `B`, as in `64KiB`; it is the same value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct FileBytes(Quantity);

/// One name, or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected the name of a node, or a list of them")]
pub(super) enum FileNodes {
    One(String),
    Several(Vec<String>),
}

impl Default for FileNodes {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

/// This node, and the nodes whose volumes all classes adopt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::config) struct Nodes {
    pub(in crate::config) here: NodeName,
    pub(in crate::config) former: Vec<NodeName>,
}

impl FileBytes {
    /// The quantity that a text is.
    pub(super) fn of(text: &str) -> Self {
        let binary = text.strip_suffix('B').filter(|rest| rest.ends_with('i'));
        Self(Quantity(binary.unwrap_or(text).to_owned()))
    }

    pub(super) fn bytes(&self) -> anyhow::Result<u64> {
        Ok(self.0.bytes()?)
    }

    /// The quantity.
    pub(super) fn text(&self) -> &str {
        &self.0.0
    }
}

impl<'de> Deserialize<'de> for FileBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Quantity(text) = Quantity::deserialize(deserializer)?;
        Ok(Self::of(&text))
    }
}

impl FileFreeze {
    pub(super) fn limit(self) -> anyhow::Result<Option<Duration>> {
        // Callers that wait longer would consider the host dead.
        const ALLOWED: std::ops::RangeInclusive<u64> = 1..=600;
        match self.0 {
            Some(seconds) if !ALLOWED.contains(&seconds) => bail!(
                "{seconds} must be between {} and {} seconds",
                ALLOWED.start(),
                ALLOWED.end()
            ),
            limit => Ok(limit.map(Duration::from_secs)),
        }
    }
}

impl FileNodes {
    /// The nodes that a class adopts: its own list, and the list for all classes.
    pub(super) fn of(&self, nodes: &Nodes) -> anyhow::Result<Vec<NodeName>> {
        let names = match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names.as_slice(),
        };
        let own: Result<Vec<NodeName>, _> = names.iter().map(|name| name.parse()).collect();
        let mut all = own?;
        nodes.check(&all)?;
        all.extend_from_slice(&nodes.former);
        Ok(all)
    }

    pub(super) fn adoption(&self, nodes: &Nodes) -> anyhow::Result<Option<Adoption>> {
        let all = self.of(nodes)?;
        Ok((!all.is_empty()).then(|| adoption(all)))
    }
}

impl Nodes {
    /// Refuses a list of nodes to adopt that contains this node.
    pub(in crate::config) fn check(&self, named: &[NodeName]) -> anyhow::Result<()> {
        if named.contains(&self.here) {
            bail!(
                "{} is this node itself; name the node that the disks came from",
                self.here
            );
        }
        Ok(())
    }
}

/// Parses `5%` as 5.
pub(super) fn percent(text: &str, allowed: std::ops::RangeInclusive<u32>) -> anyhow::Result<u32> {
    let number = text.strip_suffix('%').and_then(|text| text.parse().ok());
    let number = number.filter(|number| allowed.contains(number));
    number.with_context(|| {
        format!(
            "{text:?} must be a percentage from {}% to {}%",
            allowed.start(),
            allowed.end()
        )
    })
}

pub(super) fn file_system(name: Option<&str>) -> anyhow::Result<FileSystem> {
    Ok(name
        .map(str::parse)
        .transpose()?
        .unwrap_or(FileSystem::Ext4))
}

/// Checks a name by the rules of LVM, so that it cannot be mistaken for an option or a path.
pub(super) fn check_lvm_name(name: &str) -> anyhow::Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+_.-".contains(&byte);
    let is_name = (1..=60).contains(&name.len()) && name.bytes().all(allowed);
    if !is_name || name.starts_with('-') || name == "." || name == ".." {
        bail!(
            "{name:?} is not a valid LVM name: it must be 1 to 60 letters, digits, '+', '_', '.' or '-', not beginning with '-'"
        );
    }
    Ok(())
}
