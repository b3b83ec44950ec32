//! Calls to the controller whose arguments do not fit the volume, or what an earlier call has made of it.

use std::{collections::BTreeMap, fs};

use drumlin_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerPublishVolumeRequest, CreateVolumeRequest,
    DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest, ListSnapshotsRequest,
    Topology, TopologyRequirement, ValidateVolumeCapabilitiesRequest,
    volume_capability::access_mode::Mode,
};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::{drumlin, program},
    requests::{
        create, delete_group_snapshot, delete_snapshot, expand, for_mode, mounted, raw, snapshot,
        validate_capabilities,
    },
    storage::Scratch,
};
use tonic::Code;

use crate::{
    attach::{attach, attaching},
    dialect::{controller_v0, controller_v0_1},
    group_snapshots::together,
    helpers::{detach, home, ok, refused, two_classes, volume},
    node::with_flags,
};

#[tokio::test]
async fn the_controller_publishes_what_the_volume_supports() {
    let agent = attaching().await;
    let formatted = volume(&agent, "v", 32, &mounted("ext4")).await;
    let plain = volume(&agent, "b", 32, &raw()).await;
    for (id, how) in [
        (&formatted, mounted("xfs")),
        (&formatted, for_mode(&raw(), Mode::MultiNodeMultiWriter)),
        (&plain, mounted("ext4")),
    ] {
        let answer = agent
            .controller()
            .controller_publish_volume(attach(id, &how))
            .await;
        refused(answer, Code::InvalidArgument);
    }
    let published = attach(&formatted, &mounted(""));
    ok(agent
        .controller()
        .controller_publish_volume(published)
        .await);
    let other = attach(&formatted, &mounted("xfs"));
    let answer = agent.controller().controller_publish_volume(other).await;
    refused(answer, Code::AlreadyExists);
    let context = ControllerPublishVolumeRequest {
        volume_context: [("drumlin.dev/pool".to_owned(), "x".to_owned())].into(),
        ..attach(&plain, &raw())
    };
    let answer = agent.controller().controller_publish_volume(context).await;
    refused(answer, Code::InvalidArgument);
}

#[tokio::test]
async fn a_damaged_volume_is_not_published_by_the_controller() {
    let agent = attaching().await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let image = fs::File::options()
        .write(true)
        .open(home(&agent, &id).join("image"));
    image.unwrap().set_len(5 << 20).unwrap();
    let request = attach(&id, &raw());
    let answer = agent.controller().controller_publish_volume(request).await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("damaged"), "{message}");
}

#[tokio::test]
async fn a_volume_that_is_published_here_is_published_to_no_other_node_and_the_node_is_named() {
    let agent = attaching().await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let elsewhere = ControllerPublishVolumeRequest {
        node_id: "node-b".to_owned(),
        ..attach(&id, &raw())
    };
    let answer = agent
        .controller()
        .controller_publish_volume(elsewhere.clone())
        .await;
    refused(answer, Code::NotFound);
    ok(agent
        .controller()
        .controller_publish_volume(attach(&id, &raw()))
        .await);
    let answer = agent
        .controller()
        .controller_publish_volume(elsewhere)
        .await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("published to node node-a"), "{message}");
}

#[tokio::test]
async fn the_publish_context_of_an_earlier_publication_is_refused() {
    let agent = attaching().await;
    let id = volume(&agent, "v", 32, &mounted("ext4")).await;
    let published = ok(agent
        .controller()
        .controller_publish_volume(attach(&id, &mounted("ext4")))
        .await);
    let (staging, _) = crate::helpers::paths(&agent, "v");
    let mut request = drumlin_tests::requests::stage(&id, &staging, &mounted("ext4"));
    request.publish_context = [("drumlin.dev/readonly".to_owned(), "true".to_owned())].into();
    let answer = agent.node().node_stage_volume(request.clone()).await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("publish_context"), "{message}");
    request.publish_context = published.publish_context;
    ok(agent.node().node_stage_volume(request).await);
    let unstage = drumlin_tests::requests::unstage(&id, &staging);
    ok(agent.node().node_unstage_volume(unstage).await);
    ok(agent
        .controller()
        .controller_unpublish_volume(detach(&id))
        .await);
}

