//! Two volumes whose manifests have the same path of a mount.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
};

use drumlin_tests::agent::eventually;

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

#[tokio::test]
async fn a_mount_stays_where_it_is_while_nothing_can_be_mounted_where_it_is_to_go() {
    let host = Host::start().await;
    let with = |path: &str, options: &str| {
        let mount = format!("mount: {{path: {path}, options: [{options}]}}");
        volume("v", "16Mi", &format!("deletionPolicy: Delete\n{mount}"))
    };
    let own = host.path("own");
    host.write("v.yaml", &[with(&own, "")]);
    host.until("v", &["Published"]).await;
    mark(&host, "own", "v");
    let full = host.agent.scratch.directory("full");
    fs::write(full.join("precious"), "x").unwrap();
    let (full, file) = (text(full.clone()), text(full.join("precious")));
    for (path, options, words) in [
        (&full, "", "is not empty"),
        (&file, "", "is not a directory"),
        (
            &own,
            "noatme",
            "spec.mount.options: mount option `noatme` is not allowed",
        ),
    ] {
        host.write("v.yaml", &[with(path, options)]);
        let line = host.until("v", &[words]).await;
        assert!(!line.contains("True"), "{line}");
        assert!(is_marked(&host, "own", "v"), "{words}");
        let plan = plan(&host);
        assert!(plan.contains(words), "{plan}");
        host.write("v.yaml", &[with(&own, "")]);
        host.until("v", &["True", "Published"]).await;
        assert!(is_marked(&host, "own", "v"), "{words}");
    }
}

/// The plan, as text.
fn plan(host: &Host) -> String {
    let (state, manifests) = (text(host.agent.path("state")), text(host.manifests.clone()));
    let socket = format!("unix://{}", host.agent.socket().display());
    let place = ["--state-dir", &state, "--manifests", &manifests];
    let output = host
        .agent
        .command(&[&["plan"], &place[..], &["--endpoint", &socket]].concat());
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn what_was_never_mounted_where_it_was_to_be_is_moved_and_deleted() {
    let host = Host::start().await;
    let full = host.agent.scratch.directory("full");
    fs::write(full.join("precious"), "x").unwrap();
    let paths = [
        text(full.clone()),
        text(full.join("precious")),
        "/etc".to_owned(),
    ];
    for path in &paths {
        let new = volume(
            "v",
            "16Mi",
            &format!("deletionPolicy: Delete\nmount: {{path: {path}}}"),
        );
        host.write("v.yaml", std::slice::from_ref(&new));
        host.until("v", &["target_path"]).await;
        host.write("v.yaml", &[mounted(&host, "v", "own")]);
        host.until("v", &["True", "Published", "own"]).await;
        host.write("v.yaml", std::slice::from_ref(&new));
        host.until("v", &["MountPending", "stays mounted"]).await;
        host.write("v.yaml", &[absent(&new)]);
        host.until("v", &["Deleted"]).await;
        host.write("other.yaml", &[]);
    }
    assert_eq!(fs::read(full.join("precious")).unwrap(), b"x");
}

#[tokio::test]
async fn a_directory_that_was_there_is_there_again_after_the_mount() {
    let host = Host::start().await;
    let own = host.agent.scratch.directory("own");
    chown(&own, Some(65534), Some(65533)).unwrap();
    fs::set_permissions(&own, Permissions::from_mode(0o750)).unwrap();
    let at = |path: &str| volume("v", "16Mi", &format!("mount: {{path: {path}}}"));
    let as_before = || {
        let found = fs::metadata(&own).unwrap();
        assert_eq!((found.uid(), found.gid()), (65534, 65533));
        assert_eq!(found.mode() & 0o7777, 0o750);
    };
    host.write("v.yaml", &[at(&text(own.clone()))]);
    host.until("v", &["True", "Published"]).await;
    host.write("v.yaml", &[at(&host.path("elsewhere"))]);
    host.until("v", &["True", "Published", "elsewhere"]).await;
    as_before();
    host.write("v.yaml", &[at(&text(own.clone()))]);
    host.until("v", &["True", "Published", "own"]).await;
    host.write("v.yaml", &[absent(&at(&text(own.clone())))]);
    host.until("v", &["Released"]).await;
    as_before();
    // What the agent made is removed.
    assert!(!fs::exists(host.path("elsewhere")).unwrap());
}

#[tokio::test]
async fn of_two_in_one_file_one_is_told_about_the_other() {
    let host = Host::start().await;
    host.write(
        "v.yaml",
        &[mounted(&host, "a", "x"), mounted(&host, "b", "x")],
    );
    let table = eventually(
        || host.agent.status().0,
        |table| table.contains("Published") && table.contains("MountConflict"),
    )
    .await;
    let line = table
        .lines()
        .find(|line| line.contains("MountConflict"))
        .unwrap();
    let (first, second) = if line.contains(" a ") {
        ("b", "a")
    } else {
        ("a", "b")
    };
    let why = format!("Volume/default/{first} is mounted at");
    assert!(line.contains(&why), "{line}");
    let ended = absent(&mounted(&host, second, "x"));
    host.write("v.yaml", &[mounted(&host, first, "x"), ended]);
    host.until(second, &["Deleted"]).await;
    host.until(first, &["True", "Published"]).await;
}
