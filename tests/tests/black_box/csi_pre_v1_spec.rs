//! What the texts before `csi.v1` ask for, call by call, for callers of each of them.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use drumlin_proto::{
    csi::{v0, v1},
    identity,
};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::program,
    requests::{MIB, create, for_mode, mounted, raw},
    storage::{Kind, Scratch},
};
use prost::Message;
use tonic::{
    Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel,
};
use tonic_prost::ProstCodec;
use v0::controller_client::ControllerClient;
use v1::volume_capability::access_mode::Mode;

use crate::{
    csi_pre_v1_calls::{Caller, OLD},
    helpers::{ok, paths, refused, text, volume},
};

/// The code of a refusal, which says why and has no details.
#[track_caller]
fn code<T: std::fmt::Debug>(answer: Result<T, Status>) -> Code {
    let status = answer.expect_err("it must be refused");
    assert!(!status.message().is_empty(), "{status:?}");
    assert!(status.details().is_empty(), "{status:?}");
    status.code()
}

/// An id of this node that nothing has.
const UNKNOWN: &str = "node-a/default/00000000-0000-5000-8000-00000000000a";

/// Sends a request without any field, which every call but those that ask for nothing refuses.
pub(crate) async fn empty(channel: &Channel, method: &str) -> Result<(), Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path: PathAndQuery = format!("/{method}").parse().unwrap();
    let codec = ProstCodec::<(), ()>::default();
    let answer = client.unary(Request::new(()), path, codec).await;
    answer.map(drop)
}

/// Whether a request of this call may be empty: it is of the plugin, the node, or everything there is.
fn asks_for_nothing(method: &str) -> bool {
    let (service, name) = method.rsplit_once('/').unwrap();
    // Before 0.3, each request has a version, but the one for the versions.
    if ["csi.Identity", "csi.Controller", "csi.Node"].contains(&service) {
        return name == "GetSupportedVersions";
    }
    let whole = ["GetPlugin", "GetCapabilities", "GetId", "GetInfo", "List"];
    whole.iter().any(|part| name.contains(part))
        || ["Probe", "GetCapacity", "NodeGetStorageHealth"].contains(&name)
}

/// Every method of these packages that reflection describes, and the calls of the texts are among them.
fn methods() -> Vec<String> {
    let described = prost_types::FileDescriptorSet::decode(drumlin_proto::FILE_DESCRIPTOR_SET);
    let mut methods = Vec::new();
    for file in described.unwrap().file {
        if !["csi", "csi.v0", "csi.v1", "volumegroup"].contains(&file.package()) {
            continue;
        }
        for service in &file.service {
            let name = format!("{}.{}", file.package(), service.name());
            methods.extend(
                service
                    .method
                    .iter()
                    .map(|method| format!("{name}/{}", method.name())),
            );
        }
    }
    methods
}

#[tokio::test]
async fn every_call_of_the_texts_is_there() {
    let agent = Agent::start().await;
    let channel = drumlin_proto::connect(&agent.socket()).unwrap();
    let methods = methods();
    assert!(methods.len() > 70, "{methods:?}");
    for method in methods {
        let answer = empty(&channel, &method).await;
        let code = answer.map_or_else(|status| status.code(), |()| Code::Ok);
        assert!(
            matches!(code, Code::Ok | Code::InvalidArgument),
            "{method}: {code:?}"
        );
    }
}

#[tokio::test]
async fn a_refusal_has_a_message_and_no_details() {
    let agent = Agent::start().await;
    let channel = drumlin_proto::connect(&agent.socket()).unwrap();
    let mut refused = 0;
    for method in methods() {
        let answer = empty(&channel, &method).await;
        assert_eq!(answer.is_ok(), asks_for_nothing(&method), "{method}");
        if answer.is_err() {
            refused += 1;
            assert_eq!(code(answer), Code::InvalidArgument, "{method}");
        }
    }
    assert!(refused > 40, "{refused}");
    for dialect in OLD {
        let caller = Caller::of(&agent, dialect);
        let unknown = caller.validate(UNKNOWN, &[raw()]).await;
        assert_eq!(code(unknown), Code::NotFound);
    }
}

