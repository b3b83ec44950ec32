//! How strictly manifests are read: a row of the table a test.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use drumlin_crd::{
    DeletionPolicy, Manifest, Object, Problem, VolumeDeletionPolicy, VolumeMode, read,
};

const VOLUME: &str = "apiVersion: drumlin.dev/v1alpha1
kind: Volume
metadata:
  name: data
spec:
  capacity: 1Gi
";

fn one(text: &str) -> Object {
    let mut manifest = read(text).unwrap();
    assert_eq!(manifest.documents.len(), 1, "{manifest:?}");
    manifest.documents.remove(0).object
}

fn wrong(text: &str) -> Problem {
    read(text).unwrap_err().remove(0)
}

/// The volume with one more line in its spec.
fn with(line: &str) -> String {
    format!("{VOLUME}  {line}\n")
}

#[test]
fn defaults_are_those_of_the_schema() {
    let Object::Volume(volume) = one(VOLUME) else {
        panic!()
    };
    assert_eq!(volume.metadata.namespace.as_deref(), Some("default"));
    assert_eq!(volume.spec.device_class, None);
    assert_eq!(volume.spec.fs_type, None);
    assert_eq!(volume.spec.volume_mode, VolumeMode::Filesystem);
    assert_eq!(volume.spec.deletion_policy, VolumeDeletionPolicy::Retain);
    let Object::Snapshot(snapshot) = one(
        "apiVersion: drumlin.dev/v1alpha1\nkind: Snapshot\nmetadata: {name: s}\nspec: {source: {volumeName: data}}\n",
    ) else {
        panic!()
    };
    assert_eq!(snapshot.spec.deletion_policy, DeletionPolicy::Delete);
}

#[test]
fn an_unknown_field_anywhere_is_an_error_with_its_line() {
    for (text, line, field) in [
        (with("capcity: 2Gi"), 7, "capcity"),
        (with("mount: {path: /srv/a, optoins: []}"), 7, "optoins"),
        (
            VOLUME.replace("name: data", "name: data\n  lables: {}"),
            5,
            "lables",
        ),
        (format!("{VOLUME}specs: {{}}\n"), 7, "specs"),
    ] {
        let problem = wrong(&text);
        assert!(problem.message.contains(field), "{problem}");
        assert_eq!(problem.line, line, "{problem}");
    }
}

#[test]
fn all_problems_of_a_file_are_told_at_once_in_their_order() {
    let text = "apiVersion: drumlin.dev/v1alpha1
kind: Volume
metadata: {name: Bad_name, lables: {}}
spec:
  capacty: 10Gi
  capacity: 10Gi
  fsType: ext5
  source: {volume: a}
  mount: {path: srv/data, optons: [noatime]}
  deletionPolicy: delete
---
apiVersion: drumlin.dev/v1alpha1
kind: VolumGroup
metadata: {name: g}
spec: {}
---
apiVersion: drumlin.dev/v1alpha1
kind: Volume
metadata: {name: Bad_name}
spec: {capacity: 10, deviceClass: Fast}
";
    let found: Vec<_> = read(text)
        .unwrap_err()
        .into_iter()
        .map(|problem| (problem.line, problem.message))
        .collect();
    let wanted = [
        (3, "metadata.name: ", ""),
        (3, "metadata.lables: ", "; did you mean `labels`?"),
        (5, "spec.capacty: ", "; did you mean `capacity`?"),
        (7, "spec.fsType: ", "; did you mean `ext4`?"),
        (8, "spec.source.volume: ", "; did you mean `volumeName`?"),
        (9, "spec.mount.path: ", ""),
        (9, "spec.mount.optons: ", "; did you mean `options`?"),
        (10, "spec.deletionPolicy: ", "; did you mean `Delete`?"),
        (13, "kind: ", "; did you mean VolumeGroup?"),
        (19, "metadata.name: ", ""),
        (
            20,
            "spec.capacity: ",
            "expected a size with its unit, such as 10Gi",
        ),
    ];
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    for ((line, message), (wanted, begin, end)) in found.iter().zip(wanted) {
        assert_eq!(*line, wanted, "{message}");
        assert!(message.starts_with(begin), "{message}");
        assert!(message.ends_with(end), "{message}");
    }
}

