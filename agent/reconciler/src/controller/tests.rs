//! The controller with a fake API server that only records requests, or refuses them.

use std::{sync::Arc, time::Duration};

use drumlin_crd::{Candidate, ObjectKey};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::{api::DynamicObject, core::PartialObjectMeta, runtime::watcher::Event};
use serde_json::{Value, json};

use super::{ControllerSettings, cluster_cache::WatchEvent, view::View};
use crate::source::kubernetes::{
    fake_api_server::{Answer, Asked, Fake},
    server::Server,
};

fn view(fake: &Fake) -> View {
    let settings = ControllerSettings {
        kubeconfig: None,
        driver: "csi.drumlin.dev".to_owned(),
        namespace: "default".to_owned(),
        identity: "one".to_owned(),
        claims_all: false,
        node_grace: Duration::ZERO,
    };
    View::new(Server::known_by(fake.client()), Arc::new(settings))
}

fn key(kind: &str, name: &str) -> ObjectKey {
    ObjectKey {
        kind: kind.to_owned(),
        namespace: "db".to_owned(),
        name: name.to_owned(),
    }
}

/// A Drumlin object.
fn object(kind: &str, uid: &str, spec: &Value, status: &Value) -> DynamicObject {
    let object = json!({
        "apiVersion": "drumlin.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": "one", "namespace": "db", "uid": uid, "generation": 1},
        "spec": spec,
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}

fn snapshot(uid: &str) -> Event<DynamicObject> {
    let spec = json!({"source": {"persistentVolumeClaimName": "data"}});
    Event::Apply(object("Snapshot", uid, &spec, &json!({})))
}

fn see(view: &mut View, kind: &'static str, event: Event<DynamicObject>) {
    view.hear(WatchEvent::Object(kind, Box::new(event)));
}

/// An event of the node of an object: added or removed.
fn see_node(view: &mut View, event: fn(PartialObjectMeta<Node>) -> Event<PartialObjectMeta<Node>>) {
    let node = serde_json::from_value(json!({"metadata": {"name": "node-a"}})).unwrap();
    view.hear(WatchEvent::Node(Box::new(event(node))));
}

/// The change requests since the last call.
fn changes(fake: &Fake) -> impl Iterator<Item = Asked> + use<> {
    let asked = fake.asked().into_iter();
    asked.filter(|asked| asked.body.is_object())
}

/// The statuses written since the last call.
fn told(fake: &Fake) -> Vec<Value> {
    let asked = fake.asked().into_iter();
    let asked = asked.filter(|asked: &Asked| asked.path.ends_with("/status"));
    asked.map(|asked| asked.body["status"].clone()).collect()
}

/// A group whose two members are on two nodes, and its status so far.
fn spread(fake: &Fake, view: &mut View, status: &Value) {
    for (name, node) in [("data", "node-a"), ("wal", "node-b")] {
        bound(fake, view, (name, name), node);
    }
    let member = |name: &str| json!({"kind": "PersistentVolumeClaim", "name": name});
    let spec = json!({"members": [member("data"), member("wal")]});
    let group = object("VolumeGroup", "1", &spec, status);
    see(view, "VolumeGroup", Event::Apply(group));
}

/// The events of a bound claim, and of a snapshot of it.
fn with_snapshot(fake: &Fake) -> View {
    let mut view = view(fake);
    bound(fake, &mut view, ("data", "1"), "node-a");
    see(&mut view, "Snapshot", snapshot("1"));
    view
}

/// A claim with this name and UID, bound to a volume on a node, also on the server.
fn bound(fake: &Fake, view: &mut View, (name, uid): (&str, &str), node: &str) {
    fake.has_claim(name, uid);
    claim(view, name, uid, "Bound");
    volume(view, name, Some(uid), node);
}

/// A `PersistentVolumeClaim`.
fn claim(view: &mut View, name: &str, uid: &str, phase: &str) {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "db", "uid": uid},
        "spec": {"volumeName": format!("pv-{name}")},
        "status": {"phase": phase},
    }))
    .unwrap();
    view.hear(WatchEvent::CachedClaim(Box::new(Event::Apply(claim))));
}

/// Its volume, on a node.
fn volume(view: &mut View, name: &str, uid: Option<&str>, node: &str) {
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": format!("pv-{name}")},
        "spec": {
            "claimRef": {"namespace": "db", "name": name, "uid": uid},
            "csi": {"driver": "csi.drumlin.dev", "volumeHandle": format!("{node}/fast/{name}")},
        },
    }))
    .unwrap();
    view.hear(WatchEvent::Volume(Box::new(Event::Apply(volume))));
}

