//! `volumegroup.Controller`: every MUST of its texts, and what its two known callers send.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use drumlin_proto::{
    csi::v1::{CreateVolumeRequest, volume_content_source::Type},
    volumegroup::{
        ControllerGetVolumeGroupRequest, CreateVolumeGroupRequest, ListVolumeGroupsRequest,
        ModifyVolumeGroupMembershipRequest, VolumeGroup,
    },
};
use drumlin_tests::{
    agent::{Agent, Options, is_over_lvm},
    requests::{
        MIB, create, create_group, delete, delete_group, from_snapshot, from_volume, mounted, raw,
        set_members, snapshot, unpublish, unstage,
    },
    storage::Scratch,
};
use tonic::Code;

use crate::helpers::{mount, ok, refused, two_classes, unmount, volume};

fn group(name: &str, volumes: &[String]) -> CreateVolumeGroupRequest {
    create_group(name, volumes.to_vec())
}

fn modify(id: &str, volumes: &[String]) -> ModifyVolumeGroupMembershipRequest {
    set_members(id, volumes.to_vec())
}

async fn make(agent: &Agent, name: &str, volumes: &[String]) -> VolumeGroup {
    let request = group(name, volumes);
    let answer = agent.groups().create_volume_group(request).await;
    ok(answer).volume_group.unwrap()
}

async fn get(agent: &Agent, id: &str) -> VolumeGroup {
    let request = ControllerGetVolumeGroupRequest {
        volume_group_id: id.to_owned(),
        ..ControllerGetVolumeGroupRequest::default()
    };
    let answer = agent.groups().controller_get_volume_group(request).await;
    ok(answer).volume_group.unwrap()
}

fn ids(group: &VolumeGroup) -> Vec<String> {
    let ids = group.volumes.iter().map(|volume| volume.volume_id.clone());
    let mut ids: Vec<String> = ids.collect();
    ids.sort();
    ids
}

fn sorted(ids: &[&String]) -> Vec<String> {
    let mut ids: Vec<String> = ids.iter().map(|id| (*id).clone()).collect();
    ids.sort();
    ids
}

async fn volumes(agent: &Agent, names: &[&str]) -> Vec<String> {
    let mut ids = Vec::new();
    for name in names {
        ids.push(volume(agent, name, 4, &raw()).await);
    }
    ids
}

async fn with_policy(policy: &str) -> Agent {
    let options = Options {
        config: Some(format!("onGroupDelete: {policy}\n")),
        ..Options::default()
    };
    Agent::with(Scratch::new(), options).await
}

#[tokio::test]
async fn a_group_is_made_once_and_another_request_of_its_name_is_a_conflict() {
    let agent = Agent::start().await;
    let made = make(&agent, "volumegroup-1", &[]).await;
    assert!(made.volume_group_id.starts_with("node-a/default/"));
    assert_eq!(made.volumes, []);
    assert_eq!(make(&agent, "volumegroup-1", &[]).await, made);
    let with = |key: &str, value: &str| CreateVolumeGroupRequest {
        parameters: [(key.to_owned(), value.to_owned())].into(),
        ..group("volumegroup-1", &[])
    };
    // What sidecars add makes it no other group.
    let same = with("csi.storage.k8s.io/volumegroup/name", "pg");
    let answer = ok(agent.groups().create_volume_group(same).await);
    assert_eq!(answer.volume_group.unwrap(), made);
    let other = with("class", "default");
    refused(
        agent.groups().create_volume_group(other).await,
        Code::AlreadyExists,
    );
    let [a, b] = volumes(&agent, &["a", "b"]).await.try_into().unwrap();
    refused(
        agent
            .groups()
            .create_volume_group(group("volumegroup-1", &[a.clone()]))
            .await,
        Code::AlreadyExists,
    );
    // The other dialect names its volumes, in any order; a caller that names none says nothing of them.
    let two = make(&agent, "two", &[a.clone(), b.clone()]).await;
    assert_eq!(ids(&two), sorted(&[&a, &b]));
    for again in [vec![b.clone(), a.clone()], vec![]] {
        assert_eq!(make(&agent, "two", &again).await, two);
    }
    refused(
        agent.groups().create_volume_group(group("two", &[a])).await,
        Code::AlreadyExists,
    );
}