#[test]
fn a_key_that_stands_twice_is_an_error() {
    assert!(read(&with("capacity: 2Gi")).is_err());
    assert!(read(&with("parameters: {a: x, a: y}")).is_err());
}

#[test]
fn what_is_no_text_is_refused_where_text_is_wanted() {
    for line in [
        "nodeName: 1",
        "parameters: {stripes: 2}",
        "parameters: {on: true}",
    ] {
        assert!(read(&with(line)).is_err(), "{line}");
    }
    assert!(read(&VOLUME.replace("1Gi", "1073741824")).is_err());
    let Object::Volume(volume) = one(&with("nodeName: host")) else {
        panic!()
    };
    assert_eq!(volume.spec.node_name.as_deref(), Some("host"));
}

#[test]
fn rules_name_the_field_and_its_line() {
    for (text, line, field) in [
        (VOLUME.replace("1Gi", "10GB"), 6, "spec.capacity"),
        (VOLUME.replace("1Gi", "\"0\""), 6, "spec.capacity"),
        (with("deviceClass: Fast"), 7, "spec.deviceClass"),
        (with("source: {}"), 7, "spec.source"),
        (
            with("source: {snapshotName: a, volumeName: b}"),
            7,
            "spec.source",
        ),
        (with("mount:\n    path: srv/data"), 8, "spec.mount.path"),
        (with("mount:\n    path: /srv/../etc"), 8, "spec.mount.path"),
        (
            VOLUME.replace("name: data", "name: Bad_Name!"),
            4,
            "metadata.name",
        ),
        (
            VOLUME.replace("name: data", "name: data\n  namespace: ../x"),
            5,
            "metadata.namespace",
        ),
    ] {
        let problem = wrong(&text);
        assert!(problem.message.starts_with(field), "{problem}");
        assert_eq!(problem.line, line, "{problem}");
    }
}

/// The volume with this metadata besides its name, from line 5 on.
fn annotated(metadata: &str) -> String {
    VOLUME.replace("  name: data\n", &format!("  name: data\n{metadata}"))
}

#[test]
fn misspelt_annotations_and_labels_of_this_project_are_errors_at_their_place() {
    let allowed = "use drumlin.dev/abandon, drumlin.dev/adopt, drumlin.dev/paused, drumlin.dev/reconcile-at, drumlin.dev/recreate or drumlin.dev/state";
    let one_of =
        format!("metadata.annotations.drumlin.dev/x: is no annotation of this project; {allowed}");
    for (line, message) in [
        ("drumlin.dev/x: a", one_of.as_str()),
        (
            "drumlin.dev/pause: \"true\"",
            "; did you mean drumlin.dev/paused?",
        ),
        (
            "drumlin.dev/stat: absent",
            "; did you mean drumlin.dev/state?",
        ),
        (
            "drumlin.dev/paused: \"yes\"",
            "metadata.annotations.drumlin.dev/paused: \"yes\" is not allowed; use \"true\" or \"false\"",
        ),
        (
            "drumlin.dev/state: absnt",
            "metadata.annotations.drumlin.dev/state: \"absnt\" is not allowed; use \"absent\"; did you mean \"absent\"?",
        ),
        ("drumlin.dev/adopt: \"\"", "is empty; it has to be a handle"),
        ("drumlin.dev/abandon: \"\"", "the name of a lost node"),
        ("drumlin.dev/recreate: \" \"", "the handle of a lost volume"),
    ] {
        let problem = wrong(&annotated(&format!(
            "  annotations:\n    a.b/c: d\n    {line}\n"
        )));
        assert!(problem.message.ends_with(message), "{problem}");
        assert_eq!((problem.line, problem.column), (7, 5), "{problem}");
        let problem = wrong(&annotated(&format!("  annotations: {{a: b, {line}}}\n")));
        assert_eq!((problem.line, problem.column), (5, 23), "{problem}");
    }
    for (line, message) in [
        (
            "drumlin.dev/schedul: s",
            "is no label of this project; use drumlin.dev/schedule; did you mean drumlin.dev/schedule?",
        ),
        (
            "drumlin.dev/state: absent",
            "is no label, but an annotation; move it to metadata.annotations",
        ),
    ] {
        let problem = wrong(&annotated(&format!("  labels:\n    {line}\n")));
        assert!(problem.message.ends_with(message), "{problem}");
        assert_eq!((problem.line, problem.column), (6, 5), "{problem}");
    }
    // Within a list, and besides other problems.
    let item = annotated("  annotations: {drumlin.dev/stat: absent}\n").replace('\n', "\n  ");
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {}", item.trim_end());
    assert_eq!((wrong(&list).line, wrong(&list).column), (8, 19));
    let both = format!(
        "{}  capcity: 1\n",
        annotated("  annotations: {drumlin.dev/stat: absent}\n")
    );
    assert_eq!(read(&both).unwrap_err().len(), 2);
}

