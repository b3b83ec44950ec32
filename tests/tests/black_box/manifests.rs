//! A directory of manifests converges: made, grown, moved, unmounted, kept, and destroyed only when that is asked for.

use std::{fs, path::Path, process::Child};

use drumlin_proto::csi::v1::ListVolumesRequest;
use drumlin_tests::{
    agent::{Agent, Options, eventually, write},
    programs::{drumlin, program},
    requests::{delete, delete_snapshot},
    storage::{Scratch, mounts_below},
};

use crate::{
    helpers::{get, ok, put, text},
    host::{Host, absent, group, object, small, volume},
};
use nix::sys::statvfs::FsFlags;
use serde_json::Value;

fn snapshot(name: &str, of: &str) -> String {
    format!(
        "apiVersion: drumlin.dev/v1alpha1\nkind: Snapshot\nmetadata:\n  name: {name}\nspec:\n  source: {{volumeName: {of}}}\n"
    )
}

#[tokio::test]
async fn a_volume_is_made_mounted_moved_grown_remounted_and_unmounted() {
    let host = Host::start().await;
    let (one, two) = (host.path("one"), host.path("deeper/two"));
    let xfs = "fsType: xfs\n";
    host.write(
        "v.yaml",
        &[volume(
            "data",
            "300Mi",
            &format!("{xfs}mount: {{path: {one}}}"),
        )],
    );
    host.until("data", &["True", "300Mi", &one]).await;
    put(&one, "file", b"precious");

    host.write(
        "v.yaml",
        &[volume(
            "data",
            "400Mi",
            &format!("{xfs}mount: {{path: {two}}}"),
        )],
    );
    host.until("data", &["True", "400Mi", &two]).await;
    assert_eq!(get(&two, "file"), b"precious");
    assert!(!Path::new(&one).exists(), "the old target is removed");
    let size = nix::sys::statvfs::statvfs(two.as_str()).unwrap();
    assert!(
        size.blocks() * size.fragment_size() > 330 << 20,
        "the file system has followed"
    );

    host.write(
        "v.yaml",
        &[volume(
            "data",
            "400Mi",
            &format!("{xfs}mount: {{path: {two}, options: [noatime], readOnly: true}}"),
        )],
    );
    // Asked for by its flags: a write would fail, or land beneath, while the volume is between two mounts.
    let read_only = || {
        nix::sys::statvfs::statvfs(two.as_str())
            .is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY))
    };
    eventually(read_only, |read_only| *read_only).await;
    let written = fs::write(format!("{two}/other"), "x");
    assert_eq!(
        written.unwrap_err().kind(),
        std::io::ErrorKind::ReadOnlyFilesystem
    );
    host.until("data", &["True", &two]).await;
    assert_eq!(get(&two, "file"), b"precious");

    host.write("v.yaml", &[volume("data", "400Mi", xfs)]);
    host.until("data", &["True", "Created", "not mounted"])
        .await;
    assert!(mounts_below(&host.path("")).is_empty());
    assert_eq!(host.agent.status().1, 0, "all is ready");
    assert_eq!(host.counts().await, (1, 0));
}

#[tokio::test]
async fn a_snapshot_is_restored_and_cloned_in_whatever_order_the_files_come() {
    let host = Host::start().await;
    let at = |name: &str| format!("mount: {{path: {}}}", host.path(name));
    host.write(
        "a-restore.yaml",
        &[volume(
            "restored",
            "128Mi",
            &format!("source: {{snapshotName: first}}\n{}", at("restored")),
        )],
    );
    host.until(
        "restored",
        &["False", "DependencyNotFound", "snapshot first"],
    )
    .await;
    host.write("b-volume.yaml", &[volume("data", "64Mi", &at("data"))]);
    host.until("data", &["True"]).await;
    put(&host.path("data"), "file", b"then");
    host.write("c-snapshot.yaml", &[snapshot("first", "data")]);
    host.until("restored", &["True", "128Mi"]).await;
    assert_eq!(get(&host.path("restored"), "file"), b"then");
    put(&host.path("data"), "file", b"now!");
    host.write(
        "d-clone.yaml",
        &[volume(
            "cloned",
            "64Mi",
            &format!("source: {{volumeName: data}}\n{}", at("cloned")),
        )],
    );
    host.until("cloned", &["True"]).await;
    assert_eq!(get(&host.path("cloned"), "file"), b"now!");
    host.write(
        "e.yaml",
        &[volume("small", "32Mi", "source: {snapshotName: first}")],
    );
    host.until("small", &["False", "InvalidArgument", "smaller"])
        .await;
    assert_eq!(host.counts().await, (3, 1));
    assert_eq!(host.agent.status().1, 3, "something is not ready");
}