#[tokio::test]
async fn what_is_not_supported_is_an_invalid_argument_by_name() {
    let agent = Agent::start().await;
    for (key, value) in [("class", "none"), ("flavour", "x"), ("class", "No Class")] {
        let request = CreateVolumeGroupRequest {
            parameters: [(key.to_owned(), value.to_owned())].into(),
            ..group("g", &[])
        };
        let answer = agent.groups().create_volume_group(request).await;
        let message = refused(answer, Code::InvalidArgument);
        assert!(message.contains(&format!("parameters.{key}")), "{message}");
    }
    let answer = agent.groups().create_volume_group(group("", &[])).await;
    assert!(refused(answer, Code::InvalidArgument).starts_with("name "));
    let answer = agent
        .groups()
        .create_volume_group(group("g", &[String::new()]))
        .await;
    assert!(refused(answer, Code::InvalidArgument).starts_with("volume_ids[0] "));
    let answer = agent
        .groups()
        .modify_volume_group_membership(modify("", &[]))
        .await;
    assert!(refused(answer, Code::InvalidArgument).starts_with("volume_group_id "));
    let page = ListVolumeGroupsRequest {
        max_entries: -1,
        ..ListVolumeGroupsRequest::default()
    };
    refused(
        agent.groups().list_volume_groups(page).await,
        Code::InvalidArgument,
    );
    assert_eq!(listed(&agent).await, Vec::<String>::new());
}

async fn listed(agent: &Agent) -> Vec<String> {
    let request = ListVolumeGroupsRequest::default();
    let list = ok(agent.groups().list_volume_groups(request).await);
    let groups = list.entries.into_iter();
    groups
        .map(|entry| entry.volume_group.unwrap().volume_group_id)
        .collect()
}

#[tokio::test]
async fn members_are_exactly_those_that_were_asked_for_last() {
    let mut agent = Agent::start().await;
    let [a, b, c] = volumes(&agent, &["a", "b", "c"]).await.try_into().unwrap();
    let id = make(&agent, "g", &[]).await.volume_group_id;
    let lists = [
        vec![&a, &b],
        vec![&b, &a],
        vec![&b, &c, &b],
        vec![&a, &b, &c],
        vec![],
        vec![&c],
    ];
    for list in lists {
        let wanted: Vec<String> = list.iter().map(|id| (*id).clone()).collect();
        for _ in 0..2 {
            let answer = agent
                .groups()
                .modify_volume_group_membership(modify(&id, &wanted))
                .await;
            let answer = ok(answer).volume_group.unwrap();
            let mut expected = sorted(&list);
            expected.dedup();
            assert_eq!(ids(&answer), expected);
            assert_eq!(get(&agent, &id).await, answer);
        }
    }
    agent.kill();
    agent.restart().await;
    assert_eq!(ids(&get(&agent, &id).await), [c]);
}

