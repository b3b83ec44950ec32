//! The required fields of each dialect of CSI: a request without one of them is refused, and the message names the field.

use drumlin_proto::csi::{
    v0, v0_1,
    v1::{
        self, ControllerGetVolumeRequest, ControllerModifyVolumeRequest,
        ControllerPublishVolumeRequest, GetSnapshotRequest, GetVolumeGroupSnapshotRequest,
        NodeGetVolumeStatsRequest, VolumeCapability, VolumeContentSource, VolumeGroupSnapshot,
        volume_capability::AccessMode,
    },
};
use drumlin_tests::{
    agent::Agent,
    requests::{
        create, create_group_snapshot, delete, delete_group_snapshot, delete_snapshot, expand,
        from_snapshot, from_volume, mounted, node_expand, publish, raw, snapshot, stage, unpublish,
        unstage, validate_capabilities,
    },
};
use prost::Message;
use tonic::{Code, Status};

use crate::dialect::{VERSION, controller_v0, controller_v0_1, node_v0, node_v0_1};

/// An id of this node that no object has.
const UNKNOWN: &str = "node-a/default/00000000-0000-5000-8000-00000000000a";

/// A call, the field that its request lacked, and the response. The complete request lacks `""`.
type Asked = (&'static str, &'static str, Result<(), Status>);

/// Makes a call with the complete request, and once without each of these fields.
macro_rules! ask {
    ($asked:ident, $client:ident.$rpc:ident($request:expr) $(, $field:ident)+) => {{
        let complete = $request;
        let answer = $client.$rpc(complete.clone()).await.map(drop);
        $asked.push((stringify!($rpc), "", answer));
        $(
            let mut request = complete.clone();
            request.$field = Default::default();
            let answer = $client.$rpc(request).await.map(drop);
            $asked.push((stringify!($rpc), stringify!($field), answer));
        )+
    }};
}

/// Makes a call with a request that lacks `field` within another field.
macro_rules! ask_without {
    ($asked:ident, $field:expr, $client:ident.$rpc:ident($request:expr)) => {{
        let answer = $client.$rpc($request).await.map(drop);
        $asked.push((stringify!($rpc), $field, answer));
    }};
}

fn check(asked: Vec<Asked>) {
    for (call, field, answer) in asked {
        match answer {
            Ok(()) => assert!(field.is_empty(), "{call} without {field} is answered"),
            Err(status) if field.is_empty() => {
                assert_ne!(status.code(), Code::InvalidArgument, "{call}: {status}");
            }
            Err(status) => {
                let what = format!("{call} without {field}: {status}");
                assert_eq!(status.code(), Code::InvalidArgument, "{what}");
                assert!(status.message().contains(field), "{what}");
                assert!(status.details().is_empty(), "{what}");
            }
        }
    }
}

/// Capabilities without a required field, and which.
fn incomplete() -> [(VolumeCapability, &'static str); 3] {
    let whole = mounted("ext4");
    let without_type = VolumeCapability {
        access_type: None,
        ..whole.clone()
    };
    let without_access_mode = VolumeCapability {
        access_mode: None,
        ..whole.clone()
    };
    let without_mode = VolumeCapability {
        access_mode: Some(AccessMode { mode: 0 }),
        ..whole
    };
    [
        (without_type, "access_type"),
        (without_access_mode, "access_mode"),
        (without_mode, "access_mode.mode"),
    ]
}

/// The message of another dialect that has the same fields with the same numbers.
fn same<T: Message + Default>(message: &impl Message) -> T {
    T::decode(message.encode_to_vec().as_slice()).unwrap()
}

fn attach(capability: &VolumeCapability) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: UNKNOWN.to_owned(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(capability.clone()),
        ..ControllerPublishVolumeRequest::default()
    }
}

