//! What CSI 1 asks of a controller, call by call, where no other test makes the call.

use drumlin_proto::csi::v1::{
    CapacityRange, ControllerGetCapabilitiesRequest, ControllerGetVolumeRequest,
    ControllerModifyVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateVolumeRequest, GetCapacityRequest,
    GetPluginCapabilitiesRequest, GroupControllerGetCapabilitiesRequest, ListVolumesRequest,
    NodeGetCapabilitiesRequest, NodeGetInfoRequest, Topology, TopologyRequirement,
    VolumeCapability,
    controller_service_capability::{self, rpc::Type as Controller},
    node_service_capability::{self, rpc::Type as Node},
    plugin_capability::{self, service::Type as Service, volume_expansion::Type as Expansion},
    volume_capability::access_mode::Mode,
};
use drumlin_tests::{
    agent::{Agent, Options},
    requests::{
        MIB, create, delete, for_mode, from_snapshot, from_volume, mounted, publish, raw, snapshot,
        stage, unstage, validate_capabilities,
    },
    storage::{Kind, Scratch},
};
use tonic::Code;

use crate::{
    attach::{attach, attaching},
    group_snapshots::take,
    helpers::{mount, ok, paths, refused, text, unmount, volume},
    node::with_flags,
};

/// An id of this node that no object has.
const UNKNOWN: &str = "node-a/default/00000000-0000-5000-8000-00000000000a";

/// What an agent advertises.
struct Advertised {
    services: Vec<Service>,
    expansions: Vec<Expansion>,
    controller: Vec<Controller>,
    node: Vec<Node>,
}

async fn advertised(agent: &Agent) -> Advertised {
    let plugin = ok(agent
        .identity()
        .get_plugin_capabilities(GetPluginCapabilitiesRequest {})
        .await);
    let (mut services, mut expansions) = (Vec::new(), Vec::new());
    for one in plugin.capabilities {
        match one.r#type.unwrap() {
            plugin_capability::Type::Service(service) => services.push(service.r#type()),
            plugin_capability::Type::VolumeExpansion(one) => expansions.push(one.r#type()),
        }
    }
    let controller = ok(agent
        .controller()
        .controller_get_capabilities(ControllerGetCapabilitiesRequest {})
        .await);
    let controller = controller.capabilities.into_iter().map(|one| {
        let controller_service_capability::Type::Rpc(rpc) = one.r#type.unwrap();
        rpc.r#type()
    });
    let node = ok(agent
        .node()
        .node_get_capabilities(NodeGetCapabilitiesRequest {})
        .await);
    let node = node.capabilities.into_iter().map(|one| {
        let node_service_capability::Type::Rpc(rpc) = one.r#type.unwrap();
        rpc.r#type()
    });
    Advertised {
        services,
        expansions,
        controller: controller.collect(),
        node: node.collect(),
    }
}

#[tokio::test]
async fn a_capability_is_advertised_with_those_that_it_needs() {
    let mut services = Vec::new();
    for attach in [false, true] {
        let arguments = attach.then(|| "--attach".to_owned());
        let options = Options {
            arguments: arguments.into_iter().collect(),
            ..Options::default()
        };
        let agent = Agent::with(Scratch::new(), options).await;
        let all = advertised(&agent).await;
        let has = |one: Controller| all.controller.contains(&one);
        assert!(all.services.contains(&Service::ControllerService));
        assert_eq!(has(Controller::PublishUnpublishVolume), attach);
        assert_eq!(has(Controller::ListVolumesPublishedNodes), attach);
        assert_eq!(has(Controller::PublishReadonly), attach);
        assert_eq!(all.expansions, [Expansion::Online]);
        assert!(has(Controller::ExpandVolume) && all.node.contains(&Node::ExpandVolume));
        // Group snapshots: their service, its capability, and the call that finds a member.
        assert!(all.services.contains(&Service::GroupControllerService));
        let request = GroupControllerGetCapabilitiesRequest {};
        let mut groups = agent.group_controller();
        let group = ok(groups.group_controller_get_capabilities(request).await);
        assert_eq!(group.capabilities.len(), 1);
        assert!(has(Controller::GetSnapshot));
        assert!(!has(Controller::ListVolumeHealth) || has(Controller::GetVolumeHealth));
        // A topology of a node or volume comes with the capability that says what it means.
        let info = ok(agent.node().node_get_info(NodeGetInfoRequest {}).await);
        assert!(info.accessible_topology.is_some());
        let constrained = Service::VolumeAccessibilityConstraints;
        assert!(all.services.contains(&constrained), "{:?}", all.services);
        services.push(all.services);
    }
    assert_eq!(
        services[0], services[1],
        "a plugin has them, not an instance"
    );
}

#[tokio::test]
async fn a_modification_is_applied_in_full_or_not_at_all_and_changes_nothing_else() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 1, &raw()).await;
    let modify = async |parameters: &[(&str, &str)]| {
        let pairs = parameters.iter();
        let request = ControllerModifyVolumeRequest {
            volume_id: id.clone(),
            mutable_parameters: pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..ControllerModifyVolumeRequest::default()
        };
        agent.controller().controller_modify_volume(request).await
    };
    let is_protected = async || {
        let deleted = agent.controller().delete_volume(delete(&id)).await;
        refused(deleted, Code::FailedPrecondition);
    };
    ok(modify(&[("protected", "true")]).await);
    // A parameter that a request does not name stays as it is.
    ok(modify(&[("label.tier", "gold")]).await);
    is_protected().await;
    for unsupported in [("speed", "fast"), ("label.", "x"), ("label.a", "x\ny")] {
        let answer = modify(&[("protected", "false"), unsupported]).await;
        refused(answer, Code::InvalidArgument);
        is_protected().await;
    }
    ok(modify(&[("protected", "false")]).await);
    ok(agent.controller().delete_volume(delete(&id)).await);
}

