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

/// What the status of every kind has.
pub trait Observed {
    /// The generation that it is about, and the conditions.
    fn seen(&self) -> (i64, &Vec<Condition>);
    /// The same, to be written.
    fn seen_mut(&mut self) -> (&mut i64, &mut Vec<Condition>);
    /// The last call that was made, to be written.
    fn last_operation_mut(&mut self) -> &mut Option<LastOperation>;
}

macro_rules! observed {
    ($($status:ty),+) => {$(
        impl Observed for $status {
            fn seen(&self) -> (i64, &Vec<Condition>) {
                (self.observed_generation, &self.conditions)
            }

            fn seen_mut(&mut self) -> (&mut i64, &mut Vec<Condition>) {
                (&mut self.observed_generation, &mut self.conditions)
            }

            fn last_operation_mut(&mut self) -> &mut Option<LastOperation> {
                &mut self.last_operation
            }
        }
    )+};
}

observed!(
    crate::VolumeStatus,
    crate::SnapshotStatus,
    crate::VolumeGroupStatus,
    crate::GroupSnapshotStatus
);

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
