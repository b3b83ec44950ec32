//! The same object is judged alike by the server and by `drumlin validate`.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use drumlin_tests::{
    agent::write,
    cluster::Cluster,
    programs::{drumlin, program},
    storage::Scratch,
};
use serde_json::{Value, json};

use crate::node::volume;

/// So many objects are made up.
const OBJECTS: u64 = 500;

/// Where a field is, and what it may be.
type Field = (&'static str, Vec<Value>);

/// An object that is right, and what each of its fields may be besides: right and wrong.
fn kinds() -> Vec<(Value, Vec<Field>)> {
    let object = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "drumlin.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": "a", "labels": {"app": "pg"}},
            "spec": spec,
        })
    };
    let members = json!([member("Volume", "a")]);
    let kinds = [
        (
            object("Volume", json!({"nodeName": "n", "capacity": "1Gi"})),
            [sizes_and_names(), sources_and_mounts()].concat(),
        ),
        (
            object("VolumeGroup", json!({"nodeName": "n", "members": members})),
            fields_of_groups(),
        ),
        (
            object("Snapshot", json!({"source": {"volumeName": "v"}})),
            fields_of_snapshots(),
        ),
        (
            object("GroupSnapshot", json!({"groupName": "g"})),
            vec![(
                "/spec/groupName",
                vec![json!("h"), json!(""), json!(null), json!("A B"), json!(1)],
            )],
        ),
        (
            object(
                "SnapshotSchedule",
                json!({"target": {"volumeName": "v"}, "schedule": "@hourly"}),
            ),
            fields_of_schedules(),
        ),
    ];
    let kinds = kinds.into_iter();
    kinds
        .map(|(object, own)| (object, [own, shared()].concat()))
        .collect()
}

/// The fields that every kind has.
fn shared() -> Vec<Field> {
    let long = "x".repeat(254);
    vec![
        (
            "/metadata/name",
            vec![json!("b.c"), json!("Bad_Name"), json!("-a"), json!(long)],
        ),
        (
            "/metadata/labels",
            vec![json!({}), json!({"app": true}), json!({"app": "1"})],
        ),
        (
            "/spec/nodeName",
            vec![
                json!("node-a"),
                json!(""),
                json!(long),
                json!(7),
                json!(null),
            ],
        ),
        (
            "/spec/parameters",
            vec![
                json!({}),
                json!({"a": "b"}),
                json!({"a": 1}),
                json!({"": "x"}),
            ],
        ),
        (
            "/spec/deletionPolicy",
            vec![
                json!("Retain"),
                json!("Delete"),
                json!("Keep"),
                json!("retain"),
            ],
        ),
        ("/spec/colour", vec![json!("red")]),
        ("/apiVersion", vec![json!("drumlin.dev/v1")]),
    ]
}

/// Fields of a volume that are a word.
fn sizes_and_names() -> Vec<Field> {
    vec![
        (
            "/spec/capacity",
            vec![
                json!("10Gi"),
                json!("10GB"),
                json!("1e3"),
                json!("0"),
                json!("-1Gi"),
                json!(10),
                json!(""),
                json!("1.5Gi"),
                json!("100m"),
                json!("9E"),
                json!("1 Gi"),
                json!(null),
                json!("+1Gi"),
                json!("0x10"),
                json!(".5Gi"),
                json!("5."),
            ],
        ),
        (
            "/spec/volumeMode",
            vec![json!("Block"), json!("Filesystem"), json!("block")],
        ),
        (
            "/spec/fsType",
            vec![json!("xfs"), json!("btrfs"), json!("ext3")],
        ),
        (
            "/spec/deviceClass",
            vec![json!("thin"), json!("No Class"), json!(""), json!("a.b")],
        ),
    ]
}