#[tokio::test]
async fn an_expansion_for_what_the_volume_does_not_support_is_an_invalid_argument() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 32, &mounted("ext4")).await;
    for how in [
        mounted("xfs"),
        mounted("ntfs"),
        with_flags("ext4", &["errors=panic"]),
        for_mode(&mounted("ext4"), Mode::MultiNodeSingleWriter),
    ] {
        let request = ControllerExpandVolumeRequest {
            volume_capability: Some(how),
            ..expand(&id, 64)
        };
        let answer = agent.controller().controller_expand_volume(request).await;
        refused(answer, Code::InvalidArgument);
    }
    let request = ControllerExpandVolumeRequest {
        volume_capability: Some(mounted("ext4")),
        ..expand(&id, 32)
    };
    let answer = ok(agent.controller().controller_expand_volume(request).await);
    assert_eq!(
        answer.capacity_bytes,
        32 << 20,
        "nothing was expanded before"
    );
}

#[tokio::test]
async fn a_repeated_create_for_another_topology_or_other_mutable_parameters_is_a_conflict() {
    let agent = Agent::start().await;
    let on = |node: &str| {
        let segments = [("topology.drumlin.dev/node".to_owned(), node.to_owned())];
        let there = Topology {
            segments: segments.into(),
        };
        Some(TopologyRequirement {
            requisite: vec![there.clone()],
            preferred: vec![there],
        })
    };
    let label = |value: &str| [("label.tier".to_owned(), value.to_owned())].into();
    let first = CreateVolumeRequest {
        accessibility_requirements: on("node-a"),
        mutable_parameters: label("db"),
        ..create("v", 4, &raw())
    };
    let elsewhere = CreateVolumeRequest {
        accessibility_requirements: on("node-b"),
        ..first.clone()
    };
    let answer = agent.controller().create_volume(elsewhere.clone()).await;
    refused(answer, Code::ResourceExhausted);
    let made = ok(agent.controller().create_volume(first.clone()).await);
    let modify = drumlin_proto::csi::v1::ControllerModifyVolumeRequest {
        volume_id: made.volume.clone().unwrap().volume_id,
        mutable_parameters: label("web"),
        ..Default::default()
    };
    ok(agent.controller().controller_modify_volume(modify).await);
    let again = ok(agent.controller().create_volume(first.clone()).await);
    assert_eq!(
        again, made,
        "a later change does not make the repeat another call"
    );
    let others = [
        elsewhere,
        CreateVolumeRequest {
            mutable_parameters: label("web"),
            ..first.clone()
        },
        CreateVolumeRequest {
            mutable_parameters: BTreeMap::default(),
            ..first
        },
    ];
    for other in others {
        let answer = agent.controller().create_volume(other).await;
        refused(answer, Code::AlreadyExists);
    }
}