#[tokio::test]
async fn the_capabilities_that_are_confirmed_are_those_of_the_request() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 16, &mounted("ext4")).await;
    let mut asked = vec![
        mounted("ext4"),
        for_mode(&mounted("ext4"), Mode::SingleNodeMultiWriter),
        raw(),
    ];
    let validate = async |id: &str, asked: &[_]| {
        let request = validate_capabilities(id, asked.to_vec());
        let mut controller = agent.controller();
        controller.validate_volume_capabilities(request).await
    };
    for _ in 0..2 {
        let answer = ok(validate(&id, &asked).await);
        let confirmed = answer.confirmed.unwrap();
        assert_eq!(confirmed.volume_capabilities, asked);
        // What is in the response was checked, and these were not given.
        assert!(confirmed.volume_context.is_empty() && confirmed.parameters.is_empty());
        assert!(confirmed.mutable_parameters.is_empty());
        assert_eq!(answer.message, "");
    }
    asked.push(for_mode(&raw(), Mode::MultiNodeMultiWriter));
    for _ in 0..2 {
        let answer = ok(validate(&id, &asked).await);
        assert_eq!(answer.confirmed, None);
        assert!(!answer.message.is_empty());
    }
    refused(validate(UNKNOWN, &[raw()]).await, Code::NotFound);
}