#[test]
fn the_annotations_and_labels_that_there_are_and_those_of_others_are_read() {
    for line in [
        "drumlin.dev/state: absent",
        "drumlin.dev/paused: \"true\"",
        "drumlin.dev/paused: \"false\"",
        "drumlin.dev/reconcile-at: \"\"",
        "drumlin.dev/recreate: n/default/v-1",
        "drumlin.dev/adopt: n/default/v-1",
        "drumlin.dev/abandon: node-a",
        "kubectl.kubernetes.io/last-applied-configuration: \"{}\"",
        "topology.drumlin.dev/node: node-a",
        "state: gone",
    ] {
        one(&annotated(&format!("  annotations: {{{line}}}\n")));
    }
    for line in ["drumlin.dev/schedule: hourly", "app: pg"] {
        one(&annotated(&format!("  labels: {{{line}}}\n")));
    }
}

#[test]
fn unknown_enums_kinds_and_versions_are_errors_and_other_groups_none_of_our_business() {
    assert!(read(&with("fsType: ntfs")).is_err());
    assert!(read(&with("deletionPolicy: retain")).is_err());
    assert!(
        wrong(&VOLUME.replace("kind: Volume", "kind: Volum"))
            .message
            .contains("Volum")
    );
    assert!(
        wrong(&VOLUME.replace("v1alpha1", "v1"))
            .message
            .contains("v1alpha1")
    );
    assert!(read("kind: Volume\n").is_err());
    let manifest = read(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\n---\n{VOLUME}"
    ))
    .unwrap();
    assert_eq!(manifest.foreign, ["v1/ConfigMap"]);
    assert_eq!(manifest.documents[0].line, 5);
}

#[test]
fn what_a_server_adds_is_allowed() {
    let text = VOLUME.replace(
        "  name: data",
        "  name: data\n  uid: 1-2\n  resourceVersion: \"7\"\n  generation: 3\n  creationTimestamp: null\n  managedFields: [{a: b}]",
    ) + "status: {observedGeneration: 3}\n";
    assert_eq!(one(&text).key().to_string(), "Volume/default/data");
}

#[test]
fn lists_json_and_line_ends_of_other_systems_are_read() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: drumlin.dev/v1alpha1\n  kind: Volume\n  metadata: {name: a}\n  spec: {capacity: 1Gi}\n- apiVersion: drumlin.dev/v1alpha1\n  kind: Volume\n  metadata: {name: b}\n  spec: {capacity: 1Gi}\n";
    assert_eq!(read(list).unwrap().documents.len(), 2);
    assert_eq!(
        read(&list.replace("1Gi}\n- ", "1GB}\n- ")).unwrap_err()[0].line,
        7
    );
    let json = "{\"apiVersion\": \"drumlin.dev/v1alpha1\", \"kind\": \"Volume\", \"metadata\": {\"name\": \"a\"}, \"spec\": {\"capacity\": \"1Gi\"}}";
    assert_eq!(one(json).key().name, "a");
    assert_eq!(
        one(&format!("\u{feff}{}", VOLUME.replace('\n', "\r\n")))
            .key()
            .name,
        "data"
    );
    assert!(read(&VOLUME.replace("  capacity", "\tcapacity")).is_err());
}

