//! Objects of nodes that are gone: they say so, and go only where somebody has given the node up.

use drumlin_crd::{ObjectKey, names};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{claims::findings, view::View};

impl View {
    /// Looks whether nodes that objects name have been gone for long.
    pub(super) async fn look_at_nodes(&mut self) {
        let mut gone: Vec<(ObjectKey, String)> = Vec::new();
        for (kind, index) in &self.objects {
            for (namespace, name, seen) in index.all() {
                let Some(node) = seen.node() else { continue };
                if self.nodes.get("", node).is_none() {
                    let key = ObjectKey {
                        kind: (*kind).to_owned(),
                        namespace: namespace.clone(),
                        name: name.clone(),
                    };
                    gone.push((key, node.to_owned()));
                }
            }
        }
        self.missing
            .retain(|node, _| gone.iter().any(|(_, other)| other == node));
        for (key, node) in gone {
            let since = *self
                .missing
                .entry(node.clone())
                .or_insert_with(Instant::now);
            if self.give_up(&key, &node).await {
                continue;
            }
            if since.elapsed() >= self.settings.node_grace {
                self.tell_lost(&key, &node).await;
            }
        }
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

    /// Has an object say that its node is gone: once, for its agent may be there without a Node object.
    async fn tell_lost(&mut self, key: &ObjectKey, node: &str) {
        let is_told = |told: &Value| {
            let reason = told.pointer("/conditions/0/reason");
            reason.is_some_and(|reason| reason == "NodeLost")
        };
        if self.told.get(key).is_some_and(is_told) {
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
        let uid = seen.uid.clone();
        let mut status = findings(&candidates);
        if let Value::Object(map) = &mut status {
            map.insert("conditions".to_owned(), json!([condition]));
        }
        self.tell(key, &uid, status).await;
    }
}
