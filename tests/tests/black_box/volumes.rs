//! Volumes and snapshots as the controller sees them: sizes, names, repeats, conflicts, lists.

use std::collections::BTreeSet;

use drumlin_proto::csi::v1::{
    CapacityRange, ControllerGetVolumeRequest, ControllerModifyVolumeRequest, CreateVolumeRequest,
    DeleteSnapshotRequest, GetCapacityRequest, GetSnapshotRequest, ListSnapshotsRequest,
    ListVolumesRequest, Topology, TopologyRequirement, volume_capability::access_mode::Mode,
};
use drumlin_tests::{
    agent::{Agent, Options, snapshots_bind_their_volume, unit},
    requests::{
        MIB, create, delete, expand, for_mode, from_snapshot, from_volume, mounted, raw, snapshot,
        validate_capabilities,
    },
};
use tonic::Code;

use crate::helpers::{ok, refused, two_classes, volume};

fn sized(name: &str, required: i64, limit: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        capacity_range: Some(CapacityRange {
            required_bytes: required,
            limit_bytes: limit,
        }),
        ..create(name, 1, &raw())
    }
}

#[tokio::test]
async fn a_size_is_within_what_was_asked_for() {
    let agent = Agent::start().await;
    for (name, required, limit, size) in [
        ("required", 5 * MIB, 0, 5 * MIB),
        ("rounded", 5 * MIB + 1, 0, 5 * MIB + unit()),
        ("both", 5 * MIB, 5 * MIB, 5 * MIB),
        ("limit", 0, 7 * MIB, 7 * MIB),
        ("neither", 0, 0, 1024 * MIB),
        ("tiny", 1, 0, MIB),
    ] {
        let answer = ok(agent
            .controller()
            .create_volume(sized(name, required, limit))
            .await);
        assert_eq!(answer.volume.unwrap().capacity_bytes, size, "{name}");
    }
    for (required, limit, code) in [
        (-1, 0, Code::InvalidArgument),
        (2 * MIB, MIB, Code::InvalidArgument),
        (1, 2, Code::OutOfRange),
        (i64::MAX, 0, Code::OutOfRange),
        (1 << 60, 0, Code::ResourceExhausted),
    ] {
        let message = refused(
            agent
                .controller()
                .create_volume(sized("x", required, limit))
                .await,
            code,
        );
        assert!(!message.is_empty());
    }
    let list = ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    assert_eq!(list.entries.len(), 6, "what was refused was not made");
}

#[tokio::test]
async fn a_name_is_any_text_of_128_bytes_without_control_characters() {
    let agent = Agent::start().await;
    let mut ids = BTreeSet::new();
    for name in [
        "a",
        "größe/../..",
        "日本語",
        "UPPER lower",
        &"x".repeat(128),
        "-",
        ".",
    ] {
        ids.insert(volume(&agent, name, 1, &raw()).await);
    }
    assert_eq!(ids.len(), 7);
    for name in [
        "",
        "a\nb",
        "a\u{85}",
        "\u{7f}",
        &"x".repeat(129),
        &"ü".repeat(65),
    ] {
        let answer = agent
            .controller()
            .create_volume(create(name, 1, &raw()))
            .await;
        assert!(refused(answer, Code::InvalidArgument).starts_with("name "));
        let answer = agent
            .controller()
            .create_snapshot(snapshot(name, "x"))
            .await;
        assert!(refused(answer, Code::InvalidArgument).starts_with("name "));
    }
}

#[tokio::test]
async fn a_repeat_finds_the_first_volume_and_another_request_of_that_name_is_a_conflict() {
    let agent = two_classes().await;
    let first = volume(&agent, "one", 8, &mounted("ext4")).await;
    assert_eq!(first, volume(&agent, "one", 8, &mounted("ext4")).await);
    assert_eq!(
        first,
        volume(&agent, "one", 4, &mounted("")).await,
        "8 MiB are at least 4"
    );
    let conflicts = [
        create("one", 9, &mounted("ext4")),
        create("one", 8, &mounted("xfs")),
        CreateVolumeRequest {
            parameters: [("class".to_owned(), "b".to_owned())].into(),
            ..create("one", 8, &mounted("ext4"))
        },
    ];
    for request in conflicts {
        refused(
            agent.controller().create_volume(request).await,
            Code::AlreadyExists,
        );
    }
    let other = volume(&agent, "two", 8, &mounted("ext4")).await;
    let request = CreateVolumeRequest {
        volume_content_source: from_volume(&other),
        ..create("one", 8, &mounted("ext4"))
    };
    refused(
        agent.controller().create_volume(request).await,
        Code::AlreadyExists,
    );
    ok(agent.controller().delete_volume(delete(&first)).await);
    ok(agent.controller().delete_volume(delete(&first)).await);
    assert_eq!(
        first,
        volume(&agent, "one", 9, &mounted("xfs")).await,
        "the name is free again"
    );
}