/// Fields of a volume that have fields.
fn sources_and_mounts() -> Vec<Field> {
    vec![
        (
            "/spec/source",
            vec![
                json!({"snapshotName": "s"}),
                json!({"volumeName": "v"}),
                json!({"snapshotName": "s", "volumeName": "v"}),
                json!({}),
                json!({"snapshotName": null, "volumeName": "v"}),
                json!({"groupSnapshot": {"name": "g", "member": "m"}}),
                json!({"groupSnapshot": {"name": "g"}}),
                json!({"snapshotName": "Not A Name"}),
            ],
        ),
        (
            "/spec/mount",
            vec![
                json!({"path": "/srv/a"}),
                json!({"path": "srv/a"}),
                json!({"path": "/srv/../etc"}),
                json!({"path": "/"}),
                json!({"path": "/srv/"}),
                json!({"path": "/srv//a"}),
                json!({"path": "/srv/./a"}),
                json!({"path": "/srv/..a"}),
                json!({"path": "/a", "options": ["noatime"]}),
                json!({"path": "/a", "options": vec!["o"; 33]}),
                json!({"path": "/a", "readOnly": "yes"}),
                json!({"path": "/a", "readOnly": true}),
                json!({"options": []}),
                json!({"path": format!("/{}", "x".repeat(4095))}),
            ],
        ),
    ]
}

fn member(kind: &str, name: &str) -> Value {
    json!({"kind": kind, "name": name})
}

fn fields_of_groups() -> Vec<Field> {
    let many: Vec<Value> = (0..129)
        .map(|number| member("Volume", &format!("v{number}")))
        .collect();
    vec![
        (
            "/spec/members",
            vec![
                json!([member("Volume", "a"), member("Volume", "b")]),
                json!([member("Disk", "a")]),
                json!([]),
                json!(null),
                json!(many),
                json!([member("PersistentVolumeClaim", "a")]),
                json!([member("Volume", "a"), member("Volume", "a")]),
                json!([{"name": "a"}]),
                json!([member("Volume", "A B")]),
            ],
        ),
        (
            "/spec/selector",
            vec![
                json!(null),
                json!({}),
                json!({"matchLabels": {"app": "pg"}}),
                json!({"matchLabels": {"app": 1}}),
                json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}),
                json!({"matchExpressions": [{"key": "a", "operator": "Near"}]}),
                json!({"matchLabel": {}}),
            ],
        ),
        (
            "/spec/minMembers",
            vec![
                json!(0),
                json!(2),
                json!(-1),
                json!("2"),
                json!(128),
                json!(4_294_967_296_i64),
            ],
        ),
    ]
}

fn fields_of_snapshots() -> Vec<Field> {
    vec![(
        "/spec/source",
        vec![
            json!({"persistentVolumeClaimName": "c"}),
            json!({}),
            json!({"volumeName": "v", "persistentVolumeClaimName": "c"}),
            json!({"volumeName": ""}),
            json!(null),
            json!({"volumeName": "v", "persistentVolumeClaimName": null}),
        ],
    )]
}

/// The server knows the form of a schedule; numbers and names in it, and those of time zones, are left to the agent.
fn fields_of_schedules() -> Vec<Field> {
    let times = [
        "0 2 * * *",
        "*/15 0-6,20-23 1,15 jan-Mar MON-fri",
        "0 0 * * 7",
        "0 0 L * *",
        "0 0 * * 5#2",
        "0 2 * *",
        "0 0 2 * * *",
        " 0 2 * * *",
        "@yearly",
        "@reboot",
        "",
    ];
    let counts = [
        json!(0),
        json!(1),
        json!(1000),
        json!(1001),
        json!(-1),
        json!("1"),
    ];
    let long = "x".repeat(64);
    vec![
        ("/spec/schedule", times.map(|one| json!(one)).to_vec()),
        (
            "/spec/target",
            vec![
                json!({"groupName": "g"}),
                json!({"persistentVolumeClaimName": "c"}),
                json!({}),
                json!({"groupName": "g", "volumeName": "v"}),
                json!({"groupName": "g", "volumeName": null}),
                json!({"groupName": ""}),
            ],
        ),
        (
            "/spec/timeZone",
            vec![json!("Europe/Berlin"), json!(""), json!(1)],
        ),
        (
            "/spec/jitterSeconds",
            vec![json!(0), json!(86_400), json!(86_401), json!(-1)],
        ),
        (
            "/spec/startingDeadlineSeconds",
            vec![json!(10), json!(9), json!(31_536_001)],
        ),
        ("/spec/suspend", vec![json!(true), json!("true")]),
        (
            "/spec/retention",
            counts
                .iter()
                .flat_map(|count| [json!({"keepLast": count}), json!({"weekly": count})])
                .chain([json!({}), json!({"keep": 1})])
                .collect(),
        ),
        ("/metadata/name", vec![json!(long)]),
    ]
}

