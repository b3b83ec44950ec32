//! Adoption of the images of another node: the changes of their labels.

use crate::ops::labels::{PUBLISHED, Read, SNAPSHOT_OF, SOURCE};
use crate::{
    backend::{Adoption, LabelChange, Labels},
    types::{Handle, NodeName},
};

/// The adoption of the images of `nodes` by this node, with the changes of their labels.
pub fn adoption(nodes: Vec<NodeName>) -> Adoption {
    Adoption {
        nodes,
        labels: adopted_labels,
        node_of,
    }
}

/// The node that created the source of an image.
fn node_of(labels: &Labels) -> Option<NodeName> {
    let of = labels.label(SNAPSHOT_OF);
    let source = labels.label(SOURCE);
    let source = source.and_then(|text| text.split_once(':'));
    let named = of.or(source.map(|(_, handle)| handle))?;
    Some(Handle::parse(named)?.node)
}

/// The changes of the labels of an image of node `from` when node `to` adopts it.
///
/// Handles begin with the node name, so handles of `from` are rewritten to `to`. A publication to the other node is
/// removed: the volume is not published on this node yet.
fn adopted_labels(labels: &Labels, from: &NodeName, to: &NodeName) -> LabelChange {
    let here = |text: &str| {
        let handle = Handle::parse(text).filter(|handle| handle.node == *from)?;
        let node = to.clone();
        Some(Handle { node, ..handle }.to_string())
    };
    let of = labels.label(SNAPSHOT_OF).and_then(here);
    let source = labels
        .label(SOURCE)
        .and_then(|text| text.split_once(':'))
        .and_then(|(kind, handle)| Some(format!("{kind}:{}", here(handle)?)));
    let mut change = LabelChange::remove(PUBLISHED);
    let set = [(SNAPSHOT_OF, of), (SOURCE, source)].into_iter();
    change.set = set
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect();
    change
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_named_the_other_node_names_this_one_and_the_rest_stays() {
        const KEY: &str = "fast/0b0c8a50-6e0c-5b52-9f3e-0a7a7f3ab001";
        let node = |name: &str| name.parse::<NodeName>().unwrap();
        let labels = Labels::from(
            [
                (SNAPSHOT_OF, format!("node-a/{KEY}")),
                (SOURCE, format!("volume:node-a/{KEY}")),
                (PUBLISHED, "{}".to_owned()),
                ("label.tier", format!("node-a/{KEY}")),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        );
        let adopted = |from: &str| {
            let change = adopted_labels(&labels, &node(from), &node("node-b"));
            change.apply(&labels).unwrap()
        };
        let ours = adopted("node-a");
        assert_eq!(ours.label(SNAPSHOT_OF), Some(&*format!("node-b/{KEY}")));
        assert_eq!(ours.label(SOURCE), Some(&*format!("volume:node-b/{KEY}")));
        assert_eq!(ours.label(PUBLISHED), None);
        assert_eq!(ours.get("label.tier"), labels.get("label.tier"));
        // A third node's ids are nothing that was taken over.
        assert_eq!(adopted("node-c").get(SOURCE), labels.get(SOURCE));
    }
}
