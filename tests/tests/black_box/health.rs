//! The health calls of CSI 1.13: what is wrong is reported with a reason as long as it is so, and nothing else is.

use std::{collections::BTreeSet, fs};

use drumlin_proto::csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetVolumeHealthRequest,
    ControllerListVolumeHealthRequest, NodeGetCapabilitiesRequest, NodeGetStorageHealthRequest,
    NodeGetVolumeHealthRequest, StorageHealthErrorType, VolumeHealth, VolumeHealthErrorType,
    controller_service_capability::{self, rpc::Type as Controller},
    node_service_capability::{self, rpc::Type as Node},
};
use drumlin_tests::{
    agent::{Agent, is_over_lvm},
    does_not_apply,
    programs::run,
    requests::{delete, mounted, publish, raw, stage, unpublish, unstage},
};
use tonic::{Code, Response, Status};

use crate::helpers::{
    home, mount, ok, paths, refused, trigger_ext4_error, two_classes, unmount, volume,
};

const UNKNOWN: &str = "node-a/default/00000000-0000-5000-8000-00000000000a";

fn of_node(id: &str, at: &(String, String)) -> NodeGetVolumeHealthRequest {
    NodeGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        staging_target_path: at.0.clone(),
        volume_publish_path: at.1.clone(),
    }
}

async fn get(agent: &Agent, id: &str) -> Result<Response<VolumeHealth>, Status> {
    let request = ControllerGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        ..ControllerGetVolumeHealthRequest::default()
    };
    let answer = agent
        .controller()
        .controller_get_volume_health(request)
        .await;
    answer.map(|answer| Response::new(answer.into_inner().volume_health.unwrap()))
}

async fn node_get(
    agent: &Agent,
    request: NodeGetVolumeHealthRequest,
) -> Result<Response<VolumeHealth>, Status> {
    let answer = agent.node().node_get_volume_health(request).await;
    answer.map(|answer| Response::new(answer.into_inner().volume_health.unwrap()))
}

async fn listed(agent: &Agent) -> Vec<VolumeHealth> {
    let request = ControllerListVolumeHealthRequest::default();
    let answer = agent
        .controller()
        .controller_list_volume_health(request)
        .await;
    ok(answer).entries
}

/// The storage of the node: each problem's status and reason, once.
async fn storage(agent: &Agent) -> Vec<(StorageHealthErrorType, String)> {
    let request = NodeGetStorageHealthRequest::default();
    let answer = ok(agent.node().node_get_storage_health(request).await);
    let entries = answer.backend_health.into_iter();
    let all: Vec<_> = entries
        .map(|entry| {
            assert!(!entry.message.is_empty(), "{entry:?}");
            (entry.status(), entry.reason)
        })
        .collect();
    let once: BTreeSet<_> = all
        .iter()
        .map(|(status, reason)| (i32::from(*status), reason))
        .collect();
    assert_eq!(once.len(), all.len(), "{all:?}");
    all
}

/// The statuses and reasons of a volume, which are not repeated.
fn reasons(health: &VolumeHealth) -> Vec<(VolumeHealthErrorType, String)> {
    let entries = health.health_statuses.iter();
    let all: Vec<_> = entries
        .map(|entry| (entry.status(), entry.reason.clone()))
        .collect();
    let once: BTreeSet<_> = all
        .iter()
        .map(|(status, reason)| (i32::from(*status), reason))
        .collect();
    assert_eq!(once.len(), all.len(), "{health:?}");
    for (status, reason) in &all {
        assert_ne!(*status, VolumeHealthErrorType::UnknownVolumeHealthType);
        let is_camel_case = reason.starts_with(|first: char| first.is_ascii_uppercase())
            && reason.chars().all(|one| one.is_ascii_alphanumeric());
        assert!(is_camel_case, "{reason}");
    }
    all
}

#[tokio::test]
async fn the_health_calls_are_advertised_and_served() {
    let agent = Agent::start().await;
    let request = ControllerGetCapabilitiesRequest {};
    let answer = ok(agent
        .controller()
        .controller_get_capabilities(request)
        .await);
    let controller: Vec<i32> = answer
        .capabilities
        .into_iter()
        .map(|one| match one.r#type.unwrap() {
            controller_service_capability::Type::Rpc(rpc) => rpc.r#type,
        })
        .collect();
    assert!(controller.contains(&Controller::ListVolumeHealth.into()));
    assert!(controller.contains(&Controller::GetVolumeHealth.into()));
    // Clients of 1.12 have the condition beside it.
    assert!(controller.contains(&Controller::VolumeCondition.into()));
    let request = NodeGetCapabilitiesRequest {};
    let answer = ok(agent.node().node_get_capabilities(request).await);
    let node: Vec<i32> = answer
        .capabilities
        .into_iter()
        .map(|one| match one.r#type.unwrap() {
            node_service_capability::Type::Rpc(rpc) => rpc.r#type,
        })
        .collect();
    for capability in [
        Node::GetVolumeHealth,
        Node::GetStorageHealth,
        Node::VolumeCondition,
    ] {
        assert!(node.contains(&capability.into()), "{capability:?}");
    }
    let id = volume(&agent, "v", 32, &raw()).await;
    assert_eq!(listed(&agent).await, []);
    assert_eq!(ok(get(&agent, &id).await).volume_id, id);
    let nowhere = (String::new(), String::new());
    assert_eq!(
        ok(node_get(&agent, of_node(&id, &nowhere)).await).volume_id,
        id
    );
    assert_eq!(storage(&agent).await, []);
}