async fn controller_of_csi_1(agent: &Agent) -> Vec<Asked> {
    let (mut asked, mut controller) = (Vec::new(), agent.controller());
    let volume_id = || UNKNOWN.to_owned();
    ask!(
        asked,
        controller.create_volume(create("v", 1, &raw())),
        name,
        volume_capabilities
    );
    ask!(asked, controller.delete_volume(delete(UNKNOWN)), volume_id);
    ask!(
        asked,
        controller.controller_publish_volume(attach(&raw())),
        volume_id,
        node_id,
        volume_capability
    );
    let request = v1::ControllerUnpublishVolumeRequest {
        volume_id: volume_id(),
        ..Default::default()
    };
    ask!(
        asked,
        controller.controller_unpublish_volume(request),
        volume_id
    );
    let request = validate_capabilities(UNKNOWN, vec![raw()]);
    ask!(
        asked,
        controller.validate_volume_capabilities(request),
        volume_id,
        volume_capabilities
    );
    let request = ControllerGetVolumeRequest {
        volume_id: volume_id(),
    };
    ask!(asked, controller.controller_get_volume(request), volume_id);
    let request = ControllerModifyVolumeRequest {
        volume_id: volume_id(),
        mutable_parameters: [("label.a".to_owned(), "b".to_owned())].into(),
        ..Default::default()
    };
    ask!(
        asked,
        controller.controller_modify_volume(request),
        volume_id
    );
    ask!(
        asked,
        controller.create_snapshot(snapshot("s", UNKNOWN)),
        source_volume_id,
        name
    );
    ask!(
        asked,
        controller.delete_snapshot(delete_snapshot(UNKNOWN)),
        snapshot_id
    );
    let request = GetSnapshotRequest {
        snapshot_id: UNKNOWN.to_owned(),
        ..Default::default()
    };
    ask!(asked, controller.get_snapshot(request), snapshot_id);
    ask!(
        asked,
        controller.controller_expand_volume(expand(UNKNOWN, 8)),
        volume_id,
        capacity_range
    );
    asked
}

