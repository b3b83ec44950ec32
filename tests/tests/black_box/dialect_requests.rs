//! What old dialects say of themselves, and what becomes of requests that are not right.

use drumlin_proto::csi::{v0, v0_1};
use drumlin_tests::{
    agent::{Agent, Options},
    requests::MIB,
    storage::Scratch,
};
use tonic::{Code, Status, transport::Channel};

use crate::{
    dialect::{
        Dialect, Use, VERSION, capability_v0, capability_v0_1, controller_v0, controller_v0_1,
        node_v0, node_v0_1, publish_v0, publish_v0_1,
    },
    helpers::{ok, paths, refused},
};

fn identity_v0(agent: &Agent) -> v0::identity_client::IdentityClient<Channel> {
    v0::identity_client::IdentityClient::new(agent.channel())
}

fn identity_v0_1(agent: &Agent) -> v0_1::identity_client::IdentityClient<Channel> {
    v0_1::identity_client::IdentityClient::new(agent.channel())
}

/// Every RPC of 0.1 but the one that says the versions, with a version.
async fn all_of_0_1(agent: &Agent, version: Option<v0_1::Version>) -> Vec<Result<(), Status>> {
    macro_rules! call {
        ($client:expr, $method:ident, $request:ident) => {{
            #[allow(clippy::needless_update, reason = "some have nothing else")]
            let request = v0_1::$request {
                version,
                ..v0_1::$request::default()
            };
            $client.$method(request).await.map(drop)
        }};
    }
    let (mut identity, mut controller) = (identity_v0_1(agent), controller_v0_1(agent));
    let mut node = node_v0_1(agent);
    vec![
        call!(identity, get_plugin_info, GetPluginInfoRequest),
        call!(controller, create_volume, CreateVolumeRequest),
        call!(controller, delete_volume, DeleteVolumeRequest),
        call!(
            controller,
            controller_publish_volume,
            ControllerPublishVolumeRequest
        ),
        call!(
            controller,
            controller_unpublish_volume,
            ControllerUnpublishVolumeRequest
        ),
        call!(
            controller,
            validate_volume_capabilities,
            ValidateVolumeCapabilitiesRequest
        ),
        call!(controller, list_volumes, ListVolumesRequest),
        call!(controller, get_capacity, GetCapacityRequest),
        call!(controller, controller_probe, ControllerProbeRequest),
        call!(
            controller,
            controller_get_capabilities,
            ControllerGetCapabilitiesRequest
        ),
        call!(node, node_publish_volume, NodePublishVolumeRequest),
        call!(node, node_unpublish_volume, NodeUnpublishVolumeRequest),
        call!(node, get_node_id, GetNodeIdRequest),
        call!(node, node_probe, NodeProbeRequest),
        call!(node, node_get_capabilities, NodeGetCapabilitiesRequest),
    ]
}

#[tokio::test]
async fn every_request_of_0_1_names_a_supported_version() {
    let agent = Agent::start().await;
    let request = v0_1::GetSupportedVersionsRequest {};
    let supported = ok(identity_v0_1(&agent).get_supported_versions(request).await);
    assert_eq!(
        supported.supported_versions,
        VERSION.into_iter().collect::<Vec<_>>()
    );
    let other = v0_1::Version {
        major: 0,
        minor: 2,
        patch: 0,
    };
    for wrong in [None, Some(other)] {
        let answers = all_of_0_1(&agent, wrong).await;
        assert_eq!(answers.len(), 15);
        for answer in answers {
            let status = answer.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
            assert!(status.message().starts_with("version"), "{status}");
            assert!(status.message().contains("supported: 0.1.0"), "{status}");
            assert!(status.details().is_empty());
        }
    }
    // With the right one, each says what else is missing, or answers.
    for answer in all_of_0_1(&agent, VERSION).await {
        if let Err(status) = answer {
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
            assert!(status.message().contains("is missing"), "{status}");
            assert!(!status.message().contains("version"), "{status}");
        }
    }
}

