//! What every kind's status has.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The last call that was made for an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastOperation {
    /// The RPC, such as `CreateVolume`.
    pub rpc: String,
    /// Its gRPC code, such as `ABORTED`.
    pub code: String,
    /// What the agent said.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was tried first, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// When it is tried next, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry_time: Option<String>,
}

/// The schema of a list of conditions, merged by type.
pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let items = generator.subschema_for::<Condition>();
    json_schema!({
        "type": "array",
        "items": items,
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

/// What `observedGeneration` is before anybody has looked, so that tools do not take silence for success.
pub(crate) fn unobserved() -> i64 {
    -1
}
