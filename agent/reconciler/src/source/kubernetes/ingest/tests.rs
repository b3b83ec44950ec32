//! Stale answers of an API server's cache do no harm.

use std::{path::Path, sync::Arc};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::{
    Hooks,
    client::{Agent, Client},
    kinds::Pass,
    record::{Body, Of},
    source::kubernetes::fake_api_server::{Answer, Fake},
    state::Shared,
    store::Store,
};

/// An engine that does not run, with a created volume of this UID and generation.
fn engine(directory: &TempDir, uid: &str, generation: i64) -> Engine {
    let state = directory.path().to_owned();
    let shared = Shared::new(Store::open(&state).unwrap(), state, Hooks::default()).unwrap();
    let client = Client::new(Path::new("/tmp/nobody-answers-here.sock")).unwrap();
    let object = volume(uid, generation, 20, &json!({}));
    let spec = object.data["spec"].clone();
    let parsed = Object::served("Volume", ours(&object.metadata), spec).unwrap();
    let served = Served {
        uid: uid.to_owned(),
        has_finalizer: true,
        ..Served::default()
    };
    let mut record = Record::of_server(&parsed, served);
    if let Body::Volume(Of { status, .. }) = &mut record.body {
        status.volume_handle = Some("node-a/fast/1".to_owned());
    }
    shared.put(&record).unwrap();
    Engine::new(Arc::new(shared), client)
}

/// A volume of the server with these annotations.
fn volume(uid: &str, generation: i64, version: u64, annotations: &Value) -> DynamicObject {
    let object = json!({
        "apiVersion": "drumlin.dev/v1alpha1",
        "kind": "Volume",
        "metadata": {
            "name": "data", "namespace": "db", "uid": uid, "generation": generation,
            "resourceVersion": version.to_string(), "annotations": annotations,
            "finalizers": [names::FINALIZER],
        },
        "spec": {"nodeName": "node-a", "capacity": "1Gi"},
    });
    serde_json::from_value(object).unwrap()
}

fn key() -> ObjectKey {
    key_of("Volume", &volume("1", 1, 1, &json!({})))
}

/// A server with this object, or with none.
fn server(fake: &Fake, object: Option<&DynamicObject>) -> Server {
    has(fake, object);
    Server::known_by(fake.client())
}

fn has(fake: &Fake, object: Option<&DynamicObject>) {
    let missing = json!({"status": "Failure", "code": 404, "reason": "NotFound", "message": ""});
    let answer = match object {
        Some(object) => Answer::Says(200, serde_json::to_value(object).unwrap()),
        None => Answer::Says(404, missing),
    };
    fake.follow(move |asked| {
        let is_meant = asked.method == "GET" && asked.path.ends_with("/volumes/data");
        is_meant.then(|| answer.clone())
    });
}

/// The events of a list with exactly these objects.
async fn list(catalog: &mut Catalog<'_>, objects: &[&DynamicObject]) {
    Box::pin(catalog.follow("Volume", Event::Init)).await;
    for object in objects {
        let event = Event::InitApply((*object).clone());
        Box::pin(catalog.follow("Volume", event)).await;
    }
    Box::pin(catalog.follow("Volume", Event::InitDone)).await;
}

fn is_orphan(engine: &Engine) -> bool {
    let is_orphan = |record: &Record| record.drumlin.orphan_since.is_some();
    engine.shared.with(&key(), is_orphan).unwrap()
}

#[tokio::test]
async fn what_a_list_lacks_is_gone_only_when_the_server_says_so_of_it_alone() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(&directory, "1", 1);
    let fake = Fake::willing();
    let there = volume("1", 1, 20, &json!({}));
    let server = server(&fake, Some(&there));
    let mirror = StatusWriter::new(Arc::clone(&engine.shared), server.clone(), "node-a".into());
    let mut catalog = Catalog::new(&engine, &server, &mirror, "node-a".into());
    list(&mut catalog, &[]).await;
    assert!(!is_orphan(&engine), "the server has it");
    // It cannot be asked.
    fake.follow(|_| None);
    fake.refuse();
    list(&mut catalog, &[]).await;
    assert!(!is_orphan(&engine), "the server may have it");
    has(&fake, None);
    catalog.try_again().await;
    assert!(is_orphan(&engine));
}

#[tokio::test]
async fn an_object_that_is_older_than_what_is_known_is_read_anew() {
    let absent = json!({names::STATE: "absent"});
    let now = volume("2", 5, 20, &json!({}));
    for (case, stale) in [
        ("an older spec", volume("2", 4, 10, &absent)),
        ("older annotations", volume("2", 5, 9, &absent)),
        ("a former object of its name", volume("1", 9, 8, &absent)),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let engine = engine(&directory, "2", 5);
        let fake = Fake::willing();
        let server = server(&fake, Some(&now));
        let mirror = StatusWriter::new(Arc::clone(&engine.shared), server.clone(), "node-a".into());
        let mut catalog = Catalog::new(&engine, &server, &mirror, "node-a".into());
        let event = Event::Apply(now.clone());
        catalog.follow("Volume", event).await;
        list(&mut catalog, &[&stale]).await;
        let said = |record: &Record| (record.is_absent(), record.served().unwrap().uid.clone());
        let said = engine.shared.with(&key(), said);
        assert_eq!(said, Some((false, "2".to_owned())), "{case}");
        // From a server whose store was restored from a backup, the same object is current.
        has(&fake, Some(&stale));
        list(&mut catalog, &[&stale]).await;
        let is_absent = engine.shared.with(&key(), Record::is_absent);
        assert_eq!(is_absent, Some(true), "{case}");
    }
}

