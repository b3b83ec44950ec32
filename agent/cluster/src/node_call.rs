//! Kind `NodeCall`: one call that the agent of a node runs for the front of the cluster.
#![expect(
    clippy::duplicated_attributes,
    reason = "every column of a table has its own path and type"
)]
#![expect(
    unreachable_pub,
    reason = "kube's derive repeats the types in a place of its own"
)]

use std::time::Duration;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, Time},
    jiff::Timestamp,
};
use kube::{CustomResource, CustomResourceExt, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tonic::Code;

use crate::{
    code,
    method::{METHODS, Method},
};

/// Period after its creation in which a call may begin, by the clock of the API server: neither an agent that was away nor
/// a server that was set back to an older state runs a call that its caller has given up.
pub const VALID: Duration = Duration::from_mins(10);

/// The field manager of what the controller writes.
pub(crate) const CONTROLLER: &str = "drumlin-controller";
/// The field manager of an agent's part of the status.
pub(crate) const AGENT: &str = "drumlin-agent";

/// A call to the agent of a node.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "drumlin.dev",
    version = "v1alpha1",
    kind = "NodeCall",
    plural = "nodecalls",
    category = "drumlin-internal",
    namespaced,
    derive = "PartialEq",
    status = "NodeCallStatus",
    selectable = ".spec.nodeName",
    doc = "One CSI call that the agent of a node runs for the cluster. Made and deleted by drumlin-controller.",
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Code", type_ = "string", json_path = ".status.code"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NodeCallSpec {
    /// The node whose agent runs the call.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// Number of times that the call was asked for; the agent runs it once more when this grows. Nothing else can change.
    #[schemars(range(min = 1))]
    pub attempt: i32,
    /// The request, under the name of its method.
    #[serde(flatten)]
    #[schemars(skip)]
    pub request: Map<String, Value>,
}

/// How far a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// The agent has begun, and runs the call again if it was interrupted.
    Taken,
    /// The call has ended.
    Done,
}

/// What has become of a call so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It was never begun: it can be withdrawn.
    Fresh,
    /// It was begun in an earlier attempt, and is to run once more.
    Waiting,
    /// The agent runs it.
    Running,
    /// It has ended.
    Done,
}

impl Progress {
    /// All there are.
    pub(crate) const ALL: [Self; 4] = [Self::Fresh, Self::Waiting, Self::Running, Self::Done];

    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done => "done",
        }
    }
}

