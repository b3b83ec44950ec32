//! Calls to the node whose arguments do not fit the volume, or what an earlier call has made of it.

use std::{fs, path::Path};

use drumlin_proto::csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, VolumeCapability, volume_capability::access_mode::Mode,
};
use drumlin_tests::{
    agent::Agent,
    requests::{MIB, for_mode, mounted, publish, raw, stage, unpublish, unstage},
};
use tonic::Code;

use crate::{
    helpers::{mount, ok, paths, refused, text, unmount, volume},
    node::with_flags,
};

async fn stage_again(agent: &Agent, id: &str, staging: &str, how: &VolumeCapability) {
    let request = stage(id, staging, how);
    ok(agent.node().node_stage_volume(request).await);
}

/// The message with which a publication is refused.
async fn not_published(
    agent: &Agent,
    id: &str,
    at: (&str, &str),
    how: &VolumeCapability,
) -> String {
    let request = publish(id, at, how);
    let answer = agent.node().node_publish_volume(request).await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(!Path::new(at.1).exists(), "nothing is left at {}", at.1);
    message
}

#[tokio::test]
async fn a_publication_at_a_new_target_fits_what_is_staged() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let (staging, target) = paths(&agent, "v");
    stage_again(&agent, &id, &staging, &plain).await;
    let at = (staging.as_str(), target.as_str());
    for (how, why) in [
        (mounted("xfs"), "staged with file system ext4, not xfs"),
        (
            with_flags("ext4", &["discard"]),
            "staged without the options",
        ),
    ] {
        let message = not_published(&agent, &id, at, &how).await;
        assert!(message.contains(why), "{message}");
    }
    ok(agent
        .node()
        .node_unstage_volume(unstage(&id, &staging))
        .await);
    let read_only = with_flags("ext4", &["ro"]);
    stage_again(&agent, &id, &staging, &read_only).await;
    let message = not_published(&agent, &id, at, &plain).await;
    assert!(message.contains("staged read-only"), "{message}");
    for _ in 0..2 {
        let request = publish(&id, at, &read_only);
        ok(agent.node().node_publish_volume(request).await);
    }
    unmount(&agent, &id, &(staging, target)).await;
}

#[tokio::test]
async fn a_repeated_stage_or_publication_with_other_options_is_a_conflict() {
    let agent = Agent::start().await;
    let at_first = with_flags("ext4", &["discard,commit=7", "noatime"]);
    let id = volume(&agent, "v", 32, &at_first).await;
    let (staging, target) = mount(&agent, "v", &id, &at_first).await;
    let same = with_flags("ext4", &["noatime,commit=7,discard"]);
    stage_again(&agent, &id, &staging, &same).await;
    for other in [
        mounted("ext4"),
        with_flags("ext4", &["discard,noatime"]),
        with_flags("ext4", &["discard,commit=8,noatime"]),
        with_flags("ext4", &["discard,commit=7,noatime,sync"]),
    ] {
        let answer = agent
            .node()
            .node_stage_volume(stage(&id, &staging, &other))
            .await;
        refused(answer, Code::AlreadyExists);
    }
    let stricter = with_flags("ext4", &["noexec"]);
    let request = publish(&id, (&staging, &target), &stricter);
    let answer = agent.node().node_publish_volume(request).await;
    refused(answer, Code::AlreadyExists);
    unmount(&agent, &id, &(staging.clone(), target.clone())).await;
    // What it was staged with before does not bind the next stage, nor a repeat of that.
    let plain = mounted("ext4");
    for _ in 0..2 {
        mount(&agent, "v", &id, &plain).await;
    }
    let answer = agent
        .node()
        .node_stage_volume(stage(&id, &staging, &same))
        .await;
    refused(answer, Code::AlreadyExists);
    unmount(&agent, &id, &(staging.clone(), target.clone())).await;
    mount(&agent, "v", &id, &stricter).await;
    let request = publish(&id, (&staging, &target), &plain);
    // The restrictions of the staging hold at every target.
    ok(agent.node().node_publish_volume(request).await);
    unmount(&agent, &id, &(staging, target)).await;
}

#[tokio::test]
async fn an_unstage_of_another_path_is_ok_and_changes_nothing() {
    let mut agent = Agent::start().await;
    for (name, how) in [("m", mounted("ext4")), ("b", raw())] {
        let id = volume(&agent, name, 32, &how).await;
        let (staging, target) = paths(&agent, name);
        stage_again(&agent, &id, &staging, &how).await;
        let (other, missing) = (
            text(agent.scratch.directory(&format!("other/{name}"))),
            text(agent.path("missing")),
        );
        agent.kill();
        agent.restart().await;
        for path in [&other, &missing] {
            ok(agent.node().node_unstage_volume(unstage(&id, path)).await);
        }
        let usage = NodeGetVolumeStatsRequest {
            volume_id: id.clone(),
            volume_path: staging.clone(),
            staging_target_path: staging.clone(),
        };
        ok(agent.node().node_get_volume_stats(usage.clone()).await);
        let request = publish(&id, (&staging, &target), &how);
        ok(agent.node().node_publish_volume(request).await);
        for path in [&other, &missing] {
            ok(agent.node().node_unstage_volume(unstage(&id, path)).await);
        }
        let answer = agent
            .node()
            .node_unstage_volume(unstage(&id, &staging))
            .await;
        refused(answer, Code::FailedPrecondition);
        let elsewhere = NodeGetVolumeStatsRequest {
            volume_path: other,
            ..usage
        };
        let answer = agent.node().node_get_volume_stats(elsewhere).await;
        refused(answer, Code::NotFound);
        unmount(&agent, &id, &(staging, target)).await;
    }
}

