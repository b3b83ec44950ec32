//! The nodes whose images become this one's.

use super::{LabelChange, Labels};
use crate::types::NodeName;

/// The nodes whose images become this one's: their disks were moved here, or they are this one under a former name.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// What those nodes called themselves.
    pub nodes: Vec<NodeName>,
    /// What changes in the labels of an image that comes from one node to another.
    pub labels: fn(&Labels, &NodeName, &NodeName) -> LabelChange,
    /// The node whose ids are in the labels of an image, if any.
    pub node_of: fn(&Labels) -> Option<NodeName>,
}

impl Adoption {
    /// The node of this name, where what it had is to be taken over.
    pub(super) fn node(&self, name: &str) -> Option<&NodeName> {
        self.nodes.iter().find(|node| node.as_str() == name)
    }
}
