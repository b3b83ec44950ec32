//! The definitions of our kinds, as a server has them.

use drumlin_tests::{agent::eventually, cluster::Cluster};

#[tokio::test]
async fn a_server_explains_every_kind_by_its_short_name() {
    let cluster = Cluster::of_the_lab();
    for (short, words) in [
        ("dv", ["deviceClass", "capacity", "deletionPolicy"]),
        ("dvg", ["members", "minMembers", "selector"]),
        ("dsnap", ["source", "deletionPolicy", "nodeName"]),
        ("dgsnap", ["groupName", "deletionPolicy", "nodeName"]),
        ("dsched", ["schedule", "timeZone", "retention"]),
    ] {
        let what = format!("{short}.spec");
        // A server describes what is new a little later than it serves it.
        let explained = || cluster.try_kubectl(&["explain", &what]);
        let explained = eventually(explained, |output| output.status.success()).await;
        let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
        for word in words {
            assert!(explained.contains(word), "{short}: {word}: {explained}");
        }
        assert!(
            !explained.contains("<no description>"),
            "{short}: {explained}"
        );
    }
    let listed = cluster.kubectl(&["api-resources", "--categories=drumlin", "-o", "name"]);
    assert_eq!(listed.lines().count(), 6, "{listed}");
}

#[test]
fn a_new_object_is_in_progress_until_an_agent_has_looked() {
    let cluster = Cluster::of_the_lab();
    let space = cluster.namespace();
    space.apply(&crate::node::volume(
        "data",
        "nodeName: nowhere\n  capacity: 1Gi",
    ));
    let new = space.get("dv/data");
    assert_eq!(new["status"]["observedGeneration"], -1);
    assert_eq!(new["spec"]["deletionPolicy"], "Retain");
    let selected = space.kubectl(&[
        "get",
        "dv",
        "--field-selector",
        "spec.nodeName=nowhere",
        "-o",
        "name",
    ]);
    assert_eq!(selected.trim(), "volume.drumlin.dev/data");
    let unclaimed = space.kubectl(&[
        "get",
        "dv",
        "--field-selector",
        "spec.nodeName=",
        "-o",
        "name",
    ]);
    assert_eq!(unclaimed, "");
}