#[tokio::test]
async fn a_publish_context_is_constant_holds_no_secret_and_identifies_no_volume() {
    let mut agent = attaching().await;
    let plain = mounted("ext4");
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        ids.push(volume(&agent, name, 32, &plain).await);
    }
    let publish = async |agent: &Agent, id: &str| {
        let request = ControllerPublishVolumeRequest {
            secrets: [("passphrase".to_owned(), "open sesame".to_owned())].into(),
            ..attach(id, &plain)
        };
        let answer = agent.controller().controller_publish_volume(request).await;
        ok(answer).publish_context
    };
    let first = publish(&agent, &ids[0]).await;
    assert_eq!(publish(&agent, &ids[0]).await, first);
    assert_eq!(
        publish(&agent, &ids[1]).await,
        first,
        "both are published alike"
    );
    for (key, value) in &first {
        assert!(!key.contains("passphrase") && !value.contains("sesame"));
        assert!(key.len() <= 128 && value.len() <= 128);
    }
    let bytes = first.iter().map(|(key, value)| key.len() + value.len());
    assert!(bytes.sum::<usize>() <= 4096);
    agent.kill();
    agent.restart().await;
    assert_eq!(publish(&agent, &ids[0]).await, first);
    // The id of a volume suffices, with its context or without.
    for (id, name, context) in [(&ids[0], "a", first), (&ids[1], "b", [].into())] {
        let (staging, _) = paths(&agent, name);
        let mut request = stage(id, &staging, &plain);
        request.publish_context = context;
        ok(agent.node().node_stage_volume(request).await);
        let request = unstage(id, &staging);
        ok(agent.node().node_unstage_volume(request).await);
    }
}

async fn published_nodes(agent: &Agent, id: &str) -> Vec<String> {
    let request = ControllerGetVolumeRequest {
        volume_id: id.to_owned(),
    };
    let found = ok(agent.controller().controller_get_volume(request).await);
    found.status.unwrap().published_node_ids
}

#[tokio::test]
async fn a_volume_is_unpublished_from_the_node_that_is_named_or_from_all() {
    let agent = attaching().await;
    let id = volume(&agent, "v", 1, &raw()).await;
    let unpublish = async |id: &str, node: &str| {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: node.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        let mut controller = agent.controller();
        controller.controller_unpublish_volume(request).await
    };
    let publish = async || {
        let request = attach(&id, &raw());
        ok(agent.controller().controller_publish_volume(request).await);
        assert_eq!(published_nodes(&agent, &id).await, ["node-a"]);
    };
    publish().await;
    // It is not published to a node that does not exist.
    ok(unpublish(&id, "node-b").await);
    assert_eq!(published_nodes(&agent, &id).await, ["node-a"]);
    for _ in 0..2 {
        ok(unpublish(&id, "node-a").await);
        assert_eq!(published_nodes(&agent, &id).await, [""; 0]);
    }
    publish().await;
    ok(unpublish(&id, "").await);
    assert_eq!(published_nodes(&agent, &id).await, [""; 0]);
    for unknown in [UNKNOWN, "nonsense"] {
        ok(unpublish(unknown, "node-a").await);
    }
    // Only the agent of another node knows whether its volumes are published.
    let there = UNKNOWN.replace("node-a", "node-b");
    let message = refused(unpublish(&there, "").await, Code::NotFound);
    assert!(message.contains("node-b"), "{message}");
}

#[tokio::test]
async fn a_volume_is_found_and_listed_as_it_was_created() {
    let agent = Agent::start().await;
    let made = agent
        .controller()
        .create_volume(create("v", 16, &raw()))
        .await;
    let made = ok(made).volume.unwrap();
    for _ in 0..2 {
        let request = ControllerGetVolumeRequest {
            volume_id: made.volume_id.clone(),
        };
        let found = ok(agent.controller().controller_get_volume(request).await);
        assert_eq!(found.volume.as_ref(), Some(&made));
        let request = ListVolumesRequest::default();
        let listed = ok(agent.controller().list_volumes(request).await).entries;
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].volume.as_ref(), Some(&made));
        for condition in [
            found.status.unwrap().volume_condition,
            listed[0].status.clone().unwrap().volume_condition,
        ] {
            let condition = condition.unwrap();
            assert!(!condition.abnormal && !condition.message.is_empty());
        }
    }
}

fn of_size(name: &str, (required, limit): (i64, i64)) -> CreateVolumeRequest {
    CreateVolumeRequest {
        capacity_range: Some(CapacityRange {
            required_bytes: required * MIB,
            limit_bytes: limit * MIB,
        }),
        ..create(name, 1, &raw())
    }
}

