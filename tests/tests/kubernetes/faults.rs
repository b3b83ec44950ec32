//! An agent whose API server forgets, refuses and breaks off.

use std::time::Duration;

use drumlin_tests::{
    cluster::{Cluster, is_ready},
    proxy::{Fault, Proxy},
};

use crate::node::Node;

/// A moment that a watch takes to be begun again, several times.
const WHILE: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_a_server_does_objects_end_where_they_should() {
    let cluster = Cluster::of_the_lab();
    let proxy = Proxy::start(&cluster).await;
    let node = Node::start(&proxy.cluster).await;
    let space = cluster.namespace();
    let block = "volumeMode: Block\n  deletionPolicy: Delete";
    space.apply(&node.volume("kept", "8Mi", block));
    space.until_ready("dv/kept");
    for (number, fault) in [
        Fault::Forgotten,
        Fault::Expired,
        Fault::Overloaded,
        Fault::BrokenOff,
    ]
    .into_iter()
    .enumerate()
    {
        // One that comes, one that changes and one that goes meanwhile.
        let (come, gone) = (format!("come-{number}"), format!("gone-{number}"));
        space.apply(&node.volume(&gone, "8Mi", block));
        space.until_ready(&format!("dv/{gone}"));
        proxy.does(Some(fault));
        space.apply(&node.volume(&come, "8Mi", block));
        space.apply(&node.volume("kept", &format!("{}Mi", 16 + 8 * number), block));
        space.kubectl(&["delete", &format!("dv/{gone}"), "--wait=false"]);
        tokio::time::sleep(WHILE).await;
        let seen = proxy.does(None);
        let asked: usize = seen.asked.values().sum();
        assert!(
            asked < 150,
            "{fault:?}: nobody is asked without end: {seen:?}"
        );
        space.until_ready(&format!("dv/{come}"));
        space.until_gone(&format!("dv/{gone}"));
        let wide = format!("{}Mi", 16 + 8 * number);
        space.until("dv/kept", |now| {
            is_ready(now) && now["status"]["capacity"] == wide.as_str()
        });
    }
    assert_eq!(node.holds().await, (5, 0));

    // And then there is quiet: what is watched is not listed.
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.does(None);
    tokio::time::sleep(WHILE).await;
    let seen = proxy.does(None);
    assert!(
        !seen.asked.contains_key("LIST") && !seen.asked.contains_key("PATCH"),
        "{seen:?}"
    );
    assert!(!node.agent.log().contains("panicked"));
}
