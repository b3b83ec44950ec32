//! A directory of manifests that is on another file system after a restart: not mounted, replaced, or moved.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use drumlin_tests::agent::{Options, eventually, write};
use nix::{
    mount::{MsFlags, mount, umount},
    sys::signal::Signal,
};

use crate::{
    helpers::text,
    host::{Host, small},
};

/// A file system that is mounted over a directory, for as long as this exists.
struct Cover<'a>(&'a Path);

impl<'a> Cover<'a> {
    fn new(path: &'a Path) -> Self {
        let none = None::<&str>;
        mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), none).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }
}

impl Drop for Cover<'_> {
    fn drop(&mut self) {
        let _ = umount(self.0);
    }
}

/// A host that prunes at once, with three objects in two files.
async fn host() -> Host {
    let options = Options {
        arguments: ["--prune=auto", "--prune-grace=0s", "--prune-kinds=Volume"]
            .map(str::to_owned)
            .to_vec(),
        ..Options::default()
    };
    let host = Host::with(options).await;
    host.write("a.yaml", &[small("a"), small("b")]);
    host.write("c.yaml", &[small("c")]);
    write(&host.manifests.join(".drumlin-prune"), "");
    for name in ["a", "b", "c"] {
        host.until(name, &["True"]).await;
    }
    host
}

#[tokio::test]
async fn manifests_that_another_file_system_lacks_after_a_restart_make_no_orphans() {
    let mut host = host().await;
    let manifests = host.manifests.clone();
    let kept = fs::read_to_string(manifests.join("c.yaml")).unwrap();
    let note = text(host.agent.path("state/reconciler/directory.json"));
    host.agent.kill();
    let cover = Cover::new(&manifests);
    write(&manifests.join("c.yaml"), &kept);
    write(&manifests.join(".drumlin-prune"), "");
    let why = format!(
        "SourceUnavailable: {} is on another file system than before, and lacks the manifest of Volume/default/a and of 1 other object",
        text(manifests.clone())
    );
    for _ in 0..2 {
        host.agent.restart().await;
        let shows = |status: &(String, i32)| status.0.contains(&why) && status.0.contains(&note);
        let (table, _) = eventually(|| host.agent.status(), shows).await;
        assert!(!table.contains("Orphan"), "{table}");
        for name in ["a", "b", "c"] {
            host.until(name, &["True"]).await;
        }
        host.agent.kill();
    }
    // A plan says the same.
    host.agent.restart().await;
    let (state, socket) = (text(host.agent.path("state")), text(host.agent.socket()));
    let plan = host.agent.command(&[
        "plan",
        &format!("--state-dir={state}"),
        &format!("--endpoint={socket}"),
    ]);
    let plan = String::from_utf8(plan.stdout).unwrap();
    assert!(plan.contains(&why), "{plan}");

    // What was there before is there again, for the agent that runs.
    drop(cover);
    host.agent.signal(Signal::SIGHUP);
    let shows = |status: &(String, i32)| !status.0.contains("SourceUnavailable");
    eventually(|| host.agent.status(), shows).await;
    for name in ["a", "b", "c"] {
        host.until(name, &["True"]).await;
    }
    assert_eq!(host.counts().await, (3, 0));
}

#[tokio::test]
async fn another_file_system_with_all_manifests_is_accepted_and_others_are_on_demand() {
    let mut host = host().await;
    let manifests = host.manifests.clone();
    let [a, c] = ["a.yaml", "c.yaml"].map(|file| fs::read_to_string(manifests.join(file)).unwrap());
    host.agent.kill();
    let _cover = Cover::new(&manifests);
    write(&manifests.join("all.yaml"), &[a.as_str(), &c].join("---\n"));
    host.agent.restart().await;
    for name in ["a", "b", "c"] {
        let file = || host.object("Volume", name)["drumlin"]["file"].clone();
        eventually(file, |file| file == "all.yaml").await;
    }
    // It is the known one by now.
    write(&manifests.join("all.yaml"), &a);
    host.until("c", &["Orphan"]).await;
    host.agent.kill();
    umount(&manifests).unwrap();
    fs::remove_file(manifests.join("a.yaml")).unwrap();
    host.agent.restart().await;
    let why = "lacks the manifest of Volume/default/a and of 1 other object: mount the former one";
    eventually(|| host.agent.status().0, |status| status.contains(why)).await;
    host.until("a", &["True"]).await;
    fs::remove_file(host.agent.path("state/reconciler/directory.json")).unwrap();
    fs::remove_file(manifests.join(".drumlin-prune")).unwrap();
    host.agent.signal(Signal::SIGHUP);
    host.until("a", &["Orphan"]).await;
    host.until("c", &["True"]).await;
}
