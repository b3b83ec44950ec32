//! What `Debug` of a message shows and what it never shows.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use drumlin_proto::FILE_DESCRIPTOR_SET;
use drumlin_proto::{
    csi::{v0, v0_1, v1},
    reclaimspace, volumegroup,
};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, MapKey, Value};

#[path = "../build/debug.rs"]
mod generator;

/// Stands for a password; both as a key and within a value.
const PASSWORD: &str = "hunter2";

type Print = fn(&DynamicMessage) -> String;

/// Every message with a secret of its own, and how to print its generated type.
const SECRETIVE: [(&str, Print); 43] = [
    (
        "csi.ControllerPublishVolumeRequest",
        print::<v0_1::ControllerPublishVolumeRequest>,
    ),
    (
        "csi.ControllerUnpublishVolumeRequest",
        print::<v0_1::ControllerUnpublishVolumeRequest>,
    ),
    (
        "csi.CreateVolumeRequest",
        print::<v0_1::CreateVolumeRequest>,
    ),
    (
        "csi.DeleteVolumeRequest",
        print::<v0_1::DeleteVolumeRequest>,
    ),
    (
        "csi.NodePublishVolumeRequest",
        print::<v0_1::NodePublishVolumeRequest>,
    ),
    (
        "csi.NodeUnpublishVolumeRequest",
        print::<v0_1::NodeUnpublishVolumeRequest>,
    ),
    (
        "csi.v0.ControllerPublishVolumeRequest",
        print::<v0::ControllerPublishVolumeRequest>,
    ),
    (
        "csi.v0.ControllerUnpublishVolumeRequest",
        print::<v0::ControllerUnpublishVolumeRequest>,
    ),
    (
        "csi.v0.CreateSnapshotRequest",
        print::<v0::CreateSnapshotRequest>,
    ),
    (
        "csi.v0.CreateVolumeRequest",
        print::<v0::CreateVolumeRequest>,
    ),
    (
        "csi.v0.DeleteSnapshotRequest",
        print::<v0::DeleteSnapshotRequest>,
    ),
    (
        "csi.v0.DeleteVolumeRequest",
        print::<v0::DeleteVolumeRequest>,
    ),
    (
        "csi.v0.NodePublishVolumeRequest",
        print::<v0::NodePublishVolumeRequest>,
    ),
    (
        "csi.v0.NodeStageVolumeRequest",
        print::<v0::NodeStageVolumeRequest>,
    ),
    (
        "csi.v1.ControllerExpandVolumeRequest",
        print::<v1::ControllerExpandVolumeRequest>,
    ),
    (
        "csi.v1.ControllerGetVolumeHealthRequest",
        print::<v1::ControllerGetVolumeHealthRequest>,
    ),
    (
        "csi.v1.ControllerListVolumeHealthRequest",
        print::<v1::ControllerListVolumeHealthRequest>,
    ),
    (
        "csi.v1.ControllerModifyVolumeRequest",
        print::<v1::ControllerModifyVolumeRequest>,
    ),
    (
        "csi.v1.ControllerPublishVolumeRequest",
        print::<v1::ControllerPublishVolumeRequest>,
    ),
    (
        "csi.v1.ControllerUnpublishVolumeRequest",
        print::<v1::ControllerUnpublishVolumeRequest>,
    ),
    (
        "csi.v1.CreateSnapshotRequest",
        print::<v1::CreateSnapshotRequest>,
    ),
    (
        "csi.v1.CreateVolumeGroupSnapshotRequest",
        print::<v1::CreateVolumeGroupSnapshotRequest>,
    ),
    (
        "csi.v1.CreateVolumeRequest",
        print::<v1::CreateVolumeRequest>,
    ),
    (
        "csi.v1.DeleteSnapshotRequest",
        print::<v1::DeleteSnapshotRequest>,
    ),
    (
        "csi.v1.DeleteVolumeGroupSnapshotRequest",
        print::<v1::DeleteVolumeGroupSnapshotRequest>,
    ),
    (
        "csi.v1.DeleteVolumeRequest",
        print::<v1::DeleteVolumeRequest>,
    ),
    (
        "csi.v1.GetMetadataAllocatedRequest",
        print::<v1::GetMetadataAllocatedRequest>,
    ),
    (
        "csi.v1.GetMetadataDeltaRequest",
        print::<v1::GetMetadataDeltaRequest>,
    ),
    ("csi.v1.GetSnapshotRequest", print::<v1::GetSnapshotRequest>),
    (
        "csi.v1.GetVolumeGroupSnapshotRequest",
        print::<v1::GetVolumeGroupSnapshotRequest>,
    ),
    (
        "csi.v1.ListSnapshotsRequest",
        print::<v1::ListSnapshotsRequest>,
    ),
    (
        "csi.v1.NodeExpandVolumeRequest",
        print::<v1::NodeExpandVolumeRequest>,
    ),
    (
        "csi.v1.NodeGetStorageHealthRequest",
        print::<v1::NodeGetStorageHealthRequest>,
    ),
    (
        "csi.v1.NodePublishVolumeRequest",
        print::<v1::NodePublishVolumeRequest>,
    ),
    (
        "csi.v1.NodeStageVolumeRequest",
        print::<v1::NodeStageVolumeRequest>,
    ),
    (
        "csi.v1.ValidateVolumeCapabilitiesRequest",
        print::<v1::ValidateVolumeCapabilitiesRequest>,
    ),
    (
        "reclaimspace.ControllerReclaimSpaceRequest",
        print::<reclaimspace::ControllerReclaimSpaceRequest>,
    ),
    (
        "reclaimspace.NodeReclaimSpaceRequest",
        print::<reclaimspace::NodeReclaimSpaceRequest>,
    ),
    (
        "volumegroup.ControllerGetVolumeGroupRequest",
        print::<volumegroup::ControllerGetVolumeGroupRequest>,
    ),
    (
        "volumegroup.CreateVolumeGroupRequest",
        print::<volumegroup::CreateVolumeGroupRequest>,
    ),
    (
        "volumegroup.DeleteVolumeGroupRequest",
        print::<volumegroup::DeleteVolumeGroupRequest>,
    ),
    (
        "volumegroup.ListVolumeGroupsRequest",
        print::<volumegroup::ListVolumeGroupsRequest>,
    ),
    (
        "volumegroup.ModifyVolumeGroupMembershipRequest",
        print::<volumegroup::ModifyVolumeGroupMembershipRequest>,
    ),
];

