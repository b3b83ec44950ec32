//! Deleted volumes that can be undeleted, over every kind of volumes.

use drumlin_proto::{
    csi::v1::{ControllerGetVolumeRequest, ControllerModifyVolumeRequest, ListVolumesRequest},
    drumlin::v1::{
        DestroyTrashedVolumeRequest, ListObjectsRequest, ListTrashRequest, TrashVolumeRequest,
        TrashVolumeResponse, TrashedVolume, UndeleteVolumeRequest, UndeleteVolumeResponse,
    },
};
use drumlin_tests::{
    agent::{Agent, is_over_lvm, snapshots_bind_their_volume},
    requests::{create, delete_snapshot, from_snapshot, mounted, snapshot},
    sources,
};
use tonic::{Code, Response, Status};

use crate::helpers::{get, mount, ok, put, refused, unmount, volume};

/// The fail points that only these tests come to.
pub(crate) fn is_own(point: &str) -> bool {
    point.starts_with("trash.") || point.contains(".rename.")
}

pub(crate) async fn trash(
    agent: &Agent,
    id: &str,
) -> Result<Response<TrashVolumeResponse>, Status> {
    let volume_id = id.to_owned();
    let request = TrashVolumeRequest { volume_id };
    agent.trash().trash_volume(request).await
}

pub(crate) async fn undelete(
    agent: &Agent,
    id: &str,
    name: &str,
) -> Result<Response<UndeleteVolumeResponse>, Status> {
    let request = UndeleteVolumeRequest {
        trash_id: id.to_owned(),
        name: name.to_owned(),
    };
    agent.trash().undelete_volume(request).await
}

pub(crate) async fn in_trash(agent: &Agent) -> Vec<TrashedVolume> {
    ok(agent.trash().list_trash(ListTrashRequest::default()).await).volumes
}

async fn destroy(agent: &Agent, id: &str) -> Result<(), Status> {
    let trash_id = id.to_owned();
    let request = DestroyTrashedVolumeRequest { trash_id };
    let answer = agent.trash().destroy_trashed_volume(request).await;
    answer.map(drop)
}

async fn names(agent: &Agent) -> Vec<String> {
    let request = ListVolumesRequest::default();
    let entries = ok(agent.controller().list_volumes(request).await).entries;
    let volumes = entries.into_iter();
    volumes
        .map(|entry| entry.volume.unwrap().volume_id)
        .collect()
}

/// A volume with a file system and a file.
pub(crate) async fn used(agent: &Agent, name: &str, content: &[u8]) -> String {
    let ext4 = mounted("ext4");
    let id = volume(agent, name, 16, &ext4).await;
    let at = mount(agent, name, &id, &ext4).await;
    put(&at.1, "file", content);
    unmount(agent, &id, &at).await;
    id
}

/// What is in the file of a volume.
pub(crate) async fn content(agent: &Agent, name: &str, id: &str) -> Vec<u8> {
    let ext4 = mounted("ext4");
    let at = mount(agent, name, id, &ext4).await;
    let found = get(&at.1, "file");
    unmount(agent, id, &at).await;
    found
}

#[tokio::test]
async fn what_is_in_the_trash_is_no_volume_and_comes_back_with_its_data() {
    let mut agent = Agent::start().await;
    let id = used(&agent, "v", b"first").await;
    ok(trash(&agent, &id).await);
    ok(trash(&agent, &id).await);
    assert_eq!(names(&agent).await, [""; 0]);
    let request = ControllerGetVolumeRequest {
        volume_id: id.clone(),
    };
    refused(
        agent.controller().controller_get_volume(request).await,
        Code::NotFound,
    );
    let mut inventory = agent.inventory();
    let objects = inventory.list_objects(ListObjectsRequest::default()).await;
    assert!(ok(objects).objects.is_empty());
    let [trashed] = &in_trash(&agent).await[..] else {
        panic!("one volume in the trash");
    };
    assert_eq!((trashed.name.as_str(), trashed.size_bytes), ("v", 16 << 20));
    let kept = trashed.expiration_time.unwrap().seconds - trashed.deletion_time.unwrap().seconds;
    assert_eq!(kept, 7 * 24 * 3600);
    // The name is free, and what is new under it has nothing of the old one.
    assert_eq!(used(&agent, "v", b"second").await, id);
    agent.kill();
    agent.restart().await;
    let old = trashed.trash_id.clone();
    let message = refused(undelete(&agent, &old, "").await, Code::AlreadyExists);
    assert!(message.contains(&id), "{message}");
    let other = ok(undelete(&agent, &old, "w").await).volume_id;
    assert_eq!(ok(undelete(&agent, &old, "w").await).volume_id, other);
    assert!(in_trash(&agent).await.is_empty());
    assert_eq!(content(&agent, "w", &other).await, b"first");
    assert_eq!(content(&agent, "v", &id).await, b"second");
    // A volume that came back is one as any other.
    assert_eq!(volume(&agent, "w", 16, &mounted("ext4")).await, other);
    ok(trash(&agent, &other).await);
    let [again] = &in_trash(&agent).await[..] else {
        panic!("one volume in the trash");
    };
    destroy(&agent, &again.trash_id).await.unwrap();
    destroy(&agent, &again.trash_id).await.unwrap();
    refused(undelete(&agent, &again.trash_id, "").await, Code::NotFound);
    assert_eq!(names(&agent).await, [id]);
}