#[tokio::test]
async fn a_name_of_a_class_that_cannot_be_read_is_not_used_again() {
    let agent = two_classes().await;
    let mut ids = Vec::new();
    for class in ["a", "b"] {
        let request = CreateVolumeRequest {
            parameters: [("class".to_owned(), class.to_owned())].into(),
            ..create(&format!("in {class}"), 1, &raw())
        };
        let made = ok(agent.controller().create_volume(request).await);
        ids.push(made.volume.unwrap().volume_id);
    }
    let taken = ok(agent
        .controller()
        .create_snapshot(snapshot("s", &ids[1]))
        .await);
    let (here, away) = (agent.path("b"), agent.path("b-away"));
    fs::rename(&here, &away).unwrap();
    let answer = agent
        .controller()
        .create_snapshot(snapshot("s", &ids[0]))
        .await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("class b"), "{message}");
    let other = ok(agent
        .controller()
        .create_snapshot(snapshot("t", &ids[0]))
        .await);
    fs::rename(&away, &here).unwrap();
    let again = ok(agent
        .controller()
        .create_snapshot(snapshot("s", &ids[1]))
        .await);
    assert_eq!(again, taken);
    let answer = agent
        .controller()
        .create_snapshot(snapshot("s", &ids[0]))
        .await;
    refused(answer, Code::AlreadyExists);
    let id = taken.snapshot.unwrap().snapshot_id;
    ok(agent
        .controller()
        .delete_snapshot(delete_snapshot(&id))
        .await);
    fs::rename(&here, &away).unwrap();
    let free = ok(agent
        .controller()
        .create_snapshot(snapshot("s", &ids[0]))
        .await);
    fs::rename(&away, &here).unwrap();
    let all = agent
        .controller()
        .list_snapshots(ListSnapshotsRequest::default())
        .await;
    assert_eq!(ok(all).entries.len(), 2, "{other:?} {free:?}");
}

#[tokio::test]
async fn a_group_snapshot_is_asked_for_with_its_snapshots() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 1, &raw()).await;
    let mut groups = agent.group_controller();
    let taken = ok(groups
        .create_volume_group_snapshot(together("g", &[id]))
        .await);
    let taken = taken.group_snapshot.unwrap();
    let request = GetVolumeGroupSnapshotRequest {
        group_snapshot_id: taken.group_snapshot_id.clone(),
        snapshot_ids: taken
            .snapshots
            .iter()
            .map(|one| one.snapshot_id.clone())
            .collect(),
        ..GetVolumeGroupSnapshotRequest::default()
    };
    let got = ok(groups.get_volume_group_snapshot(request.clone()).await);
    assert_eq!(got.group_snapshot, Some(taken.clone()));
    let without = GetVolumeGroupSnapshotRequest {
        snapshot_ids: Vec::new(),
        ..request
    };
    let message = refused(
        groups.get_volume_group_snapshot(without).await,
        Code::InvalidArgument,
    );
    assert!(message.contains("snapshot_ids"), "{message}");
    let without = DeleteVolumeGroupSnapshotRequest {
        snapshot_ids: Vec::new(),
        ..delete_group_snapshot(&taken)
    };
    let answer = groups.delete_volume_group_snapshot(without).await;
    refused(answer, Code::InvalidArgument);
}

#[tokio::test]
async fn what_a_validation_confirms_it_has_compared() {
    let agent = Agent::start().await;
    let request = CreateVolumeRequest {
        parameters: [("class".to_owned(), "default".to_owned())].into(),
        mutable_parameters: [("label.tier".to_owned(), "db".to_owned())].into(),
        ..create("v", 32, &mounted("ext4"))
    };
    let made = ok(agent.controller().create_volume(request.clone()).await);
    let id = made.volume.unwrap().volume_id;
    let right = ValidateVolumeCapabilitiesRequest {
        parameters: request.parameters.clone(),
        mutable_parameters: request.mutable_parameters.clone(),
        volume_context: [("csi.storage.k8s.io/pod.name".to_owned(), "p".to_owned())].into(),
        ..validate_capabilities(&id, vec![mounted("ext4")])
    };
    let answer = agent
        .controller()
        .validate_volume_capabilities(right.clone())
        .await;
    let confirmed = ok(answer).confirmed.unwrap();
    assert_eq!(confirmed.parameters, right.parameters);
    assert_eq!(confirmed.mutable_parameters, right.mutable_parameters);
    assert_eq!(confirmed.volume_context, right.volume_context);
    assert_eq!(confirmed.volume_capabilities, right.volume_capabilities);
    let pair = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    for (wrong, field) in [
        (
            ValidateVolumeCapabilitiesRequest {
                parameters: pair("class", "fast"),
                ..right.clone()
            },
            "parameters.class",
        ),
        (
            ValidateVolumeCapabilitiesRequest {
                mutable_parameters: pair("label.tier", "web"),
                ..right.clone()
            },
            "mutable_parameters",
        ),
        (
            ValidateVolumeCapabilitiesRequest {
                volume_context: pair("drumlin.dev/pool", "x"),
                ..right.clone()
            },
            "volume_context",
        ),
        (validate_capabilities(&id, vec![mounted("ntfs")]), "fs_type"),
    ] {
        let answer = agent.controller().validate_volume_capabilities(wrong).await;
        let answer = ok(answer);
        assert_eq!(answer.confirmed, None);
        assert!(answer.message.contains(field), "{}", answer.message);
    }
}