#[test]
fn no_message_with_a_secret_shows_its_keys_or_values() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    for (name, print) in SECRETIVE {
        let descriptor = pool.get_message_by_name(name).unwrap();
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields().filter(is_secret) {
            let value = Value::String(format!("({PASSWORD})"));
            message.set_field(
                &field,
                Value::Map([(MapKey::String(PASSWORD.into()), value)].into()),
            );
        }
        let shown = print(&message);
        assert!(!shown.contains(PASSWORD), "{shown}");
        assert!(shown.contains("<1 hidden>"), "{shown}");
    }
}

#[test]
fn the_list_of_messages_with_secrets_is_complete() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    let described: BTreeSet<_> = pool
        .all_messages()
        .filter(|message| message.fields().any(|field| is_secret(&field)))
        .map(|message| message.full_name().to_owned())
        .collect();
    let listed: BTreeSet<_> = SECRETIVE
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert_eq!(described, listed);
}

#[test]
fn all_but_the_secrets_is_shown() {
    let message = v1::NodePublishVolumeRequest {
        volume_id: "v-1".into(),
        publish_context: map("device", "vdb"),
        target_path: "/pods/p".into(),
        volume_capability: Some(v1::VolumeCapability {
            access_mode: Some(v1::volume_capability::AccessMode {
                mode: v1::volume_capability::access_mode::Mode::SingleNodeWriter.into(),
            }),
            access_type: Some(v1::volume_capability::AccessType::Mount(
                v1::volume_capability::MountVolume {
                    fs_type: "ext4".into(),
                    ..Default::default()
                },
            )),
        }),
        secrets: map("key", PASSWORD),
        volume_context: map("owner", "shop"),
        ..Default::default()
    };
    assert_eq!(
        format!("{message:?}"),
        "NodePublishVolumeRequest { volume_id: \"v-1\", publish_context: {\"device\": \"vdb\"}, \
         staging_target_path: \"\", target_path: \"/pods/p\", volume_capability: Some(VolumeCapability { \
         access_mode: Some(AccessMode { mode: SingleNodeWriter }), access_type: Some(Mount(MountVolume { \
         fs_type: \"ext4\", mount_flags: [], volume_mount_group: \"\" })) }), readonly: false, \
         secrets: <1 hidden>, volume_context: {\"owner\": \"shop\"} }"
    );
}

