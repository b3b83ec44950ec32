//! What the controller writes into a status: the claims that an object selects, and why it has no node.

use drumlin_crd::Candidate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Deserialize;
use serde_json::{Value, json};

/// The reason for an object without a node whose sources are on several nodes.
pub(super) const APART: &str = "MembersOnOtherNode";
/// The reason for an object without a node whose source is on no node.
pub(super) const UNSET: &str = "NodeUnset";

/// A status with the selected claims, for kinds that can select claims.
pub(super) fn findings(candidates: &[Candidate]) -> Value {
    if candidates.is_empty() {
        return json!({});
    }
    json!({ "candidates": candidates })
}

/// The conditions of a status that a controller has set on an object without a node.
pub(super) fn ours(status: &Value) -> Vec<Condition> {
    let conditions = status.get("conditions").and_then(Value::as_array);
    let conditions = conditions.into_iter().flatten();
    let conditions = conditions.filter_map(|one| Condition::deserialize(one).ok());
    let is_ours = |one: &Condition| [APART, UNSET].contains(&one.reason.as_str());
    conditions.filter(is_ours).collect()
}
