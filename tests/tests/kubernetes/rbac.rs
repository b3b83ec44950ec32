//! What our roles may do, judged by a real server: each what it is for, and nothing else.

use std::{fmt::Write, process::Output};

use drumlin_tests::{
    agent::{Agent, Options, eventually},
    cluster::{Cluster, Namespace},
    storage::Scratch,
};
use serde_json::{Value, json};

use crate::{
    installed::define_snapshots,
    kustomize::Rendered,
    node::{manifest, volume},
};

const VERBS: [&str; 7] = [
    "get", "list", "watch", "create", "update", "patch", "delete",
];
const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch", "delete"];
const KINDS: [&str; 4] = ["volumes", "volumegroups", "snapshots", "groupsnapshots"];
/// What is none of ours, each with its group: everything that could do harm.
const OTHERS: [(&str, &str); 27] = [
    ("", "secrets"),
    ("", "configmaps"),
    ("", "events"),
    ("", "pods"),
    ("", "pods/exec"),
    ("", "nodes"),
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
const NEAR: [(&str, &str); 9] = [
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
        let leases = ("coordination.k8s.io", "leases");
        match (role, (group, resource)) {
            ("controller", asked) if asked == leases => {
                return ["get", "create", "update"].contains(&verb);
            }
            ("controller", ("events.k8s.io", "events")) => {
                return ["create", "patch"].contains(&verb);
            }
            ("resizer", asked) if asked == leases => return verb != "patch",
            ("provisioner", ("storage.k8s.io", "csistoragecapacities")) => return true,
            ("provisioner", ("", "pods")) => return verb == "get",
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
        "controller" => match (group, resource) {
            ("", "nodes" | "persistentvolumes" | "persistentvolumeclaims") => READ.contains(&verb),
            _ if is_kind && is_status => verb == "patch",
            _ => is_kind && (READ.contains(&verb) || verb == "patch"),
        },
        "agent" => match (group, resource) {
            ("events.k8s.io", "events") => ["create", "patch"].contains(&verb),
            ("", "namespaces") => verb == "get",
            _ if is_kind && is_status => verb == "patch",
            _ => is_kind && (READ.contains(&verb) || verb == "patch"),
        },
        "provisioner" => match (group, resource) {
            ("", "persistentvolumes") => {
                READ.contains(&verb) || ["create", "patch", "delete"].contains(&verb)
            }
            ("", "persistentvolumeclaims") => READ.contains(&verb) || verb == "update",
            ("", "events") => !["get", "delete"].contains(&verb),
            ("", "nodes")
            | ("storage.k8s.io", "storageclasses" | "csinodes" | "volumeattributesclasses") => {
                READ.contains(&verb)
            }
            // This account is the snapshotter's, too.
            ("snapshot.storage.k8s.io", "volumesnapshots") => {
                READ.contains(&verb) || verb == "update"
            }
            ("snapshot.storage.k8s.io", "volumesnapshotclasses") => READ.contains(&verb),
            ("snapshot.storage.k8s.io", "volumesnapshotcontents") => {
                READ.contains(&verb) || ["update", "patch"].contains(&verb)
            }
            ("snapshot.storage.k8s.io", "volumesnapshotcontents/status") => {
                ["update", "patch"].contains(&verb)
            }
            _ => false,
        },
        "resizer" => match (group, resource) {
            ("", "persistentvolumes") => READ.contains(&verb) || verb == "patch",
            ("", "persistentvolumeclaims" | "pods")
            | ("storage.k8s.io", "volumeattributesclasses") => READ.contains(&verb),
            ("", "persistentvolumeclaims/status") => verb == "patch",
            ("", "events") => !["get", "delete"].contains(&verb),
            _ => false,
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
fn subjects() -> [(&'static str, &'static str, &'static [&'static str]); 7] {
    let agent = "system:serviceaccount:drumlin-system:drumlin-agent";
    let controller = "system:serviceaccount:drumlin-system:drumlin-controller";
    let provisioner = "system:serviceaccount:drumlin-system:drumlin-provisioner";
    let resizer = "system:serviceaccount:drumlin-system:drumlin-resizer";
    [
        ("agent", agent, &[]),
        ("controller", controller, &[]),
        ("provisioner", provisioner, &[]),
        ("resizer", resizer, &[]),
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
    let mut text = String::new();
    for (_, user, space, verb, group, resource) in &all {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let _ = writeln!(
            text,
            "---\napiVersion: authorization.k8s.io/v1\nkind: SubjectAccessReview\nspec:\n  user: {user}\n  groups: [system:authenticated]\n  resourceAttributes: {{namespace: {space}, verb: {verb}, group: \"{group}\", resource: {resource}, subresource: \"{subresource}\"}}"
        );
    }
    let asked = [
        "create",
        "-f",
        "-",
        "-o",
        "jsonpath={.status.allowed}{\"\\n\"}",
    ];
    let output = cluster.try_with_input(&asked, &text);
    let answers = String::from_utf8_lossy(&output.stdout).into_owned();
    let answers: Vec<&str> = answers.split_whitespace().collect();
    assert_eq!(answers.len(), all.len(), "{}", said(&output));
    let mut wrong = String::new();
    for ((role, _, space, verb, group, resource), answer) in all.iter().zip(answers) {
        let wanted = may(role, space, verb, group, resource);
        if answer != wanted.to_string() {
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
fn install(cluster: &Cluster) {
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

/// All that an agent does, it does with these rights: guards, claims, tells, lets go.
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
            manifest("VolumeGroup", "pg", "selector: {}"),
            manifest("GroupSnapshot", "moment", "groupName: pg"),
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
async fn where_the_controller_claims_an_agent_cannot() {
    // Of its own: others install the policy as it is without that.
    let (cluster, scratch) = (Cluster::own(), Scratch::new());
    Rendered::of(&cluster, "overlays/large", &[]).apply(&cluster);
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
    // A policy holds a moment after it was made; what is not claimed yet is no agent's to write in any case.
    eventually(
        || patch("dv/free", label),
        |output| !output.status.success(),
    )
    .await;
    let refused = patch("dv/free", &claim);
    assert!(
        said(&refused).contains("an agent claims nothing"),
        "{refused:?}"
    );
    let own = patch("dv/own", label);
    assert!(own.status.success(), "{own:?}");
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

const OURS: &str = "csi.drumlin.dev";

fn is_foreign(output: &Output) -> bool {
    said(output).contains("of its own node, which is")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provisioner_writes_volumes_of_its_own_node_only() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    install(&cluster);
    let (one, two) = two_nodes(&cluster);
    let provisioner = cluster.as_account(&scratch, "drumlin-provisioner", Some(&one));
    let nobody = cluster.as_account(&scratch, "drumlin-provisioner", None);
    let name = |kind: &str| cluster.name(kind);
    let create = |who: &Cluster, volume: &str| who.try_with_input(&["create", "-f", "-"], volume);
    let foreign = name("pv");
    let volume = persistent(&foreign, OURS, &format!("{two}/default/v"));
    assert!(create(&cluster, &volume).status.success());
    let strange = name("pv");
    let volume = persistent(&strange, "csi.example.com", &format!("{one}/default/v"));
    assert!(create(&cluster, &volume).status.success());
    let local = name("pv");
    let volume = format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {local}}}\nspec: {{capacity: {{storage: 1Gi}}, accessModes: [ReadWriteOnce], hostPath: {{path: /x}}}}\n"
    );
    assert!(create(&cluster, &volume).status.success());

    let note = r#"{"metadata": {"annotations": {"a": "b"}}}"#;
    let patch = |who: &Cluster, name: &str| {
        who.try_kubectl(&["patch", "pv", name, "--type=merge", "-p", note])
    };
    let delete = |who: &Cluster, name: &str| {
        // Nobody here lets go of what is to be protected while it is used.
        who.try_kubectl(&["delete", "pv", name, "--wait=false"])
    };
    // A policy holds a moment after it was made.
    eventually(|| patch(&provisioner, &foreign), is_foreign).await;
    for name in [&foreign, &strange, &local] {
        for refused in [patch(&provisioner, name), delete(&provisioner, name)] {
            assert!(is_foreign(&refused), "{name}: {refused:?}");
        }
    }
    for (driver, handle) in [
        (OURS, format!("{two}/default/w")),
        // The name of one may begin as that of another does.
        (OURS, format!("{one}0/default/w")),
        (OURS, one.clone()),
        ("csi.example.com", format!("{one}/default/w")),
    ] {
        let refused = create(&provisioner, &persistent(&name("pv"), driver, &handle));
        assert!(is_foreign(&refused), "{handle}: {refused:?}");
    }
    let own = name("pv");
    let volume = persistent(&own, OURS, &format!("{one}/default/v"));
    let unbound = create(&nobody, &volume);
    let is_unbound = said(&unbound).contains("must be bound to its node");
    assert!(is_unbound, "{unbound:?}");
    for done in [
        create(&provisioner, &volume),
        patch(&provisioner, &own),
        delete(&provisioner, &own),
    ] {
        assert!(done.status.success(), "{done:?}");
    }
}

/// A `VolumeSnapshotContent` that the controller of the cluster has said the node of.
fn content(name: &str, node: &str, source: &Value) -> String {
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {
            "name": name,
            "labels": {"snapshot.storage.kubernetes.io/managed-by": node},
        },
        "spec": {
            "deletionPolicy": "Delete",
            "driver": OURS,
            "source": source,
            "volumeSnapshotRef": {"name": "s", "namespace": "default"},
        },
    });
    format!("---\n{content}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshotter_writes_contents_of_its_own_node_only() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    install(&cluster);
    let (one, two) = two_nodes(&cluster);
    let snapshotter = cluster.as_account(&scratch, "drumlin-provisioner", Some(&one));
    let nobody = cluster.as_account(&scratch, "drumlin-provisioner", None);
    let handle = |node: &str| json!({"volumeHandle": format!("{node}/default/v")});
    let taken = |node: &str| json!({"snapshotHandle": format!("{node}/default/s")});
    let make = |node: &str, source: &Value| {
        let name = cluster.name("content");
        let made = cluster.try_with_input(&["create", "-f", "-"], &content(&name, node, source));
        assert!(made.status.success(), "{made:?}");
        name
    };
    let patch = |who: &Cluster, name: &str, patch: &str| {
        let kind = "volumesnapshotcontent";
        who.try_kubectl(&["patch", kind, name, "--type=merge", "-p", patch])
    };
    let note = r#"{"metadata": {"annotations": {"a": "b"}}}"#;
    let foreign = make(&two, &handle(&two));
    // A policy holds a moment after it was made.
    eventually(|| patch(&snapshotter, &foreign, note), is_foreign).await;
    let own = make(&one, &handle(&one));
    let tell = |name: &str, node: &str| {
        let told = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": name},
            "status": taken(node),
        });
        let apply = ["apply", "--server-side", "--subresource=status", "-f", "-"];
        snapshotter.try_with_input(&apply, &told.to_string())
    };
    for refused in [
        // What names the node is not what says whose bytes they are.
        patch(&snapshotter, &make(&one, &handle(&two)), note),
        patch(&snapshotter, &make(&one, &taken(&two)), note),
        tell(&foreign, &two),
        tell(&foreign, &one),
        tell(&own, &two),
        patch(
            &snapshotter,
            &own,
            &format!(
                r#"{{"metadata": {{"labels": {{"snapshot.storage.kubernetes.io/managed-by": "{two}"}}}}}}"#
            ),
        ),
    ] {
        assert!(is_foreign(&refused), "{refused:?}");
    }
    let unbound = patch(&nobody, &own, note);
    let is_unbound = said(&unbound).contains("must be bound to its node");
    assert!(is_unbound, "{unbound:?}");
    for done in [
        patch(&snapshotter, &own, note),
        tell(&own, &one),
        patch(&snapshotter, &make(&one, &taken(&one)), note),
    ] {
        assert!(done.status.success(), "{done:?}");
    }
}