#[test]
fn an_enum_value_of_a_newer_caller_is_shown_as_its_number() {
    let mode = v1::volume_capability::AccessMode { mode: 99 };
    assert_eq!(format!("{mode:?}"), "AccessMode { mode: 99 }");
}

#[test]
fn a_secret_stays_hidden_inside_the_request_around_it() {
    let request = tonic::Request::new(v1::DeleteVolumeRequest {
        secrets: map(PASSWORD, PASSWORD),
        ..Default::default()
    });
    for shown in [
        format!("{request:?}"),
        format!("{request:#?}"),
        format!("{:?}", Some(vec![request])),
    ] {
        assert!(!shown.contains(PASSWORD), "{shown}");
    }
}

#[test]
fn secrets_are_found_under_any_annotation_and_in_maps_named_so() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
        syntax = "proto3";
        package old;
        import "google/protobuf/descriptor.proto";
        extend google.protobuf.FieldOptions { bool vg_csi_secret = 1099; }
        message Request {
          message Login { map<string, string> user_credentials = 1; string secret_name = 2; }
          map<string, string> controller_create_secrets = 1;
          string pin = 2 [(vg_csi_secret) = true];
          repeated string words = 3 [(vg_csi_secret) = true];
          map<string, string> attributes = 4;
          string type = 5 [(vg_csi_secret) = false];
          oneof way { string token = 6 [(vg_csi_secret) = true]; Login login = 7; }
        }
    "#;
    std::fs::write(directory.path().join("old.proto"), source).unwrap();
    let mut compiler = protox::Compiler::new([directory.path()]).unwrap();
    compiler.open_file("old.proto").unwrap();
    let message = compiler
        .descriptor_pool()
        .get_message_by_name("old.Request")
        .unwrap();

    let mut code = String::new();
    generator::write_message(&mut code, &message).unwrap();
    for hidden in [
        r#"out.field("controller_create_secrets", &format_args!("<{} hidden>", self.r#controller_create_secrets.len()));"#,
        r#"out.field("pin", &format_args!("<hidden>"));"#,
        r#"out.field("words", &format_args!("<{} hidden>", self.r#words.len()));"#,
        r#"Self::Token(_) => f.write_str("Token(<hidden>)"),"#,
        r#"out.field("user_credentials", &format_args!("<{} hidden>", self.r#user_credentials.len()));"#,
    ] {
        assert!(code.contains(hidden), "{hidden}\n{code}");
    }
    for shown in ["secret_name", "attributes", "type", "way"] {
        assert!(
            code.contains(&format!("out.field({shown:?}, &self.r#{shown});")),
            "{shown}\n{code}"
        );
    }
}

fn print<M: Message + Default + Debug>(message: &DynamicMessage) -> String {
    let typed: M = message.transcode_to().unwrap();
    assert_eq!(
        typed.encode_to_vec(),
        message.encode_to_vec(),
        "nothing is lost on the way"
    );
    format!("{typed:?}{typed:#?}")
}

/// As the specification annotates it, independent of the generator.
fn is_secret(field: &FieldDescriptor) -> bool {
    let secret = field
        .options()
        .extensions()
        .any(|(extension, value)| extension.number() == 1059 && *value == Value::Bool(true));
    secret
        || (field.is_map()
            && (field.name().contains("secret") || field.name().contains("credential")))
}

fn map(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}
