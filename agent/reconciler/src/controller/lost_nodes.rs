//! Objects of nodes that are gone: they say so, and go only where somebody has given the node up.

use std::collections::{HashMap, HashSet};

use drumlin_crd::{ObjectKey, names};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    cluster_cache::View,
    pvc_resolver::findings,
    work::{Aspect, Job},
};

/// A node that is not there.
#[derive(Debug)]
pub(super) struct Missing {
    since: Instant,
    /// The objects that were had say so, by id: once each, for their agent may be there without a Node object, and knows
    /// better.
    pub(super) told: HashSet<String>,
}

impl View {
    /// Looks whether nodes that objects name have been gone for long.
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

    /// The nodes that objects name and that are not there, each with those objects by their ids.
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

    /// What is to be done about an object whose node is gone, and its id.
    pub(super) fn about_node(&self, key: &ObjectKey) -> Option<(String, Job)> {
        let seen = self.seen(key)?;
        let node = seen.node()?.to_owned();
        let missing = self.missing.get(&node)?;
        let record = seen.record.as_ref();
        let abandoned = record.and_then(|record| record.annotation(names::ABANDON));
        // Nobody is left to take it down, and somebody says so.
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