#[tokio::test]
async fn a_copy_has_the_size_of_the_request_and_is_never_smaller_than_its_source() {
    let agent = Agent::start().await;
    let id = volume(&agent, "source", 16, &raw()).await;
    let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
    let taken = ok(taken).snapshot.unwrap();
    assert_eq!(taken.size_bytes, 16 * MIB);
    for (kind, source) in [
        ("restored", from_snapshot(&taken.snapshot_id)),
        ("cloned", from_volume(&id)),
    ] {
        for (range, expected) in [((24, 24), 24), ((16, 0), 16), ((0, 20), 16), ((1, 0), 16)] {
            let request = CreateVolumeRequest {
                volume_content_source: source.clone(),
                ..of_size(&format!("{kind}-{range:?}"), range)
            };
            let made = ok(agent.controller().create_volume(request).await);
            let made = made.volume.unwrap();
            assert_eq!(made.capacity_bytes, expected * MIB, "{kind} {range:?}");
            assert_eq!(made.content_source, source);
        }
        let request = CreateVolumeRequest {
            volume_content_source: source,
            ..of_size("smaller", (0, 8))
        };
        refused(
            agent.controller().create_volume(request).await,
            Code::OutOfRange,
        );
    }
}

#[tokio::test]
async fn a_source_that_cannot_be_used_is_refused_and_the_message_says_why() {
    let agent = Agent::start().await;
    let id = volume(&agent, "source", 320, &mounted("ext4")).await;
    let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
    let taken = ok(taken).snapshot.unwrap().snapshot_id;
    for source in [from_snapshot(&taken), from_volume(&id)] {
        let request = CreateVolumeRequest {
            volume_content_source: source,
            ..create("copy", 320, &mounted("xfs"))
        };
        let answer = agent.controller().create_volume(request).await;
        let message = refused(answer, Code::InvalidArgument);
        assert!(
            message.contains("xfs") && message.contains("ext4"),
            "{message}"
        );
        assert!(message.contains("source"), "{message}");
    }
    for source in [from_snapshot(UNKNOWN), from_volume(UNKNOWN)] {
        let request = CreateVolumeRequest {
            volume_content_source: source,
            ..create("copy", 320, &mounted("ext4"))
        };
        refused(
            agent.controller().create_volume(request).await,
            Code::NotFound,
        );
    }
}

#[tokio::test]
async fn a_volume_that_is_not_accessible_where_it_is_wanted_is_a_conflict() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 1, &raw()).await;
    let at = |node: &str| CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![Topology {
                segments: [("topology.drumlin.dev/node".to_owned(), node.to_owned())].into(),
            }],
            preferred: Vec::new(),
        }),
        ..create("v", 1, &raw())
    };
    let found = ok(agent.controller().create_volume(at("node-a")).await);
    assert_eq!(found.volume.unwrap().volume_id, id);
    let answer = agent.controller().create_volume(at("node-b")).await;
    refused(answer, Code::AlreadyExists);
}

#[tokio::test]
async fn a_capability_that_a_volume_does_not_support_is_not_published() {
    let agent = attaching().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    for mode in [
        Mode::MultiNodeReaderOnly,
        Mode::MultiNodeSingleWriter,
        Mode::MultiNodeMultiWriter,
    ] {
        let request = attach(&id, &for_mode(&plain, mode));
        let answer = agent.controller().controller_publish_volume(request).await;
        let code = answer.unwrap_err().code();
        assert!(
            matches!(code, Code::InvalidArgument | Code::FailedPrecondition),
            "{code:?}"
        );
        assert_eq!(published_nodes(&agent, &id).await, [""; 0]);
    }
}

