//! What the controller makes of what it sees, beside an API server that takes everything.

use std::{convert::Infallible, sync::Arc, time::Duration};

use drumlin_crd::{Candidate, ObjectKey};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Client, api::DynamicObject, client::Body, runtime::watcher::Event};
use serde_json::{Value, json};
use tonic::codegen::http::{Request, Response};

use super::{
    ControllerSettings,
    view::{Said, View},
};
use crate::source::kubernetes::server::Server;

fn view() -> View {
    let server = tower::service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    });
    let server = Server::known_by(Client::new(server, "default"));
    let settings = ControllerSettings {
        kubeconfig: None,
        driver: "csi.drumlin.dev".to_owned(),
        namespace: "default".to_owned(),
        identity: "one".to_owned(),
        claims_all: false,
        node_grace: Duration::ZERO,
    };
    View::new(server, Arc::new(settings))
}

fn key(kind: &str, name: &str) -> ObjectKey {
    ObjectKey {
        kind: kind.to_owned(),
        namespace: "db".to_owned(),
        name: name.to_owned(),
    }
}

/// An object of ours.
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
    view.hear(Said::Object(kind, Box::new(event)));
}

/// A claim of a user.
fn claim(view: &mut View, name: &str, uid: &str, phase: &str) {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "db", "uid": uid},
        "spec": {"volumeName": format!("pv-{name}")},
        "status": {"phase": phase},
    }))
    .unwrap();
    view.hear(Said::Claim(Box::new(Event::Apply(claim))));
}

/// The volume behind it, on a node.
fn volume(view: &mut View, name: &str, uid: Option<&str>, node: &str) {
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": format!("pv-{name}")},
        "spec": {
            "claimRef": {"namespace": "db", "name": name, "uid": uid},
            "csi": {"driver": "csi.drumlin.dev", "volumeHandle": format!("{node}/fast/{name}")},
        },
    }))
    .unwrap();
    view.hear(Said::Volume(Box::new(Event::Apply(volume))));
}

#[tokio::test]
async fn a_claim_means_a_volume_only_when_both_say_so_by_their_ids() {
    let cases = [
        ("the same claim", "new", Some("new"), "Bound", Some(true)),
        // What a tenant before has left, and a claim of the same name that names it.
        ("a former claim", "new", Some("old"), "Bound", None),
        ("a former claim", "new", Some("old"), "Pending", None),
        ("not bound yet", "new", Some("new"), "Pending", Some(false)),
        ("reserved by name", "new", None, "Pending", Some(false)),
        ("reserved by name", "new", Some(""), "Bound", Some(false)),
    ];
    for (case, uid, bound_to, phase, expected) in cases {
        let mut view = view();
        claim(&mut view, "data", uid, phase);
        volume(&mut view, "data", bound_to, "node-a");
        see(&mut view, "Snapshot", snapshot("1"));
        let seen = view.seen(&key("Snapshot", "one")).unwrap();
        let found: Vec<Candidate> = view.candidates(seen.record.as_ref().unwrap());
        let has_handle = |one: &Candidate| one.volume_handle.is_some();
        assert_eq!(found.first().map(has_handle), expected, "{case}");
    }
}
