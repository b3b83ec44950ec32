//! The classes of nodes: by the labels of their Nodes, without a restart of an agent.

use std::time::Duration;

use drumlin_proto::csi::v1::{
    CreateVolumeRequest, GetCapacityRequest, Topology, TopologyRequirement,
    controller_client::ControllerClient,
};
use drumlin_tests::{
    agent::{Agent, eventually, write},
    requests::{create, delete, raw},
};
use tonic::{Code, Request, Status, transport::Channel};

use crate::sidecars::Stack;

fn on(node: &str) -> Topology {
    Topology {
        segments: [("topology.drumlin.dev/node".to_owned(), node.to_owned())].into(),
    }
}

/// The front, asked about the class `fast`.
struct Front(ControllerClient<Channel>);

impl Front {
    fn of(stack: &Stack) -> Self {
        let channel = drumlin_proto::connect(&stack.front()).unwrap();
        Self(ControllerClient::new(channel))
    }

    /// The id of a volume on one of these nodes, or on any.
    async fn create(&self, name: &str, nodes: &[&str]) -> Result<String, Status> {
        let nodes: Vec<Topology> = nodes.iter().map(|node| on(node)).collect();
        let request = CreateVolumeRequest {
            parameters: [("class".to_owned(), "fast".to_owned())].into(),
            accessibility_requirements: (!nodes.is_empty()).then(|| TopologyRequirement {
                requisite: nodes.clone(),
                preferred: nodes,
            }),
            ..create(name, 64, &raw())
        };
        let mut request = Request::new(request);
        request.set_timeout(Duration::from_mins(1));
        let made = self.0.clone().create_volume(request).await?;
        Ok(made.into_inner().volume.unwrap().volume_id)
    }

    async fn delete(&self, id: &str) {
        let mut request = Request::new(delete(id));
        request.set_timeout(Duration::from_mins(1));
        self.0.clone().delete_volume(request).await.unwrap();
    }

    async fn capacity(&self, node: &str) -> i64 {
        let request = GetCapacityRequest {
            accessible_topology: Some(on(node)),
            parameters: [("class".to_owned(), "fast".to_owned())].into(),
            ..GetCapacityRequest::default()
        };
        let answer = self.0.clone().get_capacity(request).await.unwrap();
        answer.into_inner().available_capacity
    }

    /// Expects that no node of these takes a volume.
    async fn refuses(&self, name: &str, nodes: &[&str]) {
        let status = self.create(name, nodes).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    }
}

/// Gives an agent two classes, one for nodes with a label.
fn configure(agent: &Agent) {
    let (bulk, fast) = (
        agent.scratch.directory("bulk"),
        agent.scratch.directory("fast"),
    );
    let (bulk, fast) = (bulk.display(), fast.display());
    let text = format!(
        "log: {{format: json}}\nclasses:\n- {{name: bulk, default: true, directory: {{path: {bulk}}}}}\n- {{name: fast, nodeSelector: {{matchLabels: {{disk: nvme}}}}, directory: {{path: {fast}}}}}\n"
    );
    write(&agent.path("config.yaml"), &text);
}

/// Waits until the storage of a node has these classes, each with whether it is ready.
async fn until_reported(stack: &Stack, node: &str, wanted: &str) {
    let path = "jsonpath={range .status.classes[*]}{.name}={.ready} {end}";
    // The controller makes it when it leads.
    let words = ["get", "nodestorage", node, "--ignore-not-found", "-o", path];
    let found = || stack.cluster.kubectl(&words).trim().to_owned();
    eventually(found, |found| found == wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_of_a_node_brings_a_class_and_takes_it_without_a_restart() {
    let stack = Stack::of_nodes(&["node-a", "node-b"]).await;
    let (front, both) = (Front::of(&stack), ["node-a", "node-b"]);
    let agents = [&stack.agent, &stack.others[0]];
    let pids = agents.map(Agent::pid);
    agents.iter().copied().for_each(configure);
    for node in both {
        until_reported(&stack, node, "bulk=true").await;
        assert_eq!(front.capacity(node).await, 0);
    }
    front.refuses("none", &both).await;
    front.refuses("none", &[]).await;

    let label = |label| stack.cluster.kubectl(&["label", "node", "node-b", label]);
    label("disk=nvme");
    until_reported(&stack, "node-b", "bulk=true fast=true").await;
    until_reported(&stack, "node-a", "bulk=true").await;
    assert!(front.capacity("node-b").await > 0);
    assert_eq!(front.capacity("node-a").await, 0);
    let any = front.create("any", &[]).await.unwrap();
    let second = front.create("second choice", &both).await.unwrap();
    for id in [&any, &second] {
        assert!(id.starts_with("node-b/fast/"), "{id}");
    }
    front.refuses("elsewhere", &["node-a"]).await;

    // Its volumes keep it, and no other comes.
    label("disk-");
    until_reported(&stack, "node-b", "bulk=true fast=false").await;
    let path = "jsonpath={.status.classes[1].message}";
    let words = ["get", "nodestorage", "node-b", "-o", path];
    let message = stack.cluster.kubectl(&words);
    assert!(message.contains("retired"), "{message}");
    assert_eq!(front.capacity("node-b").await, 0);
    front.refuses("late", &["node-b"]).await;
    front.refuses("late", &[]).await;
    assert_eq!(front.create("any", &["node-b"]).await.unwrap(), any);
    front.delete(&any).await;
    front.delete(&second).await;
    until_reported(&stack, "node-b", "bulk=true").await;
    assert_eq!(agents.map(Agent::pid), pids);
    stack.needed_no_more_rights();
}