/// State of a call, written by the agent of the node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCallStatus {
    /// `Taken` once the agent has begun, `Done` when the call has ended; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The attempt that was begun last.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: i32,
    /// Number of times that the call was begun, restarts of the agent included.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub runs: i32,
    /// The gRPC code of the answer, such as `OK` or `NOT_FOUND`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub code: Option<String>,
    /// The message of an answer that is not `OK`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub message: Option<String>,
    /// The response, under the name of its method.
    #[serde(flatten)]
    #[schemars(skip)]
    pub response: Map<String, Value>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde wants"
)]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl NodeCall {
    /// A call to the agent of `node`.
    pub(crate) fn of(node: &str, method: &Method, key: &str, request: Value) -> Self {
        let spec = NodeCallSpec {
            node_name: node.to_owned(),
            attempt: 1,
            request: [(method.member.to_owned(), request)].into_iter().collect(),
        };
        Self::new(&method.call_name(key), spec)
    }

    /// Its method and its request; none if a newer controller has made it.
    pub(crate) fn request(&self) -> Option<(&'static Method, &Value)> {
        let mut known = METHODS.iter();
        known.find_map(|method| Some((*method, self.spec.request.get(method.member)?)))
    }

    /// What has become of it so far.
    pub(crate) fn progress(&self) -> Progress {
        let Some(status) = &self.status else {
            return Progress::Fresh;
        };
        match status.phase {
            None => Progress::Fresh,
            Some(_) if status.attempt < self.spec.attempt => Progress::Waiting,
            Some(Phase::Taken) => Progress::Running,
            Some(Phase::Done) => Progress::Done,
        }
    }

    /// Returns true if its agent has nothing to do with it any more: it is done, or was withdrawn before it was begun and
    /// is kept by somebody's finalizer.
    pub(crate) fn is_over(&self) -> bool {
        match self.progress() {
            Progress::Done => true,
            Progress::Fresh => self.metadata.deletion_timestamp.is_some(),
            Progress::Waiting | Progress::Running => false,
        }
    }

    /// Returns true if nobody has begun it, and nobody may any more. By this clock: one that is wrong takes a call for
    /// expired early, or late, and that is all.
    pub(crate) fn is_expired(&self) -> bool {
        let created = self.metadata.creation_timestamp.as_ref();
        self.progress() == Progress::Fresh && created.is_some_and(|Time(created)| is_over(*created))
    }

    /// The attempt that no status can be of yet: after the server was set back, a status may be of a later attempt than the
    /// spec.
    pub(crate) fn next_attempt(&self) -> i32 {
        let begun = self.status.as_ref().map_or(0, |status| status.attempt);
        self.spec.attempt.max(begun).saturating_add(1)
    }

    /// The code of the answer of a call that is done; `Unknown` if it has none.
    pub(crate) fn code(&self) -> Code {
        let status = self.status.as_ref();
        let named = status.and_then(|status| status.code.as_deref());
        code::named(named.unwrap_or_default())
    }

    /// Returns true if the call is done, and nothing of it is in progress or half made.
    pub(crate) fn is_settled(&self) -> bool {
        self.progress() == Progress::Done && code::is_final(self.code())
    }

    /// Returns true if both ask for the same.
    pub(crate) fn asks_as(&self, other: &Self) -> bool {
        self.spec.node_name == other.spec.node_name && self.spec.request == other.spec.request
    }

    /// Returns true if this is the very object that `other` is, as it is then or later. A name tells neither: an object is
    /// deleted and created again under it. Nor does a UID alone: a call that was asked for once more was done before.
    pub(crate) fn continues(&self, other: &Self) -> bool {
        self.uid() == other.uid() && self.spec.attempt >= other.spec.attempt
    }

    /// How often it was begun.
    pub(crate) fn runs(&self) -> i32 {
        self.status.as_ref().map_or(0, |status| status.runs)
    }

    /// Returns true if the server has written the object, on behalf of the agent, later than the call may begin: more than
    /// [`VALID`] after it was last asked for. Both times are the server's own: no other clock takes part.
    ///
    /// `None` if the object does not tell.
    pub(crate) fn was_taken_late(&self) -> Option<bool> {
        let entries = || self.managed_fields().iter();
        let is_ours = |entry: &&ManagedFieldsEntry| {
            entry.manager.as_deref() == Some(AGENT)
                && entry.subresource.as_deref() == Some("status")
        };
        let taken = entries().find(is_ours)?.time.as_ref()?.0;
        let asked = entries()
            .filter(|entry| entry.subresource.is_none())
            .filter_map(|entry| entry.time.as_ref());
        let asked = asked
            .chain(self.metadata.creation_timestamp.as_ref())
            .map(|Time(time)| *time)
            .max()?;
        let after = taken.duration_since(asked);
        Some(after.is_positive() && after.unsigned_abs() > VALID)
    }
}

/// Returns true if a call that was created then must not begin any more.
pub(crate) fn is_over(created: Timestamp) -> bool {
    let age = Timestamp::now().duration_since(created);
    age.is_positive() && age.unsigned_abs() > VALID
}

/// The definition of the kind: its requests and responses have the schema of the wire.
pub(crate) fn definition() -> Value {
    let crd: CustomResourceDefinition = NodeCall::crd();
    let mut crd = drumlin_crd::tidied(&crd);
    let versions = crd
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        let members = |of: fn(&prost_reflect::MethodDescriptor) -> Value| {
            METHODS.iter().filter_map(move |method| {
                Some((method.member.to_owned(), of(&method.descriptor()?)))
            })
        };
        let requests = members(|method| crate::proto_json::schema(&method.input()));
        let responses = members(|method| crate::proto_json::schema(&method.output()));
        let at = "/schema/openAPIV3Schema/properties";
        if let Some(spec) = version.pointer_mut(&format!("{at}/spec")) {
            extend(spec, requests);
            let same = json!([{"rule": "self == oldSelf", "message": "a call cannot be changed"}]);
            let grows = json!([{"rule": "self >= oldSelf", "message": "attempt can only grow"}]);
            if let Some(Value::Object(properties)) = spec.pointer_mut("/properties") {
                for (name, property) in properties {
                    let rule = if name == "attempt" { &grows } else { &same };
                    set(property, "x-kubernetes-validations", rule.clone());
                }
            }
            let each = |rule: fn(&str) -> String, with: &str| {
                let all: Vec<String> = METHODS.iter().map(|method| rule(method.member)).collect();
                all.join(with)
            };
            let one = each(|member| format!("has(self.{member})"), ", ");
            let kept = each(
                |member| format!("has(self.{member}) == has(oldSelf.{member})"),
                " && ",
            );
            let rules = json!([
                {"rule": format!("[{one}].exists_one(one, one)"), "message": "exactly one call must be set"},
                {"rule": kept, "message": "a call cannot be changed"},
            ]);
            set(spec, "x-kubernetes-validations", rules);
        }
        if let Some(status) = version.pointer_mut(&format!("{at}/status")) {
            extend(status, responses);
        }
    }
    crd
}