#[tokio::test]
async fn the_end_of_a_former_object_is_not_that_of_the_one_that_has_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(&directory, "2", 1);
    let fake = Fake::willing();
    let now = volume("2", 1, 20, &json!({}));
    let server = server(&fake, Some(&now));
    let mirror = StatusWriter::new(Arc::clone(&engine.shared), server.clone(), "node-a".into());
    let mut catalog = Catalog::new(&engine, &server, &mirror, "node-a".into());
    let former = volume("1", 1, 10, &json!({}));
    catalog.follow("Volume", Event::Delete(former)).await;
    assert!(!is_orphan(&engine));
    catalog.follow("Volume", Event::Delete(now)).await;
    assert!(is_orphan(&engine));
}

#[tokio::test]
async fn what_is_seen_for_the_first_time_without_our_finalizer_is_read_anew() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(&directory, "2", 1);
    engine.shared.forget(&key()).unwrap();
    let fake = Fake::willing();
    let now = volume("2", 1, 20, &json!({}));
    let server = server(&fake, Some(&now));
    let mirror = StatusWriter::new(Arc::clone(&engine.shared), server.clone(), "node-a".into());
    let mut catalog = Catalog::new(&engine, &server, &mirror, "node-a".into());
    let mut stale = volume("2", 1, 10, &json!({}));
    stale.metadata.finalizers = None;
    list(&mut catalog, &[&stale]).await;
    // An agent that has lost its state has begun it.
    let is_state_lost = engine.shared.with(&key(), Record::is_state_lost);
    assert_eq!(is_state_lost, Some(true));
}

#[tokio::test]
async fn nothing_is_destroyed_before_the_server_has_said_again_that_it_shall_be() {
    let absent = json!({names::STATE: "absent"});
    let leaving = |mut object: DynamicObject| {
        object.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        object
    };
    let policy = |mut object: DynamicObject| {
        object.data["spec"]["deletionPolicy"] = json!("Delete");
        object
    };
    let paused = json!({names::STATE: "absent", names::PAUSED: "true"});
    let known = volume("1", 1, 10, &absent);
    for (case, now, is_destroyed) in [
        ("the same", Some(known.clone()), true),
        ("it leaves, too", Some(leaving(known.clone())), true),
        ("to stay", Some(volume("1", 1, 20, &json!({}))), false),
        ("paused", Some(volume("1", 1, 20, &paused)), false),
        (
            "by another policy",
            Some(policy(volume("1", 2, 20, &absent))),
            false,
        ),
        ("another one", Some(volume("2", 1, 20, &absent)), false),
        ("gone", None, false),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let engine = engine(&directory, "1", 1);
        let fake = Fake::willing();
        let server = server(&fake, Some(&known));
        engine.shared.follow_cluster(
            Box::new(server.clone()),
            crate::state::HostMounts::default(),
        );
        let mirror = StatusWriter::new(Arc::clone(&engine.shared), server.clone(), "node-a".into());
        let mut catalog = Catalog::new(&engine, &server, &mirror, "node-a".into());
        list(&mut catalog, &[&known]).await;
        has(&fake, now.as_ref());
        let agent = Agent {
            node: "node-a".into(),
            topology: None,
            attach: false,
        };
        let mut pass = Pass {
            shared: &engine.shared,
            client: &engine.client,
            agent: &agent,
            record: engine.shared.record(&key()).unwrap(),
            is_doubted: false,
            wake: None,
        };
        assert!(pass.record.is_absent());
        let confirmed = pass.confirm_end().await;
        assert_eq!(confirmed.is_ok(), is_destroyed, "{case}: {confirmed:?}");
        fake.follow(|_| None);
        fake.refuse();
        assert!(pass.confirm_end().await.is_err(), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_not_answered_holds_up_what_else_is_said_for_a_moment() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(&directory, "1", 1);
    engine.shared.forget(&key()).unwrap();
    let fake = Fake::willing();
    fake.follow(|asked| asked.path.contains("/namespaces/").then_some(Answer::Hangs));
    let server = Server::known_by(fake.client());
    let mirror = StatusWriter::new(Arc::clone(&engine.shared), server.clone(), "node-a".into());
    let mut catalog = Catalog::new(&engine, &server, &mirror, "node-a".into());
    let begun = Instant::now();
    for number in 0..10 {
        let event = Event::Apply(volume("1", 1, 10 + number, &json!({})));
        catalog.follow("Volume", event).await;
    }
    assert!(begun.elapsed() <= 2 * SLOW, "{:?}", begun.elapsed());
}