#[tokio::test]
async fn members_come_with_size_source_and_topology_in_every_reply() {
    let agent = Agent::start().await;
    let plain = volume(&agent, "plain", 8, &raw()).await;
    let request = CreateVolumeRequest {
        volume_content_source: from_volume(&plain),
        ..create("copy", 8, &raw())
    };
    let copy = ok(agent.controller().create_volume(request).await);
    let copy = copy.volume.unwrap();
    let taken = agent
        .controller()
        .create_snapshot(snapshot("s", &plain))
        .await;
    let taken = ok(taken).snapshot.unwrap().snapshot_id;
    let request = CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken),
        ..create("restored", 8, &raw())
    };
    let restored = ok(agent.controller().create_volume(request).await);
    let restored = restored.volume.unwrap();
    let of = [&plain, &copy.volume_id, &restored.volume_id].map(String::clone);
    let made = make(&agent, "g", &of).await;
    let changed = agent
        .groups()
        .modify_volume_group_membership(modify(&made.volume_group_id, &ids(&made)))
        .await;
    let request = ListVolumeGroupsRequest::default();
    let list = ok(agent.groups().list_volume_groups(request).await);
    let replies = [
        made.clone(),
        ok(changed).volume_group.unwrap(),
        get(&agent, &made.volume_group_id).await,
        list.entries[0].volume_group.clone().unwrap(),
    ];
    for reply in replies {
        assert_eq!(reply, made);
        for told in [&copy, &restored] {
            let mut members = reply.volumes.iter();
            let member = members.find(|member| member.volume_id == told.volume_id);
            assert_eq!(member, Some(told), "it is as CreateVolume told it");
        }
        for member in &reply.volumes {
            assert_eq!(member.capacity_bytes, 8 * MIB);
            assert_eq!(member.accessible_topology.len(), 1);
        }
    }
    let source = copy.content_source.unwrap().r#type.unwrap();
    assert!(matches!(source, Type::Volume(from) if from.volume_id == plain));
    let source = restored.content_source.unwrap().r#type.unwrap();
    assert!(matches!(source, Type::Snapshot(from) if from.snapshot_id == taken));
}

#[tokio::test]
async fn what_does_not_exist_is_not_found_and_one_in_another_group_is_refused() {
    let agent = Agent::start().await;
    let [a, b] = volumes(&agent, &["a", "b"]).await.try_into().unwrap();
    let first = make(&agent, "first", &[a.clone()]).await;
    let second = make(&agent, "second", &[]).await.volume_group_id;
    let missing = a.replace(a.rsplit('/').next().unwrap(), &{
        "00000000-0000-5000-8000-00000000000a".to_owned()
    });
    let bad: [(&str, Vec<String>, Code); 5] = [
        (&second, vec![b.clone(), missing.clone()], Code::NotFound),
        (
            &second,
            vec![b.clone(), "nonsense".to_owned()],
            Code::NotFound,
        ),
        ("nonsense", vec![], Code::NotFound),
        (&missing, vec![b.clone()], Code::NotFound),
        // By the text of this call; that of the other one has another code for it.
        (&second, vec![b.clone(), a.clone()], Code::InvalidArgument),
    ];
    for (id, members, code) in bad {
        let answer = agent
            .groups()
            .modify_volume_group_membership(modify(id, &members))
            .await;
        refused(answer, code);
        assert_eq!(
            get(&agent, &second).await.volumes,
            [],
            "nothing was changed"
        );
    }
    for (members, code) in [
        (vec![missing.clone()], Code::NotFound),
        (vec![b.clone(), a.clone()], Code::FailedPrecondition),
    ] {
        let answer = agent
            .groups()
            .create_volume_group(group("third", &members))
            .await;
        let message = refused(answer, code);
        assert!(
            code == Code::NotFound || message.contains("first"),
            "{message}"
        );
    }
    let request = ControllerGetVolumeGroupRequest {
        volume_group_id: missing,
        ..ControllerGetVolumeGroupRequest::default()
    };
    refused(
        agent.groups().controller_get_volume_group(request).await,
        Code::NotFound,
    );
    let there = format!("node-b/default/{}", a.rsplit('/').next().unwrap());
    let answer = agent
        .groups()
        .modify_volume_group_membership(modify(&second, &[b, there]))
        .await;
    let message = refused(answer, Code::InvalidArgument);
    assert!(message.contains("node-b"), "{message}");
    assert_eq!(ids(&get(&agent, &first.volume_group_id).await), [a]);
    assert_eq!(listed(&agent).await.len(), 2);
}