#[tokio::test]
async fn a_second_target_is_for_the_mode_of_several_writers_alone() {
    for capability in [mounted("ext4"), raw()] {
        let agent = Agent::start().await;
        let id = volume(&agent, "v", 32, &capability).await;
        for (mode, is_for_one) in [
            (Mode::SingleNodeSingleWriter, true),
            (Mode::SingleNodeWriter, true),
            (Mode::SingleNodeReaderOnly, true),
            (Mode::SingleNodeMultiWriter, false),
        ] {
            let how = for_mode(&capability, mode);
            let (staging, target) = mount(&agent, "v", &id, &how).await;
            mount(&agent, "v", &id, &how).await;
            let other = format!("{target}-other");
            let request = publish(&id, (&staging, &other), &how);
            let read_only = NodePublishVolumeRequest {
                readonly: true,
                ..request.clone()
            };
            for second in [request, read_only] {
                let answer = agent.node().node_publish_volume(second).await;
                if is_for_one {
                    let message = refused(answer, Code::FailedPrecondition);
                    assert!(message.contains(&target), "{message}");
                    assert!(!Path::new(&other).exists(), "nothing is left there");
                } else {
                    ok(answer);
                    let request = unpublish(&id, &other);
                    ok(agent.node().node_unpublish_volume(request).await);
                }
            }
            unmount(&agent, &id, &(staging, target)).await;
        }
    }
}

#[tokio::test]
async fn what_the_volume_does_not_support_is_refused_with_the_code_of_the_call() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let (staging, target) = paths(&agent, "v");
    let unsupported = [
        for_mode(&plain, Mode::MultiNodeMultiWriter),
        mounted("ntfs"),
        mounted("xfs"),
        with_flags("ext4", &["errors=panic"]),
    ];
    for how in &unsupported {
        let answer = agent
            .node()
            .node_stage_volume(stage(&id, &staging, how))
            .await;
        refused(answer, Code::FailedPrecondition);
    }
    stage_again(&agent, &id, &staging, &plain).await;
    for how in &unsupported {
        not_published(&agent, &id, (&staging, &target), how).await;
        let request = NodeExpandVolumeRequest {
            volume_id: id.clone(),
            volume_path: staging.clone(),
            volume_capability: Some(how.clone()),
            ..NodeExpandVolumeRequest::default()
        };
        let answer = agent.node().node_expand_volume(request).await;
        refused(answer, Code::InvalidArgument);
    }
    // What is missing is a mistake in any call.
    let request = NodeStageVolumeRequest {
        volume_capability: None,
        ..stage(&id, &staging, &plain)
    };
    let answer = agent.node().node_stage_volume(request).await;
    let message = refused(answer, Code::InvalidArgument);
    assert!(
        message.contains("volume_capability is missing"),
        "{message}"
    );
    ok(agent
        .node()
        .node_unstage_volume(unstage(&id, &staging))
        .await);
}

#[tokio::test]
async fn a_node_expansion_keeps_to_its_limit() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    let request = |limit_bytes, required_bytes| NodeExpandVolumeRequest {
        volume_id: id.clone(),
        volume_path: at.1.clone(),
        staging_target_path: at.0.clone(),
        capacity_range: Some(CapacityRange {
            required_bytes,
            limit_bytes,
        }),
        ..NodeExpandVolumeRequest::default()
    };
    for (limit, required) in [(31 * MIB, 0), (31 * MIB, 16 * MIB)] {
        let answer = agent
            .node()
            .node_expand_volume(request(limit, required))
            .await;
        refused(answer, Code::OutOfRange);
    }
    for (limit, required) in [(32 * MIB, 0), (0, 16 * MIB), (64 * MIB, 32 * MIB)] {
        let answer = agent
            .node()
            .node_expand_volume(request(limit, required))
            .await;
        assert_eq!(ok(answer).capacity_bytes, 32 * MIB);
    }
    let relative = NodeExpandVolumeRequest {
        staging_target_path: "staging".to_owned(),
        ..request(0, 0)
    };
    let answer = agent.node().node_expand_volume(relative).await;
    refused(answer, Code::InvalidArgument);
    unmount(&agent, &id, &at).await;
    assert!(fs::read_dir(&at.0).unwrap().next().is_none());
}

#[tokio::test]
async fn a_context_of_another_volume_is_refused_and_the_keys_of_others_are_not() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let (staging, _) = paths(&agent, "v");
    let request = |key: &str| NodeStageVolumeRequest {
        volume_context: [(key.to_owned(), "x".to_owned())].into(),
        ..stage(&id, &staging, &plain)
    };
    let answer = agent
        .node()
        .node_stage_volume(request("drumlin.dev/pool"))
        .await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(
        message.contains("volume_context.drumlin.dev/pool"),
        "{message}"
    );
    let theirs = request("storage.kubernetes.io/csiProvisionerIdentity");
    ok(agent.node().node_stage_volume(theirs).await);
    ok(agent
        .node()
        .node_unstage_volume(unstage(&id, &staging))
        .await);
}