/// The object of a number: one of the kinds, with none to two of its fields changed.
fn object(number: u64) -> Value {
    let mut random = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random >> 11).unwrap() % below
    };
    let kinds = kinds();
    let (mut object, fields) = kinds[draw(kinds.len())].clone();
    for _ in 0..draw(3) {
        let (at, values) = &fields[draw(fields.len())];
        let (parent, name) = at.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[name] = values[draw(values.len())].clone();
    }
    object
}

/// What a judge says, and whether that is yes.
type Judgement = (bool, String);

fn by_server(cluster: &Cluster, object: &Value) -> Judgement {
    let kinds = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
    let path = format!(
        "/apis/drumlin.dev/v1alpha1/namespaces/default/{kinds}?dryRun=All&fieldValidation=Strict"
    );
    match cluster.post(&path, object) {
        Ok(_) => (true, String::new()),
        Err(said) => (false, said),
    }
}

fn by_drumlin(scratch: &Scratch, number: u64, text: &str) -> Judgement {
    let path = scratch.path().join(format!("{number}.json"));
    write(&path, text);
    let output = program(drumlin())
        .arg("validate")
        .arg(&path)
        .output()
        .unwrap();
    fs::remove_file(&path).unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

#[test]
fn five_hundred_objects_are_judged_alike() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    let (right, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let differing: Vec<String> = thread::scope(|scope| {
        let judges: Vec<_> = (0..4)
            .map(|part| {
                let (cluster, scratch, right, wrong) = (&cluster, &scratch, &right, &wrong);
                scope.spawn(move || {
                    let mut differing = Vec::new();
                    for number in (part..OBJECTS).step_by(4) {
                        let object = object(number);
                        let text = object.to_string();
                        let (server, drumlin) = (
                            by_server(cluster, &object),
                            by_drumlin(scratch, number, &text),
                        );
                        if server.0 != drumlin.0 {
                            differing.push(format!(
                                "{text}\n  server: {server:?}\n  drumlin: {drumlin:?}\n"
                            ));
                        }
                        let judged = if server.0 { right } else { wrong };
                        judged.fetch_add(1, Ordering::Relaxed);
                    }
                    differing
                })
            })
            .collect();
        judges
            .into_iter()
            .flat_map(|judge| judge.join().unwrap())
            .collect()
    });
    assert!(
        differing.is_empty(),
        "{}: {}",
        differing.len(),
        differing.concat()
    );
    let (right, wrong) = (right.into_inner(), wrong.into_inner());
    assert!(right > 100 && wrong > 100, "{right} right, {wrong} wrong");
}

#[test]
fn what_may_not_change_is_refused_by_the_server() {
    let cluster = Cluster::of_the_lab();
    let space = cluster.namespace();
    let spec =
        |capacity: &str, more: &str| volume("data", &format!("capacity: {capacity}\n  {more}"));
    space.apply(&spec("2Gi", "nodeName: nowhere"));
    // What was left out may be said later.
    let said = "nodeName: nowhere\n  fsType: ext4\n  deviceClass: default";
    space.apply(&spec("3Gi", said));
    for (changed, word) in [
        (spec("1Gi", "nodeName: nowhere"), "capacity can only grow"),
        (
            spec("3Gi", "nodeName: elsewhere"),
            "nodeName cannot be changed",
        ),
        (spec("3Gi", ""), "nodeName cannot be changed"),
        (spec("3Gi", "nodeName: nowhere\n  fsType: xfs"), "fsType"),
        (
            spec("3Gi", "nodeName: nowhere\n  deviceClass: other"),
            "deviceClass",
        ),
        (
            spec("3Gi", "nodeName: nowhere\n  source: {volumeName: v}"),
            "source",
        ),
    ] {
        let output = cluster.try_with_input(&["-n", &space.name, "replace", "-f", "-"], &changed);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(word),
            "{word}: {said}"
        );
    }
}
