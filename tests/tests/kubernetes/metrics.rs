//! Metrics of a controller beside its cluster, and of an agent with objects.

use std::path::Path;

use drumlin_tests::{
    agent::{Options, PATIENCE},
    cluster::Cluster,
    daemon::Daemon,
    programs::drumlin,
    scrape::{scrape, undocumented},
    storage::Scratch,
};
use tokio::time::{Instant, sleep};

use crate::{
    node::Node,
    rbac::{SYSTEM, install},
};

/// Scrapes until the answer has all of these lines.
async fn until_scraped(socket: &Path, lines: &[&str]) -> String {
    let begun = Instant::now();
    loop {
        if socket.exists() {
            let answer = scrape(socket).await;
            if lines
                .iter()
                .all(|line| answer.contains(&format!("\n{line}\n")))
            {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{lines:?}: {answer}");
        }
        assert!(begun.elapsed() < PATIENCE, "nobody listens");
        sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_leads_tells_of_its_cluster_and_an_agent_of_its_objects() {
    let (cluster, scratch) = (Cluster::own(), Scratch::new());
    install(&cluster);
    let account = cluster.as_account(&scratch, "drumlin-controller", None);
    let socket = scratch.path().join("controller.sock");
    let listen = format!("--metrics-listen={}", socket.display());
    let arguments = ["controller", "--namespace", SYSTEM, &listen];
    let arguments = arguments.iter().map(|word| (*word).to_owned());
    let arguments: Vec<String> = arguments.chain(account.arguments()).collect();
    let mut controller = Daemon::start(drumlin(), &arguments, &[]);
    let answer = until_scraped(
        &socket,
        &[
            "drumlin_controller_leads 1",
            r#"drumlin_policy_in_force{policy="drumlin-agent-own-node"} 1"#,
            r#"drumlin_agents{ready="true"} 0"#,
            r#"drumlin_node_calls{progress="running"} 0"#,
            "drumlin_unclaimed_volumes 0",
        ],
    )
    .await;
    let strangers = undocumented(&answer, "controller");
    assert!(strangers.is_empty(), "{strangers:?}");
    controller.stop();
    assert!(!socket.exists(), "its socket is left");

    let socket = scratch.path().join("agent.sock");
    let options = Options {
        arguments: vec![format!("--metrics-listen={}", socket.display())],
        ..Options::default()
    };
    let node = Node::with(&cluster, options).await;
    let space = cluster.namespace();
    space.apply(&node.volume("one", "32Mi", ""));
    space.until_ready("dv/one");
    let created = r#"drumlin_objects{kind="Volume",reason="Created"} 1"#;
    let answer = until_scraped(&socket, &[created]).await;
    let strangers = undocumented(&answer, "agent");
    assert!(strangers.is_empty(), "{strangers:?}");
}