#[tokio::test]
async fn a_volume_in_good_health_is_not_listed_and_has_no_adverse_condition() {
    let agent = Agent::start().await;
    for (name, fs_type, mebibytes) in [("e", "ext4", 32), ("x", "xfs", 320), ("b", "btrfs", 128)] {
        let how = mounted(fs_type);
        let id = volume(&agent, name, mebibytes, &how).await;
        let at = mount(&agent, name, &id, &how).await;
        let healthy = VolumeHealth {
            volume_id: id.clone(),
            health_statuses: Vec::new(),
        };
        assert_eq!(listed(&agent).await, []);
        assert_eq!(ok(get(&agent, &id).await), healthy);
        assert_eq!(ok(node_get(&agent, of_node(&id, &at)).await), healthy);
        unmount(&agent, &id, &at).await;
        assert_eq!(ok(node_get(&agent, of_node(&id, &at)).await), healthy);
    }
}

#[tokio::test]
async fn a_damaged_volume_is_reported_with_a_reason_until_it_is_repaired() {
    if is_over_lvm() {
        return does_not_apply!("it damages an image");
    }
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 32, &raw()).await;
    volume(&agent, "healthy", 32, &raw()).await;
    let (image, away) = (
        home(&agent, &id).join("image"),
        home(&agent, &id).join("away"),
    );
    let lost = vec![(VolumeHealthErrorType::DataLoss, "ImageMissing".to_owned())];
    fs::rename(&image, &away).unwrap();
    for _ in 0..2 {
        let found = listed(&agent).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].volume_id.as_str(), reasons(&found[0])),
            (id.as_str(), lost.clone())
        );
        assert!(
            found[0].health_statuses[0].message.contains("missing"),
            "{found:?}"
        );
        assert_eq!(ok(get(&agent, &id).await), found[0]);
    }
    fs::rename(&away, &image).unwrap();
    assert_eq!(listed(&agent).await, []);
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.set_len(1 << 20).unwrap();
    let truncated = vec![(VolumeHealthErrorType::DataLoss, "ImageTruncated".to_owned())];
    assert_eq!(reasons(&ok(get(&agent, &id).await)), truncated);
    file.set_len(32 << 20).unwrap();
    assert_eq!(reasons(&ok(get(&agent, &id).await)), []);
}

#[tokio::test]
async fn volume_health_comes_in_pages_and_a_token_that_no_list_gave_out_is_aborted() {
    let agent = two_classes().await;
    let mut all = BTreeSet::new();
    for number in 0..5 {
        let id = volume(&agent, &format!("v{number}"), 1, &raw()).await;
        let key = id.rsplit('/').next().unwrap();
        fs::remove_file(agent.path("a/volumes").join(key).join("image")).unwrap();
        all.insert(id);
    }
    let (mut seen, mut token) = (BTreeSet::new(), String::new());
    loop {
        let request = ControllerListVolumeHealthRequest {
            max_entries: 2,
            starting_token: token,
            ..ControllerListVolumeHealthRequest::default()
        };
        let page = ok(agent
            .controller()
            .controller_list_volume_health(request)
            .await);
        assert!((1..=2).contains(&page.entries.len()));
        seen.extend(page.entries.into_iter().map(|entry| entry.volume_id));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, all);
    for (max_entries, token, code) in [
        (0, "nonsense", Code::Aborted),
        (-1, "", Code::InvalidArgument),
    ] {
        let request = ControllerListVolumeHealthRequest {
            max_entries,
            starting_token: token.to_owned(),
            ..ControllerListVolumeHealthRequest::default()
        };
        refused(
            agent
                .controller()
                .controller_list_volume_health(request)
                .await,
            code,
        );
    }
}

#[tokio::test]
async fn the_health_of_a_volume_that_does_not_exist_is_not_found() {
    let agent = Agent::start().await;
    let deleted = volume(&agent, "v", 4, &raw()).await;
    ok(agent.controller().delete_volume(delete(&deleted)).await);
    let nowhere = (String::new(), String::new());
    for (id, code) in [
        (UNKNOWN, Code::NotFound),
        (deleted.as_str(), Code::NotFound),
        ("of no form", Code::NotFound),
        ("", Code::InvalidArgument),
    ] {
        refused(get(&agent, id).await, code);
        refused(node_get(&agent, of_node(id, &nowhere)).await, code);
    }
}