#[tokio::test]
async fn a_volume_that_is_used_or_protected_does_not_go_to_the_trash() {
    let agent = Agent::start().await;
    let ext4 = mounted("ext4");
    let id = volume(&agent, "v", 16, &ext4).await;
    let at = mount(&agent, "v", &id, &ext4).await;
    refused(trash(&agent, &id).await, Code::FailedPrecondition);
    unmount(&agent, &id, &at).await;
    let protect = |value: &str| ControllerModifyVolumeRequest {
        volume_id: id.clone(),
        mutable_parameters: [("protected".to_owned(), value.to_owned())].into(),
        ..ControllerModifyVolumeRequest::default()
    };
    ok(agent
        .controller()
        .controller_modify_volume(protect("true"))
        .await);
    refused(trash(&agent, &id).await, Code::FailedPrecondition);
    assert!(in_trash(&agent).await.is_empty());
    ok(agent
        .controller()
        .controller_modify_volume(protect("false"))
        .await);
    ok(trash(&agent, &id).await);
    let message = refused(trash(&agent, "").await, Code::InvalidArgument);
    assert!(message.contains("volume_id"), "{message}");
    let message = refused(undelete(&agent, "", "").await, Code::InvalidArgument);
    assert!(message.contains("trash_id"), "{message}");
    // The id of a volume is none of the trash, and the other way round.
    refused(undelete(&agent, &id, "").await, Code::NotFound);
    let trashed = in_trash(&agent).await.remove(0).trash_id;
    ok(trash(&agent, &trashed).await);
    assert_eq!(in_trash(&agent).await.len(), 1);
}

#[tokio::test]
async fn snapshots_outlive_their_volume_in_the_trash() {
    let agent = Agent::start().await;
    let id = used(&agent, "v", b"before").await;
    let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
    let taken = ok(taken).snapshot.unwrap().snapshot_id;
    ok(trash(&agent, &id).await);
    let mut request = create("restored", 16, &mounted("ext4"));
    request.volume_content_source = from_snapshot(&taken);
    let restored = ok(agent.controller().create_volume(request).await);
    let restored = restored.volume.unwrap().volume_id;
    assert_eq!(content(&agent, "restored", &restored).await, b"before");
    let trashed = in_trash(&agent).await.remove(0).trash_id;
    if snapshots_bind_their_volume() {
        let refusal = destroy(&agent, &trashed).await.unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition);
        assert!(refusal.message().contains(&taken), "{refusal}");
    }
    ok(agent
        .controller()
        .delete_snapshot(delete_snapshot(&taken))
        .await);
    assert_eq!(ok(undelete(&agent, &trashed, "").await).volume_id, id);
    assert_eq!(content(&agent, "v", &id).await, b"before");
}

#[tokio::test]
async fn killed_at_each_step_the_same_calls_end_where_an_uninterrupted_run_ends() {
    let points = sources::agent_points().into_iter();
    let other = if is_over_lvm() { "directory." } else { "lvm." };
    let points: Vec<String> = points
        .filter(|point| is_own(point) && !point.starts_with(other))
        .collect();
    assert!(points.len() >= 3, "{points:?}");
    for point in points {
        // On its way into the trash, and on its way back.
        let thrown = killed_on_its_way_in(&point).await;
        let given_back = killed_on_its_way_back(&point).await;
        assert!(thrown || given_back, "nothing came to {point}");
    }
}

/// Returns false if nothing came to the point.
async fn killed_on_its_way_in(point: &str) -> bool {
    let mut agent = Agent::start().await;
    let id = used(&agent, "v", b"kept").await;
    let plain = agent.options().clone();
    agent.kill();
    agent.restart_with(plain.clone().killed_at(point)).await;
    let is_killed = trash(&agent, &id).await.is_err();
    if is_killed {
        agent.wait_until_killed().await;
        agent.restart_with(plain).await;
        ok(trash(&agent, &id).await);
        // Nothing of what was left is in the way of a volume of the same name.
        assert_eq!(in_trash(&agent).await.len(), 1, "{point}");
        assert_eq!(volume(&agent, "v", 16, &mounted("ext4")).await, id);
        let trashed = in_trash(&agent).await.remove(0).trash_id;
        let back = ok(undelete(&agent, &trashed, "w").await).volume_id;
        assert_eq!(content(&agent, "w", &back).await, b"kept", "{point}");
    }
    is_killed
}

/// Returns false if nothing came to the point.
async fn killed_on_its_way_back(point: &str) -> bool {
    let mut agent = Agent::start().await;
    let id = used(&agent, "v", b"kept").await;
    ok(trash(&agent, &id).await);
    let trashed = in_trash(&agent).await.remove(0).trash_id;
    let plain = agent.options().clone();
    agent.kill();
    agent.restart_with(plain.clone().killed_at(point)).await;
    let is_killed = undelete(&agent, &trashed, "w").await.is_err();
    if is_killed {
        agent.wait_until_killed().await;
        agent.restart_with(plain).await;
        let back = ok(undelete(&agent, &trashed, "w").await).volume_id;
        assert_eq!(content(&agent, "w", &back).await, b"kept", "{point}");
        assert!(in_trash(&agent).await.is_empty(), "{point}");
        // It has the name that was given, and can be thrown away again.
        assert_eq!(volume(&agent, "w", 16, &mounted("ext4")).await, back);
        ok(trash(&agent, &back).await);
        assert_eq!(in_trash(&agent).await.remove(0).name, "w", "{point}");
    }
    is_killed
}