#[tokio::test]
async fn classes_are_chosen_by_parameter_and_what_is_unknown_is_refused() {
    let agent = two_classes().await;
    let with = |key: &str, value: &str| CreateVolumeRequest {
        parameters: [(key.to_owned(), value.to_owned())].into(),
        ..create("v", 1, &raw())
    };
    for (key, value, field) in [
        ("class", "c", "parameters.class"),
        ("class", "A", "parameters.class"),
        ("clas", "a", "parameters.clas"),
    ] {
        let message = refused(
            agent.controller().create_volume(with(key, value)).await,
            Code::InvalidArgument,
        );
        assert!(message.starts_with(field), "{message}");
    }
    let answer = ok(agent
        .controller()
        .create_volume(with("csi.storage.k8s.io/pvc/name", "x"))
        .await);
    assert!(answer.volume.unwrap().volume_id.starts_with("node-a/a/"));
    let answer = ok(agent
        .controller()
        .create_volume(CreateVolumeRequest {
            name: "w".into(),
            ..with("class", "b")
        })
        .await);
    let id = answer.volume.unwrap().volume_id;
    assert!(id.starts_with("node-a/b/"), "{id}");
    let copy = CreateVolumeRequest {
        volume_content_source: from_volume(&id),
        ..create("copy", 1, &raw())
    };
    let copy = ok(agent.controller().create_volume(copy).await)
        .volume
        .unwrap();
    assert!(
        copy.volume_id.starts_with("node-a/b/"),
        "a copy goes where its source is"
    );
    let mut elsewhere = with("class", "a");
    elsewhere.name = "elsewhere".into();
    elsewhere.volume_content_source = from_volume(&id);
    refused(
        agent.controller().create_volume(elsewhere).await,
        Code::InvalidArgument,
    );
}

#[tokio::test]
async fn topology_places_volumes_on_this_node_or_nowhere() {
    let agent = Agent::start().await;
    let at = |key: &str, value: &str| Topology {
        segments: [(key.to_owned(), value.to_owned())].into(),
    };
    let here = at("topology.drumlin.dev/node", "node-a");
    let there = at("topology.drumlin.dev/node", "node-b");
    let with = |requisite: Vec<Topology>, preferred: Vec<Topology>| CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite,
            preferred,
        }),
        ..create("v", 1, &raw())
    };
    for request in [
        with(vec![there.clone()], vec![]),
        with(vec![at("zone", "z")], vec![]),
    ] {
        refused(
            agent.controller().create_volume(request).await,
            Code::ResourceExhausted,
        );
    }
    let request = with(vec![there.clone(), here.clone()], vec![there.clone()]);
    let volume = ok(agent.controller().create_volume(request).await)
        .volume
        .unwrap();
    assert_eq!(volume.accessible_topology, [here.clone()]);
    let room = |topology: &Topology| GetCapacityRequest {
        accessible_topology: Some(topology.clone()),
        ..GetCapacityRequest::default()
    };
    assert_eq!(
        ok(agent.controller().get_capacity(room(&there)).await).available_capacity,
        0
    );
    let answer = ok(agent.controller().get_capacity(room(&here)).await);
    assert!(answer.available_capacity > 0);
    assert!(answer.maximum_volume_size.unwrap() <= answer.available_capacity);
    assert_eq!(answer.minimum_volume_size, Some(MIB));
}