#[tokio::test]
async fn the_node_reports_the_health_of_a_volume_that_could_not_be_staged() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 32, &mounted("ext4")).await;
    let (staging, target) = paths(&agent, "v");
    if !is_over_lvm() {
        fs::remove_file(home(&agent, &id).join("image")).unwrap();
        let answer = agent
            .node()
            .node_stage_volume(stage(&id, &staging, &mounted("ext4")))
            .await;
        refused(answer, Code::FailedPrecondition);
        let found = ok(node_get(&agent, of_node(&id, &(staging.clone(), target))).await);
        assert_eq!(
            reasons(&found),
            [(VolumeHealthErrorType::DataLoss, "ImageMissing".to_owned())]
        );
    }
    for length in [128, 4095] {
        let component = format!("/{}", "x".repeat(63));
        let mut long = component.repeat(length / component.len());
        long.push_str(&"/y".repeat((length - long.len()) / 2));
        long.push_str(&"z".repeat(length - long.len()));
        assert_eq!(long.len(), length);
        ok(node_get(&agent, of_node(&id, &(long.clone(), long))).await);
    }
    let relative = "relative".to_owned();
    for at in [(relative.clone(), String::new()), (String::new(), relative)] {
        refused(
            node_get(&agent, of_node(&id, &at)).await,
            Code::InvalidArgument,
        );
    }
}

#[tokio::test]
async fn the_node_reports_each_class_that_cannot_be_used_once_for_each_reason() {
    let agent = two_classes().await;
    assert_eq!(storage(&agent).await, []);
    let id = volume(&agent, "v", 4, &raw()).await;
    for class in ["a", "b"] {
        fs::rename(agent.path(class), agent.path(&format!("{class}-away"))).unwrap();
        let away = (
            StorageHealthErrorType::StorageUnreachable,
            "ClassUnavailable".to_owned(),
        );
        assert_eq!(storage(&agent).await, [away]);
    }
    // Its volumes are not gone.
    let away = vec![(
        VolumeHealthErrorType::Inaccessible,
        "ClassUnavailable".to_owned(),
    )];
    let nowhere = (String::new(), String::new());
    assert_eq!(reasons(&ok(get(&agent, &id).await)), away);
    assert_eq!(
        reasons(&ok(node_get(&agent, of_node(&id, &nowhere)).await)),
        away
    );
    assert_eq!(listed(&agent).await.len(), 1);
    for class in ["a", "b"] {
        fs::rename(agent.path(&format!("{class}-away")), agent.path(class)).unwrap();
    }
    assert_eq!(storage(&agent).await, []);
    assert_eq!(listed(&agent).await, []);
}

#[tokio::test]
async fn a_file_system_that_became_read_only_or_counts_errors_says_so_on_its_node() {
    let agent = Agent::start().await;
    let how = mounted("ext4");
    let id = volume(&agent, "v", 32, &how).await;
    let at = mount(&agent, "v", &id, &how).await;
    trigger_ext4_error(&at.0);
    let found = ok(node_get(&agent, of_node(&id, &at)).await);
    let degraded = |reason: &str| (VolumeHealthErrorType::Degraded, reason.to_owned());
    assert!(
        reasons(&found).contains(&degraded("FileSystemErrors")),
        "{found:?}"
    );
    run("mount", &["-o", "remount,ro", &at.0]);
    run("mount", &["-o", "remount,rw,bind", &at.0]);
    let found = ok(node_get(&agent, of_node(&id, &at)).await);
    assert!(
        reasons(&found).contains(&degraded("FileSystemReadOnly")),
        "{found:?}"
    );
    // What is published stays so, and nothing new is.
    let request = publish(&id, (&at.0, &at.1), &how);
    ok(agent.node().node_publish_volume(request).await);
    ok(agent
        .node()
        .node_stage_volume(stage(&id, &at.0, &how))
        .await);
    ok(agent
        .node()
        .node_unpublish_volume(unpublish(&id, &at.1))
        .await);
    let request = publish(&id, (&at.0, &at.1), &how);
    let answer = agent.node().node_publish_volume(request).await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("became read-only"), "{message}");
    ok(agent.node().node_unstage_volume(unstage(&id, &at.0)).await);
    // Until it is repaired: the counter is in the superblock.
    let staged = mount(&agent, "v", &id, &how).await;
    let found = ok(node_get(&agent, of_node(&id, &staged)).await);
    assert_eq!(reasons(&found), [degraded("FileSystemErrors")]);
    unmount(&agent, &id, &staged).await;
    let device = mount(&agent, "v", &id, &raw()).await;
    let checked = drumlin_tests::programs::output("e2fsck", &["-fy", &device.1]);
    assert!(
        checked.status.code().is_some_and(|code| code < 4),
        "{checked:?}"
    );
    unmount(&agent, &id, &device).await;
    let staged = mount(&agent, "v", &id, &how).await;
    assert_eq!(
        reasons(&ok(node_get(&agent, of_node(&id, &staged)).await)),
        []
    );
    unmount(&agent, &id, &staged).await;
}