#[tokio::test]
async fn a_member_is_not_deleted_until_it_has_left_its_group() {
    let mut agent = Agent::start().await;
    let [a, b] = volumes(&agent, &["a", "b"]).await.try_into().unwrap();
    let made = make(&agent, "g", &[a.clone(), b.clone()]).await;
    agent.kill();
    agent.restart().await;
    let answer = agent.controller().delete_volume(delete(&a)).await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains(&made.volume_group_id), "{message}");
    ok(agent
        .groups()
        .modify_volume_group_membership(modify(&made.volume_group_id, &[b.clone()]))
        .await);
    ok(agent.controller().delete_volume(delete(&a)).await);
    // By default what was in a group that is deleted stays.
    for _ in 0..2 {
        let request = delete_group(&made.volume_group_id);
        ok(agent.groups().delete_volume_group(request).await);
    }
    ok(agent
        .groups()
        .delete_volume_group(delete_group("nonsense"))
        .await);
    assert_eq!(listed(&agent).await, Vec::<String>::new());
    ok(agent.controller().delete_volume(delete(&b)).await);
}

#[tokio::test]
async fn a_group_with_members_is_refused_where_that_is_asked_for() {
    let agent = with_policy("refuse").await;
    let a = volumes(&agent, &["a"]).await;
    let id = make(&agent, "g", &a).await.volume_group_id;
    let answer = agent.groups().delete_volume_group(delete_group(&id)).await;
    refused(answer, Code::FailedPrecondition);
    assert_eq!(ids(&get(&agent, &id).await), a);
    ok(agent
        .groups()
        .modify_volume_group_membership(modify(&id, &[]))
        .await);
    ok(agent.groups().delete_volume_group(delete_group(&id)).await);
}

#[tokio::test]
async fn members_go_with_their_group_where_that_is_asked_for_and_all_of_them_may() {
    let agent = with_policy("cascade").await;
    let a = volume(&agent, "a", 16, &raw()).await;
    let used = volume(&agent, "used", 16, &mounted("ext4")).await;
    let made = make(&agent, "g", &[a.clone(), used.clone()]).await;
    let places = mount(&agent, "used", &used, &mounted("ext4")).await;
    let answer = agent
        .groups()
        .delete_volume_group(delete_group(&made.volume_group_id))
        .await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("mounted on"), "{message}");
    assert_eq!(get(&agent, &made.volume_group_id).await, made);
    unmount(&agent, &used, &places).await;
    // A member whose device a program has open is seen before the first one is deleted, whichever comes first.
    for id in [&a, &used] {
        let (staging, target) = mount(&agent, "open", id, &raw()).await;
        let device = fs::metadata(&target).unwrap().rdev();
        let device = format!(
            "/sys/dev/block/{}:{}",
            nix::sys::stat::major(device),
            nix::sys::stat::minor(device)
        );
        let name = fs::canonicalize(device).unwrap();
        let device = Path::new("/dev").join(name.file_name().unwrap());
        ok(agent
            .node()
            .node_unpublish_volume(unpublish(id, &target))
            .await);
        let open = fs::File::open(device).unwrap();
        let answer = agent
            .groups()
            .delete_volume_group(delete_group(&made.volume_group_id))
            .await;
        let message = refused(answer, Code::FailedPrecondition);
        assert!(message.contains("in use"), "{message}");
        assert_eq!(get(&agent, &made.volume_group_id).await, made);
        drop(open);
        ok(agent
            .node()
            .node_unstage_volume(unstage(id, &staging))
            .await);
    }
    ok(agent
        .groups()
        .delete_volume_group(delete_group(&made.volume_group_id))
        .await);
    let left = ok(agent
        .controller()
        .list_volumes(drumlin_proto::csi::v1::ListVolumesRequest::default())
        .await);
    assert_eq!(left.entries, []);
    assert_eq!(listed(&agent).await, Vec::<String>::new());
}

#[tokio::test]
async fn groups_come_in_pages_and_a_token_that_none_gave_out_is_aborted() {
    let agent = Agent::start().await;
    let mut made = Vec::new();
    for number in 0..5 {
        let group = make(&agent, &format!("g{number}"), &[]).await;
        made.push(group.volume_group_id);
    }
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let request = ListVolumeGroupsRequest {
            max_entries: 2,
            starting_token: token,
            ..ListVolumeGroupsRequest::default()
        };
        let page = ok(agent.groups().list_volume_groups(request).await);
        assert!(page.entries.len() <= 2);
        let entries = page.entries.into_iter();
        seen.extend(entries.map(|entry| entry.volume_group.unwrap().volume_group_id));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    seen.sort();
    made.sort();
    assert_eq!(seen, made);
    let request = ListVolumeGroupsRequest {
        starting_token: "nonsense".to_owned(),
        ..ListVolumeGroupsRequest::default()
    };
    refused(
        agent.groups().list_volume_groups(request).await,
        Code::Aborted,
    );
}

