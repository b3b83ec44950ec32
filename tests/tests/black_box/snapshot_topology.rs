//! Where snapshots are usable (CSI 1.13, `SNAPSHOT_ACCESSIBILITY_CONSTRAINTS`): on the node of their volume.

use drumlin_proto::csi::v1::{
    CreateSnapshotRequest, GetPluginCapabilitiesRequest, GetSnapshotRequest, ListSnapshotsRequest,
    Topology, TopologyRequirement,
    plugin_capability::{self, service::Type as Service},
};
use drumlin_tests::{
    agent::Agent,
    requests::{raw, snapshot},
};
use tonic::Code;

use crate::helpers::{ok, refused, unbind, volume};

fn on(nodes: &[&str]) -> TopologyRequirement {
    let topology = |node: &&str| Topology {
        segments: [("topology.drumlin.dev/node".to_owned(), (*node).to_owned())].into(),
    };
    TopologyRequirement {
        requisite: nodes.iter().map(topology).collect(),
        preferred: nodes.iter().map(topology).collect(),
    }
}

#[tokio::test]
async fn a_snapshot_is_usable_on_its_node_and_every_response_says_so() {
    let agent = Agent::start().await;
    let request = GetPluginCapabilitiesRequest {};
    let answer = ok(agent.identity().get_plugin_capabilities(request).await);
    let has = answer.capabilities.into_iter().any(|one| {
        let constraints: i32 = Service::SnapshotAccessibilityConstraints.into();
        matches!(one.r#type, Some(plugin_capability::Type::Service(service)) if service.r#type == constraints)
    });
    assert!(has, "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS is not advertised");
    let id = volume(&agent, "v", 4, &raw()).await;
    let mut made = Vec::new();
    for requirement in [Some(on(&["node-a"])), Some(on(&["node-b", "node-a"])), None] {
        let request = CreateSnapshotRequest {
            accessibility_requirements: requirement,
            ..snapshot("s", &id)
        };
        let answer = agent.controller().create_snapshot(request).await;
        made.push(ok(answer).snapshot.unwrap());
    }
    let id = made[0].snapshot_id.clone();
    let request = GetSnapshotRequest {
        snapshot_id: id.clone(),
        ..GetSnapshotRequest::default()
    };
    made.push(
        ok(agent.controller().get_snapshot(request).await)
            .snapshot
            .unwrap(),
    );
    let request = ListSnapshotsRequest::default();
    let listed = ok(agent.controller().list_snapshots(request).await);
    made.extend(
        listed
            .entries
            .into_iter()
            .filter_map(|entry| entry.snapshot),
    );
    assert_eq!(made.len(), 5);
    for one in made {
        assert_eq!(one.snapshot_id, id);
        assert_eq!(one.accessible_topology, on(&["node-a"]).requisite);
    }
    unbind(&agent, &id).await;
}

#[tokio::test]
async fn a_snapshot_that_must_be_usable_on_another_node_is_exhausted() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 4, &raw()).await;
    let elsewhere = CreateSnapshotRequest {
        accessibility_requirements: Some(on(&["node-b"])),
        ..snapshot("s", &id)
    };
    let answer = agent.controller().create_snapshot(elsewhere.clone()).await;
    let message = refused(answer, Code::ResourceExhausted);
    assert!(message.contains("accessibility_requirements"), "{message}");
    let list = || async {
        let request = ListSnapshotsRequest::default();
        ok(agent.controller().list_snapshots(request).await).entries
    };
    assert_eq!(list().await, []);
    ok(agent.controller().create_snapshot(snapshot("s", &id)).await);
    let answer = agent.controller().create_snapshot(elsewhere).await;
    refused(answer, Code::ResourceExhausted);
    assert_eq!(list().await.len(), 1);
}