#[tokio::test]
async fn old_dialects_say_who_and_what_they_are() {
    for attach in [false, true] {
        let arguments = attach.then(|| "--attach".to_owned());
        let options = Options {
            arguments: arguments.into_iter().collect(),
            ..Options::default()
        };
        let agent = Agent::with(Scratch::new(), options).await;
        the_plugin_is_known(&agent).await;
        the_controller_says_what_it_can(&agent, attach).await;
        the_node_says_what_it_is(&agent).await;
        let request = v0_1::NodeProbeRequest { version: VERSION };
        ok(node_v0_1(&agent).node_probe(request).await);
        let request = v0_1::ControllerProbeRequest { version: VERSION };
        ok(controller_v0_1(&agent).controller_probe(request).await);
        capacity_and_capabilities(&agent).await;
    }
}

async fn the_plugin_is_known(agent: &Agent) {
    use v0::plugin_capability::{Type, service::Type as Service};
    let info = ok(identity_v0(agent)
        .get_plugin_info(v0::GetPluginInfoRequest {})
        .await);
    let request = v0_1::GetPluginInfoRequest { version: VERSION };
    let old = ok(identity_v0_1(agent).get_plugin_info(request).await);
    assert_eq!(
        (&info.name, &info.vendor_version),
        (&old.name, &old.vendor_version)
    );
    assert_eq!(info.name, "csi.drumlin.dev");
    assert!(info.vendor_version.starts_with(env!("CARGO_PKG_VERSION")));
    let ready = ok(identity_v0(agent).probe(v0::ProbeRequest {}).await).ready;
    assert_eq!(ready, Some(true));
    let plugin = ok(identity_v0(agent)
        .get_plugin_capabilities(v0::GetPluginCapabilitiesRequest {})
        .await);
    let services = plugin.capabilities.into_iter().map(|one| match one.r#type {
        Some(Type::Service(service)) => service.r#type(),
        None => Service::Unknown,
    });
    let services: Vec<Service> = services.collect();
    let wanted = vec![
        Service::ControllerService,
        Service::AccessibilityConstraints,
    ];
    assert_eq!(services, wanted);
}

async fn the_controller_says_what_it_can(agent: &Agent, attach: bool) {
    use v0::controller_service_capability::{Type, rpc::Type as Rpc};
    let offered = ok(controller_v0(agent)
        .controller_get_capabilities(v0::ControllerGetCapabilitiesRequest {})
        .await);
    let offered = offered
        .capabilities
        .into_iter()
        .map(|one| match one.r#type {
            Some(Type::Rpc(rpc)) => rpc.r#type(),
            None => Rpc::Unknown,
        });
    let offered: Vec<Rpc> = offered.collect();
    let mut wanted = vec![
        Rpc::CreateDeleteVolume,
        Rpc::ListVolumes,
        Rpc::GetCapacity,
        Rpc::CreateDeleteSnapshot,
        Rpc::ListSnapshots,
    ];
    wanted.extend(attach.then_some(Rpc::PublishUnpublishVolume));
    assert_eq!(offered, wanted);
    let request = v0_1::ControllerGetCapabilitiesRequest { version: VERSION };
    let old = ok(controller_v0_1(agent)
        .controller_get_capabilities(request)
        .await);
    assert_eq!(old.capabilities.len(), if attach { 4 } else { 3 });
}

async fn the_node_says_what_it_is(agent: &Agent) {
    let mut node = node_v0(agent);
    let staging = ok(node
        .node_get_capabilities(v0::NodeGetCapabilitiesRequest {})
        .await);
    assert_eq!(staging.capabilities.len(), 1);
    let info = ok(node.node_get_info(v0::NodeGetInfoRequest {}).await);
    let here = info.accessible_topology.unwrap().segments;
    assert_eq!(here["topology.drumlin.dev/node"], "node-a");
    let id = ok(node.node_get_id(v0::NodeGetIdRequest {}).await).node_id;
    let request = v0_1::GetNodeIdRequest { version: VERSION };
    let old = ok(node_v0_1(agent).get_node_id(request).await).node_id;
    assert_eq!([id.as_str(), &info.node_id, &old], ["node-a"; 3]);
    let request = v0_1::NodeGetCapabilitiesRequest { version: VERSION };
    let nothing = ok(node_v0_1(agent).node_get_capabilities(request).await);
    assert!(nothing.capabilities.is_empty());
}