#[test]
fn words_that_kubectl_reads_otherwise_are_refused_in_our_objects_alone() {
    for line in [
        "parameters: {on: \"x\"}",
        "deviceClass: no",
        "parameters: {a: 0x10_0}",
    ] {
        let problem = wrong(&with(line));
        assert_eq!(problem.line, 7, "{problem}");
        assert!(problem.message.contains("quotes"), "{problem}");
    }
    assert!(read("apiVersion: v1\nkind: ConfigMap\ndata: {a: yes}\n").is_ok());
    assert!(read(&with("deviceClass: \"no\"")).is_ok());
}

#[test]
fn a_long_list_has_the_line_of_each_object_and_is_read_in_no_time() {
    use std::fmt::Write;
    let mut text = "apiVersion: v1\nkind: List\nitems:\n".to_owned();
    for number in 0..2_000 {
        writeln!(
            text,
            "- apiVersion: drumlin.dev/v1alpha1\n  kind: Volume\n  metadata: {{name: v{number}}}\n  spec: {{capacity: 1Gi}}"
        )
        .unwrap();
    }
    let begin = std::time::Instant::now();
    let manifest = read(&text).unwrap();
    assert_eq!(manifest.documents[0].line, 4);
    assert_eq!(manifest.documents[1_999].line, 4 + 1_999 * 4);
    let place = manifest.documents[1_999].place_of("spec.capacity");
    assert_eq!((place.line, place.column), (4 + 1_999 * 4 + 3, 10));
    // All of them wrong: a hundred are told.
    let problems = read(&text.replace("1Gi", "1GB")).unwrap_err();
    assert_eq!(problems.len(), 100);
    // Quadratic would be minutes.
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
}

#[test]
fn no_document_is_valid_and_says_so() {
    for nothing in ["", "\n\n", "---\n", "# a comment\n", "---\n---\n"] {
        assert_eq!(read(nothing).unwrap(), Manifest::default(), "{nothing:?}");
    }
}

#[test]
fn what_may_not_change_is_told() {
    let old = one(VOLUME);
    let wrong = |text: &str| {
        one(text)
            .wrong_after(&old)
            .into_iter()
            .map(|wrong| wrong.field)
            .collect::<Vec<_>>()
    };
    assert_eq!(wrong(&VOLUME.replace("1Gi", "512Mi")), ["spec.capacity"]);
    // What was left out may be said later: the agent knows whether it is so.
    assert_eq!(wrong(&with("fsType: xfs")), Vec::<String>::new());
    for (was, is, field) in [
        ("fsType: ext4", "fsType: xfs", "spec.fsType"),
        ("deviceClass: a", "deviceClass: b", "spec.deviceClass"),
    ] {
        let changed = one(&with(is)).wrong_after(&one(&with(was)));
        let fields: Vec<String> = changed.into_iter().map(|wrong| wrong.field).collect();
        assert_eq!(fields, [field]);
    }
    assert_eq!(wrong(&with("source: {volumeName: b}")), ["spec.source"]);
    assert_eq!(wrong(&VOLUME.replace("1Gi", "2Gi")), Vec::<String>::new());
    assert_eq!(wrong(&with("nodeName: host")), Vec::<String>::new());
}

#[test]
fn every_prefix_of_a_manifest_is_refused_or_holds_whole_documents() {
    let text = format!(
        "{VOLUME}---\n{}---\n{}",
        VOLUME.replace("name: data", "name: wal"),
        VOLUME.replace("name: data", "name: log")
    );
    let whole = read(&text).unwrap().documents.len();
    assert_eq!(whole, 3);
    let mut shorter = 0;
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        if let Ok(manifest) = read(&text[..end]) {
            assert!(manifest.documents.len() <= whole);
            shorter += usize::from(manifest.documents.len() < whole);
        }
    }
    // That is why a document that is missing must never delete anything.
    assert!(shorter > 0);
}

const GROUP: &str = "apiVersion: drumlin.dev/v1alpha1
kind: VolumeGroup
metadata: {name: pg, namespace: db}
spec:
";

