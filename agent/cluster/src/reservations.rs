//! Capacity that creates have taken, or may take, and that their node has not reported yet.

use std::collections::HashMap;

use kube::ResourceExt;

use crate::{method::CREATE_VOLUME, node_call::NodeCall};

/// A create that is open, or has ended since the last report of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reservation {
    node: String,
    /// None for the default class.
    class: Option<String>,
    bytes: i64,
    has_ended: bool,
}

/// The creates by the UIDs of their calls.
#[derive(Debug, Default)]
pub(crate) struct Reservations(HashMap<String, Reservation>);

impl Reservations {
    /// A call is open.
    pub(crate) fn begin(&mut self, call: &NodeCall) {
        let Some(uid) = call.uid() else {
            return;
        };
        let Some((method, request)) = call.request() else {
            return;
        };
        if *method != CREATE_VOLUME {
            return;
        }
        let text = |at: &str| request.pointer(at).and_then(serde_json::Value::as_str);
        let bytes = request.pointer("/capacityRange/requiredBytes");
        let reservation = Reservation {
            node: call.spec.node_name.clone(),
            class: text("/parameters/class").map(str::to_owned),
            bytes: bytes.and_then(serde_json::Value::as_i64).unwrap_or(0),
            has_ended: false,
        };
        self.0.entry(uid).or_insert(reservation);
    }

    /// A call has ended, or is gone: the next report of the node counts it.
    pub(crate) fn end(&mut self, call: &NodeCall) {
        let found = call.uid().and_then(|uid| self.0.get_mut(&uid));
        if let Some(reservation) = found {
            reservation.has_ended = true;
        }
    }

    /// A list of all calls: the others have ended.
    pub(crate) fn retain(&mut self, uids: &[String]) {
        for (uid, reservation) in &mut self.0 {
            reservation.has_ended |= !uids.contains(uid);
        }
    }

    /// A node has reported its classes.
    pub(crate) fn reported(&mut self, node: &str) {
        self.0.retain(|_, one| one.node != node || !one.has_ended);
    }

    /// The bytes reserved of a class of a node.
    pub(crate) fn of(&self, node: &str, is_class: impl Fn(Option<&str>) -> bool) -> i64 {
        let those = self.0.values();
        let those = those.filter(|one| one.node == node && is_class(one.class.as_deref()));
        those.fold(0, |sum, one| sum.saturating_add(one.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn create(uid: &str, class: &str) -> NodeCall {
        let request = json!({"name": uid, "capacityRange": {"requiredBytes": 10}, "parameters": {"class": class}});
        let mut call = NodeCall::of("node-a", &CREATE_VOLUME, uid, request);
        call.metadata.uid = Some(uid.to_owned());
        call
    }

    #[test]
    fn a_create_reserves_until_its_node_has_reported_after_its_end() {
        let mut reservations = Reservations::default();
        let of = |reservations: &Reservations, class: &str| {
            reservations.of("node-a", |one| one == Some(class))
        };
        reservations.begin(&create("1", "fast"));
        reservations.begin(&create("1", "fast"));
        reservations.begin(&create("2", "fast"));
        reservations.begin(&create("3", "slow"));
        assert_eq!(
            (of(&reservations, "fast"), of(&reservations, "slow")),
            (20, 10)
        );
        assert_eq!(reservations.of("node-b", |_| true), 0);
        reservations.reported("node-a");
        assert_eq!(of(&reservations, "fast"), 20);
        reservations.end(&create("1", "fast"));
        assert_eq!(of(&reservations, "fast"), 20);
        reservations.reported("node-b");
        assert_eq!(of(&reservations, "fast"), 20);
        reservations.reported("node-a");
        assert_eq!(of(&reservations, "fast"), 10);
        reservations.retain(&["3".to_owned()]);
        reservations.reported("node-a");
        assert_eq!(
            (of(&reservations, "fast"), of(&reservations, "slow")),
            (0, 10)
        );
    }
}