#[tokio::test]
async fn a_claim_means_a_volume_only_when_both_say_so_by_their_ids() {
    let cases = [
        ("the same claim", "new", Some("new"), "Bound", Some(true)),
        // A retained volume of an earlier tenant, and a claim of the same name that names it.
        ("a former claim", "new", Some("old"), "Bound", None),
        ("a former claim", "new", Some("old"), "Pending", None),
        ("not bound yet", "new", Some("new"), "Pending", Some(false)),
        ("reserved by name", "new", None, "Pending", Some(false)),
        ("reserved by name", "new", Some(""), "Bound", Some(false)),
    ];
    for (case, uid, bound_to, phase, expected) in cases {
        let mut view = view(&Fake::willing());
        claim(&mut view, "data", uid, phase);
        volume(&mut view, "data", bound_to, "node-a");
        see(&mut view, "Snapshot", snapshot("1"));
        let seen = view.seen(&key("Snapshot", "one")).unwrap();
        let found: Vec<Candidate> = view.candidates(seen.record.as_ref().unwrap());
        let has_handle = |one: &Candidate| one.volume_handle.is_some();
        assert_eq!(found.first().map(has_handle), expected, "{case}");
    }
}

#[tokio::test]
async fn an_object_that_is_made_again_is_told_again() {
    let fake = Fake::willing();
    let mut view = with_snapshot(&fake);
    for expected in [1, 0] {
        view.look_at_claims("db");
        view.is_done().await;
        assert_eq!(told(&fake).len(), expected);
    }
    // The deletion of its predecessor was not observed.
    see(&mut view, "Snapshot", snapshot("2"));
    view.look_at_claims("db");
    view.is_done().await;
    let expected = json!([{
        "kind": "PersistentVolumeClaim", "name": "data",
        "nodeName": "node-a", "volumeHandle": "node-a/fast/data",
    }]);
    assert_eq!(told(&fake), [json!({ "candidates": expected })]);
}

#[tokio::test]
async fn nothing_is_remembered_of_what_is_gone() {
    let Event::Apply(object) = snapshot("1") else {
        unreachable!("it is there")
    };
    for end in [
        vec![Event::Delete(object)],
        vec![Event::Init, Event::InitDone],
    ] {
        let fake = Fake::willing();
        let mut view = view(&fake);
        claim(&mut view, "data", "1", "Pending");
        volume(&mut view, "data", Some("1"), "node-a");
        see(&mut view, "Snapshot", snapshot("1"));
        view.look_at_claims("db");
        view.is_done().await;
        assert!(!view.told.is_empty());
        for event in end {
            see(&mut view, "Snapshot", event);
        }
        assert!(view.told.is_empty());
    }
}

#[tokio::test]
async fn what_the_server_refuses_is_tried_again() {
    let fake = Fake::willing();
    let mut view = with_snapshot(&fake);
    fake.refuse();
    view.look_at_claims("db");
    view.is_done().await;
    view.look_again();
    view.is_done().await;
    assert_eq!(told(&fake).len(), 2);
    fake.comply();
    view.look_again();
    view.is_done().await;
    let asked: Vec<_> = changes(&fake).map(|asked| asked.path).collect();
    let object = "/apis/drumlin.dev/v1alpha1/namespaces/db/snapshots/one";
    assert_eq!(asked, [&format!("{object}/status"), object]);
    // Only the node assignment is refused.
    fake.refuse();
    view.look_at_claims("db");
    view.is_done().await;
    fake.comply();
    view.look_again();
    view.is_done().await;
    view.look_again();
    view.is_done().await;
    let asked: Vec<_> = changes(&fake).collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.iter().all(|asked| asked.path == object));
}

#[tokio::test]
async fn an_object_says_once_that_its_node_is_gone_until_it_is_back() {
    let fake = Fake::willing();
    let mut view = view(&fake);
    let volume = |status: Value| {
        let spec = json!({"nodeName": "node-a", "capacity": "1Gi"});
        Event::Apply(object("Volume", "1", &spec, &status))
    };
    see(&mut view, "Volume", volume(json!({})));
    let lost = |fake: &Fake| {
        let told = told(fake).into_iter();
        let reasons = told.map(|status| status["conditions"][0]["reason"].clone());
        reasons.collect::<Vec<_>>()
    };
    view.look_at_nodes();
    view.is_done().await;
    assert_eq!(lost(&fake), ["NodeLost"]);
    // Its agent runs nevertheless: its condition replaces that one, and stays.
    see(
        &mut view,
        "Volume",
        volume(json!({"observedGeneration": 1})),
    );
    for _ in 0..3 {
        view.look_at_claims("db");
        view.is_done().await;
        view.look_at_nodes();
        view.is_done().await;
    }
    assert_eq!(lost(&fake), [Value::Null]);
    see_node(&mut view, Event::Apply);
    view.look_at_nodes();
    view.is_done().await;
    assert_eq!(lost(&fake), [Value::Null; 0]);
    see_node(&mut view, Event::Delete);
    view.look_at_nodes();
    view.is_done().await;
    assert_eq!(lost(&fake), ["NodeLost"]);
}