#[tokio::test]
async fn a_volume_supports_each_capability_of_its_list_or_is_not_created() {
    let agent = Agent::start().await;
    let with = |name: &str, capabilities: &[VolumeCapability]| CreateVolumeRequest {
        volume_capabilities: capabilities.to_vec(),
        ..create(name, 32, &raw())
    };
    let many = for_mode(&raw(), Mode::MultiNodeReaderOnly);
    for unsupported in [
        [raw(), many.clone()],
        [many, raw()],
        [mounted("ext4"), mounted("xfs")],
        [raw(), mounted("ntfs")],
    ] {
        let answer = agent
            .controller()
            .create_volume(with("v", &unsupported))
            .await;
        refused(answer, Code::InvalidArgument);
    }
    let request = ListVolumesRequest::default();
    let listed = ok(agent.controller().list_volumes(request).await);
    assert_eq!(listed.entries, []);
    // Each of these uses may come first.
    let list = [
        mounted("ext4"),
        raw(),
        for_mode(&mounted("ext4"), Mode::SingleNodeSingleWriter),
        for_mode(&raw(), Mode::SingleNodeMultiWriter),
    ];
    for (number, used) in list.iter().enumerate() {
        let name = format!("v{number}");
        let made = ok(agent.controller().create_volume(with(&name, &list)).await);
        let id = made.volume.unwrap().volume_id;
        let request = validate_capabilities(&id, list.to_vec());
        let mut controller = agent.controller();
        let answer = ok(controller.validate_volume_capabilities(request).await);
        assert!(answer.confirmed.is_some(), "{}", answer.message);
        let at = mount(&agent, &name, &id, used).await;
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test]
async fn a_volume_is_accessible_from_a_topology_of_the_request_or_is_not_created() {
    let agent = Agent::start().await;
    let at = |node: &str| Topology {
        segments: [("topology.drumlin.dev/node".to_owned(), node.to_owned())].into(),
    };
    let (here, there) = (at("node-a"), at("node-b"));
    let with = |number: usize, requisite: &[Topology], preferred: &[Topology]| {
        let requirement = TopologyRequirement {
            requisite: requisite.to_vec(),
            preferred: preferred.to_vec(),
        };
        CreateVolumeRequest {
            accessibility_requirements: Some(requirement),
            ..create(&format!("v{number}"), 1, &raw())
        }
    };
    let both = [there.clone(), here.clone()];
    let (only, none) = (&both[1..], &both[..0]);
    let possible = [
        (only, none),
        (only, only),
        (none, only),
        (none, &both[..]),
        (&both[..], &both[..]),
        (&both[..], only),
    ];
    for (number, (requisite, preferred)) in possible.into_iter().enumerate() {
        let request = with(number, requisite, preferred);
        let made = ok(agent.controller().create_volume(request).await);
        assert_eq!(made.volume.unwrap().accessible_topology, only, "{number}");
    }
    let elsewhere = &both[..1];
    for preferred in [none, elsewhere] {
        let request = with(9, elsewhere, preferred);
        let answer = agent.controller().create_volume(request).await;
        refused(answer, Code::ResourceExhausted);
    }
}

#[tokio::test]
async fn mount_flags_are_neither_logged_nor_in_a_message() {
    let options = Options {
        arguments: vec!["--log-level=trace".to_owned()],
        ..Options::default()
    };
    let agent = Agent::with(Scratch::new(), options).await;
    let flags = with_flags("ext4", &["nodiratime"]);
    let id = volume(&agent, "v", 32, &flags).await;
    let at = mount(&agent, "v", &id, &flags).await;
    let secret = with_flags("ext4", &["password=hunter2"]);
    let (staging, target) = (&at.0, &at.1);
    let created = agent
        .controller()
        .create_volume(create("w", 32, &secret))
        .await;
    let staged = agent
        .node()
        .node_stage_volume(stage(&id, staging, &secret))
        .await;
    let request = publish(&id, (staging, target), &secret);
    let published = agent.node().node_publish_volume(request).await;
    for message in [
        refused(created, Code::InvalidArgument),
        refused(staged, Code::FailedPrecondition),
        refused(published, Code::FailedPrecondition),
    ] {
        assert!(!message.contains("hunter2"), "{message}");
    }
    unmount(&agent, &id, &at).await;
    let log = agent.log();
    assert!(log.contains("csi.v1.Node/NodePublishVolume"), "{log}");
    for part in ["hunter2", "nodiratime"] {
        assert!(!log.contains(part), "{part}: {log}");
    }
}

#[tokio::test]
async fn the_sizes_that_capacity_tells_are_those_of_the_volumes_that_are_asked_about() {
    let scratch = Scratch::new();
    let paths = [("small", 64), ("large", 512)]
        .map(|(name, mebibytes)| text(scratch.file_system(name, Kind::Ext4, mebibytes)));
    let config = format!(
        "classes:\n- {{name: small, default: true, directory: {{path: {}}}}}\n- {{name: large, directory: {{path: {}}}}}\n",
        paths[0], paths[1]
    );
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let told = async |class: &str, capability| {
        let request = GetCapacityRequest {
            parameters: [("class".to_owned(), class.to_owned())].into(),
            volume_capabilities: vec![capability],
            ..GetCapacityRequest::default()
        };
        let answer = ok(agent.controller().get_capacity(request).await);
        let largest = answer.maximum_volume_size.unwrap();
        let smallest = answer.minimum_volume_size.unwrap();
        assert!(largest >= 0 && smallest >= 0 && answer.available_capacity >= largest);
        (largest / MIB, smallest)
    };
    let (small, of_raw) = told("small", raw()).await;
    let (large, _) = told("large", raw()).await;
    assert!(
        (1..=64).contains(&small) && (65..=512).contains(&large),
        "{small} {large}"
    );
    let (_, of_xfs) = told("large", mounted("xfs")).await;
    assert!(of_xfs > of_raw, "{of_xfs} {of_raw}");
    let many = for_mode(&raw(), Mode::MultiNodeMultiWriter);
    assert_eq!(told("large", many).await.0, 0, "no such volume can be made");
}

#[tokio::test]
async fn no_text_of_a_response_is_longer_than_128_bytes() {
    let (node, class) = ("n".repeat(63), "c".repeat(27));
    let scratch = Scratch::new();
    let images = text(scratch.file_system("images", Kind::Xfs, 512));
    let options = Options {
        config: Some(format!(
            "classes: [{{name: {class}, directory: {{path: {images}}}}}]\n"
        )),
        node: Some(node.clone()),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let mut texts = Vec::new();
    for letter in ["v", "w"] {
        let id = volume(&agent, &letter.repeat(128), 4, &mounted("ext4")).await;
        let request = snapshot(&letter.repeat(128), &id);
        let taken = ok(agent.controller().create_snapshot(request).await);
        texts.extend([id, taken.snapshot.unwrap().snapshot_id]);
    }
    let ids = [texts[0].clone(), texts[2].clone()];
    let taken = take(&agent, &"g".repeat(128), &ids).await;
    texts.push(taken.group_snapshot_id);
    let request = ListVolumesRequest {
        max_entries: 1,
        ..ListVolumesRequest::default()
    };
    let page = ok(agent.controller().list_volumes(request).await);
    let status = page.entries[0].status.clone().unwrap();
    texts.extend([page.next_token, status.volume_condition.unwrap().message]);
    let request = validate_capabilities(&ids[0], vec![mounted("xfs")]);
    let answer = ok(agent
        .controller()
        .validate_volume_capabilities(request)
        .await);
    texts.push(answer.message);
    let info = ok(agent.node().node_get_info(NodeGetInfoRequest {}).await);
    assert_eq!(info.node_id, node);
    texts.extend(
        info.accessible_topology
            .unwrap()
            .segments
            .into_iter()
            .flat_map(<[String; 2]>::from),
    );
    texts.push(info.node_id);
    for text in texts {
        assert!(
            (1..=128).contains(&text.len()),
            "{} bytes: {text}",
            text.len()
        );
    }
}