async fn capacity_and_capabilities(agent: &Agent) {
    let (mut new, mut old) = (controller_v0(agent), controller_v0_1(agent));
    let request = v0::GetCapacityRequest::default();
    let free = ok(new.get_capacity(request.clone()).await).available_capacity;
    let request_old = v0_1::GetCapacityRequest {
        version: VERSION,
        ..v0_1::GetCapacityRequest::default()
    };
    let free_old = ok(old.get_capacity(request_old).await).available_capacity;
    assert!(free > 64 * MIB && free_old.cast_signed() > 64 * MIB);
    let elsewhere = v0::Topology {
        segments: [("topology.drumlin.dev/node".to_owned(), "b".to_owned())].into(),
    };
    let request = v0::GetCapacityRequest {
        accessible_topology: Some(elsewhere.clone()),
        ..request
    };
    assert_eq!(ok(new.get_capacity(request).await).available_capacity, 0);
    let (id, _) = Dialect::V0
        .create(agent, "v", 16, Use::Mounted)
        .await
        .unwrap();
    let many = v0::VolumeCapability {
        access_mode: Some(v0::volume_capability::AccessMode {
            mode: v0::volume_capability::access_mode::Mode::MultiNodeMultiWriter.into(),
        }),
        ..capability_v0(Use::Mounted)
    };
    for (capabilities, topologies, supported) in [
        (vec![capability_v0(Use::Mounted)], vec![], true),
        (vec![capability_v0(Use::Mounted), many], vec![], false),
        (vec![capability_v0(Use::Mounted)], vec![elsewhere], false),
    ] {
        let request = v0::ValidateVolumeCapabilitiesRequest {
            volume_id: id.clone(),
            volume_capabilities: capabilities,
            accessible_topology: topologies,
            ..v0::ValidateVolumeCapabilitiesRequest::default()
        };
        let answer = ok(new.validate_volume_capabilities(request).await);
        assert_eq!(answer.supported, supported, "{}", answer.message);
        assert_eq!(answer.message.is_empty(), supported);
    }
    let request = v0_1::ValidateVolumeCapabilitiesRequest {
        version: VERSION,
        volume_id: id.clone(),
        volume_capabilities: vec![capability_v0_1(Use::Mounted)],
        ..v0_1::ValidateVolumeCapabilitiesRequest::default()
    };
    assert!(ok(old.validate_volume_capabilities(request).await).supported);
    Dialect::V0_1.delete(agent, &id).await;
}

#[tokio::test]
async fn malformed_requests_name_the_field() {
    let agent = Agent::start().await;
    let mut new = controller_v0(&agent);
    for (request, field) in malformed_creates() {
        let message = refused(new.create_volume(request).await, Code::InvalidArgument);
        assert!(message.contains(field), "{field}: {message}");
    }
    let request = v0::ListVolumesRequest {
        max_entries: -1,
        ..v0::ListVolumesRequest::default()
    };
    let message = refused(new.list_volumes(request).await, Code::InvalidArgument);
    assert!(message.contains("max_entries"), "{message}");
    ranges_of_0_1_are_refused(&agent).await;
    assert_eq!(Dialect::V1.list(&agent).await, vec![]);
    let (id, _) = Dialect::V0
        .create(&agent, "v", 16, Use::Mounted)
        .await
        .unwrap();
    let (staging, target) = paths(&agent, "v");
    for (target, capability, field) in [
        ("", Some(capability_v0(Use::Mounted)), "target_path"),
        ("relative", Some(capability_v0(Use::Mounted)), "target_path"),
        (target.as_str(), None, "volume_capability"),
    ] {
        let request = v0::NodePublishVolumeRequest {
            volume_capability: capability,
            ..publish_v0(&id, (&staging, target), Use::Mounted)
        };
        let answer = node_v0(&agent).node_publish_volume(request).await;
        let message = refused(answer, Code::InvalidArgument);
        assert!(message.contains(field), "{field}: {message}");
    }
    let request = publish_v0_1("", &target, Use::Mounted);
    let answer = node_v0_1(&agent).node_publish_volume(request).await;
    assert!(refused(answer, Code::InvalidArgument).contains("volume_id"));
}