#[test]
fn a_group_has_members_or_a_selector_and_every_mistake_has_its_line() {
    let Object::Group(group) = one(&format!(
        "{GROUP}  members: [{{kind: Volume, name: data}}]\n"
    )) else {
        panic!()
    };
    assert_eq!(group.spec.min_members, 1);
    assert_eq!(group.spec.deletion_policy, DeletionPolicy::Delete);
    for (spec, line, part) in [
        (
            "  minMembers: 2\n",
            4,
            "spec: exactly one of members and selector",
        ),
        (
            "  members: [{kind: Volume, name: a}]\n  selector: {}\n",
            4,
            "spec: exactly one of members and selector",
        ),
        (
            "  members:\n  - {kind: Volume, name: a}\n  - {kind: Volume, name: b}\n  - {kind: Volume, name: a}\n",
            8,
            "spec.members.2: a is listed twice",
        ),
        ("  members:\n  - {name: a}\n", 6, "kind"),
        (
            "  members:\n  - {kind: Volume, name: a, nam: b}\n",
            6,
            "nam",
        ),
        // It would mean every volume of the namespace.
        ("  selector:\n    matchLabel: {app: pg}\n", 6, "matchLabel"),
        (
            "  selector:\n    matchExpressions:\n    - {key: app, operator: Like, values: [pg]}\n",
            7,
            "Like",
        ),
        (
            "  selector:\n    matchExpressions:\n    - {key: app, operator: In}\n",
            7,
            "spec.selector.matchExpressions.0.values",
        ),
        (
            "  selector:\n    matchExpressions:\n    - {key: app, operator: Exists, values: [pg]}\n",
            7,
            "spec.selector.matchExpressions.0.values",
        ),
        ("  selector: {}\n  minMembers: -1\n", 6, "-1"),
    ] {
        let problem = wrong(&format!("{GROUP}{spec}"));
        assert!(problem.message.contains(part), "{spec}: {problem}");
        assert_eq!(problem.line, line, "{spec}: {problem}");
    }
}

#[test]
fn what_is_wrong_of_each_member_is_told_at_once() {
    let text = format!(
        "{GROUP}  members:\n  - {{kind: Volum, name: x}}\n  - {{kind: Volume}}\n  - {{kind: Volume, name: a}}\n  - {{kind: Volume, name: a}}\n"
    );
    let found: Vec<_> = read(&text)
        .unwrap_err()
        .into_iter()
        .map(|problem| (problem.line, problem.message))
        .collect();
    let wanted = [
        (6, "spec.members.0.kind: unknown variant `Volum`"),
        (7, "spec.members.1: missing field `name`"),
        (9, "spec.members.3: a is listed twice"),
    ];
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    for ((line, message), (wanted, begin)) in found.iter().zip(wanted) {
        assert_eq!(*line, wanted, "{message}");
        assert!(message.starts_with(begin), "{message}");
    }
}

#[test]
fn what_may_not_change_of_groups_and_their_snapshots_is_told() {
    let group = |spec: &str| one(&format!("{GROUP}  selector: {{}}\n{spec}"));
    let fields = |old: &Object, new: &Object| {
        let wrong = new.wrong_after(old).into_iter();
        wrong.map(|wrong| wrong.field).collect::<Vec<_>>()
    };
    let old = group("  nodeName: a\n");
    assert_eq!(fields(&old, &group("")), ["spec.nodeName"]);
    let parameters = group("  nodeName: a\n  parameters: {class: fast}\n");
    assert_eq!(fields(&old, &parameters), ["spec.parameters"]);
    let free = group("  nodeName: a\n  minMembers: 3\n  deletionPolicy: Retain\n");
    assert_eq!(fields(&old, &free), Vec::<String>::new());
    let snapshot = |spec: &str| {
        one(&format!(
            "apiVersion: drumlin.dev/v1alpha1\nkind: GroupSnapshot\nmetadata: {{name: s}}\nspec: {{{spec}}}\n"
        ))
    };
    let old = snapshot("groupName: pg");
    assert_eq!(
        fields(&old, &snapshot("groupName: other")),
        ["spec.groupName"]
    );
    let free = snapshot("groupName: pg, deletionPolicy: Retain, nodeName: a");
    assert_eq!(fields(&old, &free), Vec::<String>::new());
}