async fn sources_of_csi_1(agent: &Agent) -> Vec<Asked> {
    let (mut asked, mut controller) = (Vec::new(), agent.controller());
    for (source, field) in [
        (Some(VolumeContentSource { r#type: None }), "type"),
        (from_snapshot(""), "snapshot_id"),
        (from_volume(""), "volume_id"),
    ] {
        let request = v1::CreateVolumeRequest {
            volume_content_source: source,
            ..create("w", 1, &raw())
        };
        ask_without!(asked, field, controller.create_volume(request));
    }
    asked
}

async fn capabilities_of_csi_1(agent: &Agent) -> Vec<Asked> {
    let (mut asked, mut controller) = (Vec::new(), agent.controller());
    let mut node = agent.node();
    for (one, field) in incomplete() {
        ask_without!(asked, field, controller.create_volume(create("w", 1, &one)));
        let request = validate_capabilities(UNKNOWN, vec![raw(), one.clone()]);
        ask_without!(
            asked,
            field,
            controller.validate_volume_capabilities(request)
        );
        ask_without!(
            asked,
            field,
            controller.controller_publish_volume(attach(&one))
        );
        let request = v1::ControllerExpandVolumeRequest {
            volume_capability: Some(one.clone()),
            ..expand(UNKNOWN, 8)
        };
        ask_without!(asked, field, controller.controller_expand_volume(request));
        let request = v1::GetCapacityRequest {
            volume_capabilities: vec![one.clone()],
            ..Default::default()
        };
        ask_without!(asked, field, controller.get_capacity(request));
        ask_without!(
            asked,
            field,
            node.node_stage_volume(stage(UNKNOWN, "/a", &one))
        );
        let request = publish(UNKNOWN, ("/a", "/b"), &one);
        ask_without!(asked, field, node.node_publish_volume(request));
        let request = v1::NodeExpandVolumeRequest {
            volume_capability: Some(one.clone()),
            ..node_expand(UNKNOWN, "/a")
        };
        ask_without!(asked, field, node.node_expand_volume(request));
    }
    asked
}

async fn node_of_csi_1(agent: &Agent) -> Vec<Asked> {
    let (mut asked, mut node) = (Vec::new(), agent.node());
    ask!(
        asked,
        node.node_stage_volume(stage(UNKNOWN, "/a", &raw())),
        volume_id,
        staging_target_path,
        volume_capability
    );
    ask!(
        asked,
        node.node_unstage_volume(unstage(UNKNOWN, "/a")),
        volume_id,
        staging_target_path
    );
    ask!(
        asked,
        node.node_publish_volume(publish(UNKNOWN, ("/a", "/b"), &raw())),
        volume_id,
        target_path,
        volume_capability
    );
    ask!(
        asked,
        node.node_unpublish_volume(unpublish(UNKNOWN, "/b")),
        volume_id,
        target_path
    );
    let request = NodeGetVolumeStatsRequest {
        volume_id: UNKNOWN.to_owned(),
        volume_path: "/a".to_owned(),
        ..Default::default()
    };
    ask!(
        asked,
        node.node_get_volume_stats(request),
        volume_id,
        volume_path
    );
    ask!(
        asked,
        node.node_expand_volume(node_expand(UNKNOWN, "/a")),
        volume_id,
        volume_path
    );
    asked
}

async fn groups_of_csi_1(agent: &Agent) -> Vec<Asked> {
    let (mut asked, mut groups) = (Vec::new(), agent.group_controller());
    ask!(
        asked,
        groups.create_volume_group_snapshot(create_group_snapshot("g", vec![UNKNOWN.to_owned()])),
        name,
        source_volume_ids
    );
    let unknown = VolumeGroupSnapshot {
        group_snapshot_id: UNKNOWN.to_owned(),
        ..VolumeGroupSnapshot::default()
    };
    ask!(
        asked,
        groups.delete_volume_group_snapshot(delete_group_snapshot(&unknown)),
        group_snapshot_id
    );
    let request = GetVolumeGroupSnapshotRequest {
        group_snapshot_id: UNKNOWN.to_owned(),
        snapshot_ids: vec![UNKNOWN.to_owned()],
        ..Default::default()
    };
    ask!(
        asked,
        groups.get_volume_group_snapshot(request),
        group_snapshot_id
    );
    asked
}

#[tokio::test]
async fn every_required_field_of_csi_1_that_is_missing_is_named() {
    let agent = Agent::start().await;
    check(controller_of_csi_1(&agent).await);
    check(sources_of_csi_1(&agent).await);
    check(capabilities_of_csi_1(&agent).await);
    check(node_of_csi_1(&agent).await);
    check(groups_of_csi_1(&agent).await);
}

async fn controller_of_csi_0_3(agent: &Agent) -> Vec<Asked> {
    let (mut asked, mut controller) = (Vec::new(), controller_v0(agent));
    let request: v0::CreateVolumeRequest = same(&create("v", 1, &raw()));
    ask!(
        asked,
        controller.create_volume(request),
        name,
        volume_capabilities
    );
    let request: v0::DeleteVolumeRequest = same(&delete(UNKNOWN));
    ask!(asked, controller.delete_volume(request), volume_id);
    let request: v0::ControllerPublishVolumeRequest = same(&attach(&raw()));
    ask!(
        asked,
        controller.controller_publish_volume(request),
        volume_id,
        node_id,
        volume_capability
    );
    let request = v0::ControllerUnpublishVolumeRequest {
        volume_id: UNKNOWN.to_owned(),
        ..Default::default()
    };
    ask!(
        asked,
        controller.controller_unpublish_volume(request),
        volume_id
    );
    let request = v0::ValidateVolumeCapabilitiesRequest {
        volume_id: UNKNOWN.to_owned(),
        volume_capabilities: vec![same(&raw())],
        ..Default::default()
    };
    ask!(
        asked,
        controller.validate_volume_capabilities(request),
        volume_id,
        volume_capabilities
    );
    let request: v0::CreateSnapshotRequest = same(&snapshot("s", UNKNOWN));
    ask!(
        asked,
        controller.create_snapshot(request),
        source_volume_id,
        name
    );
    let request: v0::DeleteSnapshotRequest = same(&delete_snapshot(UNKNOWN));
    ask!(asked, controller.delete_snapshot(request), snapshot_id);
    let request = v1::CreateVolumeRequest {
        volume_content_source: from_snapshot(""),
        ..create("w", 1, &raw())
    };
    let request: v0::CreateVolumeRequest = same(&request);
    ask_without!(asked, "snapshot.id", controller.create_volume(request));
    asked
}

async fn node_of_csi_0_3(agent: &Agent) -> Vec<Asked> {
    let (mut asked, mut node) = (Vec::new(), node_v0(agent));
    let request: v0::NodeStageVolumeRequest = same(&stage(UNKNOWN, "/a", &raw()));
    ask!(
        asked,
        node.node_stage_volume(request),
        volume_id,
        staging_target_path,
        volume_capability
    );
    let request: v0::NodeUnstageVolumeRequest = same(&unstage(UNKNOWN, "/a"));
    ask!(
        asked,
        node.node_unstage_volume(request),
        volume_id,
        staging_target_path
    );
    let request: v0::NodePublishVolumeRequest = same(&publish(UNKNOWN, ("/a", "/b"), &raw()));
    ask!(
        asked,
        node.node_publish_volume(request),
        volume_id,
        target_path,
        volume_capability
    );
    let request: v0::NodeUnpublishVolumeRequest = same(&unpublish(UNKNOWN, "/b"));
    ask!(
        asked,
        node.node_unpublish_volume(request),
        volume_id,
        target_path
    );
    asked
}

async fn capabilities_of_csi_0_3(agent: &Agent) -> Vec<Asked> {
    let (mut asked, mut controller) = (Vec::new(), controller_v0(agent));
    let mut node = node_v0(agent);
    for (one, field) in incomplete() {
        let request: v0::CreateVolumeRequest = same(&create("w", 1, &one));
        ask_without!(asked, field, controller.create_volume(request));
        let request: v0::ControllerPublishVolumeRequest = same(&attach(&one));
        ask_without!(asked, field, controller.controller_publish_volume(request));
        let request = v0::ValidateVolumeCapabilitiesRequest {
            volume_id: UNKNOWN.to_owned(),
            volume_capabilities: vec![same(&raw()), same(&one)],
            ..Default::default()
        };
        ask_without!(
            asked,
            field,
            controller.validate_volume_capabilities(request)
        );
        let request: v0::NodeStageVolumeRequest = same(&stage(UNKNOWN, "/a", &one));
        ask_without!(asked, field, node.node_stage_volume(request));
        let request: v0::NodePublishVolumeRequest = same(&publish(UNKNOWN, ("/a", "/b"), &one));
        ask_without!(asked, field, node.node_publish_volume(request));
    }
    asked
}

#[tokio::test]
async fn every_required_field_of_csi_0_3_that_is_missing_is_named() {
    let agent = Agent::start().await;
    check(controller_of_csi_0_3(&agent).await);
    check(capabilities_of_csi_0_3(&agent).await);
    check(node_of_csi_0_3(&agent).await);
}

fn create_v0_1(capability: &VolumeCapability) -> v0_1::CreateVolumeRequest {
    v0_1::CreateVolumeRequest {
        version: VERSION,
        name: "v".to_owned(),
        volume_capabilities: vec![same(capability)],
        ..Default::default()
    }
}

fn attach_v0_1(capability: &VolumeCapability) -> v0_1::ControllerPublishVolumeRequest {
    v0_1::ControllerPublishVolumeRequest {
        version: VERSION,
        volume_id: UNKNOWN.to_owned(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(same(capability)),
        ..Default::default()
    }
}

fn validate_v0_1(capability: &VolumeCapability) -> v0_1::ValidateVolumeCapabilitiesRequest {
    v0_1::ValidateVolumeCapabilitiesRequest {
        version: VERSION,
        volume_id: UNKNOWN.to_owned(),
        volume_capabilities: vec![same(capability)],
        ..Default::default()
    }
}

fn publish_v0_1(capability: &VolumeCapability) -> v0_1::NodePublishVolumeRequest {
    v0_1::NodePublishVolumeRequest {
        version: VERSION,
        volume_id: UNKNOWN.to_owned(),
        target_path: "/b".to_owned(),
        volume_capability: Some(same(capability)),
        ..Default::default()
    }
}

#[tokio::test]
async fn every_required_field_of_csi_0_1_that_is_missing_is_named() {
    let agent = Agent::start().await;
    let (mut asked, mut controller) = (Vec::new(), controller_v0_1(&agent));
    let mut node = node_v0_1(&agent);
    ask!(
        asked,
        controller.create_volume(create_v0_1(&raw())),
        name,
        volume_capabilities
    );
    let request = v0_1::DeleteVolumeRequest {
        version: VERSION,
        volume_id: UNKNOWN.to_owned(),
        ..Default::default()
    };
    ask!(asked, controller.delete_volume(request), volume_id);
    ask!(
        asked,
        controller.controller_publish_volume(attach_v0_1(&raw())),
        volume_id,
        node_id,
        volume_capability
    );
    let request = v0_1::ControllerUnpublishVolumeRequest {
        version: VERSION,
        volume_id: UNKNOWN.to_owned(),
        ..Default::default()
    };
    ask!(
        asked,
        controller.controller_unpublish_volume(request),
        volume_id
    );
    ask!(
        asked,
        controller.validate_volume_capabilities(validate_v0_1(&raw())),
        volume_id,
        volume_capabilities
    );
    ask!(
        asked,
        node.node_publish_volume(publish_v0_1(&raw())),
        volume_id,
        target_path,
        volume_capability
    );
    let request = v0_1::NodeUnpublishVolumeRequest {
        version: VERSION,
        volume_id: UNKNOWN.to_owned(),
        target_path: "/b".to_owned(),
        ..Default::default()
    };
    ask!(
        asked,
        node.node_unpublish_volume(request),
        volume_id,
        target_path
    );
    for (one, field) in incomplete() {
        ask_without!(asked, field, controller.create_volume(create_v0_1(&one)));
        ask_without!(
            asked,
            field,
            controller.controller_publish_volume(attach_v0_1(&one))
        );
        ask_without!(
            asked,
            field,
            controller.validate_volume_capabilities(validate_v0_1(&one))
        );
        ask_without!(asked, field, node.node_publish_volume(publish_v0_1(&one)));
    }
    check(asked);
}