#[tokio::test]
async fn hundreds_of_volumes_join_in_one_call_and_a_group_has_an_end() {
    let agent = Agent::start().await;
    let count = if is_over_lvm() { 60 } else { 300 };
    let mut all = Vec::new();
    for number in 0..count {
        all.push(volume(&agent, &format!("v{number}"), 1, &raw()).await);
    }
    all.sort();
    let id = make(&agent, "g", &all[..1]).await.volume_group_id;
    for wanted in [&all[..], &all[..count - 1], &[], &all[..]] {
        let answer = agent
            .groups()
            .modify_volume_group_membership(modify(&id, wanted))
            .await;
        assert_eq!(ids(&ok(answer).volume_group.unwrap()), wanted);
    }
    let too_many: Vec<String> = (0..1025)
        .map(|number| format!("node-a/default/00000000-0000-5000-8000-{number:012}"))
        .collect();
    let answer = agent
        .groups()
        .modify_volume_group_membership(modify(&id, &too_many))
        .await;
    refused(answer, Code::ResourceExhausted);
    assert_eq!(ids(&get(&agent, &id).await), all);
}

#[tokio::test]
async fn callers_that_want_one_volume_in_two_groups_do_not_both_get_it() {
    let agent = Agent::start().await;
    let a = volumes(&agent, &["a"]).await;
    let mut groups = Vec::new();
    for number in 0..8 {
        let group = make(&agent, &format!("g{number}"), &[]).await;
        groups.push(group.volume_group_id);
    }
    let mut calls = tokio::task::JoinSet::new();
    for id in groups.clone() {
        let (mut client, request) = (agent.groups(), modify(&id, &a));
        calls.spawn(async move { client.modify_volume_group_membership(request).await });
    }
    let answers = calls.join_all().await;
    let joined = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(joined, 1);
    for status in answers.into_iter().filter_map(Result::err) {
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    let mut members = 0;
    for id in &groups {
        members += get(&agent, id).await.volumes.len();
    }
    assert_eq!(members, 1);
}

#[tokio::test]
async fn a_group_holds_volumes_of_several_classes() {
    let agent = two_classes().await;
    let in_class = |name: &str, class: &str| CreateVolumeRequest {
        parameters: [("class".to_owned(), class.to_owned())].into(),
        ..create(name, 1, &raw())
    };
    let mut members = Vec::new();
    for (name, class) in [("x", "a"), ("y", "b")] {
        let request = in_class(name, class);
        let made = ok(agent.controller().create_volume(request).await);
        members.push(made.volume.unwrap().volume_id);
    }
    let made = make(&agent, "g", &[members[1].clone()]).await;
    assert!(
        made.volume_group_id.starts_with("node-a/b/"),
        "where its first volume is"
    );
    let changed = agent
        .groups()
        .modify_volume_group_membership(modify(&made.volume_group_id, &members))
        .await;
    members.sort();
    assert_eq!(ids(&ok(changed).volume_group.unwrap()), members);
    // A volume that somebody took away from below is told as one without a size, and the rest goes on.
    let key = members[0].rsplit('/').next().unwrap();
    fs::remove_dir_all(agent.path("a/volumes").join(key)).unwrap();
    let now = get(&agent, &made.volume_group_id).await;
    let lost = now
        .volumes
        .iter()
        .find(|volume| volume.volume_id == members[0]);
    assert_eq!(lost.unwrap().capacity_bytes, 0);
    ok(agent
        .groups()
        .modify_volume_group_membership(modify(&made.volume_group_id, &members[1..]))
        .await);
}
