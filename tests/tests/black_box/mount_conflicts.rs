//! Two volumes whose manifests have the same path of a mount.

use std::fs;

use crate::{
    helpers::text,
    host::{Host, absent, volume},
};

fn mounted(host: &Host, name: &str, at: &str) -> String {
    let path = host.path(at);
    volume(
        name,
        "16Mi",
        &format!("deletionPolicy: Delete\nmount: {{path: {path}}}"),
    )
}

/// A file that tells the volume.
fn mark(host: &Host, at: &str, name: &str) {
    fs::write(format!("{}/{name}", host.path(at)), name).unwrap();
}

fn is_marked(host: &Host, at: &str, name: &str) -> bool {
    fs::exists(format!("{}/{name}", host.path(at))).unwrap()
}

#[tokio::test]
async fn the_second_one_stalls_with_the_name_of_the_first_and_keeps_the_mount_it_has() {
    let host = Host::start().await;
    host.write("a.yaml", &[mounted(&host, "a", "x")]);
    host.write("c.yaml", &[mounted(&host, "c", "y")]);
    for (name, at) in [("a", "x"), ("c", "y")] {
        host.until(name, &["Published"]).await;
        mark(&host, at, name);
    }

    host.write("b.yaml", &[mounted(&host, "b", "x")]);
    host.write("c.yaml", &[mounted(&host, "c", "x")]);
    let at = host.path("x");
    for name in ["b", "c"] {
        let line = host.until(name, &["MountConflict"]).await;
        let why = format!("spec.mount.path: Volume/default/a is mounted at {at}");
        assert!(line.contains(&why), "{line}");
    }
    assert!(is_marked(&host, "x", "a") && is_marked(&host, "y", "c"));
    let (state, manifests) = (host.agent.path("state"), host.manifests.clone());
    let socket = format!("unix://{}", host.agent.socket().display());
    let (state, manifests) = (text(state), text(manifests));
    let place = ["--state-dir", &state, "--manifests", &manifests];
    let output = host
        .agent
        .command(&[&["plan"], &place[..], &["--endpoint", &socket]].concat());
    let plan = String::from_utf8(output.stdout).unwrap();
    assert!(plan.contains("2 blocked"), "{plan}");
    assert!(plan.contains("Volume/default/a is mounted at"), "{plan}");

    // The path is free again, and whoever comes first has it.
    host.write("b.yaml", &[absent(&mounted(&host, "b", "x"))]);
    host.until("b", &["Deleted"]).await;
    host.write("a.yaml", &[mounted(&host, "a", "z")]);
    host.until("c", &["Published", &at]).await;
    host.until("a", &["Published", &host.path("z")]).await;
    assert!(is_marked(&host, "x", "c") && is_marked(&host, "z", "a"));
}

#[tokio::test]
async fn two_change_places() {
    let host = Host::start().await;
    let both = |a: &str, b: &str| [mounted(&host, "a", a), mounted(&host, "b", b)];
    host.write("v.yaml", &both("x", "y"));
    for (name, at) in [("a", "x"), ("b", "y")] {
        host.until(name, &["Published"]).await;
        mark(&host, at, name);
    }
    host.write("v.yaml", &both("y", "x"));
    host.until("a", &["Published", &host.path("y")]).await;
    host.until("b", &["Published", &host.path("x")]).await;
    assert!(is_marked(&host, "y", "a") && is_marked(&host, "x", "b"));
}
