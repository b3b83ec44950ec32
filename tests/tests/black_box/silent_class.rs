//! A class whose directory does not answer: calls about other classes are answered, and those about all say which one.

use std::{
    fmt::Debug,
    future::Future,
    time::{Duration, Instant},
};

use drumlin_proto::{
    csi::v1::{
        CreateVolumeRequest, GetCapacityRequest, ListSnapshotsRequest, ListVolumesRequest,
        ProbeRequest,
    },
    drumlin::v1::ListObjectsRequest,
    volumegroup::ListVolumeGroupsRequest,
};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::waiting,
    requests::{
        create, create_group, create_group_snapshot, delete, delete_group, delete_group_snapshot,
        delete_snapshot, expand, from_snapshot, mounted, raw, snapshot, validate_capabilities,
    },
};
use tonic::{Code, Response, Status};

use crate::{
    attach::attach,
    helpers::{mount, ok, refused, two_classes, unmount, volume},
    stalled_paths::Silent,
};

/// So long a call may take that finds out that a class is silent, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// The answer of a call that waits for no silent class.
async fn soon<T>(
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Response<T>, Status> {
    let answer = tokio::time::timeout(SOON, call).await;
    answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("it waits for another class")))
}

/// The refusal of a call about every class, one of which is silent.
fn names_class<T: Debug>(answer: Result<Response<T>, Status>, class: &str) {
    let message = refused(answer, Code::Unavailable);
    let named = format!("class {class} does not answer");
    assert!(message.contains(&named), "{message}");
}

fn in_b(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        parameters: [("class".to_owned(), "b".to_owned())].into(),
        ..create(name, 16, &raw())
    }
}

async fn volume_in_b(agent: &Agent, name: &str) -> String {
    let created = ok(agent.controller().create_volume(in_b(name)).await);
    created.volume.unwrap().volume_id
}

/// The number of snapshots that there are of a volume.
async fn snapshots_of(agent: &Agent, volume: &str) -> usize {
    let request = ListSnapshotsRequest {
        source_volume_id: volume.to_owned(),
        ..ListSnapshotsRequest::default()
    };
    let listed = ok(soon(agent.controller().list_snapshots(request)).await);
    listed.entries.len()
}

#[tokio::test]
async fn calls_about_one_class_are_answered_while_another_is_silent() {
    let agent = two_classes().await;
    let ext4 = mounted("ext4");
    let (mut controller, mut groups) = (agent.controller(), agent.groups());
    let used = volume(&agent, "used", 16, &raw()).await;
    let silent = Silent::new(agent.scratch.directory("b"));

    ok(soon(controller.create_volume(create("new", 32, &ext4))).await);
    let new = volume(&agent, "new", 32, &ext4).await;
    let at = mount(&agent, "new", &new, &ext4).await;
    unmount(&agent, &new, &at).await;
    ok(soon(controller.controller_expand_volume(expand(&used, 24))).await);
    let request = validate_capabilities(&used, vec![raw()]);
    ok(soon(controller.validate_volume_capabilities(request)).await);
    let capacity = ok(soon(controller.get_capacity(GetCapacityRequest::default())).await);
    assert!(capacity.available_capacity > 0, "{capacity:?}");

    let taken = ok(soon(controller.create_snapshot(snapshot("s", &used))).await);
    let taken = taken.snapshot.unwrap().snapshot_id;
    assert_eq!(snapshots_of(&agent, &used).await, 1);
    let copy = CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken),
        ..create("copy", 24, &raw())
    };
    let copy = ok(soon(controller.create_volume(copy)).await);
    let copy = copy.volume.unwrap().volume_id;
    ok(soon(controller.delete_snapshot(delete_snapshot(&taken))).await);

    let members = vec![used.clone(), copy.clone()];
    let mut snapshots = agent.group_controller();
    let request = create_group_snapshot("gs", members);
    let taken = ok(soon(snapshots.create_volume_group_snapshot(request)).await);
    let taken = taken.group_snapshot.unwrap();
    let request = delete_group_snapshot(&taken);
    ok(soon(snapshots.delete_volume_group_snapshot(request)).await);
    let group = ok(soon(groups.create_volume_group(create_group("g", vec![]))).await);
    let group = group.volume_group.unwrap().volume_group_id;
    ok(soon(groups.delete_volume_group(delete_group(&group))).await);

    for id in [&used, &new, &copy] {
        ok(soon(controller.delete_volume(delete(id))).await);
    }
    assert!(waiting(agent.pid()) <= 8, "each call waits for it");
    drop(silent);
}