#[tokio::test]
async fn a_volume_that_differs_is_a_conflict_and_what_cannot_be_is_refused() {
    let agent = Agent::start().await;
    for dialect in OLD {
        let caller = Caller::of(&agent, dialect);
        let name = format!("{dialect:?}");
        let ways = [mounted("ext4"), raw()];
        let made = caller.create(&name, (32 * MIB, 0), &ways).await.unwrap();
        assert_eq!(made.bytes, 32 * MIB);
        let again = caller.create(&name, (16 * MIB, 64 * MIB), &ways).await;
        assert_eq!(again.unwrap(), made, "what is there will do");
        for (range, ways) in [
            ((64 * MIB, 0), [mounted("ext4")]),
            ((0, 16 * MIB), [mounted("ext4")]),
            ((32 * MIB, 0), [mounted("btrfs")]),
        ] {
            let other = caller.create(&name, range, &ways).await;
            assert_eq!(code(other), Code::AlreadyExists, "{range:?}");
        }
        for (range, ways, expected) in [
            ((i64::MAX, 0), vec![raw()], Code::OutOfRange),
            ((1, 2), vec![raw()], Code::OutOfRange),
            ((0, 0), vec![], Code::InvalidArgument),
            (
                (0, 0),
                vec![raw(), for_mode(&raw(), Mode::MultiNodeMultiWriter)],
                Code::InvalidArgument,
            ),
            (
                (0, 0),
                vec![mounted("ext4"), mounted("xfs")],
                Code::InvalidArgument,
            ),
            ((0, 0), vec![mounted("ntfs")], Code::InvalidArgument),
        ] {
            let refused = caller.create("x", range, &ways).await;
            assert_eq!(code(refused), expected, "{range:?} {ways:?}");
        }
    }
    let caller = Caller::of(&agent, OLD[0]);
    let listed = caller.volumes().await.unwrap();
    assert_eq!(listed.len(), 2, "what was refused was not made");
}

#[tokio::test]
async fn a_deletion_is_repeatable_and_refused_while_the_volume_is_used() {
    let agent = Agent::start().await;
    for dialect in OLD {
        let caller = Caller::of(&agent, dialect);
        let name = format!("{dialect:?}");
        let made = caller
            .create(&name, (32 * MIB, 0), &[mounted("ext4")])
            .await;
        let id = made.unwrap().id;
        let (staging, target) = paths(&agent, &name);
        caller.stage(&id, &staging, &mounted("ext4")).await.unwrap();
        let at = (staging.as_str(), target.as_str());
        let published = caller.publish(&id, at, &mounted("ext4"), false).await;
        published.unwrap();
        assert_eq!(code(caller.delete(&id).await), Code::FailedPrecondition);
        caller.unpublish(&id, &target).await.unwrap();
        caller.unstage(&id, &staging).await.unwrap();
        for id in [&id, &id, UNKNOWN, "nonsense"] {
            caller.delete(id).await.unwrap();
        }
        assert_eq!(caller.volumes().await.unwrap(), []);
    }
}

