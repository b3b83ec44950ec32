//! The example of the page on manifests (under kubectl).

use drumlin_tests::{
    agent::{Agent, Options},
    cluster::Cluster,
    programs::workspace,
    storage::Scratch,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_example_comes_to_be_ready() {
    // Its node has a name that other tests might claim for.
    let cluster = Cluster::own();
    let options = Options {
        arguments: cluster.arguments(),
        ..Options::default()
    };
    let _agent = Agent::with(Scratch::new(), options).await;
    let space = cluster.namespace();
    let example = workspace().join("examples/kubernetes");
    space.kubectl(&["apply", "-f", &example.to_string_lossy()]);
    for object in [
        "dv/data",
        "dv/log",
        "dvg/pg",
        "dgsnap/pg-before-upgrade",
        "dv/log-restored",
    ] {
        space.until_ready(object);
    }
    assert_eq!(
        space.get("dgsnap/pg-before-upgrade")["status"]["memberCount"],
        2
    );
}