#[tokio::test]
async fn older_dialects_confirm_no_context_of_another_volume() {
    use drumlin_proto::csi::{v0, v0_1};
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 1, &raw()).await;
    let attributes = [("drumlin.dev/pool".to_owned(), "x".to_owned())];
    let request = v0::ValidateVolumeCapabilitiesRequest {
        volume_id: id.clone(),
        volume_capabilities: vec![crate::dialect::capability_v0(crate::dialect::Use::Raw)],
        volume_attributes: attributes.clone().into(),
        ..Default::default()
    };
    let answer = controller_v0(&agent)
        .validate_volume_capabilities(request)
        .await;
    assert!(!ok(answer).supported);
    let request = v0_1::ValidateVolumeCapabilitiesRequest {
        version: crate::dialect::VERSION,
        volume_id: id,
        volume_capabilities: vec![crate::dialect::capability_v0_1(crate::dialect::Use::Raw)],
        volume_attributes: attributes.into(),
    };
    let answer = controller_v0_1(&agent)
        .validate_volume_capabilities(request)
        .await;
    assert!(!ok(answer).supported);
}

#[tokio::test]
async fn what_the_configuration_file_says_the_environment_can_say() {
    let mut agent = Agent::start().await;
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    };
    let addons = agent.path("addons.sock");
    let options = Options {
        config: Some("driverName: file.example.com\nonGroupDelete: refuse\n".to_owned()),
        environment: pairs(&[
            ("DRUMLIN_DRIVER_NAME", "environment.example.com"),
            ("DRUMLIN_MAX_VOLUMES_PER_NODE", "7"),
            ("DRUMLIN_ON_GROUP_DELETE", "unlink"),
            ("DRUMLIN_ADDONS_ENDPOINT", &addons.to_string_lossy()),
        ]),
        ..Options::default()
    };
    agent.kill();
    agent.restart_with(options).await;
    let info = drumlin_proto::csi::v1::GetPluginInfoRequest {};
    let info = ok(agent.identity().get_plugin_info(info).await);
    assert_eq!(info.name, "environment.example.com");
    let info = drumlin_proto::csi::v1::NodeGetInfoRequest {};
    assert_eq!(
        ok(agent.node().node_get_info(info).await).max_volumes_per_node,
        7
    );
    assert!(addons.exists(), "it serves the second socket");
    let id = volume(&agent, "v", 1, &raw()).await;
    let group = drumlin_tests::requests::create_group("g", vec![id]);
    let group = ok(agent.groups().create_volume_group(group).await).volume_group;
    let id = group.unwrap().volume_group_id;
    let request = drumlin_tests::requests::delete_group(&id);
    ok(agent.groups().delete_volume_group(request).await);
}

#[tokio::test]
async fn a_bad_value_of_the_environment_is_named() {
    let scratch = Scratch::new();
    for (name, value) in [
        ("DRUMLIN_MAX_VOLUMES_PER_NODE", "many"),
        ("DRUMLIN_ON_GROUP_DELETE", "explode"),
    ] {
        let mut agent = program(drumlin());
        let state = scratch.directory("state");
        agent
            .args(["agent", "--state-dir"])
            .arg(state)
            .env(name, value);
        let ended = agent.output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && text.contains(value), "{text}");
    }
}