#[tokio::test]
async fn a_raw_volume_appears_as_a_file() {
    let host = Host::start().await;
    let path = host.path("raw");
    host.write(
        "v.yaml",
        &[volume(
            "raw",
            "16Mi",
            &format!("volumeMode: Block\nmount: {{path: {path}}}"),
        )],
    );
    host.until("raw", &["True", &path]).await;
    use std::os::unix::fs::FileTypeExt;
    assert!(fs::metadata(&path).unwrap().file_type().is_block_device());
    host.write("v.yaml", &[volume("raw", "16Mi", "volumeMode: Block")]);
    host.until("raw", &["True", "Created"]).await;
    assert!(!Path::new(&path).exists());
}

#[tokio::test]
async fn what_disappears_is_kept_and_mounted_and_comes_back_silently() {
    let mut host = Host::start().await;
    let path = host.path("data");
    let manifest = volume(
        "data",
        "64Mi",
        &format!("mount: {{path: {path}}}\ndeletionPolicy: Delete"),
    );
    host.write("a.yaml", &[manifest.clone()]);
    host.write("b.yaml", &[volume("other", "16Mi", "")]);
    host.until("data", &["True"]).await;
    put(&path, "file", b"precious");
    for way in ["removed", "emptied", "commented", "other document"] {
        match way {
            "removed" => fs::remove_file(host.manifests.join("a.yaml")).unwrap(),
            "emptied" => host.write("a.yaml", &[String::new()]),
            "commented" => host.write("a.yaml", &["# nothing\n".to_owned()]),
            _ => host.write("a.yaml", &[volume("third", "16Mi", "")]),
        }
        let line = host.until("data", &["Orphan"]).await;
        assert!(line.contains("a.yaml"), "{line}");
        assert_eq!(get(&path, "file"), b"precious");
        assert_eq!(host.agent.status().1, 3);
        host.write("a.yaml", &[manifest.clone()]);
        host.until("data", &["True", "Published"]).await;
    }
    // The directory itself goes, is empty, is another one: nothing follows from that, not even an orphan.
    let away = host.manifests.with_extension("away");
    fs::rename(&host.manifests, &away).unwrap();
    eventually(
        || host.agent.status().0,
        |table| table.contains("SourceUnavailable"),
    )
    .await;
    fs::create_dir(&host.manifests).unwrap();
    eventually(|| host.agent.status().0, |table| table.contains("empty")).await;
    host.agent.kill();
    host.agent.restart().await;
    assert_eq!(get(&path, "file"), b"precious");
    host.until("data", &["True", "Published"]).await;
    fs::remove_dir(&host.manifests).unwrap();
    fs::rename(&away, &host.manifests).unwrap();
    eventually(
        || host.agent.status().0,
        |table| !table.contains("SourceUnavailable"),
    )
    .await;
    assert_eq!(get(&path, "file"), b"precious");
}

#[tokio::test]
async fn only_the_word_absent_destroys_and_the_policy_says_how() {
    let host = Host::start().await;
    let path = host.path("gone");
    let gone = volume(
        "gone",
        "64Mi",
        &format!("mount: {{path: {path}}}\ndeletionPolicy: Delete"),
    );
    let kept = volume(
        "kept",
        "64Mi",
        &format!("mount: {{path: {}}}", host.path("kept")),
    );
    host.write("a.yaml", &[gone.clone(), kept.clone()]);
    host.write("s.yaml", &[snapshot("taken", "kept")]);
    for name in ["gone", "kept", "taken"] {
        host.until(name, &["True"]).await;
    }
    put(&host.path("kept"), "file", b"precious");
    // A mount that is used stays until it is not.
    let held = fs::File::create(format!("{path}/held")).unwrap();
    host.write("a.yaml", &[absent(&gone), absent(&kept)]);
    host.write("s.yaml", &[absent(&snapshot("taken", "kept"))]);
    host.until("gone", &["MountPending"]).await;
    host.until("kept", &["Released"]).await;
    host.until("taken", &["Deleted"]).await;
    drop(held);
    host.until("gone", &["Deleted"]).await;
    assert_eq!(host.counts().await, (1, 0));
    assert!(mounts_below(&host.path("")).is_empty());
    assert_eq!(host.agent.status().1, 0, "what was asked for is done");
    // The manifests may go now, and nothing is an orphan.
    fs::remove_file(host.manifests.join("s.yaml")).unwrap();
    host.write("a.yaml", &[volume("new", "16Mi", "")]);
    eventually(
        || host.agent.status().0,
        |table| !table.contains("gone") && !table.contains("kept"),
    )
    .await;
    // The same name finds what was kept.
    host.write("b.yaml", &[kept]);
    host.until("kept", &["True", "Published"]).await;
    assert_eq!(get(&host.path("kept"), "file"), b"precious");
    host.write("a.yaml", &[gone]);
    host.until("gone", &["True", "Published"]).await;
    assert!(
        !Path::new(&format!("{path}/held")).exists(),
        "a new one is empty"
    );
}

