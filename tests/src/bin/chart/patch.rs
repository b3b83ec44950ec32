//! The patches of components, as kustomize applies them: what they add is there on a condition.

use serde_yaml::Value;

use crate::node::{Member, Node};

/// Merges a patch into a document, as a strategic merge does.
///
/// # Errors
/// If it would replace something: no component does.
pub(crate) fn merge(node: &mut Node, patch: Node, when: &str) -> Result<(), String> {
    match (node, patch) {
        (Node::Map(mine), Node::Map(theirs)) => {
            for their in theirs {
                let found = mine.iter_mut().find(|member| member.key == their.key);
                match found {
                    Some(member) => merge(&mut member.node, their.node, when)?,
                    None => mine.push(their.when(when)),
                }
            }
        }
        (Node::List(mine), Node::List(theirs)) => {
            for their in theirs {
                let found = mine
                    .iter_mut()
                    .find(|member| is_same(&member.node, &their.node));
                match found {
                    Some(member) => merge(&mut member.node, their.node, when)?,
                    None => mine.push(their.when(when)),
                }
            }
        }
        (mine, theirs) if *mine == theirs => {}
        (mine, theirs) => return Err(format!("{theirs:?} would replace {mine:?}")),
    }
    Ok(())
}

/// Returns true for two elements of a list that are about the same: by their names, and where they are mounted.
fn is_same(one: &Node, other: &Node) -> bool {
    let key = |node: &Node, key: &str| match node {
        Node::Map(members) => {
            let mut members = members.iter();
            let found = members.find(|member| member.key == key);
            found.map(|member| member.node.clone())
        }
        _ => None,
    };
    let name = key(one, "name");
    name.is_some()
        && ["name", "mountPath"]
            .iter()
            .all(|word| key(one, word) == key(other, word))
}

/// Applies the additions of a JSON patch.
///
/// # Errors
/// If it does anything else, or adds to what is not there.
pub(crate) fn add_all(node: &mut Node, patch: &Value, when: &str) -> Result<(), String> {
    for operation in patch.as_sequence().ok_or("a patch that is no list")? {
        let text = |key: &str| operation.get(key).and_then(Value::as_str);
        let (Some("add"), Some(place), Some(value)) =
            (text("op"), text("path"), operation.get("value"))
        else {
            return Err(format!("{operation:?} is no addition"));
        };
        let (parent, key) = place.rsplit_once('/').ok_or("a path without a parent")?;
        let parent = node.at(parent.trim_start_matches('/'));
        let added = Node::of(value)?;
        match parent.ok_or_else(|| format!("{place}: nothing is there"))? {
            Node::List(members) if key == "-" => members.push(Member::new("", added).when(when)),
            map @ Node::Map(_) => {
                let added = Node::Map(vec![Member::new(key, added)]);
                merge(map, added, when)?;
            }
            _ => return Err(format!("{place}: neither a map nor the end of a list")),
        }
    }
    Ok(())
}
