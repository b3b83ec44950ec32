//! What our roles may do, judged by a real server: each what it is for, and nothing else.

use std::{fmt::Write, process::Output};

use drumlin_tests::{
    agent::{Agent, Options, eventually},
    cluster::{Cluster, Namespace},
    storage::Scratch,
};
use serde_json::json;

use crate::{
    installed::define_snapshots,
    kustomize::Rendered,
    node::{manifest, volume},
};

const VERBS: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];
const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];
const KINDS: [&str; 5] = [
    "volumes",
    "volumegroups",
    "snapshots",
    "groupsnapshots",
    "snapshotschedules",
];
/// What is none of ours, each with its group: everything that could do harm.
const OTHERS: [(&str, &str); 39] = [
    ("drumlin.dev", "nodecalls"),
    ("drumlin.dev", "nodecalls/status"),
    ("drumlin.dev", "nodestorages"),
    ("drumlin.dev", "nodestorages/status"),
    ("groupsnapshot.storage.k8s.io", "volumegroupsnapshots"),
    ("groupsnapshot.storage.k8s.io", "volumegroupsnapshotclasses"),
    (
        "groupsnapshot.storage.k8s.io",
        "volumegroupsnapshotcontents",
    ),
    (
        "groupsnapshot.storage.k8s.io",
        "volumegroupsnapshotcontents/status",
    ),
    ("", "secrets"),
    ("", "configmaps"),
    ("", "events"),
    ("", "pods"),
    ("", "pods/exec"),
    ("", "nodes"),
    ("", "nodes/proxy"),
    ("", "namespaces/finalize"),
    ("", "serviceaccounts"),
    ("", "serviceaccounts/token"),
    ("", "persistentvolumes"),
    ("", "persistentvolumes/status"),
    ("", "persistentvolumeclaims"),
    ("", "persistentvolumeclaims/status"),
    ("apps", "daemonsets"),
    ("coordination.k8s.io", "leases"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    (
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
    ),
    (
        "admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("storage.k8s.io", "csidrivers"),
    ("storage.k8s.io", "csinodes"),
    ("storage.k8s.io", "csistoragecapacities"),
    ("storage.k8s.io", "storageclasses"),
    ("storage.k8s.io", "volumeattributesclasses"),
    ("snapshot.storage.k8s.io", "volumesnapshots"),
    ("snapshot.storage.k8s.io", "volumesnapshots/status"),
    ("snapshot.storage.k8s.io", "volumesnapshotclasses"),
    ("snapshot.storage.k8s.io", "volumesnapshotcontents"),
    ("snapshot.storage.k8s.io", "volumesnapshotcontents/status"),
];
/// Where all of ours is.
pub(crate) const SYSTEM: &str = "drumlin-system";
/// A namespace of somebody else.
const ANY: &str = "default";
/// What our accounts may do in their own namespace alone is about some of these.
const NEAR: [(&str, &str); 13] = [
    ("drumlin.dev", "nodecalls"),
    ("drumlin.dev", "nodecalls/status"),
    ("apps", "replicasets"),
    ("apps", "deployments"),
    ("", "secrets"),
    ("", "configmaps"),
    ("", "pods"),
    ("", "pods/exec"),
    ("", "serviceaccounts/token"),
    ("apps", "daemonsets"),
    ("coordination.k8s.io", "leases"),
    ("events.k8s.io", "events"),
    ("storage.k8s.io", "csistoragecapacities"),
];

/// Whether a role may do something in a namespace.
fn may(role: &str, space: &str, verb: &str, group: &str, resource: &str) -> bool {
    if space == SYSTEM {
        match (role, (group, resource)) {
            ("controller", ("coordination.k8s.io", "leases")) => {
                return ["get", "create", "update"].contains(&verb);
            }
            ("controller", ("storage.k8s.io", "csistoragecapacities")) => {
                return ["list", "watch", "create", "update", "delete"].contains(&verb);
            }
            ("controller", ("", "pods")) | ("agent", ("drumlin.dev", "nodecalls")) => {
                return READ.contains(&verb);
            }
            ("controller", ("apps", "replicasets")) => return verb == "get",
            ("controller", ("drumlin.dev", "nodecalls")) => {
                return READ.contains(&verb) || ["create", "patch", "delete"].contains(&verb);
            }
            ("agent", ("drumlin.dev", "nodecalls/status")) => return verb == "patch",
            _ => {}
        }
    }
    let is_ours = group == "drumlin.dev";
    let (kind, is_status) = match resource.split_once('/') {
        Some((kind, "status")) => (kind, true),
        _ => (resource, false),
    };
    let is_kind = is_ours && KINDS.contains(&kind);
    match role {
        // With the sidecars, which have its account.
        "controller" => match (group, resource) {
            ("drumlin.dev", "nodestorages") => READ.contains(&verb) || verb == "create",
            ("drumlin.dev", "nodestorages/status") | ("", "persistentvolumeclaims/status") => {
                verb == "patch"
            }
            ("", "persistentvolumes") => {
                READ.contains(&verb) || ["create", "patch", "delete"].contains(&verb)
            }
            ("", "persistentvolumeclaims") => READ.contains(&verb) || verb == "update",
            ("" | "events.k8s.io", "events") => ["create", "patch"].contains(&verb),
            ("", "nodes")
            | ("storage.k8s.io", "storageclasses" | "csinodes" | "volumeattributesclasses")
            | ("snapshot.storage.k8s.io", "volumesnapshotclasses")
            | ("groupsnapshot.storage.k8s.io", "volumegroupsnapshotclasses") => {
                READ.contains(&verb)
            }
            ("snapshot.storage.k8s.io", "volumesnapshots") => {
                READ.contains(&verb) || verb == "update"
            }
            ("snapshot.storage.k8s.io", "volumesnapshotcontents")
            | ("groupsnapshot.storage.k8s.io", "volumegroupsnapshotcontents") => {
                READ.contains(&verb) || verb == "patch"
            }
            ("snapshot.storage.k8s.io", "volumesnapshotcontents/status")
            | ("groupsnapshot.storage.k8s.io", "volumegroupsnapshotcontents/status") => {
                ["update", "patch"].contains(&verb)
            }
            _ if is_kind && is_status => verb == "patch",
            _ => is_kind && (READ.contains(&verb) || verb == "patch"),
        },
        "agent" => match (group, resource) {
            ("events.k8s.io", "events") => ["create", "patch"].contains(&verb),
            ("", "namespaces") => verb == "get",
            ("drumlin.dev", "nodestorages") => ["list", "watch"].contains(&verb),
            ("drumlin.dev", "nodestorages/status") => verb == "patch",
            // Of schedules.
            ("drumlin.dev", "snapshots" | "groupsnapshots") => {
                READ.contains(&verb) || ["create", "patch", "delete"].contains(&verb)
            }
            _ if is_kind && is_status => verb == "patch",
            _ => is_kind && (READ.contains(&verb) || verb == "patch"),
        },
        "viewer" => is_kind && !is_status && READ.contains(&verb),
        "editor" => {
            let is_written = kind != "volumes" && WRITE.contains(&verb);
            is_kind && !is_status && (READ.contains(&verb) || is_written)
        }
        "owner" => is_kind && !is_status && kind == "volumes",
        _ => false,
    }
}

/// Who has a role, and which of our cluster roles it is made of.
fn subjects() -> [(&'static str, &'static str, &'static [&'static str]); 5] {
    let agent = "system:serviceaccount:drumlin-system:drumlin-agent";
    let controller = "system:serviceaccount:drumlin-system:drumlin-controller";
    [
        ("agent", agent, &[]),
        ("controller", controller, &[]),
        ("viewer", "viewer", &["drumlin-view"]),
        ("editor", "editor", &["drumlin-view", "drumlin-edit"]),
        ("owner", "owner", &["drumlin-volumes"]),
    ]
}

#[test]
fn each_role_may_do_what_it_is_for_and_nothing_else() {
    let cluster = Cluster::of_the_lab();
    install(&cluster);
    let mut all = Vec::new();
    for (role, user, parts) in subjects() {
        for part in parts {
            let binding = format!("{role}-{part}");
            let (role, user) = (format!("--clusterrole={part}"), format!("--user={user}"));
            cluster.kubectl(&["create", "clusterrolebinding", &binding, &role, &user]);
        }
        let ours = KINDS
            .iter()
            .flat_map(|kind| [(*kind).to_owned(), format!("{kind}/status")]);
        let ours = ours.map(|kind| ("drumlin.dev", kind));
        let others = OTHERS.map(|(group, resource)| (group, resource.to_owned()));
        let near = [
            ("events.k8s.io", "events".to_owned()),
            ("", "namespaces".to_owned()),
        ];
        let own = NEAR.map(|(group, resource)| (SYSTEM, group, resource.to_owned()));
        let everywhere = ours.chain(others).chain(near);
        let everywhere = everywhere.map(|(group, resource)| (ANY, group, resource));
        for (space, group, resource) in everywhere.chain(own) {
            all.extend(VERBS.map(|verb| (role, user, space, verb, group, resource.clone())));
        }
    }
    let mut wrong = String::new();
    for (role, user, space, verb, group, resource) in all {
        let (kind, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user,
                "groups": ["system:authenticated"],
                "resourceAttributes": {
                    "namespace": space, "verb": verb,
                    "group": group, "resource": kind, "subresource": subresource,
                },
            },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = &cluster.post(path, &review).unwrap()["status"]["allowed"];
        let wanted = may(role, space, verb, group, &resource);
        if *answer != wanted {
            let _ = writeln!(
                wrong,
                "{role} {verb} {resource}.{group} in {space}: {answer}, not {wanted}"
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Applies all that has roles or policies.
pub(crate) fn install(cluster: &Cluster) {
    define_snapshots(cluster);
    Rendered::of(cluster, "base", &["upstream-snapshots"]).apply(cluster);
}

/// Two nodes that there are.
pub(crate) fn two_nodes(cluster: &Cluster) -> (String, String) {
    let nodes = (cluster.name("node"), cluster.name("node"));
    for node in [&nodes.0, &nodes.1] {
        let node = format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n");
        let made = cluster.try_with_input(&["create", "-f", "-"], &node);
        assert!(made.status.success(), "{made:?}");
    }
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_writes_objects_of_its_own_node_only_and_needs_no_more() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    cluster.install();
    let (one, two) = two_nodes(&cluster);
    let agent = cluster.as_account(&scratch, "drumlin-agent", Some(&one));
    let nobody = cluster.as_account(&scratch, "drumlin-agent", None);
    let space = cluster.namespace();
    space.apply(&objects_of_two_nodes(&one, &two));
    // A policy holds a moment after it was made.
    eventually(
        || patch(&agent, &space, "dv/foreign", NOTE),
        is_of_another_node,
    )
    .await;
    no_kind_of_another_node_is_written(&agent, &space);
    let stolen = format!(r#"{{"spec": {{"nodeName": "{two}"}}}}"#);
    let stolen = patch(&agent, &space, "dv/free", &stolen);
    assert!(is_of_another_node(&stolen), "{stolen:?}");
    let own = patch(&agent, &space, "dv/own", NOTE);
    assert!(own.status.success(), "{own:?}");
    let unbound = patch(&nobody, &space, "dv/own", NOTE);
    assert!(
        said(&unbound).contains("must be bound to its node"),
        "{unbound:?}"
    );
    // The same where all of it was installed in another namespace.
    let elsewhere = account_elsewhere(&cluster);
    let account = (&*elsewhere.name, "drumlin-agent");
    let other = cluster.as_account_in(&scratch, account, Some(&one));
    let foreign = patch(&other, &space, "dv/foreign", NOTE);
    assert!(is_of_another_node(&foreign), "{foreign:?}");
    let own = patch(&other, &space, "dv/own", NOTE);
    assert!(own.status.success(), "{own:?}");
    for words in [
        ["get", "secrets"],
        ["delete", "dv/own"],
        ["create", "namespace/x"],
    ] {
        let refused = agent.try_kubectl(&["-n", &space.name, words[0], words[1]]);
        assert!(!refused.status.success(), "{words:?}");
    }
    space.kubectl(&["delete", "dgsnap,dsnap,dvg,dv", "--all"]);
    an_agent_needs_no_more(&agent, &space, &one).await;
}

/// A change that no spec has.
const NOTE: &str = r#"{"metadata": {"annotations": {"drumlin.dev/reconcile-at": "1"}}}"#;

/// Changes an object as somebody.
fn patch(who: &Cluster, space: &Namespace<'_>, object: &str, patch: &str) -> Output {
    let words = ["patch", object, "--type=merge", "-p", patch];
    who.try_kubectl(&[&["-n", &*space.name], &words[..]].concat())
}

/// Whether it was refused because the object is another node's.
fn is_of_another_node(output: &Output) -> bool {
    said(output).contains("only objects of its own node")
}

fn objects_of_two_nodes(one: &str, two: &str) -> String {
    let of = |name: &str, node: &str| volume(name, &format!("nodeName: {node}\n  capacity: 32Mi"));
    [
        of("own", one),
        of("foreign", two),
        // Nobody writes the other kinds of another node either.
        manifest(
            "VolumeGroup",
            "foreign",
            &format!("nodeName: {two}\n  selector: {{}}"),
        ),
        manifest(
            "Snapshot",
            "foreign",
            &format!("nodeName: {two}\n  source: {{volumeName: foreign}}"),
        ),
        manifest(
            "GroupSnapshot",
            "foreign",
            &format!("nodeName: {two}\n  groupName: foreign"),
        ),
        manifest(
            "SnapshotSchedule",
            "foreign",
            &format!("nodeName: {two}\n  target: {{volumeName: foreign}}\n  schedule: '@yearly'"),
        ),
        volume("free", "capacity: 32Mi"),
    ]
    .concat()
}

fn no_kind_of_another_node_is_written(agent: &Cluster, space: &Namespace<'_>) {
    let apply = [
        "-n",
        &space.name,
        "apply",
        "--server-side",
        "--subresource=status",
        "-f",
        "-",
    ];
    for (kind, short) in [
        ("Volume", "dv"),
        ("VolumeGroup", "dvg"),
        ("Snapshot", "dsnap"),
        ("GroupSnapshot", "dgsnap"),
        ("SnapshotSchedule", "dsched"),
    ] {
        let foreign = patch(agent, space, &format!("{short}/foreign"), NOTE);
        assert!(is_of_another_node(&foreign), "{kind}: {foreign:?}");
        let told = format!(
            "apiVersion: drumlin.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: foreign}}\nstatus: {{observedGeneration: 1}}\n"
        );
        let foreign = agent.try_with_input(&apply, &told);
        assert!(is_of_another_node(&foreign), "{kind}: {foreign:?}");
    }
}

/// A namespace with an account that has the agent's role.
fn account_elsewhere(cluster: &Cluster) -> Namespace<'_> {
    let elsewhere = cluster.namespace();
    elsewhere.kubectl(&["create", "serviceaccount", "drumlin-agent"]);
    let role = "--clusterrole=drumlin-agent";
    let account = format!("--serviceaccount={}:drumlin-agent", elsewhere.name);
    cluster.kubectl(&[
        "create",
        "clusterrolebinding",
        &elsewhere.name,
        role,
        &account,
    ]);
    elsewhere
}

/// All that an agent does, it does with these rights: sets finalizers, reports, and lets go.
async fn an_agent_needs_no_more(account: &Cluster, space: &Namespace<'_>, node: &str) {
    let options = Options {
        node: Some(node.to_owned()),
        arguments: account.arguments(),
        ..Options::default()
    };
    let agent = Agent::with(Scratch::new(), options).await;
    let own = format!("nodeName: {node}\n  capacity: 32Mi\n  deletionPolicy: Delete");
    space.apply(
        &[
            volume("data", &own),
            manifest(
                "VolumeGroup",
                "pg",
                &format!("nodeName: {node}\n  selector: {{}}"),
            ),
            manifest(
                "GroupSnapshot",
                "moment",
                &format!("nodeName: {node}\n  groupName: pg"),
            ),
        ]
        .concat(),
    );
    for object in ["dv/data", "dvg/pg", "dgsnap/moment"] {
        space.until_ready(object);
    }
    let events = space.kubectl(&["get", "events.events.k8s.io", "-o", "name"]);
    assert!(!events.is_empty());
    space.kubectl(&["delete", "dgsnap,dvg,dv", "--all", "--timeout=60s"]);
    assert!(!agent.log().contains("forbidden"), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_gives_no_object_a_node() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    cluster.install();
    let (one, _) = two_nodes(&cluster);
    let agent = cluster.as_account(&scratch, "drumlin-agent", Some(&one));
    let space = cluster.namespace();
    space.apply(
        &[
            volume("own", &format!("nodeName: {one}\n  capacity: 32Mi")),
            volume("free", "capacity: 32Mi"),
        ]
        .concat(),
    );
    let patch = |object: &str, patch: &str| {
        let words = ["-n", &space.name, "patch", object, "--type=merge", "-p"];
        agent.try_kubectl(&[&words[..], &[patch]].concat())
    };
    let claim = format!(r#"{{"spec": {{"nodeName": "{one}"}}}}"#);
    let label = r#"{"metadata": {"labels": {"a": "b"}}}"#;
    let note = r#"{"metadata": {"annotations": {"a": "b"}}}"#;
    // A policy holds a moment after it was made; what is not claimed yet is no agent's to write in any case.
    eventually(
        || patch("dv/free", label),
        |output| !output.status.success(),
    )
    .await;
    let refused = patch("dv/free", &claim);
    assert!(
        said(&refused).contains("an agent gives no object a node"),
        "{refused:?}"
    );
    let own = patch("dv/own", note);
    assert!(own.status.success(), "{own:?}");
    let labelled = patch("dv/own", label);
    assert!(
        said(&labelled).contains("an agent does not change the labels of an object"),
        "{labelled:?}"
    );
}

/// A `PersistentVolume`.
pub(crate) fn persistent(name: &str, driver: &str, handle: &str) -> String {
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "drumlin",
            "csi": {"driver": driver, "volumeHandle": handle},
        },
    });
    format!("---\n{volume}\n")
}
