//! Publishing by the controller, and the node that holds its callers to it.

use std::fs;

use drumlin_proto::csi::v1::{
    ControllerGetVolumeRequest, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest,
    ListVolumesRequest, NodeGetInfoRequest, VolumeCapability,
};
use drumlin_tests::{
    agent::{Agent, Options},
    requests::{delete, mounted, publish, raw, stage},
    storage::Scratch,
};
use tonic::Code;

use crate::helpers::{detach, ok, paths, refused, unmount, volume};

pub(crate) async fn attaching() -> Agent {
    let options = Options {
        config: Some("attach: true\nmaxVolumesPerNode: 2\n".to_owned()),
        ..Options::default()
    };
    Agent::with(Scratch::new(), options).await
}

pub(crate) fn attach(id: &str, capability: &VolumeCapability) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(capability.clone()),
        ..ControllerPublishVolumeRequest::default()
    }
}

#[tokio::test]
async fn a_volume_is_used_where_and_how_it_was_published() {
    let mut agent = attaching().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let (staging, target) = paths(&agent, "v");
    refused(
        agent
            .node()
            .node_stage_volume(stage(&id, &staging, &plain))
            .await,
        Code::FailedPrecondition,
    );
    published_read_only(&agent, &id).await;
    refused(
        agent.controller().delete_volume(delete(&id)).await,
        Code::FailedPrecondition,
    );
    refused(
        agent
            .node()
            .node_stage_volume(stage(&id, &staging, &raw()))
            .await,
        Code::FailedPrecondition,
    );
    agent.kill();
    agent.restart().await;
    ok(agent
        .node()
        .node_stage_volume(stage(&id, &staging, &plain))
        .await);
    ok(agent
        .node()
        .node_publish_volume(publish(&id, (&staging, &target), &plain))
        .await);
    assert!(
        fs::write(format!("{target}/file"), "x").is_err(),
        "published read-only"
    );
    unmount(&agent, &id, &(staging, target)).await;
    its_node_is_told(&agent, &id).await;
    for _ in 0..2 {
        ok(agent
            .controller()
            .controller_unpublish_volume(detach(&id))
            .await);
    }
    ok(agent.controller().delete_volume(delete(&id)).await);
    ok(agent
        .controller()
        .controller_unpublish_volume(detach(&id))
        .await);
}

/// Publishes a volume read-only by the controller, twice, and not otherwise.
async fn published_read_only(agent: &Agent, id: &str) {
    let plain = mounted("ext4");
    let read_only = ControllerPublishVolumeRequest {
        readonly: true,
        ..attach(id, &plain)
    };
    for _ in 0..2 {
        ok(agent
            .controller()
            .controller_publish_volume(read_only.clone())
            .await);
    }
    refused(
        agent
            .controller()
            .controller_publish_volume(attach(id, &plain))
            .await,
        Code::AlreadyExists,
    );
}

async fn its_node_is_told(agent: &Agent, id: &str) {
    let got = ok(agent
        .controller()
        .controller_get_volume(ControllerGetVolumeRequest {
            volume_id: id.to_owned(),
        })
        .await);
    assert_eq!(got.status.unwrap().published_node_ids, ["node-a"]);
    let all = ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    assert_eq!(
        all.entries[0].status.clone().unwrap().published_node_ids,
        ["node-a"]
    );
}

#[tokio::test]
async fn a_node_takes_as_many_volumes_as_it_may() {
    let agent = attaching().await;
    assert_eq!(
        ok(agent.node().node_get_info(NodeGetInfoRequest {}).await).max_volumes_per_node,
        2
    );
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        ids.push(volume(&agent, name, 1, &raw()).await);
    }
    let mut controllers: Vec<_> = (0..3).map(|_| agent.controller()).collect();
    let (a, rest) = controllers.split_at_mut(1);
    let (b, c) = rest.split_at_mut(1);
    let answers = tokio::join!(
        a[0].controller_publish_volume(attach(&ids[0], &raw())),
        b[0].controller_publish_volume(attach(&ids[1], &raw())),
        c[0].controller_publish_volume(attach(&ids[2], &raw())),
    );
    let codes = [answers.0, answers.1, answers.2]
        .map(|answer| answer.map_or_else(|status| status.code(), |_| Code::Ok));
    assert_eq!(
        codes.iter().filter(|code| **code == Code::Ok).count(),
        2,
        "{codes:?}"
    );
    assert_eq!(
        codes
            .iter()
            .filter(|code| **code == Code::ResourceExhausted)
            .count(),
        1,
        "{codes:?}"
    );
    for id in &ids {
        ok(agent
            .controller()
            .controller_unpublish_volume(detach(id))
            .await);
    }
    ok(agent
        .controller()
        .controller_publish_volume(attach(&ids[2], &raw()))
        .await);
}

#[tokio::test]
async fn what_is_not_known_is_refused_in_the_order_of_the_specification() {
    let agent = attaching().await;
    let id = volume(&agent, "v", 1, &raw()).await;
    let other = |volume: &str, node: &str| ControllerPublishVolumeRequest {
        node_id: node.into(),
        ..attach(volume, &raw())
    };
    refused(
        agent
            .controller()
            .controller_publish_volume(other("", "x"))
            .await,
        Code::InvalidArgument,
    );
    refused(
        agent
            .controller()
            .controller_publish_volume(other("x", ""))
            .await,
        Code::InvalidArgument,
    );
    refused(
        agent
            .controller()
            .controller_publish_volume(other("x", "x"))
            .await,
        Code::NotFound,
    );
    refused(
        agent
            .controller()
            .controller_publish_volume(other(&id, "x"))
            .await,
        Code::NotFound,
    );
    let empty = ControllerUnpublishVolumeRequest::default();
    refused(
        agent.controller().controller_unpublish_volume(empty).await,
        Code::InvalidArgument,
    );
}
