//! The common fields of the status of every kind.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The last CSI call made for an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastOperation {
    /// The RPC, such as `CreateVolume`.
    pub rpc: String,
    /// Its gRPC code, such as `ABORTED`.
    pub code: String,
    /// Message of the agent.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Number of attempts.
    pub attempts: u32,
    /// Time of the first attempt, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// Time of the next attempt, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry_time: Option<String>,
    /// How far the agent is with it, if it copies or wipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// How far a long-running operation of the agent was at the last attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// `copying`, `wiping` or `rolling back`.
    pub operation: String,
    /// The part that is done, in percent.
    pub percent: u32,
    /// Bytes per second, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<i64>,
    /// The time that is left, in seconds, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<i64>,
}

/// Access to the fields that the status of every kind has.
pub trait Observed {
    /// The observed generation and the conditions.
    fn seen(&self) -> (i64, &Vec<Condition>);
    /// The observed generation and the conditions, mutable.
    fn seen_mut(&mut self) -> (&mut i64, &mut Vec<Condition>);
    /// The last CSI call, mutable.
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
    crate::GroupSnapshotStatus,
    crate::SnapshotScheduleStatus
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

/// `observedGeneration` before the first reconciliation: tools must not read a missing value as success.
pub(crate) fn unobserved() -> i64 {
    -1
}