#[tokio::test]
async fn a_group_on_two_nodes_says_so_once() {
    let fake = Fake::willing();
    let mut view = view(&fake);
    spread(&fake, &mut view, &json!({}));
    view.look_at_claims("db");
    view.is_done().await;
    let status = told(&fake).remove(0);
    assert_eq!(status["conditions"][0]["reason"], "MembersOnOtherNode");
    // Times are in seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    view.look_at_claims("db");
    view.is_done().await;
    assert_eq!(told(&fake), [Value::Null; 0]);

    // It is no change for the next controller either.
    let fake = Fake::willing();
    let mut next = self::view(&fake);
    spread(&fake, &mut next, &status);
    next.look_at_claims("db");
    next.is_done().await;
    assert_eq!(told(&fake), [Value::Null; 0]);
}

#[tokio::test]
async fn what_a_controller_before_said_is_taken_back() {
    let fake = Fake::willing();
    let mut view = view(&fake);
    spread(&fake, &mut view, &json!({}));
    view.look_at_claims("db");
    view.is_done().await;
    let mut status = told(&fake).remove(0);
    status.as_object_mut().unwrap().remove("candidates");

    let fake = Fake::willing();
    let mut next = self::view(&fake);
    let spec = json!({"selector": {"matchLabels": {"app": "none"}}});
    let group = object("VolumeGroup", "1", &spec, &status);
    see(&mut next, "VolumeGroup", Event::Apply(group));
    for expected in [vec![json!({})], Vec::new()] {
        next.look_at_claims("db");
        next.is_done().await;
        assert_eq!(told(&fake), expected);
    }
}

#[tokio::test]
async fn a_claim_that_was_replaced_unseen_gives_nothing_away() {
    let fake = Fake::willing();
    let mut view = view(&fake);
    // The watch of claims is behind that of the snapshots.
    fake.has_claim("data", "2");
    claim(&mut view, "data", "1", "Bound");
    volume(&mut view, "data", Some("1"), "node-a");
    see(&mut view, "Snapshot", snapshot("2"));
    view.look_at_claims("db");
    view.is_done().await;
    assert_eq!(changes(&fake).count(), 0);
    fake.has_claim("data", "1");
    view.look_again();
    view.is_done().await;
    assert_eq!(changes(&fake).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_write_that_is_not_answered_holds_up_no_other() {
    let fake = Fake::willing();
    let mut view = view(&fake);
    bound(&fake, &mut view, ("data", "1"), "node-a");
    let names = ["slow", "a", "b", "c", "d", "e"];
    for name in names {
        let Event::Apply(mut one) = snapshot(name) else {
            unreachable!("it is there")
        };
        one.metadata.name = Some(name.to_owned());
        see(&mut view, "Snapshot", Event::Apply(one));
    }
    fake.asked();
    fake.follow(|asked| asked.path.contains("/slow").then_some(Answer::Hangs));
    let second = Duration::from_secs(1);
    view.look_at_claims("db");
    let _ = tokio::time::timeout(second, view.is_done()).await;
    // Each with its claims and its node.
    assert_eq!(changes(&fake).count(), 2 * names.len() - 1);
}

#[tokio::test]
async fn a_group_that_means_too_many_claims_is_told_of_one_more_than_it_can_have() {
    let fake = Fake::willing();
    let mut view = view(&fake);
    let spec = json!({"nodeName": "node-a", "selector": {}});
    let group = |status: &Value| Event::Apply(object("VolumeGroup", "1", &spec, status));
    see(&mut view, "VolumeGroup", group(&json!({})));
    // The maximum number, and others of another node.
    for number in 0..1024 {
        let name = format!("data-{number:04}");
        bound(&fake, &mut view, (&name, &name), "node-a");
        if number % 2 == 0 {
            let name = format!("another-{number:04}");
            bound(&fake, &mut view, (&name, &name), "node-b");
        }
    }
    let told_of = async |view: &mut View, fake: &Fake| {
        view.look_at_claims("db");
        view.is_done().await;
        let status = told(fake).pop()?;
        assert!(status["conditions"].is_null(), "{}", status["conditions"]);
        let count = status["candidates"].as_array()?.len();
        see(view, "VolumeGroup", group(&status));
        Some(count)
    };
    assert_eq!(told_of(&mut view, &fake).await, Some(1024));
    for name in ["one-more", "two-more"] {
        bound(&fake, &mut view, (name, name), "node-a");
    }
    assert_eq!(told_of(&mut view, &fake).await, Some(1025));
    assert_eq!(told_of(&mut view, &fake).await, None, "it is no news");
}
