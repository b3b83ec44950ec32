//! How problems of manifests are worded: by what somebody meant, and by what the documentation calls it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use drumlin_crd::{
    Problem, read,
    yaml::{self, Value},
};

const VOLUME: &str = "apiVersion: drumlin.dev/v1alpha1
kind: Volume
metadata:
  name: data
spec:
  capacity: 1Gi
";

fn wrong(text: &str) -> Problem {
    read(text).unwrap_err().remove(0)
}

/// A manifest of each kind with all of its fields.
const FULL: [&str; 5] = [
    "{apiVersion: drumlin.dev/v1alpha1, kind: Volume, metadata: {name: a, namespace: b, labels: {c: d}, annotations: {c: d}}, spec: {nodeName: node-a, deviceClass: fast, capacity: 1Gi, volumeMode: Filesystem, fsType: xfs, source: {groupSnapshot: {name: a, member: b}}, parameters: {a: b}, mount: {path: /a, options: [ro], readOnly: true}, deletionPolicy: Trash}}",
    "{apiVersion: drumlin.dev/v1alpha1, kind: Snapshot, metadata: {name: a}, spec: {nodeName: node-a, source: {volumeName: a}, parameters: {a: b}, deletionPolicy: Delete}}",
    "{apiVersion: drumlin.dev/v1alpha1, kind: VolumeGroup, metadata: {name: a}, spec: {nodeName: node-a, members: [{kind: Volume, name: a}], minMembers: 1, parameters: {a: b}, deletionPolicy: Delete}}",
    "{apiVersion: drumlin.dev/v1alpha1, kind: VolumeGroup, metadata: {name: a}, spec: {selector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}}}",
    "{apiVersion: drumlin.dev/v1alpha1, kind: SnapshotSchedule, metadata: {name: a}, spec: {nodeName: node-a, target: {volumeName: a}, schedule: '@daily', timeZone: UTC, suspend: true, jitterSeconds: 1, startingDeadlineSeconds: 60, retention: {keepLast: 1, hourly: 1}}}",
];

/// The value with another one in place of each of its parts, in turn.
fn replaced(value: &Value, by: &Value) -> Vec<Value> {
    let mut all = vec![by.clone()];
    match value {
        Value::Mapping(map) => {
            for (key, inner) in map {
                for inner in replaced(inner, by) {
                    let mut map = map.clone();
                    map.insert(key.clone(), inner);
                    all.push(Value::Mapping(map));
                }
            }
        }
        Value::Sequence(items) => {
            for (index, inner) in items.iter().enumerate() {
                for inner in replaced(inner, by) {
                    let mut items = items.clone();
                    items[index] = inner;
                    all.push(Value::Sequence(items));
                }
            }
        }
        _ => {}
    }
    all
}

#[test]
fn what_is_expected_is_said_in_words_of_the_documentation() {
    let words = [
        "struct",
        "enum",
        "variant of",
        "tuple",
        "expected unit",
        "newtype",
        "u32",
        "i64",
    ];
    let mut told = 0;
    for text in FULL {
        assert_eq!(read(text).unwrap().documents.len(), 1);
        let whole = yaml::parse(text).unwrap().value;
        for by in ["5", "a b", "[1]", "{b: c}", "true", "-1.5"] {
            let by = yaml::parse(by).unwrap().value;
            for wrong in replaced(&whole, &by) {
                for problem in read(&yaml::to_string(&wrong).unwrap())
                    .err()
                    .into_iter()
                    .flatten()
                {
                    told += 1;
                    for word in words {
                        assert!(!problem.message.contains(word), "{word}: {problem}");
                    }
                }
            }
        }
    }
    assert!(told > 300, "{told}");
    assert!(
        wrong(&VOLUME.replace("1Gi", "5"))
            .message
            .ends_with("expected a size with its unit, such as 10Gi")
    );
    let problem = wrong(&format!("{VOLUME}  mount: /srv/a\n"));
    assert!(
        problem
            .message
            .ends_with("expected a map such as {path: /srv/data}"),
        "{problem}"
    );
}

#[test]
fn a_misspelt_time_zone_is_told_with_the_nearest_one() {
    let schedule = |zone: &str| {
        format!(
            "apiVersion: drumlin.dev/v1alpha1\nkind: SnapshotSchedule\nmetadata: {{name: a}}\nspec:\n  target: {{volumeName: a}}\n  schedule: '@daily'\n  timeZone: {zone}\n"
        )
    };
    let problem = wrong(&schedule("America/New_Yrok"));
    assert!(
        problem
            .message
            .ends_with("; did you mean America/New_York?"),
        "{problem}"
    );
    assert_eq!((problem.line, problem.column), (7, 3));
    let problem = wrong(&schedule("CEST-2"));
    assert!(
        problem.message.contains("such as UTC or Europe/Berlin"),
        "{problem}"
    );
}
