//! Objects of missing nodes: their condition says so, and they are released only if an administrator has abandoned the
//! node.

use std::collections::{HashMap, HashSet};

use drumlin_crd::{ObjectKey, names};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    findings::findings,
    job::{Aspect, Job},
    view::{Missing, View},
};

impl View {
    /// Checks whether nodes that objects name are missing for longer than the grace period.
    pub(super) fn look_at_nodes(&mut self) {
        let gone = self.gone();
        self.missing.retain(|node, missing| {
            let objects = gone.get(node);
            missing
                .told
                .retain(|uid| objects.is_some_and(|objects| objects.contains_key(uid)));
            objects.is_some()
        });
        for (node, objects) in gone {
            self.missing.entry(node).or_insert_with(|| Missing {
                since: Instant::now(),
                told: HashSet::new(),
            });
            for key in objects.into_values() {
                self.is_due(Aspect::Node, key);
            }
        }
        self.begin();
    }

    /// The missing nodes that objects name, each with those objects by their UIDs.
    fn gone(&self) -> HashMap<String, HashMap<String, ObjectKey>> {
        let mut gone: HashMap<String, HashMap<String, ObjectKey>> = HashMap::new();
        for (kind, index) in &self.objects {
            for (namespace, name, seen) in index.all() {
                let Some(node) = seen.node() else { continue };
                if self.nodes.get("", node).is_none() {
                    let key = ObjectKey {
                        kind: (*kind).to_owned(),
                        namespace: namespace.clone(),
                        name: name.clone(),
                    };
                    let objects = gone.entry(node.to_owned()).or_default();
                    objects.insert(seen.uid.clone(), key);
                }
            }
        }
        gone
    }

    /// The job for an object whose node is missing, with the UID of the object.
    pub(super) fn about_node(&self, key: &ObjectKey) -> Option<(String, Job)> {
        let seen = self.seen(key)?;
        let node = seen.node()?.to_owned();
        let missing = self.missing.get(&node)?;
        let record = seen.record.as_ref();
        let abandoned = record.and_then(|record| record.annotation(names::ABANDON));
        // No agent is left to delete it, and an administrator has abandoned the node.
        if seen.is_deleting && seen.has_finalizer && abandoned == Some(&node) {
            return Some((seen.uid.clone(), Job::LetGo { node }));
        }
        let is_lost = missing.since.elapsed() >= self.settings.node_grace;
        if !is_lost || seen.is_lost || missing.told.contains(&seen.uid) {
            return None;
        }
        let condition = Condition {
            type_: "Ready".to_owned(),
            status: "Unknown".to_owned(),
            reason: "NodeLost".to_owned(),
            message: format!(
                "node {node} no longer exists; restore the node, or delete the object with the annotation {}: {node}",
                names::ABANDON
            ),
            last_transition_time: Time(Timestamp::now()),
            observed_generation: Some(seen.generation),
        };
        let mut status = findings(&seen.candidates);
        if let Value::Object(map) = &mut status {
            map.insert("conditions".to_owned(), json!([condition]));
        }
        Some((seen.uid.clone(), Job::Lost { status, node }))
    }
}
