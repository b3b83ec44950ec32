//! Topology: where a volume is accessible (CSI, `Topology`).

use super::{Map, NodeName};

/// The topology key of every volume: the node that stores it.
pub const TOPOLOGY_KEY: &str = "topology.drumlin.dev/node";

/// The segments of one topology, such as `topology.drumlin.dev/node: node-a`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology(pub Map);

impl Topology {
    /// The topology of the volumes on `node`.
    pub fn of(node: &NodeName) -> Self {
        Self(Map::from([(TOPOLOGY_KEY.to_owned(), node.to_string())]))
    }

    /// Returns true if `node` is within this topology. An empty topology includes every node, one with an unknown key
    /// none. Keys are case-insensitive.
    pub fn includes(&self, node: &NodeName) -> bool {
        self.0
            .iter()
            .all(|(key, value)| key.eq_ignore_ascii_case(TOPOLOGY_KEY) && value == node.as_str())
    }
}

/// Where a volume must be accessible (CSI, `TopologyRequirement`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Requirement {
    /// At least one of these must match, if there are any.
    pub requisite: Vec<Topology>,
    /// Preferences; they must be within the requisite ones, if there are any.
    pub preferred: Vec<Topology>,
}

impl Requirement {
    /// Returns true if `node` meets the requirement. Preferred topologies do not restrict the choice.
    pub fn is_met_by(&self, node: &NodeName) -> bool {
        self.requisite.is_empty()
            || self
                .requisite
                .iter()
                .any(|topology| topology.includes(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_meets_a_requirement_that_names_it() {
        let here: NodeName = "here".parse().unwrap();
        let there: NodeName = "there".parse().unwrap();
        let only = |node: &NodeName| Requirement {
            requisite: vec![Topology::of(node)],
            preferred: Vec::new(),
        };
        let shouted = Map::from([(TOPOLOGY_KEY.to_uppercase(), here.to_string())]);
        assert!(Topology(shouted).includes(&here));
        assert!(Requirement::default().is_met_by(&here));
        assert!(only(&here).is_met_by(&here));
        assert!(!only(&there).is_met_by(&here));
        let both = Requirement {
            requisite: vec![Topology::of(&there), Topology::of(&here)],
            preferred: vec![Topology::of(&there)],
        };
        assert!(both.is_met_by(&here));
        let foreign = Topology(Map::from([("zone".to_owned(), "z1".to_owned())]));
        assert!(!foreign.includes(&here));
    }
}
