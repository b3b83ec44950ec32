//! Objects from an API server, validated by the same rules as manifests.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    manifest::{
        CheckedObject, Object, make_group, make_group_snapshot, make_schedule, make_snapshot,
        make_volume,
    },
    validate::FieldError,
};

impl Object {
    /// Builds an object of `kind` from the metadata and the spec on the server.
    ///
    /// # Errors
    /// A description of the problem, such as a field of a newer version.
    pub fn served(kind: &str, metadata: ObjectMeta, spec: Value) -> Result<Self, Vec<FieldError>> {
        let (object, wrong) = match kind {
            "Volume" => made(metadata, spec, make_volume)?,
            "Snapshot" => made(metadata, spec, make_snapshot)?,
            "VolumeGroup" => made(metadata, spec, make_group)?,
            "GroupSnapshot" => made(metadata, spec, make_group_snapshot)?,
            "SnapshotSchedule" => made(metadata, spec, make_schedule)?,
            other => {
                let message = format!("{other:?} is unknown to this agent");
                return Err(vec![wrong_at("kind".to_owned(), message)]);
            }
        };
        if wrong.is_empty() {
            Ok(object)
        } else {
            Err(wrong)
        }
    }
}

fn made<S: DeserializeOwned>(
    metadata: ObjectMeta,
    spec: Value,
    make: impl FnOnce(ObjectMeta, S) -> CheckedObject,
) -> Result<CheckedObject, Vec<FieldError>> {
    let spec: S = serde_path_to_error::deserialize(spec).map_err(|error| {
        let path = error.path().to_string();
        let field = match path.as_str() {
            "." => "spec".to_owned(),
            path => format!("spec.{path}"),
        };
        vec![wrong_at(field, error.into_inner().to_string())]
    })?;
    Ok(make(metadata, spec))
}

fn wrong_at(field: String, message: String) -> FieldError {
    FieldError { field, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_served_object_is_judged_as_a_manifest_is() {
        let served = |spec| Object::served("Volume", ObjectMeta::default(), spec);
        assert!(served(json!({"capacity": "1Gi"})).is_ok());
        for (bad, field) in [
            (json!({"capacity": "1GB"}), "spec.capacity"),
            (json!({"capacity": "10m"}), "spec.capacity"),
            (json!({"capacity": "10e-3"}), "spec.capacity"),
            (
                json!({"capacity": "1Gi", "mount": {"path": "x"}}),
                "spec.mount.path",
            ),
            (json!({"capacity": "1Gi", "tier": 1}), "spec.tier"),
            (json!({}), "spec"),
        ] {
            let wrong = served(bad.clone()).unwrap_err();
            assert!(
                wrong.iter().any(|wrong| wrong.field == field),
                "{bad}: {wrong:?}"
            );
        }
        assert!(Object::served("Disk", ObjectMeta::default(), json!({})).is_err());
    }
}