/// Requests of 0.3 in which one field is wrong, and which.
fn malformed_creates() -> Vec<(v0::CreateVolumeRequest, &'static str)> {
    let changed = |change: &dyn Fn(&mut v0::CreateVolumeRequest)| {
        let mut request = v0::CreateVolumeRequest {
            name: "v".to_owned(),
            volume_capabilities: vec![capability_v0(Use::Mounted)],
            ..v0::CreateVolumeRequest::default()
        };
        change(&mut request);
        request
    };
    let range = |required_bytes, limit_bytes| {
        Some(v0::CapacityRange {
            required_bytes,
            limit_bytes,
        })
    };
    vec![
        (changed(&|request| request.name.clear()), "name"),
        (
            changed(&|request| request.volume_capabilities.clear()),
            "volume_capabilities",
        ),
        (
            changed(&|request| request.volume_capabilities[0].access_type = None),
            "volume_capabilities[0].access_type",
        ),
        (
            changed(&|request| request.volume_capabilities[0].access_mode = None),
            "volume_capabilities[0].access_mode",
        ),
        (
            // A mode of csi.v1.
            changed(&|request| {
                let mode = v0::volume_capability::AccessMode { mode: 6 };
                request.volume_capabilities[0].access_mode = Some(mode);
            }),
            "volume_capabilities[0].access_mode.mode",
        ),
        (
            changed(&|request| request.capacity_range = range(2 * MIB, MIB)),
            "capacity_range.limit_bytes",
        ),
        (
            changed(&|request| request.capacity_range = range(-1, 0)),
            "capacity_range.required_bytes",
        ),
        (
            changed(&|request| {
                request.volume_content_source = Some(v0::VolumeContentSource::default());
            }),
            "volume_content_source.type",
        ),
    ]
}

async fn ranges_of_0_1_are_refused(agent: &Agent) {
    let mut old = controller_v0_1(agent);
    let range = |required_bytes, limit_bytes| v0_1::CreateVolumeRequest {
        version: VERSION,
        name: "v".to_owned(),
        capacity_range: Some(v0_1::CapacityRange {
            required_bytes,
            limit_bytes,
        }),
        volume_capabilities: vec![capability_v0_1(Use::Mounted)],
        ..v0_1::CreateVolumeRequest::default()
    };
    let bytes = MIB.unsigned_abs();
    for (request, code) in [
        (range(2 * bytes, bytes), Code::InvalidArgument),
        (range(u64::MAX, 0), Code::OutOfRange),
        (range(0, 512), Code::OutOfRange),
    ] {
        let message = refused(old.create_volume(request).await, code);
        assert!(message.contains("capacity_range"), "{message}");
    }
}