#[tokio::test]
async fn publishing_by_the_controller_is_repeatable_and_has_a_limit() {
    for dialect in OLD {
        let options = Options {
            config: Some("attach: true\nmaxVolumesPerNode: 1\n".to_owned()),
            ..Options::default()
        };
        let agent = Agent::with(Scratch::new(), options).await;
        let caller = Caller::of(&agent, dialect);
        let mut ids = Vec::new();
        for name in ["a", "b"] {
            ids.push(caller.create(name, (MIB, 0), &[raw()]).await.unwrap().id);
        }
        let here = (ids[0].as_str(), "node-a");
        let unknown = caller.attach((UNKNOWN, "node-a"), &raw(), false).await;
        assert_eq!(code(unknown), Code::NotFound);
        for _ in 0..2 {
            caller.attach(here, &raw(), false).await.unwrap();
        }
        let read_only = caller.attach(here, &raw(), true).await;
        assert_eq!(code(read_only), Code::AlreadyExists);
        let other_use = caller.attach(here, &mounted("ext4"), false).await;
        assert_eq!(code(other_use), Code::AlreadyExists);
        let one_more = caller.attach((&ids[1], "node-a"), &raw(), false).await;
        assert_eq!(code(one_more), Code::ResourceExhausted);
        assert_eq!(code(caller.delete(&ids[0]).await), Code::FailedPrecondition);
        for node in ["node-a", "node-a", ""] {
            caller.detach(&ids[0], node).await.unwrap();
        }
        caller.attach(here, &raw(), true).await.unwrap();
        caller.detach(&ids[0], "").await.unwrap();
        // Nobody has it any more, and another one may be published.
        caller
            .attach((&ids[1], "node-a"), &raw(), false)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn only_what_a_volume_can_do_is_supported() {
    let agent = Agent::start().await;
    for dialect in OLD {
        let caller = Caller::of(&agent, dialect);
        let made = caller
            .create(&format!("{dialect:?}"), (32 * MIB, 0), &[mounted("ext4")])
            .await;
        let id = made.unwrap().id;
        let many = for_mode(&raw(), Mode::MultiNodeReaderOnly);
        for (ways, is_supported) in [
            (vec![mounted("ext4")], true),
            (vec![mounted(""), raw()], true),
            (vec![raw(), many], false),
            (vec![raw(), mounted("xfs")], false),
        ] {
            for _ in 0..2 {
                let (supported, message) = caller.validate(&id, &ways).await.unwrap();
                assert_eq!(supported, is_supported, "{ways:?}");
                assert_eq!(message.is_empty(), is_supported, "{message}");
            }
        }
        let unknown = caller.validate(UNKNOWN, &[raw()]).await;
        assert_eq!(code(unknown), Code::NotFound);
    }
}

#[tokio::test]
async fn room_is_told_for_what_could_be_made() {
    let agent = Agent::start().await;
    for dialect in OLD {
        let caller = Caller::of(&agent, dialect);
        assert!(caller.room("default", &[]).await.unwrap() > 0);
        assert!(caller.room("default", &[mounted("xfs")]).await.unwrap() > 0);
        let many = for_mode(&raw(), Mode::MultiNodeMultiWriter);
        assert_eq!(caller.room("default", &[raw(), many]).await.unwrap(), 0);
        let unknown = caller.room("nope", &[raw()]).await;
        assert_eq!(code(unknown), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn what_is_missing_makes_every_probe_fail() {
    let scratch = Scratch::new();
    let images = scratch.path().join("missing");
    let class = format!(
        "{{name: default, directory: {{path: {}}}}}",
        images.display()
    );
    let options = Options {
        config: Some(format!("classes: [{class}]\n")),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let channel = drumlin_proto::connect(&agent.socket()).unwrap();
    let mut others = identity::identity_client::IdentityClient::new(channel);
    let answer = others.probe(identity::ProbeRequest {}).await;
    assert_eq!(code(answer), Code::FailedPrecondition);
    for dialect in OLD {
        for answer in Caller::of(&agent, dialect).probes().await {
            assert_eq!(code(answer), Code::FailedPrecondition, "{dialect:?}");
        }
    }
    fs::create_dir(&images).unwrap();
    for dialect in OLD {
        for answer in Caller::of(&agent, dialect).probes().await {
            answer.unwrap();
        }
    }
    ok(others.probe(identity::ProbeRequest {}).await);
}

#[tokio::test]
async fn publishing_again_changes_nothing_and_so_does_taking_it_away() {
    let agent = Agent::start().await;
    for (dialect, capability) in [
        (OLD[0], mounted("ext4")),
        (OLD[0], raw()),
        (OLD[1], mounted("ext4")),
        (OLD[1], raw()),
    ] {
        let caller = Caller::of(&agent, dialect);
        let is_raw = capability == raw();
        let name = format!("{dialect:?}-{is_raw}");
        let made = caller
            .create(&name, (32 * MIB, 0), &[capability.clone()])
            .await;
        let id = made.unwrap().id;
        let (staging, target) = paths(&agent, &name);
        let at = (staging.as_str(), target.as_str());
        let unknown = caller.publish(UNKNOWN, at, &capability, false).await;
        assert_eq!(code(unknown), Code::NotFound);
        let relative = "relative";
        let answer = caller
            .publish(&id, (&staging, relative), &capability, false)
            .await;
        assert_eq!(code(answer), Code::InvalidArgument);
        let answer = caller.unpublish(&id, relative).await;
        assert_eq!(code(answer), Code::InvalidArgument);
        // Callers of these texts make it themselves.
        let made = if is_raw {
            fs::write(&target, "")
        } else {
            fs::create_dir(&target)
        };
        made.unwrap();
        for _ in 0..2 {
            caller.stage(&id, &staging, &capability).await.unwrap();
            let published = caller.publish(&id, at, &capability, false).await;
            published.unwrap();
        }
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert_eq!(table.matches(&target).count(), 1, "one mount");
        let read_only = caller.publish(&id, at, &capability, true).await;
        assert_eq!(code(read_only), Code::AlreadyExists);
        let elsewhere = format!("{target}-2");
        let second = caller
            .publish(&id, (&staging, &elsewhere), &capability, false)
            .await;
        assert_eq!(code(second), Code::FailedPrecondition);
        assert!(!Path::new(&elsewhere).exists());
        for _ in 0..2 {
            caller.unpublish(&id, &target).await.unwrap();
            caller.unstage(&id, &staging).await.unwrap();
            assert!(Path::new(&target).exists(), "its caller made it");
        }
        caller.delete(&id).await.unwrap();
    }
    let caller = Caller::of(&agent, OLD[1]);
    let (staging, _) = paths(&agent, "unknown");
    let answer = caller.stage(UNKNOWN, &staging, &raw()).await;
    assert_eq!(code(answer), Code::NotFound);
    for answer in [
        caller.stage(UNKNOWN, "relative", &raw()).await,
        caller.unstage(UNKNOWN, "relative").await,
    ] {
        assert_eq!(code(answer), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn attributes_of_a_volume_are_the_same_every_time_and_hold_no_secret() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 1, &raw()).await;
    for _ in 0..2 {
        for dialect in OLD {
            let caller = Caller::of(&agent, dialect);
            let found = caller.create("v", (MIB, 0), &[raw()]).await.unwrap();
            assert_eq!(found.id, id);
            assert!(found.attributes.is_empty(), "{found:?}");
            assert_eq!(caller.volumes().await.unwrap(), [found]);
        }
        let answer = agent
            .controller()
            .create_volume(create("v", 1, &raw()))
            .await;
        assert!(ok(answer).volume.unwrap().volume_context.is_empty());
    }
}

fn taken(name: &str, of: &str) -> v0::CreateSnapshotRequest {
    v0::CreateSnapshotRequest {
        source_volume_id: of.to_owned(),
        name: name.to_owned(),
        ..Default::default()
    }
}

#[tokio::test]
async fn snapshots_of_0_3_are_ready_repeatable_and_listed() {
    let scratch = Scratch::new();
    let images = text(scratch.file_system("images", Kind::Ext4, 128));
    let options = Options {
        config: Some(format!(
            "classes: [{{name: default, directory: {{path: {images}}}}}]\n"
        )),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let caller = Caller::of(&agent, OLD[1]);
    let mut ids = Vec::new();
    for name in ["a", "b", "full"] {
        ids.push(
            caller
                .create(name, (4 * MIB, 0), &[raw()])
                .await
                .unwrap()
                .id,
        );
    }
    let channel = drumlin_proto::connect(&agent.socket()).unwrap();
    let mut client = ControllerClient::new(channel);
    let before = SystemTime::now() - Duration::from_secs(1);
    let mut take = async |name: &str, of: &str| client.create_snapshot(taken(name, of)).await;
    let one = ok(take("one", &ids[0]).await).snapshot.unwrap();
    let moment = UNIX_EPOCH + Duration::from_nanos(u64::try_from(one.created_at).unwrap());
    assert!(
        moment >= before && moment <= SystemTime::now(),
        "{moment:?}"
    );
    assert_eq!(
        (one.size_bytes, one.source_volume_id.as_str()),
        (4 * MIB, ids[0].as_str())
    );
    let ready = v0::snapshot_status::Type::Ready;
    assert_eq!(one.status.as_ref().unwrap().r#type(), ready);
    let again = ok(take("one", &ids[0]).await).snapshot.unwrap();
    assert_eq!(again, one);
    assert_eq!(code(take("one", &ids[1]).await), Code::AlreadyExists);
    assert_eq!(code(take("x", UNKNOWN).await), Code::NotFound);
    let two = ok(take("two", &ids[1]).await).snapshot.unwrap();
    // Where there is no room for what the third one holds.
    let key = ids[2].rsplit('/').next().unwrap();
    let image = Path::new(&images).join("volumes").join(key).join("image");
    let filler = Path::new(&images).join("filler");
    fs::write(&image, vec![7; 4 << 20]).unwrap();
    let _ = program("dd")
        .args([
            "if=/dev/zero",
            &format!("of={}", filler.display()),
            "bs=64K",
        ])
        .output();
    assert_eq!(code(take("full", &ids[2]).await), Code::ResourceExhausted);
    fs::remove_file(filler).unwrap();
    snapshots_are_listed(&mut client, &one, &two).await;
    restored(&mut client, &one).await;
    for id in [one.id.as_str(), &one.id, UNKNOWN, "nonsense"] {
        let request = v0::DeleteSnapshotRequest {
            snapshot_id: id.to_owned(),
            ..Default::default()
        };
        ok(client.delete_snapshot(request).await);
    }
    let left = list(&mut client, "", ("", "", 0)).await.unwrap();
    assert_eq!(left.entries.len(), 1);
}

async fn snapshots_are_listed(
    client: &mut ControllerClient<Channel>,
    one: &v0::Snapshot,
    two: &v0::Snapshot,
) {
    let all = list(client, "", ("", "", 0)).await.unwrap();
    assert_eq!(all.entries.len(), 2, "what could not be made is not there");
    for (filter, expected) in [
        ((one.source_volume_id.as_str(), "", 0), vec![one]),
        (("", two.id.as_str(), 0), vec![two]),
        (("", UNKNOWN, 0), vec![]),
    ] {
        let found = list(client, "", filter).await.unwrap();
        let found: Vec<_> = found.entries.iter().map(|one| &one.snapshot).collect();
        let expected: Vec<_> = expected.into_iter().cloned().map(Some).collect();
        assert_eq!(found, expected.iter().collect::<Vec<_>>());
    }
    let first = list(client, "", ("", "", 1)).await.unwrap();
    assert!(first.entries.len() == 1 && !first.next_token.is_empty());
    let second = list(client, &first.next_token, ("", "", 1)).await;
    let second = second.unwrap();
    assert!(second.entries.len() == 1 && second.next_token.is_empty());
    assert_ne!(second.entries, first.entries);
    let wrong = list(client, "nonsense", ("", "", 0)).await;
    assert_eq!(code(wrong), Code::Aborted);
    let wrong = list(client, "", ("", "", -1)).await;
    assert_eq!(code(wrong), Code::InvalidArgument);
}

#[tokio::test]
async fn a_snapshot_of_0_3_that_is_lost_says_that_it_is_of_no_use() {
    let agent = Agent::start().await;
    let caller = Caller::of(&agent, OLD[1]);
    let volume = caller.create("v", (4 * MIB, 0), &[raw()]).await.unwrap().id;
    let channel = drumlin_proto::connect(&agent.socket()).unwrap();
    let mut client = ControllerClient::new(channel);
    let first = ok(client.create_snapshot(taken("s", &volume)).await);
    let first = first.snapshot.unwrap();
    let key = first.id.rsplit('/').next().unwrap();
    let snapshots = agent.path("state/images/snapshots");
    fs::remove_file(snapshots.join(key).join("image")).unwrap();
    // A repeated create says so by an error: its answer would be a snapshot that is ready.
    let again = client.create_snapshot(taken("s", &volume)).await;
    let message = refused(again, Code::FailedPrecondition);
    assert!(message.contains("is missing"), "{message}");
    let listed = list(&mut client, "", ("", "", 0)).await.unwrap();
    let lost = listed.entries[0].snapshot.clone().unwrap();
    assert_eq!(lost.id, first.id);
    let status = lost.status.unwrap();
    let lost = v0::snapshot_status::Type::ErrorUploading;
    assert_eq!(status.r#type(), lost);
    assert!(status.details.contains("is missing"), "{}", status.details);
}

async fn list(
    client: &mut ControllerClient<Channel>,
    token: &str,
    (source, id, most): (&str, &str, i32),
) -> Result<v0::ListSnapshotsResponse, Status> {
    let request = v0::ListSnapshotsRequest {
        max_entries: most,
        starting_token: token.to_owned(),
        source_volume_id: source.to_owned(),
        snapshot_id: id.to_owned(),
    };
    let answer = client.list_snapshots(request).await;
    answer.map(tonic::Response::into_inner)
}

/// A volume from a snapshot is as large as that at least.
async fn restored(client: &mut ControllerClient<Channel>, snapshot: &v0::Snapshot) {
    use v0::volume_content_source::{SnapshotSource, Type};
    for (limit, expected) in [(2 * MIB, Code::OutOfRange), (0, Code::Ok)] {
        let source = Type::Snapshot(SnapshotSource {
            id: snapshot.id.clone(),
        });
        let capability = v0::VolumeCapability::decode(raw().encode_to_vec().as_slice());
        let request = v0::CreateVolumeRequest {
            name: "restored".to_owned(),
            capacity_range: Some(v0::CapacityRange {
                required_bytes: 0,
                limit_bytes: limit,
            }),
            volume_capabilities: vec![capability.unwrap()],
            volume_content_source: Some(v0::VolumeContentSource {
                r#type: Some(source),
            }),
            ..Default::default()
        };
        match client.create_volume(request).await {
            Ok(answer) => {
                let made = answer.into_inner().volume.unwrap();
                assert_eq!((expected, made.capacity_bytes), (Code::Ok, 4 * MIB));
                assert!(made.content_source.is_some());
            }
            Err(status) => assert_eq!(status.code(), expected, "{status}"),
        }
    }
}

#[tokio::test]
async fn callers_of_all_dialects_at_once_make_one_volume() {
    let agent = Agent::start().await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..24 {
        let caller = (number % 3 < 2).then(|| Caller::of(&agent, OLD[number % 3]));
        let mut newest = agent.controller();
        calls.spawn(async move {
            loop {
                let answer = if let Some(caller) = &caller {
                    let made = caller.create("one", (8 * MIB, 0), &[raw()]).await;
                    made.map(|made| made.id)
                } else {
                    let made = newest.create_volume(create("one", 8, &raw())).await;
                    made.map(|made| made.into_inner().volume.unwrap().volume_id)
                };
                match answer {
                    Ok(id) => return id,
                    Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
    let mut ids = calls.join_all().await;
    ids.dedup();
    assert_eq!(ids.len(), 1);
}