#[tokio::test]
async fn what_a_manifest_leaves_out_the_agent_decides_and_the_status_says() {
    let scratch = Scratch::new();
    let (fast, slow) = (scratch.directory("fast"), scratch.directory("slow"));
    let options = Options {
        config: Some(format!(
            "classes:\n- {{name: slow, directory: {{path: {}}}}}\n- {{name: fast, default: true, directory: {{path: {}, fsType: xfs}}}}\n",
            slow.display(),
            fast.display()
        )),
        ..Options::default()
    };
    let host = Host::over(scratch, options).await;
    let mount = |name: &str| format!("mount: {{path: {}}}", host.path(name));
    let data = volume("data", "300Mi", &mount("data"));
    host.write("a.yaml", &[data]);
    host.until("data", &["True", "Published"]).await;
    let kind = |name: &str| fs_type_at(&host.path(name));
    assert_eq!(kind("data").as_deref(), Some("xfs"));
    let status = host.object("Volume", "data")["status"].clone();
    assert_eq!(status["deviceClass"], "fast");
    // A copy is as its source, in whose class it is.
    let source = format!("source: {{snapshotName: taken}}\n{}", mount("copy"));
    host.write(
        "b.yaml",
        &[snapshot("taken", "data"), volume("copy", "300Mi", &source)],
    );
    host.until("copy", &["True", "Published"]).await;
    assert_eq!(kind("copy").as_deref(), Some("xfs"));
    // What is said later is as it is, or wrong.
    let more = |more: &str| volume("data", "300Mi", &format!("{}\n{more}", mount("data")));
    host.write("a.yaml", &[more("deviceClass: slow")]);
    host.until("data", &["False", "InvalidArgument", "in class fast"])
        .await;
    host.write("a.yaml", &[more("fsType: ext4")]);
    host.until("data", &["False", "InvalidArgument", "spec.fsType"])
        .await;
    assert_eq!(kind("data").as_deref(), Some("xfs"), "it stays mounted");
    host.write("a.yaml", &[more("")]);
    host.until("data", &["True", "Published"]).await;
    host.write("a.yaml", &[more("fsType: xfs\ndeviceClass: fast")]);
    host.until("data", &["True", "Published"]).await;
    assert_eq!(host.counts().await, (2, 1));
}

/// What is mounted at a path.
fn fs_type_at(path: &str) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(path))?;
    let (_, kind) = line.split_once(" - ")?;
    Some(kind.split(' ').next()?.to_owned())
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_is_named_with_its_line() {
    let host = Host::start().await;
    host.write(
        "a.yaml",
        &[volume("a", "32Mi", "fsType: ext4"), volume("b", "32Mi", "")],
    );
    host.until("b", &["True"]).await;
    for (documents, line, part) in [
        (
            vec![volume("a", "48Mi", ""), volume("b", "48MB", "")],
            "a.yaml:13",
            "spec.capacity",
        ),
        (
            vec![volume("a", "48Mi", ""), volume("b", "16Mi", "")],
            "a.yaml:13",
            "can only grow",
        ),
        (
            vec![volume("a", "48Mi", "fsType: xfs"), volume("b", "32Mi", "")],
            "a.yaml:7",
            "spec.fsType",
        ),
        (vec![volume("a", "48Mi", "mont: {}")], "a.yaml:7", "mont"),
        (vec!["a: [".to_owned()], "a.yaml:", ""),
    ] {
        host.write("a.yaml", &documents);
        let (table, code) = eventually(
            || host.agent.status(),
            |(table, _)| table.contains("INVALID") && table.contains(part) && table.contains(line),
        )
        .await;
        assert_eq!(code, 3);
        assert!(
            !table.contains("48Mi") || table.contains("INVALID"),
            "{table}"
        );
        let lines: Vec<&str> = table
            .lines()
            .filter(|line| line.starts_with("Volume"))
            .collect();
        assert!(
            lines.len() == 2
                && lines
                    .iter()
                    .all(|line| line.contains("True") && line.contains("32Mi")),
            "{table}"
        );
        let output = host
            .agent
            .command(&["validate", &host.manifests.to_string_lossy()]);
        if !part.contains("grow") && !part.contains("fsType") {
            assert_eq!(output.status.code(), Some(4));
        }
    }
    host.write(
        "a.yaml",
        &[volume("a", "48Mi", ""), volume("b", "32Mi", "")],
    );
    host.until("a", &["True", "48Mi"]).await;
    // The same object in two files is refused in both.
    host.write("z.yaml", &[volume("a", "64Mi", "")]);
    let (table, _) = eventually(
        || host.agent.status(),
        |(table, _)| table.contains("more than once"),
    )
    .await;
    assert!(
        table.contains("INVALID a.yaml") && table.contains("INVALID z.yaml"),
        "{table}"
    );
    host.until("a", &["True", "48Mi"]).await;
}