#[tokio::test]
async fn lists_of_old_dialects_have_pages() {
    let agent = Agent::start().await;
    for number in 0..5 {
        let name = format!("v{number}");
        let made = Dialect::V0.create(&agent, &name, 16, Use::Raw).await;
        let request = v0::CreateSnapshotRequest {
            source_volume_id: made.unwrap().0,
            name,
            ..v0::CreateSnapshotRequest::default()
        };
        ok(controller_v0(&agent).create_snapshot(request).await);
    }
    let ([mut new, mut old], mut snapshots) = ([Vec::new(), Vec::new()], Vec::new());
    let [mut token, mut token_old, mut token_snapshots] =
        [String::new(), String::new(), String::new()];
    for page in 0..3 {
        let request = v0::ListVolumesRequest {
            max_entries: 2,
            starting_token: token,
        };
        let answer = ok(controller_v0(&agent).list_volumes(request).await);
        new.extend(answer.entries.into_iter().map(|one| one.volume.unwrap().id));
        let request = v0_1::ListVolumesRequest {
            version: VERSION,
            max_entries: 2,
            starting_token: token_old,
        };
        let answer_old = ok(controller_v0_1(&agent).list_volumes(request).await);
        let entries = answer_old.entries.into_iter();
        old.extend(entries.map(|one| one.volume_info.unwrap().id));
        let request = v0::ListSnapshotsRequest {
            max_entries: 2,
            starting_token: token_snapshots,
            ..v0::ListSnapshotsRequest::default()
        };
        let page_of_snapshots = ok(controller_v0(&agent).list_snapshots(request).await);
        snapshots.extend(
            page_of_snapshots
                .entries
                .into_iter()
                .map(|one| one.snapshot.unwrap()),
        );
        (token, token_old) = (answer.next_token, answer_old.next_token);
        token_snapshots = page_of_snapshots.next_token;
        assert_eq!(token.is_empty(), page == 2);
        assert_eq!(
            [token_old.is_empty(), token_snapshots.is_empty()],
            [page == 2; 2]
        );
    }
    assert_eq!(new, old);
    assert_eq!(new.len(), 5);
    assert_eq!(snapshots.len(), 5);
    let request = v0::ListSnapshotsRequest {
        source_volume_id: new[0].clone(),
        ..v0::ListSnapshotsRequest::default()
    };
    let of_one = ok(controller_v0(&agent).list_snapshots(request).await).entries;
    assert_eq!(of_one.len(), 1);
    let request = v0::ListSnapshotsRequest {
        snapshot_id: snapshots[0].id.clone(),
        ..v0::ListSnapshotsRequest::default()
    };
    let one = ok(controller_v0(&agent).list_snapshots(request).await).entries;
    assert_eq!(one[0].snapshot.as_ref(), Some(&snapshots[0]));
    unknown_tokens_are_refused(&agent).await;
}

async fn unknown_tokens_are_refused(agent: &Agent) {
    let request = v0::ListVolumesRequest {
        starting_token: "nonsense".to_owned(),
        ..v0::ListVolumesRequest::default()
    };
    refused(
        controller_v0(agent).list_volumes(request).await,
        Code::Aborted,
    );
    let request = v0::ListSnapshotsRequest {
        starting_token: "nonsense".to_owned(),
        ..v0::ListSnapshotsRequest::default()
    };
    refused(
        controller_v0(agent).list_snapshots(request).await,
        Code::Aborted,
    );
    let request = v0_1::ListVolumesRequest {
        version: VERSION,
        starting_token: "nonsense".to_owned(),
        ..v0_1::ListVolumesRequest::default()
    };
    refused(
        controller_v0_1(agent).list_volumes(request).await,
        Code::Aborted,
    );
}

#[tokio::test]
async fn what_may_be_secret_is_not_logged() {
    let options = Options {
        arguments: vec!["--log-level=trace".to_owned()],
        ..Options::default()
    };
    let agent = Agent::with(Scratch::new(), options).await;
    let map = || [("hunter2-key".to_owned(), "hunter2".to_owned())].into();
    let (_, target) = paths(&agent, "v");
    let request = v0::CreateVolumeRequest {
        name: "v".to_owned(),
        volume_capabilities: vec![capability_v0(Use::Mounted)],
        controller_create_secrets: map(),
        ..v0::CreateVolumeRequest::default()
    };
    let made = ok(controller_v0(&agent).create_volume(request).await);
    let id = made.volume.unwrap().id;
    let request = v0_1::NodePublishVolumeRequest {
        user_credentials: map(),
        publish_volume_info: map(),
        volume_attributes: map(),
        ..publish_v0_1(&id, &target, Use::Mounted)
    };
    ok(node_v0_1(&agent).node_publish_volume(request).await);
    let request = v0_1::NodeUnpublishVolumeRequest {
        version: VERSION,
        volume_id: id.clone(),
        target_path: target,
        user_credentials: map(),
    };
    ok(node_v0_1(&agent).node_unpublish_volume(request).await);
    let request = v0_1::DeleteVolumeRequest {
        version: VERSION,
        volume_id: id,
        user_credentials: map(),
    };
    ok(controller_v0_1(&agent).delete_volume(request).await);
    let log = agent.log();
    assert!(log.contains("csi.Node/NodePublishVolume"), "{log}");
    assert!(!log.contains("hunter2"), "{log}");
}
