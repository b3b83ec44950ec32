//! Killed between any two steps of publishing a volume that nobody stages, and of giving its free blocks back.

use drumlin_proto::reclaimspace;
use drumlin_tests::{
    agent::{Agent, is_over_lvm},
    sources,
    state::State,
};

use crate::{
    dialect::{Use, capability_v1, node_v0_1, publish_v0_1, reclaim_controller, unpublish_v0_1},
    helpers::{detach, paths},
    subject::Subject,
};
use drumlin_tests::requests::{create, delete};

/// Whether a point is met here and nowhere else.
pub(crate) fn is_own(point: &str) -> bool {
    let own = ["publish-directly.", "unpublish-directly.", "reclaim."];
    own.iter().any(|own| point.starts_with(own))
}

/// Everything that comes to those points, once; the state after each call.
async fn life(subject: &mut Subject, how: Use) -> Vec<(&'static str, State)> {
    let mut states = Vec::new();
    macro_rules! step {
        ($name:literal, $call:expr) => {{
            let answer = subject.call($name, $call).await;
            states.push(($name, subject.state().await));
            answer
        }};
    }
    let (_, target) = paths(&subject.agent, "v");
    let new = create("v", 16, &capability_v1(how));
    let made = step!("create", async |agent: &Agent| agent
        .controller()
        .create_volume(new.clone())
        .await);
    let id = made.volume.unwrap().volume_id;
    let attach = drumlin_proto::csi::v1::ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(capability_v1(how)),
        ..drumlin_proto::csi::v1::ControllerPublishVolumeRequest::default()
    };
    step!("attach", async |agent: &Agent| agent
        .controller()
        .controller_publish_volume(attach.clone())
        .await);
    for _ in 0..2 {
        step!("publish", async |agent: &Agent| node_v0_1(agent)
            .node_publish_volume(publish_v0_1(&id, &target, how))
            .await);
        step!("unpublish", async |agent: &Agent| node_v0_1(agent)
            .node_unpublish_volume(unpublish_v0_1(&id, &target))
            .await);
    }
    let request = reclaimspace::ControllerReclaimSpaceRequest {
        volume_id: id.clone(),
        ..reclaimspace::ControllerReclaimSpaceRequest::default()
    };
    step!("reclaim", async |agent: &Agent| reclaim_controller(agent)
        .controller_reclaim_space(request.clone())
        .await);
    step!("detach", async |agent: &Agent| agent
        .controller()
        .controller_unpublish_volume(detach(&id))
        .await);
    step!("delete", async |agent: &Agent| agent
        .controller()
        .delete_volume(delete(&id))
        .await);
    states
}

#[tokio::test]
async fn killed_at_each_step_without_staging_it_ends_where_an_uninterrupted_run_ends() {
    let mut wanted = Vec::new();
    for how in [Use::Mounted, Use::Raw] {
        let states = life(&mut Subject::start(None).await, how).await;
        wanted.push((how, states));
    }
    let mut points = sources::agent_points();
    points.retain(|point| is_own(point));
    assert!(points.len() >= 5, "{points:?}");
    for point in points {
        let mut kills = 0;
        for (how, wanted) in &wanted {
            // The lab is slow: there the first way that comes to a point is enough.
            if is_over_lvm() && kills > 0 {
                break;
            }
            let mut subject = Subject::start(Some(&point)).await;
            let states = life(&mut subject, *how).await;
            kills += subject.kills;
            let log = subject.agent.log();
            assert_eq!(&states, wanted, "killed at {point}\n{log}");
        }
        assert!(kills > 0, "no call comes to {point}");
    }
}