#[tokio::test]
async fn a_volume_that_is_lost_is_reported_and_never_replaced_by_itself() {
    let mut host = Host::start().await;
    host.write("a.yaml", &[volume("data", "16Mi", "")]);
    host.until("data", &["True"]).await;
    let list = ok(host
        .agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    let id = list.entries[0].volume.clone().unwrap().volume_id;
    ok(host.agent.controller().delete_volume(delete(&id)).await);
    host.agent.kill();
    host.agent.restart().await;
    host.until("data", &["False", "VolumeLost", &id]).await;
    assert_eq!(host.counts().await.0, 0);
    let again = volume("data", "16Mi", "").replace(
        "metadata:\n",
        &format!("metadata:\n  annotations: {{drumlin.dev/recreate: {id}}}\n"),
    );
    host.write("a.yaml", &[again]);
    host.until("data", &["True"]).await;
    assert_eq!(host.counts().await.0, 1);
}

#[tokio::test]
async fn a_snapshot_that_is_lost_is_told_and_its_name_is_free_once_it_is_destroyed() {
    let mut host = Host::start().await;
    host.write("v.yaml", &[volume("data", "16Mi", "")]);
    host.write("s.yaml", &[snapshot("s", "data")]);
    host.until("s", &["True"]).await;
    let handle = &host.object("Snapshot", "s")["status"]["snapshotHandle"];
    let request = delete_snapshot(handle.as_str().unwrap());
    ok(host.agent.controller().delete_snapshot(request).await);
    host.restart(None).await;
    host.until("s", &["False", "SnapshotLost"]).await;
    host.write("s.yaml", &[absent(&snapshot("s", "data"))]);
    host.until("s", &["Deleted"]).await;
    host.write("s.yaml", &[snapshot("s", "data")]);
    host.until("s", &["True", "SnapshotReady"]).await;
    assert_eq!(host.counts().await, (1, 1));
}

#[tokio::test]
async fn a_mount_that_was_taken_away_by_hand_is_made_again_when_asked_to() {
    let host = Host::start().await;
    let path = host.path("data");
    let manifest = volume("data", "32Mi", &format!("mount: {{path: {path}}}"));
    host.write("a.yaml", &[manifest.clone()]);
    host.until("data", &["True"]).await;
    put(&path, "file", b"precious");
    drumlin_tests::programs::run("umount", &[&path]);
    host.write(
        "a.yaml",
        &[manifest.replace(
            "metadata:\n",
            "metadata:\n  annotations: {drumlin.dev/reconcile-at: \"1\"}\n",
        )],
    );
    eventually(|| fs::read(format!("{path}/file")).ok(), Option::is_some).await;
}

#[tokio::test]
async fn objects_of_other_nodes_and_paused_ones_are_left_alone() {
    let host = Host::start().await;
    let paused = volume("paused", "16Mi", "").replace(
        "metadata:\n",
        "metadata:\n  annotations: {drumlin.dev/paused: \"true\"}\n",
    );
    host.write(
        "a.yaml",
        &[
            volume("theirs", "16Mi", "nodeName: node-b"),
            volume("ours", "16Mi", "nodeName: node-a"),
            paused,
        ],
    );
    host.until("ours", &["True"]).await;
    let (table, _) = eventually(
        || host.agent.status(),
        |(table, _)| !table.contains("theirs"),
    )
    .await;
    assert!(table.contains("paused"), "{table}");
    assert_eq!(host.counts().await.0, 1);
}

#[tokio::test]
async fn a_reconciler_of_its_own_works_through_the_socket_and_two_are_refused() {
    struct Ended(Child);
    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let agent = Agent::start().await;
    let manifests = agent.scratch.directory("manifests");
    let (state, socket) = (text(agent.path("state")), text(agent.socket()));
    let directory = text(manifests.clone());
    let arguments = [
        "reconcile",
        "--endpoint",
        &socket,
        "--manifests",
        &directory,
        "--state-dir",
        &state,
    ];
    let first = Ended(
        program(drumlin())
            .args(arguments)
            .stderr(fs::File::create(agent.path("r.log")).unwrap())
            .spawn()
            .unwrap(),
    );
    write(&manifests.join("a.yaml"), &volume("data", "16Mi", ""));
    eventually(|| agent.status().0, |table| table.contains("Created")).await;
    let second = program("timeout")
        .arg("10")
        .arg(drumlin())
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let message = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        message.contains(&format!("pid {}", first.0.id())),
        "{message}"
    );
    drop(first);
    let (table, code) = agent.status();
    assert!(
        table.contains("data") && code == 0,
        "the state files tell it without the daemon: {table}"
    );
    let json = agent.command(&["status", "-o", "json", "--state-dir", &state]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["objects"][0]["name"], "data");
    assert!(
        agent
            .command(&["status", "-o", "wide", "--state-dir", &state])
            .status
            .success()
    );
}

