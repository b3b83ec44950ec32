//! The older dialect of volumegroup, whose volume is a message of its own: what it writes is read, and what is written to
//! it has the bytes that it would write.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

use std::fs;

use drumlin_proto::{csi::v1, volumegroup};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};

/// The messages of the older dialect that differ, by name and number.
const OLDER: &str = r#"
syntax = "proto3";
package volumegroup;
message CreateVolumeGroupRequest {
  string name = 1;
  map<string, string> parameters = 2;
  map<string, string> secrets = 3;
}
message ModifyVolumeGroupMembershipRequest {
  string volume_group_id = 1;
  repeated string volume_ids = 2;
  map<string, string> secrets = 3;
}
message CreateVolumeGroupResponse { VolumeGroup volume_group = 1; }
message VolumeGroup {
  string volume_group_id = 1;
  map<string, string> volume_group_context = 2;
  repeated VgVolume volumes = 3;
}
message VgVolume {
  int64 capacity_bytes = 1;
  string volume_id = 2;
  map<string, string> volume_context = 3;
  VgVolumeContentSource content_source = 4;
  repeated VgTopology accessible_topology = 5;
}
message VgTopology { map<string, string> segments = 1; }
message VgVolumeContentSource {
  message SnapshotSource { string snapshot_id = 1; }
  message VolumeSource { string volume_id = 1; }
  oneof type {
    SnapshotSource snapshot = 1;
    VolumeSource volume = 2;
  }
}
"#;

fn older() -> DescriptorPool {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("older.proto"), OLDER).unwrap();
    let mut compiler = protox::Compiler::new([directory.path()]).unwrap();
    compiler.open_file("older.proto").unwrap();
    compiler.descriptor_pool()
}

/// What the older dialect makes of these bytes when it writes again what it has read.
fn through_older(message: &str, bytes: &[u8]) -> Vec<u8> {
    let descriptor = older().get_message_by_name(message).unwrap();
    let read = DynamicMessage::decode(descriptor, bytes).unwrap();
    assert_eq!(read.unknown_fields().count(), 0, "{message} is read whole");
    read.encode_to_vec()
}

fn map(key: &str, value: &str) -> std::collections::BTreeMap<String, String> {
    [(key.to_owned(), value.to_owned())].into()
}

#[test]
fn an_answer_has_the_bytes_of_the_older_dialect() {
    use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
    let sources = [
        Type::Snapshot(SnapshotSource {
            snapshot_id: "s".to_owned(),
        }),
        Type::Volume(VolumeSource {
            volume_id: "v".to_owned(),
        }),
    ];
    let volumes = sources.map(|source| v1::Volume {
        capacity_bytes: 1 << 40,
        volume_id: "node/class/key".to_owned(),
        volume_context: map("a", "b"),
        content_source: Some(v1::VolumeContentSource {
            r#type: Some(source),
        }),
        accessible_topology: vec![v1::Topology {
            segments: map("zone", "z"),
        }],
    });
    let answer = volumegroup::CreateVolumeGroupResponse {
        volume_group: Some(volumegroup::VolumeGroup {
            volume_group_id: "node/class/group".to_owned(),
            volume_group_context: map("c", "d"),
            volumes: volumes.into(),
        }),
    };
    let bytes = answer.encode_to_vec();
    let name = "volumegroup.CreateVolumeGroupResponse";
    assert_eq!(through_older(name, &bytes), bytes);
}

#[test]
fn a_request_of_the_older_dialect_says_nothing_of_what_it_does_not_know() {
    let create = volumegroup::CreateVolumeGroupRequest {
        name: "volumegroup-1".to_owned(),
        parameters: map("class", "fast"),
        secrets: map("user", "x"),
        volume_ids: Vec::new(),
    };
    let bytes = create.encode_to_vec();
    let written = through_older("volumegroup.CreateVolumeGroupRequest", &bytes);
    let read = volumegroup::CreateVolumeGroupRequest::decode(&*written).unwrap();
    assert_eq!(read, create);
    let modify = volumegroup::ModifyVolumeGroupMembershipRequest {
        volume_group_id: "node/class/group".to_owned(),
        volume_ids: vec!["a".to_owned(), "b".to_owned()],
        secrets: map("user", "x"),
        parameters: std::collections::BTreeMap::new(),
    };
    let name = "volumegroup.ModifyVolumeGroupMembershipRequest";
    let written = through_older(name, &modify.encode_to_vec());
    let read = volumegroup::ModifyVolumeGroupMembershipRequest::decode(&*written).unwrap();
    assert_eq!(read, modify);
}
