//! What our roles may do, judged by a real server: each what it is for, and nothing else.

use std::{fmt::Write, process::Output};

use crate::node::{manifest, volume};
use drumlin_tests::{
    agent::{Agent, Options, eventually},
    cluster::Cluster,
    storage::Scratch,
};

const VERBS: [&str; 7] = [
    "get", "list", "watch", "create", "update", "patch", "delete",
];
const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch", "delete"];
const KINDS: [&str; 4] = ["volumes", "volumegroups", "snapshots", "groupsnapshots"];
/// What is none of ours, each with its group: everything that could do harm.
const OTHERS: [(&str, &str); 17] = [
    ("", "secrets"),
    ("", "configmaps"),
    ("", "pods"),
    ("", "pods/exec"),
    ("", "nodes"),
    ("", "serviceaccounts"),
    ("", "serviceaccounts/token"),
    ("", "persistentvolumes"),
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
    ("storage.k8s.io", "storageclasses"),
];

/// Whether a role may do something.
fn may(role: &str, verb: &str, group: &str, resource: &str) -> bool {
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
            ("", "nodes") | ("storage.k8s.io", "storageclasses") => READ.contains(&verb),
            _ => false,
        },
        "resizer" => match (group, resource) {
            ("", "persistentvolumes") => READ.contains(&verb) || verb == "patch",
            ("", "persistentvolumeclaims" | "pods") => READ.contains(&verb),
            ("", "persistentvolumeclaims/status") => verb == "patch",
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
    cluster.install();
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
        for (group, resource) in ours.chain(others).chain(near) {
            all.extend(VERBS.map(|verb| (role, user, verb, group, resource.clone())));
        }
    }
    let mut text = String::new();
    for (_, user, verb, group, resource) in &all {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let _ = writeln!(
            text,
            "---\napiVersion: authorization.k8s.io/v1\nkind: SubjectAccessReview\nspec:\n  user: {user}\n  groups: [system:authenticated]\n  resourceAttributes: {{namespace: default, verb: {verb}, group: \"{group}\", resource: {resource}, subresource: \"{subresource}\"}}"
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
    for ((role, _, verb, group, resource), answer) in all.iter().zip(answers) {
        let wanted = may(role, verb, group, resource);
        if answer != wanted.to_string() {
            let _ = writeln!(
                wrong,
                "{role} {verb} {resource}.{group}: {answer}, not {wanted}"
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_writes_objects_of_its_own_node_only_and_needs_no_more() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    cluster.install();
    let (one, two) = (cluster.name("node"), cluster.name("node"));
    for node in [&one, &two] {
        let node = format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n");
        assert!(
            cluster
                .try_with_input(&["create", "-f", "-"], &node)
                .status
                .success()
        );
    }
    let agent = cluster.as_account(&scratch, "drumlin-agent", Some(&one));
    let nobody = cluster.as_account(&scratch, "drumlin-agent", None);
    let space = cluster.namespace();
    let of = |name: &str, node: &str| volume(name, &format!("nodeName: {node}\n  capacity: 32Mi"));
    space.apply(
        &[
            of("own", &one),
            of("foreign", &two),
            volume("free", "capacity: 32Mi"),
        ]
        .concat(),
    );

    let patch = |who: &Cluster, object: &str, more: &[&str], patch: &str| {
        let words = [
            "-n",
            &space.name,
            "patch",
            object,
            "--type=merge",
            "-p",
            patch,
        ];
        let words: Vec<&str> = words.iter().chain(more).copied().collect();
        who.try_kubectl(&words)
    };
    let note = r#"{"metadata": {"annotations": {"drumlin.dev/reconcile-at": "1"}}}"#;
    let status = "status: {observedGeneration: 1, mountPath: /}";
    let is_refused = |output: &Output| said(output).contains("only objects of its own node");
    // A policy holds a moment after it was made.
    eventually(|| patch(&agent, "dv/foreign", &[], note), is_refused).await;
    let told = format!(
        "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {{name: foreign}}\n{status}\n"
    );
    let apply = [
        "-n",
        &space.name,
        "apply",
        "--server-side",
        "--subresource=status",
        "-f",
        "-",
    ];
    let foreign = agent.try_with_input(&apply, &told);
    assert!(is_refused(&foreign), "{foreign:?}");
    let stolen = patch(
        &agent,
        "dv/free",
        &[],
        &format!(r#"{{"spec": {{"nodeName": "{two}"}}}}"#),
    );
    assert!(is_refused(&stolen), "{stolen:?}");
    let own = patch(&agent, "dv/own", &[], note);
    assert!(own.status.success(), "{own:?}");
    let unbound = patch(&nobody, "dv/own", &[], note);
    assert!(
        said(&unbound).contains("must be bound to its node"),
        "{unbound:?}"
    );
    for words in [
        ["get", "secrets"],
        ["delete", "dv/own"],
        ["create", "namespace/x"],
    ] {
        let refused = agent.try_kubectl(&["-n", &space.name, words[0], words[1]]);
        assert!(!refused.status.success(), "{words:?}");
    }

    // All that an agent does, it does with these rights: guards, claims, tells, lets go.
    space.kubectl(&["delete", "dv", "--all"]);
    let options = Options {
        node: Some(one.clone()),
        arguments: agent.arguments(),
        ..Options::default()
    };
    let agent = Agent::with(Scratch::new(), options).await;
    let own = format!("nodeName: {one}\n  capacity: 32Mi\n  deletionPolicy: Delete");
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
