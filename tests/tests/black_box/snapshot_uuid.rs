//! The UUID of a snapshot in the inventory: one for each point in time, whatever its name.

use drumlin_proto::drumlin::v1::{InventoryObject, ListObjectsRequest, ObjectKind};
use drumlin_tests::{
    agent::Agent,
    requests::{delete_snapshot, raw, snapshot},
};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    group_snapshots,
    helpers::{ok, text, volume},
};

/// The objects of the inventory, sorted by id.
async fn inventory(agent: &Agent) -> Vec<InventoryObject> {
    let request = ListObjectsRequest::default();
    let mut objects = ok(agent.inventory().list_objects(request).await).objects;
    objects.sort_by(|one, other| one.object_id.cmp(&other.object_id));
    objects
}

/// One object of the inventory.
pub(crate) async fn object(agent: &Agent, id: &str) -> InventoryObject {
    let request = ListObjectsRequest {
        object_id: id.to_owned(),
        ..ListObjectsRequest::default()
    };
    let objects = ok(agent.inventory().list_objects(request).await).objects;
    let [object] = <[InventoryObject; 1]>::try_from(objects).unwrap();
    object
}

async fn take(agent: &Agent, name: &str, volume: &str) -> String {
    let mut controller = agent.controller();
    let answer = controller.create_snapshot(snapshot(name, volume));
    ok(answer.await).snapshot.unwrap().snapshot_id
}

/// The UUID as the documents define it, from what the inventory tells beside it.
fn documented(object: &InventoryObject) -> String {
    let namespace = Uuid::parse_str("1f5c3b1a-9d1e-5c53-8a52-6d0b4b5f7a06").unwrap();
    let time = object.creation_time.unwrap();
    let nanoseconds = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    let name = format!("{}@{nanoseconds}", object.object_id);
    Uuid::new_v5(&namespace, name.as_bytes()).to_string()
}

#[tokio::test]
async fn every_snapshot_has_a_uuid_of_its_handle_and_time_and_nothing_else_has_one() {
    let mut agent = Agent::start().await;
    let volumes = [
        volume(&agent, "a", 4, &raw()).await,
        volume(&agent, "b", 4, &raw()).await,
    ];
    take(&agent, "one", &volumes[0]).await;
    group_snapshots::take(&agent, "both", &volumes).await;
    let before = inventory(&agent).await;
    let is_snapshot = |object: &&InventoryObject| object.kind() == ObjectKind::Snapshot;
    let (snapshots, others): (Vec<_>, Vec<_>) = before.iter().partition(is_snapshot);
    // The members of the group snapshot are snapshots, too.
    assert_eq!((snapshots.len(), others.len()), (3, 3));
    for object in &snapshots {
        assert_eq!(object.uuid, documented(object), "{object:?}");
    }
    for object in others {
        assert_eq!(object.uuid, "", "{object:?}");
    }
    let mut different: Vec<_> = snapshots.iter().map(|object| &object.uuid).collect();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), 3);

    agent.kill();
    agent.restart().await;
    assert_eq!(inventory(&agent).await, before);
    for listed in &before {
        assert_eq!(object(&agent, &listed.object_id).await, *listed);
    }
}

#[tokio::test]
async fn a_snapshot_that_is_deleted_and_taken_again_has_another_uuid() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 4, &raw()).await;
    let handle = take(&agent, "one", &id).await;
    let first = object(&agent, &handle).await.uuid;
    // A repeated call finds the first one.
    assert_eq!(take(&agent, "one", &id).await, handle);
    assert_eq!(object(&agent, &handle).await.uuid, first);
    let mut controller = agent.controller();
    ok(controller.delete_snapshot(delete_snapshot(&handle)).await);
    assert_eq!(take(&agent, "one", &id).await, handle);
    let second = object(&agent, &handle).await;
    assert_ne!(second.uuid, first);
    assert_eq!(second.uuid, documented(&second));
}

#[tokio::test]
async fn what_no_object_asks_for_is_listed_with_its_uuid() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 4, &raw()).await;
    let handle = take(&agent, "one", &id).await;
    let state = text(agent.path("state"));
    let endpoint = text(agent.socket());
    let places = ["--state-dir", &state, "--endpoint", &endpoint];
    let output = agent.command(&[&["kept", "--all", "-o", "json"][..], &places].concat());
    assert!(output.status.success(), "{output:?}");
    let kept: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = |id: &str| {
        let mut rows = kept["objects"].as_array().unwrap().iter();
        rows.find(|row| row["handle"] == id).unwrap()
    };
    assert_eq!(row(&handle)["uuid"], object(&agent, &handle).await.uuid);
    assert_eq!(row(&id)["uuid"], Value::Null);
}
