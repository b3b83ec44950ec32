//! `drumlin.v1.Inventory/DeleteBlankVolume`: what the audit of a cluster deletes holds no data.

use drumlin_proto::{
    csi::v1::ControllerModifyVolumeRequest,
    drumlin::v1::{DeleteBlankVolumeRequest, DeleteBlankVolumeResponse, ListObjectsRequest},
};
use drumlin_tests::{
    agent::Agent,
    requests::{mounted, raw},
};
use tonic::{Code, Response, Status};

use crate::helpers::{mount, ok, refused, unmount, volume};

async fn delete_blank(
    agent: &Agent,
    id: &str,
) -> Result<Response<DeleteBlankVolumeResponse>, Status> {
    let request = DeleteBlankVolumeRequest {
        volume_id: id.to_owned(),
    };
    agent.inventory().delete_blank_volume(request).await
}

async fn is_there(agent: &Agent, id: &str) -> bool {
    let request = ListObjectsRequest {
        object_id: id.to_owned(),
        ..ListObjectsRequest::default()
    };
    let found = ok(agent.inventory().list_objects(request).await);
    !found.objects.is_empty()
}

#[tokio::test]
async fn a_volume_that_was_never_used_is_deleted_and_a_repeat_finds_nothing() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 16, &mounted("ext4")).await;
    ok(delete_blank(&agent, &id).await);
    assert!(!is_there(&agent, &id).await);
    ok(delete_blank(&agent, &id).await);
}

#[tokio::test]
async fn a_volume_that_was_used_is_raw_or_protected_stays() {
    let mut agent = Agent::start().await;
    // Of a raw one nobody knows what its user has done.
    let mut used = vec![volume(&agent, "new", 16, &raw()).await];
    for (name, capability) in [("mounted", mounted("ext4")), ("raw", raw())] {
        let id = volume(&agent, name, 16, &capability).await;
        let at = mount(&agent, name, &id, &capability).await;
        let message = refused(delete_blank(&agent, &id).await, Code::FailedPrecondition);
        assert!(message.contains(&id), "{message}");
        unmount(&agent, &id, &at).await;
        used.push(id);
    }
    let kept = volume(&agent, "kept", 16, &mounted("ext4")).await;
    let protect = ControllerModifyVolumeRequest {
        volume_id: kept.clone(),
        mutable_parameters: [("protected".to_owned(), "true".to_owned())].into(),
        ..ControllerModifyVolumeRequest::default()
    };
    ok(agent.controller().controller_modify_volume(protect).await);
    used.push(kept);
    for turn in ["before", "after a kill"] {
        for id in &used {
            refused(delete_blank(&agent, id).await, Code::FailedPrecondition);
            assert!(is_there(&agent, id).await, "{turn}: {id}");
        }
        agent.kill();
        agent.restart().await;
    }
}

#[tokio::test]
async fn an_id_is_needed_and_one_that_nobody_has_is_no_error() {
    let agent = Agent::start().await;
    let message = refused(delete_blank(&agent, "").await, Code::InvalidArgument);
    assert!(message.contains("volume_id"), "{message}");
    let id = volume(&agent, "v", 16, &raw()).await;
    ok(delete_blank(&agent, &format!("{id}-other")).await);
    assert!(is_there(&agent, &id).await);
}
