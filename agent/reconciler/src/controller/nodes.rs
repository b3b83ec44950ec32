//! Objects of nodes that are gone: they say so, and go only where somebody has given the node up.

use std::collections::{HashMap, HashSet};

use drumlin_crd::{ObjectKey, names};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{claims::findings, view::View};

/// A node that is not there.
#[derive(Debug)]
pub(super) struct Missing {
    since: Instant,
    /// The objects that were had say so, by id: once each, for their agent may be there without a Node object, and knows
    /// better.
    told: HashSet<String>,
}

impl View {
    /// Looks whether nodes that objects name have been gone for long.
    pub(super) async fn look_at_nodes(&mut self) {
        let gone = self.gone();
        self.missing.retain(|node, missing| {
            let objects = gone.get(node);
            missing
                .told
                .retain(|uid| objects.is_some_and(|objects| objects.contains_key(uid)));
            objects.is_some()
        });
        for (node, objects) in gone {
            let missing = self.missing.entry(node.clone()).or_insert_with(|| Missing {
                since: Instant::now(),
                told: HashSet::new(),
            });
            let is_lost = missing.since.elapsed() >= self.settings.node_grace;
            for (uid, key) in objects {
                if !self.give_up(&key, &node).await && is_lost {
                    self.tell_lost(&key, &uid, &node).await;
                }
            }
        }
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

    /// Lets an object go that nobody is left to take down, where somebody says so.
    async fn give_up(&mut self, key: &ObjectKey, node: &str) -> bool {
        let Some(seen) = self.seen(key) else {
            return false;
        };
        let record = seen.record.as_ref();
        let abandoned = record.and_then(|record| record.annotation(names::ABANDON));
        if !seen.is_leaving || !seen.is_guarded || abandoned != Some(node) {
            return false;
        }
        let uid = seen.uid.clone();
        match self.server.let_go(key, &uid).await {
            Ok(()) => tracing::warn!(object = %key, node, "object of an abandoned node is let go"),
            Err(refusal) => {
                tracing::warn!(object = %key, error = %refusal, "object could not be let go");
            }
        }
        true
    }

    /// Has an object say that its node is gone.
    async fn tell_lost(&mut self, key: &ObjectKey, uid: &str, node: &str) {
        let is_told = |missing: &Missing| missing.told.contains(uid);
        if self.missing.get(node).is_some_and(is_told) {
            return;
        }
        let Some(seen) = self.seen(key).filter(|seen| !seen.is_lost) else {
            return;
        };
        let candidates = seen.candidates.clone();
        let condition = Condition {
            type_: "Ready".to_owned(),
            status: "Unknown".to_owned(),
            reason: "NodeLost".to_owned(),
            message: format!(
                "node {node} is gone; bring it back, or delete the object with the annotation {}: {node}",
                names::ABANDON
            ),
            last_transition_time: Time(Timestamp::now()),
            observed_generation: Some(seen.generation),
        };
        let mut status = findings(&candidates);
        if let Value::Object(map) = &mut status {
            map.insert("conditions".to_owned(), json!([condition]));
        }
        if self.tell(key, uid, status).await
            && let Some(missing) = self.missing.get_mut(node)
        {
            missing.told.insert(uid.to_owned());
        }
    }
}