#[tokio::test]
async fn another_nodes_volume_is_told_by_name_and_a_malformed_id_is_unknown() {
    let agent = Agent::start().await;
    let key = "00000000-0000-5000-8000-000000000000";
    let there = format!("node-b/default/{key}");
    let mut controller = agent.controller();
    for answer in [
        controller.delete_volume(delete(&there)).await.map(|_| ()),
        controller
            .controller_expand_volume(expand(&there, 9))
            .await
            .map(|_| ()),
        controller
            .controller_get_volume(ControllerGetVolumeRequest {
                volume_id: there.clone(),
            })
            .await
            .map(|_| ()),
    ] {
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().contains("node-b"), "{}", status.message());
    }
    for source in [from_volume(&there), from_snapshot(&there)] {
        let request = CreateVolumeRequest {
            volume_content_source: source,
            ..create("v", 1, &raw())
        };
        let message = refused(
            controller.create_volume(request).await,
            Code::ResourceExhausted,
        );
        assert!(message.contains("node-b"), "{message}");
    }
    refused(
        controller.create_snapshot(snapshot("s", &there)).await,
        Code::ResourceExhausted,
    );
    for id in [
        "x",
        "a/b",
        "node-a/default/../../etc",
        "node-a/default/",
        "node-a/nope/00000000-0000-5000-8000-000000000000",
        "\n",
    ] {
        ok(controller.delete_volume(delete(id)).await);
        ok(controller
            .delete_snapshot(DeleteSnapshotRequest {
                snapshot_id: id.into(),
                ..Default::default()
            })
            .await);
        refused(
            controller.controller_expand_volume(expand(id, 9)).await,
            Code::NotFound,
        );
        let request = ControllerModifyVolumeRequest {
            volume_id: id.into(),
            mutable_parameters: [("label.a".to_owned(), "b".to_owned())].into(),
            ..Default::default()
        };
        refused(
            controller.controller_modify_volume(request).await,
            Code::NotFound,
        );
        refused(
            controller.create_snapshot(snapshot("s", id)).await,
            Code::NotFound,
        );
    }
}

#[tokio::test]
async fn a_protected_volume_is_not_deleted_and_labels_come_and_go() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 1, &raw()).await;
    let modify = |key: &str, value: &str| ControllerModifyVolumeRequest {
        volume_id: id.clone(),
        mutable_parameters: [(key.to_owned(), value.to_owned())].into(),
        ..ControllerModifyVolumeRequest::default()
    };
    let mut controller = agent.controller();
    for (key, value) in [
        ("protected", "yes"),
        ("proteced", "true"),
        ("label.", "x"),
        ("label.a b", "x"),
        ("label.a", "x\ny"),
    ] {
        let message = refused(
            controller
                .controller_modify_volume(modify(key, value))
                .await,
            Code::InvalidArgument,
        );
        assert!(
            message.starts_with(&format!("mutable_parameters.{key}")),
            "{message}"
        );
    }
    for _ in 0..2 {
        ok(controller
            .controller_modify_volume(modify("protected", "true"))
            .await);
    }
    refused(
        controller.delete_volume(delete(&id)).await,
        Code::FailedPrecondition,
    );
    for (key, value) in [
        ("label.tier", "gold"),
        ("label.tier", ""),
        ("protected", "false"),
    ] {
        ok(controller
            .controller_modify_volume(modify(key, value))
            .await);
    }
    ok(controller.delete_volume(delete(&id)).await);
}

#[tokio::test]
async fn pages_stay_right_while_volumes_come_and_go() {
    let agent = Agent::start().await;
    let mut ids = BTreeSet::new();
    for index in 0..10 {
        ids.insert(volume(&agent, &format!("v{index}"), 1, &raw()).await);
    }
    let page = |token: &str| ListVolumesRequest {
        max_entries: 3,
        starting_token: token.to_owned(),
    };
    let first = ok(agent.controller().list_volumes(page("")).await);
    let of = |list: &drumlin_proto::csi::v1::ListVolumesResponse| {
        list.entries
            .iter()
            .map(|entry| entry.volume.clone().unwrap().volume_id)
            .collect::<Vec<_>>()
    };
    let mut seen = of(&first);
    assert_eq!(seen.len(), 3);
    // The one that the next page is counted from goes, and others come.
    ok(agent.controller().delete_volume(delete(&seen[2])).await);
    for index in 10..14 {
        volume(&agent, &format!("v{index}"), 1, &raw()).await;
    }
    let mut token = first.next_token;
    while !token.is_empty() {
        let next = ok(agent.controller().list_volumes(page(&token)).await);
        seen.extend(of(&next));
        token = next.next_token;
    }
    let unique: BTreeSet<String> = seen.iter().cloned().collect();
    assert_eq!(unique.len(), seen.len(), "none twice");
    assert!(ids.is_subset(&unique), "none left out");
    for token in ["invalid", "after:", "after:x", "3"] {
        refused(
            agent.controller().list_volumes(page(token)).await,
            Code::Aborted,
        );
    }
    let negative = ListVolumesRequest {
        max_entries: -1,
        starting_token: String::new(),
    };
    refused(
        agent.controller().list_volumes(negative).await,
        Code::InvalidArgument,
    );
}

