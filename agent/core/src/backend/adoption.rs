//! Adoption of other nodes' images.

use super::{LabelChange, Labels};
use crate::types::NodeName;

/// The nodes whose images this node adopts: their disks were moved here, or they are this node under a former name.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// The names of those nodes.
    pub nodes: Vec<NodeName>,
    /// The label changes for an image that moves from one node to another.
    pub labels: fn(&Labels, &NodeName, &NodeName) -> LabelChange,
    /// The node whose ids are in the labels of an image, if any.
    pub node_of: fn(&Labels) -> Option<NodeName>,
}

impl Adoption {
    /// The node of this name, if its images are to be adopted.
    pub(super) fn node(&self, name: &str) -> Option<&NodeName> {
        self.nodes.iter().find(|node| node.as_str() == name)
    }
}