#[tokio::test]
async fn questions_about_all_classes_name_the_silent_one() {
    let agent = two_classes().await;
    let (mut controller, mut groups) = (agent.controller(), agent.groups());
    let b = volume_in_b(&agent, "b").await;
    let silent = Silent::new(agent.scratch.directory("a"));

    let volumes = || ListVolumesRequest::default();
    names_class(soon(controller.list_volumes(volumes())).await, "a");
    let begun = Instant::now();
    names_class(soon(controller.list_volumes(volumes())).await, "a");
    assert!(begun.elapsed() < Duration::from_secs(2), "it is known now");
    let request = ListSnapshotsRequest::default();
    names_class(soon(controller.list_snapshots(request)).await, "a");
    let request = ListVolumeGroupsRequest::default();
    names_class(soon(groups.list_volume_groups(request)).await, "a");
    // Which group a volume is in already, a silent class may know.
    let request = create_group("g", vec![b.clone()]);
    let request = drumlin_proto::volumegroup::CreateVolumeGroupRequest {
        parameters: [("class".to_owned(), "b".to_owned())].into(),
        ..request
    };
    names_class(soon(groups.create_volume_group(request)).await, "a");
    // The default class.
    let request = GetCapacityRequest::default();
    names_class(soon(controller.get_capacity(request)).await, "a");
    // Whoever asks for all objects gets the others, and which class is missing.
    let mut inventory = agent.inventory();
    let request = ListObjectsRequest::default();
    let objects = ok(soon(inventory.list_objects(request)).await);
    assert_eq!(objects.objects.len(), 1, "{objects:?}");
    assert!(waiting(agent.pid()) <= 3, "each call waits for it");

    drop(silent);
    let listed = async || controller.clone().list_volumes(volumes()).await.is_ok();
    let deadline = Instant::now() + SOON;
    while !listed().await {
        assert!(Instant::now() < deadline, "{}", agent.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_probe_waits_for_two_silent_classes_at_once() {
    let agent = two_classes().await;
    let _silent = ["a", "b"].map(|class| Silent::new(agent.scratch.directory(class)));
    let begun = Instant::now();
    let mut identity = agent.identity();
    let message = refused(
        soon(identity.probe(ProbeRequest {})).await,
        Code::FailedPrecondition,
    );
    assert!(message.contains("class a: ") && message.contains("class b: "));
    let took = begun.elapsed();
    assert!(
        took < Duration::from_secs(9),
        "one after the other: {took:?}"
    );
}

#[tokio::test]
async fn volumes_of_a_silent_class_are_not_counted_against_the_limit_of_the_node() {
    let mut agent = two_classes().await;
    let config = format!(
        "attach: true\nmaxVolumesPerNode: 1\n{}",
        agent.options().config.as_ref().unwrap()
    );
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    agent.kill();
    agent.restart_with(options).await;
    let mut controller = agent.controller();
    let (a, b) = (
        volume(&agent, "a", 16, &raw()).await,
        volume_in_b(&agent, "b").await,
    );
    ok(controller
        .controller_publish_volume(attach(&b, &raw()))
        .await);
    let answer = controller.controller_publish_volume(attach(&a, &raw()));
    refused(answer.await, Code::ResourceExhausted);
    let _silent = Silent::new(agent.scratch.directory("b"));
    ok(soon(controller.controller_publish_volume(attach(&a, &raw()))).await);
}

#[tokio::test]
async fn an_agent_starts_beside_a_silent_class_and_recovers_it_once_it_answers() {
    let mut agent = two_classes().await;
    let b = volume_in_b(&agent, "b").await;
    agent.kill();
    // An image whose deletion was interrupted.
    let volumes = agent.path("b").join("volumes");
    let leftover = volumes.join(".deleting-00000000-0000-5000-8000-000000000001");
    std::fs::create_dir(&leftover).unwrap();
    let silent = Silent::new(agent.scratch.directory("b"));
    let begun = Instant::now();
    agent.restart().await;
    let took = begun.elapsed();
    assert!(took < SOON, "it starts after {took:?}\n{}", agent.log());
    let a = volume(&agent, "a", 16, &raw()).await;
    let mut controller = agent.controller();
    ok(soon(controller.controller_expand_volume(expand(&a, 24))).await);

    drop(silent);
    // What was asked of the server that is gone is an error; the next Probe finds the directory.
    let deadline = Instant::now() + SOON;
    while !agent.log().contains("class recovered") {
        assert!(Instant::now() < deadline, "{}", agent.log());
        let _ = agent.identity().probe(ProbeRequest {}).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!leftover.exists(), "{}", agent.log());
    ok(soon(controller.controller_expand_volume(expand(&b, 24))).await);
}