fn extend(schema: &mut Value, with: impl Iterator<Item = (String, Value)>) {
    if let Some(Value::Object(properties)) = schema.pointer_mut("/properties") {
        properties.extend(with);
    }
}

fn set(schema: &mut Value, key: &str, to: Value) {
    if let Value::Object(map) = schema {
        map.insert(key.to_owned(), to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::DELETE_VOLUME;

    fn written(asked: &str, taken: &str) -> Option<bool> {
        let mut call = NodeCall::of("node-a", &DELETE_VOLUME, "v", json!({"volumeId": "v"}));
        let more = json!({
            "creationTimestamp": "2030-01-01T00:00:00Z",
            "managedFields": [
                {"manager": CONTROLLER, "time": asked},
                {"manager": AGENT, "subresource": "status", "time": taken},
            ],
        });
        let read: kube::api::ObjectMeta = serde_json::from_value(more).unwrap();
        call.metadata.creation_timestamp = read.creation_timestamp;
        call.metadata.managed_fields = read.managed_fields;
        call.was_taken_late()
    }

    #[test]
    fn whether_a_call_may_begin_is_told_by_the_clock_of_the_server() {
        for (asked, taken, is_late) in [
            ("2030-01-01T00:00:00Z", "2030-01-01T00:10:00Z", false),
            ("2030-01-01T00:00:00Z", "2030-01-01T00:10:01Z", true),
            // It was asked for once more.
            ("2030-01-01T00:05:00Z", "2030-01-01T00:15:00Z", false),
            ("2030-01-01T00:05:00Z", "2030-01-01T00:15:01Z", true),
        ] {
            assert_eq!(written(asked, taken), Some(is_late), "{asked} {taken}");
        }
        let unwritten = NodeCall::of("node-a", &DELETE_VOLUME, "v", json!({}));
        assert_eq!(unwritten.was_taken_late(), None);
    }

    #[test]
    fn a_call_that_was_begun_once_is_never_fresh_again() {
        let mut call = NodeCall::of("node-a", &DELETE_VOLUME, "v", json!({"volumeId": "v"}));
        let mut after = |attempt, phase, begun, code: &str| {
            call.spec.attempt = attempt;
            call.status = Some(NodeCallStatus {
                phase,
                attempt: begun,
                code: Some(code.to_owned()),
                ..NodeCallStatus::default()
            });
            (call.progress(), call.is_settled())
        };
        assert_eq!(after(1, None, 0, ""), (Progress::Fresh, false));
        assert_eq!(
            after(1, Some(Phase::Taken), 1, ""),
            (Progress::Running, false)
        );
        assert_eq!(
            after(2, Some(Phase::Taken), 1, ""),
            (Progress::Waiting, false)
        );
        assert_eq!(
            after(2, Some(Phase::Done), 1, "OK"),
            (Progress::Waiting, false)
        );
        assert_eq!(after(2, Some(Phase::Done), 2, "OK"), (Progress::Done, true));
        assert_eq!(
            after(2, Some(Phase::Done), 2, "ABORTED"),
            (Progress::Done, false)
        );
        assert_eq!(
            after(2, Some(Phase::Done), 2, "NOT_FOUND"),
            (Progress::Done, true)
        );
    }

    #[test]
    fn a_call_goes_on_in_its_own_object_and_in_no_earlier_attempt() {
        let call = |uid: &str, attempt| {
            let mut call = NodeCall::of("node-a", &DELETE_VOLUME, "v", json!({"volumeId": "v"}));
            call.metadata.uid = Some(uid.to_owned());
            call.spec.attempt = attempt;
            call
        };
        let asked = call("one", 2);
        for (uid, attempt, goes_on) in [
            ("one", 2, true),
            ("one", 3, true),
            ("one", 1, false),
            ("other", 2, false),
            ("other", 3, false),
        ] {
            let seen = call(uid, attempt);
            assert_eq!(seen.continues(&asked), goes_on, "{uid} {attempt}");
        }
    }

    #[test]
    fn a_call_carries_its_request_under_the_name_of_its_method() {
        let call = NodeCall::of("node-a", &DELETE_VOLUME, "v", json!({"volumeId": "v"}));
        let spec = serde_json::to_value(&call.spec).unwrap();
        assert_eq!(
            spec,
            json!({"nodeName": "node-a", "attempt": 1, "deleteVolume": {"volumeId": "v"}})
        );
        let (method, request) = call.request().unwrap();
        assert_eq!(method, &DELETE_VOLUME);
        assert_eq!(request, &json!({"volumeId": "v"}));
    }
}
