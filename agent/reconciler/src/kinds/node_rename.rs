//! Resources that were created under another name of this node: they are found again, and all handles are updated.

use std::collections::BTreeSet;

use drumlin_crd::names;
use serde_json::Value;

use super::{Halt, Pass, stalled};
use crate::{Error, inventory::kind_of};

impl Pass<'_> {
    /// Updates the handles in a record that was written under another name of this node.
    ///
    /// # Errors
    /// When its resource does not exist under the new name of this node.
    pub(crate) async fn follow_node(&mut self) -> Result<(), Halt> {
        // API server objects may name other nodes, and stay with the node that they name.
        if self.record.served().is_some() {
            return Ok(());
        }
        let mut now = serde_json::to_value(&self.record).map_err(|error| unwritten(&error))?;
        let mut former = BTreeSet::new();
        let here = &self.agent.node;
        for part in ["status", "drumlin"] {
            if let Some(part) = now.get_mut(part) {
                rename(part, here, &mut former);
            }
        }
        if former.is_empty() {
            return Ok(());
        }
        self.find_renamed().await?;
        self.record = serde_json::from_value(now).map_err(|error| unwritten(&error))?;
        self.save("node-rename.recorded")?;
        self.shared.wake_waiting();
        self.shared.wake_groups(&self.record.key());
        let former: Vec<String> = former.into_iter().collect();
        tracing::info!(object = %self.record.key(), from = former.join(", "), node = %here, "handles updated to the new node name");
        Ok(())
    }

    /// Checks that the resource of the object exists under the new name of this node.
    async fn find_renamed(&self) -> Result<(), Halt> {
        let here = &self.agent.node;
        let Some(handle) = self.record.handle() else {
            return Ok(());
        };
        let (Some(node), Some(class)) = (names::node_of(handle), names::class_of(handle)) else {
            return Ok(());
        };
        let Some(renamed) = renamed(handle, here) else {
            return Ok(());
        };
        let found = self.client.object(&renamed).await?;
        let kind = kind_of(&self.record.kind);
        if found.is_some_and(|found| found.kind() == kind) {
            return Ok(());
        }
        Err(stalled(
            "NotThisNode",
            format!(
                "{handle} was created on node {node} and was not found in class {class} of this node, {here}; if its disk is attached to this node, set `adoptNode: {node}` in that class, or start the agent with `--adopt-node {node}`"
            ),
        ))
    }
}

/// Replaces the node in all handles of other nodes in a value; collects the former nodes.
fn rename(value: &mut Value, here: &str, former: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            if let Some(now) = renamed(text, here) {
                former.extend(names::node_of(text).map(str::to_owned));
                *text = now;
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| rename(one, here, former)),
        Value::Object(all) => all.values_mut().for_each(|one| rename(one, here, former)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The handle (`<node>/<class>/<key>`) with another node; `None` for a handle of this node, or a text that is no
/// handle.
fn renamed(text: &str, here: &str) -> Option<String> {
    let node = names::node_of(text).filter(|node| *node != here)?;
    let class = names::class_of(text)?;
    let key = text.strip_prefix(node)?.strip_prefix('/')?;
    let key = key.strip_prefix(class)?.strip_prefix('/')?;
    let is_key = key.len() == 36
        && key
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_key.then(|| format!("{here}/{class}/{key}"))
}

fn unwritten(error: &serde_json::Error) -> Error {
    Error::State(format!(
        "could not rewrite the node name in a state record: {error}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ids_of_another_node_become_this_ones_and_all_else_stays() {
        const KEY: &str = "0b0c8a50-6e0c-5b52-9f3e-0a7a7f3ab001";
        let value = |node: &str| {
            json!({
                "volumeHandle": format!("{node}/fast/{KEY}"),
                "members": [{"volumeHandle": format!("{node}/slow/{KEY}"), "message": "old/fast/x"}],
                "csiName": "lv-1",
                "mount": {"path": format!("/old/fast/{KEY}")},
                "count": 3,
                "other": format!("old/fast/{KEY}/more"),
            })
        };
        let mut now = value("old");
        let mut former = BTreeSet::new();
        rename(&mut now, "new", &mut former);
        assert_eq!(now, value("new"));
        assert_eq!(former, BTreeSet::from(["old".to_owned()]));
        former.clear();
        rename(&mut now, "new", &mut former);
        assert!(former.is_empty());
    }
}