#[tokio::test]
async fn the_agent_may_be_away_for_a_while() {
    let agent = Agent::start().await;
    let manifests = agent.scratch.directory("manifests");
    let (state, socket) = (
        text(agent.path("other-state")),
        text(agent.path("late.sock")),
    );
    let directory = text(manifests.clone());
    write(&manifests.join("a.yaml"), &volume("data", "16Mi", ""));
    let mut child = program(drumlin())
        .args([
            "reconcile",
            "--endpoint",
            &socket,
            "--manifests",
            &directory,
            "--state-dir",
            &state,
        ])
        .stderr(fs::File::create(agent.path("r.log")).unwrap())
        .spawn()
        .unwrap();
    let status =
        || String::from_utf8(agent.command(&["status", "--state-dir", &state]).stdout).unwrap();
    eventually(status, |table| table.contains("data")).await;
    fs::rename(agent.socket(), &socket).unwrap();
    eventually(status, |table| table.contains("Created")).await;
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn what_is_as_asked_is_no_trouble() {
    let mut host = Host::start().await;
    let made = [
        small("a"),
        small("b"),
        volume("kept", "16Mi", ""),
        object(
            "Snapshot",
            "s",
            "",
            "source: {volumeName: a}, deletionPolicy: Delete",
        ),
        object(
            "Snapshot",
            "t",
            "",
            "source: {volumeName: a}, deletionPolicy: Retain",
        ),
        group("g", "a b"),
        object("GroupSnapshot", "q", "", "groupName: g"),
    ];
    let never = [
        absent(&small("never")),
        absent(&object(
            "Snapshot",
            "never",
            "",
            "source: {volumeName: none}",
        )),
        absent(&group("never", "none")),
        absent(&object("GroupSnapshot", "never", "", "groupName: none")),
        volume("other", "16Mi", "nodeName: elsewhere"),
    ];
    let fine = |(table, code): &(String, i32)| *code == 0 && !table.contains("Pending");
    host.write("all.yaml", &[&made[..], &never].concat());
    eventually(|| host.agent.status(), fine).await;
    host.until("q", &["True"]).await;
    let gone: Vec<String> = made.iter().map(|manifest| absent(manifest)).collect();
    host.write("all.yaml", &[&gone[..], &never].concat());
    for (name, reason) in [
        ("a", "Deleted"),
        ("kept", "Released"),
        ("t", "Released"),
        ("q", "Deleted"),
    ] {
        host.until(name, &["False", reason]).await;
    }
    eventually(|| host.agent.status(), fine).await;
    host.restart(None).await;
    // What is another node's is known as such once the agent has said which one this is.
    eventually(|| host.agent.status(), fine).await;
    host.write("all.yaml", &[small("last")]);
    host.until("last", &["True"]).await;
    eventually(|| host.agent.status(), fine).await;
    // And what is not is.
    host.write("all.yaml", &[small("another")]);
    host.until("last", &["Orphan"]).await;
    assert_eq!(host.agent.status().1, 3);
}