#[tokio::test]
async fn snapshots_are_listed_by_id_and_by_source_and_outlive_their_volume() {
    let agent = Agent::start().await;
    let (a, b) = (
        volume(&agent, "a", 1, &raw()).await,
        volume(&agent, "b", 1, &raw()).await,
    );
    let mut controller = agent.controller();
    let take = async |name: &str, of: &str| {
        ok(agent.controller().create_snapshot(snapshot(name, of)).await)
            .snapshot
            .unwrap()
    };
    let one = take("one", &a).await;
    let two = take("two", &b).await;
    assert_eq!(one, take("one", &a).await, "a repeat has the same moment");
    assert!(one.ready_to_use && one.creation_time.is_some() && one.size_bytes == MIB);
    refused(
        controller.create_snapshot(snapshot("one", &b)).await,
        Code::AlreadyExists,
    );
    let list = |source: &str, id: &str| ListSnapshotsRequest {
        source_volume_id: source.into(),
        snapshot_id: id.into(),
        ..Default::default()
    };
    for (source, id, expected) in [
        ("", "", 2),
        (a.as_str(), "", 1),
        ("", two.snapshot_id.as_str(), 1),
        (a.as_str(), two.snapshot_id.as_str(), 0),
        ("nope", "", 0),
        ("", "nope", 0),
    ] {
        let found = ok(controller.list_snapshots(list(source, id)).await);
        assert_eq!(found.entries.len(), expected, "{source} {id}");
    }
    let deleted = controller.delete_volume(delete(&a)).await;
    if snapshots_bind_their_volume() {
        let message = refused(deleted, Code::FailedPrecondition);
        assert!(message.contains(&one.snapshot_id), "{message}");
        return;
    }
    ok(deleted);
    assert_eq!(
        one,
        take("one", &a).await,
        "a repeat finds it though its volume is gone"
    );
    let got = ok(controller
        .get_snapshot(GetSnapshotRequest {
            snapshot_id: one.snapshot_id.clone(),
            ..Default::default()
        })
        .await);
    assert_eq!(got.snapshot.unwrap(), one);
    refused(
        controller
            .get_snapshot(GetSnapshotRequest {
                snapshot_id: "nope".into(),
                ..Default::default()
            })
            .await,
        Code::NotFound,
    );
    let smaller = CreateVolumeRequest {
        volume_content_source: from_snapshot(&one.snapshot_id),
        ..sized("small", 0, MIB / 2)
    };
    refused(controller.create_volume(smaller).await, Code::OutOfRange);
}

#[tokio::test]
async fn modes_that_need_several_nodes_are_refused_and_not_confirmed() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 1, &mounted("ext4")).await;
    for mode in [
        Mode::MultiNodeReaderOnly,
        Mode::MultiNodeSingleWriter,
        Mode::MultiNodeMultiWriter,
    ] {
        let capability = for_mode(&raw(), mode);
        refused(
            agent
                .controller()
                .create_volume(create("x", 1, &capability))
                .await,
            Code::InvalidArgument,
        );
        let request = validate_capabilities(&id, vec![capability]);
        let answer = ok(agent
            .controller()
            .validate_volume_capabilities(request)
            .await);
        assert!(answer.confirmed.is_none() && !answer.message.is_empty());
    }
    for (capability, is_confirmed) in [
        (mounted("ext4"), true),
        (mounted("xfs"), false),
        (raw(), true),
    ] {
        let request = validate_capabilities(&id, vec![capability]);
        let answer = ok(agent
            .controller()
            .validate_volume_capabilities(request)
            .await);
        assert_eq!(answer.confirmed.is_some(), is_confirmed);
    }
}

#[tokio::test]
async fn a_repeat_that_names_no_class_finds_its_volume_when_another_class_is_the_default() {
    let mut agent = two_classes().await;
    let id = volume(&agent, "v", 16, &raw()).await;
    let config = agent.options().config.clone().unwrap();
    let config = config
        .replace("default: true, ", "")
        .replace("name: b, ", "name: b, default: true, ");
    agent.kill();
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    agent.restart_with(options).await;
    assert_eq!(volume(&agent, "v", 16, &raw()).await, id);
    let mut named = create("v", 16, &raw());
    named.parameters.insert("class".into(), "b".into());
    let message = refused(
        agent.controller().create_volume(named.clone()).await,
        Code::AlreadyExists,
    );
    assert!(message.contains("class a"), "{message}");
    named.parameters.insert("class".into(), "a".into());
    let found = ok(agent.controller().create_volume(named).await);
    assert_eq!(found.volume.unwrap().volume_id, id);
}
