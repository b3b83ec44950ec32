//! Storage that is full: refused before harm is done, told clearly, and over when there is room again.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::Path,
    thread::{self, JoinHandle},
    time::Duration,
};

use drumlin_proto::csi::v1::{
    CreateVolumeRequest, GetCapacityRequest, ListSnapshotsRequest, ListVolumesRequest, ProbeRequest,
};
use drumlin_tests::{
    agent::Agent,
    programs::run,
    requests::{
        MIB, create, delete, delete_snapshot, expand, from_snapshot, from_volume, mounted, raw,
        snapshot,
    },
    storage::lvm,
};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::{
    groups::{condition, condition_at, group, names, soon, stop_at, thick, thin, within},
    helpers::{bytes_of, get, mount, ok, put, refused, unmount, volume},
    thaw_watchdog,
};

/// How long the kernel lets writers of a full pool wait, in seconds.
pub(crate) const KERNEL_WAITS: &str = "/sys/module/dm_thin_pool/parameters/no_space_timeout";

/// So long at the most a writer needs for what fills a pool, on a machine that is busy.
const FILLING: Duration = Duration::from_mins(1);

/// A pool of 200 MiB, and a mounted volume in it that is being filled beyond that.
struct Filled {
    agent: Agent,
    id: String,
    at: (String, String),
    ballast: String,
    writer: JoinHandle<io::Result<()>>,
}

/// Writes, each four mebibytes to the disk before the next.
fn write(path: &Path, mebibytes: usize) -> io::Result<()> {
    let mut file = File::create(path)?;
    let bytes = vec![7; mebibytes << 20];
    for part in bytes.chunks(4 << 20) {
        file.write_all(part)?;
        file.sync_data()?;
    }
    Ok(())
}

/// Waits for what comes of a writer's work.
async fn comes(what: &str, is_there: impl Fn() -> bool) {
    within(FILLING, what, async {
        while !is_there() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

impl Filled {
    /// Fills until the writer stands still, and sees what is said and refused meanwhile.
    async fn with(fs_type: &str, seconds: u32) -> Self {
        fs::write(KERNEL_WAITS, seconds.to_string()).unwrap();
        let options = "overcommit: 10, warnAt: 60%, dataLimit: 90%";
        let agent = thin(400, &["-L", "200M"], options).await;
        let capability = mounted(fs_type);
        let id = volume(&agent, "v", 400, &capability).await;
        let at = mount(&agent, "v", &id, &capability).await;
        put(&at.1, "kept", b"precious");
        let ballast = volume(&agent, "ballast", 40, &raw()).await;
        let mut file = File::options()
            .write(true)
            .open(bytes_of(&agent, &ballast))
            .unwrap();
        file.write_all(&vec![7; 40 << 20]).unwrap();
        file.sync_all().unwrap();
        // Some of the rest is the file system's own.
        let some = Path::new(&at.1).join("some");
        write(&some, if fs_type == "xfs" { 30 } else { 80 }).unwrap();
        for _ in 0..2 {
            assert!(!condition(&agent, &id).await.abnormal);
            ok(agent
                .controller()
                .create_volume(create("small", 4, &raw()))
                .await);
        }
        assert_eq!(agent.log().matches("thin pool is filling up").count(), 1);

        let path = Path::new(&at.1).join("big");
        let writer = thread::spawn(move || write(&path, 200));
        let pool = format!("{}/pool", group(&agent));
        let attributes = || lvm("lvs", &["--noheadings", "-o", "lv_attr", &pool]);
        comes("a full pool", || attributes().contains('D')).await;
        Self {
            agent,
            id,
            at,
            ballast,
            writer,
        }
    }

    /// The writer waits in the kernel; nobody else does.
    async fn is_refused_and_told(&self) {
        let Self { agent, id, at, .. } = self;
        let (mut controller, pool) = (agent.controller(), format!("{}/pool", group(agent)));
        let before = names(agent);
        let copy = CreateVolumeRequest {
            volume_content_source: from_volume(id),
            ..create("copy", 400, &mounted(""))
        };
        for (what, refusal) in [
            (
                "new",
                controller
                    .create_volume(create("new", 4, &raw()))
                    .await
                    .map(drop),
            ),
            (
                "clone",
                soon("clone", controller.create_volume(copy))
                    .await
                    .map(drop),
            ),
            (
                "snapshot",
                soon("snapshot", controller.create_snapshot(snapshot("s", id)))
                    .await
                    .map(drop),
            ),
            (
                "expand",
                soon(
                    "expand",
                    controller.controller_expand_volume(expand(id, 500)),
                )
                .await
                .map(drop),
            ),
        ] {
            let status = refusal.expect_err(what);
            assert_eq!(status.code(), Code::ResourceExhausted, "{what}: {status:?}");
            let message = status.message();
            assert!(
                message.contains(&pool) && message.contains("lvextend"),
                "{message}"
            );
        }
        assert_eq!(names(agent), before, "nothing is left of what was refused");
        let room = soon(
            "room",
            controller.get_capacity(GetCapacityRequest::default()),
        )
        .await;
        assert_eq!(ok(room).available_capacity, 0);
        ok(soon("probe", agent.identity().probe(ProbeRequest {})).await);
        let list = soon(
            "volumes",
            controller.list_volumes(ListVolumesRequest::default()),
        )
        .await;
        for entry in ok(list).entries {
            let condition = entry.status.unwrap().volume_condition.unwrap();
            assert!(
                condition.abnormal && condition.message.contains(&pool),
                "{condition:?}"
            );
        }
        let list = controller.list_snapshots(ListSnapshotsRequest::default());
        ok(soon("snapshots", list).await);
        for condition in [
            soon("volume", condition(agent, id)).await,
            soon("stats", condition_at(agent, id, &at.1)).await,
        ] {
            assert!(
                condition.abnormal && condition.message.contains(&pool),
                "{condition:?}"
            );
        }
    }

    /// The pool takes new volumes, and the volume new files.
    async fn works_again(&self) {
        let Self { agent, id, at, .. } = self;
        assert_eq!(get(&at.1, "kept"), b"precious");
        put(&at.1, "new", b"works");
        let conditions = [
            condition(agent, id).await,
            condition_at(agent, id, &at.1).await,
        ];
        assert!(conditions.iter().all(|one| !one.abnormal), "{conditions:?}");
        volume(agent, "new", 4, &raw()).await;
        ok(agent.controller().create_snapshot(snapshot("s", id)).await);
    }
}

/// Whoever gives the pool more while its writers wait saves all of them.
async fn is_saved_in_time(fs_type: &str) {
    let filled = Filled::with(fs_type, 60).await;
    filled.is_refused_and_told().await;
    assert!(!filled.writer.is_finished(), "it waits");
    lvm(
        "lvextend",
        &["-L", "+300M", &format!("{}/pool", group(&filled.agent))],
    );
    comes("the writer's end", || filled.writer.is_finished()).await;
    filled.works_again().await;
    assert_eq!(get(&filled.at.1, "big").len(), 200 << 20);
    unmount(&filled.agent, &filled.id, &filled.at).await;
    filled.writer.join().unwrap().unwrap();
}

#[tokio::test]
async fn writers_of_ext4_go_on_when_their_full_pool_is_given_more() {
    is_saved_in_time("ext4").await;
}

#[tokio::test]
async fn writers_of_xfs_go_on_when_their_full_pool_is_given_more() {
    is_saved_in_time("xfs").await;
}

/// Whose writes have failed gets a file system that works when there is room, and the bytes that were on the disk.
async fn is_saved_late(fs_type: &str) {
    let filled = Filled::with(fs_type, 2).await;
    filled.is_refused_and_told().await;
    comes("the writer's end", || filled.writer.is_finished()).await;
    filled.is_refused_and_told().await;
    let Filled { agent, id, at, .. } = &filled;
    ok(agent
        .controller()
        .delete_volume(delete(&filled.ballast))
        .await);
    // It was not encrypted.
    assert!(!agent.log().contains("header of an encrypted volume"));
    if fs_type == "ext4" {
        // Its journal has ended; a mount begins another one.
        unmount(agent, id, at).await;
        mount(agent, "v", id, &mounted(fs_type)).await;
    }
    for name in ["big", "some"] {
        let _ = fs::remove_file(Path::new(&at.1).join(name));
    }
    run("fstrim", &[&at.1]);
    filled.works_again().await;
    unmount(agent, id, at).await;
    assert!(filled.writer.join().unwrap().is_err());
}

#[tokio::test]
async fn ext4_works_again_after_its_pool_was_full_for_too_long() {
    is_saved_late("ext4").await;
}

#[tokio::test]
async fn xfs_works_again_after_its_pool_was_full_for_too_long() {
    is_saved_late("xfs").await;
}

#[tokio::test]
async fn a_pool_whose_metadata_is_full_takes_nothing_new_until_it_has_more() {
    let agent = thin(
        400,
        &["-L", "200M", "--poolmetadatasize", "2M"],
        "overcommit: 50",
    )
    .await;
    let pool = format!("{}/pool", group(&agent));
    let id = volume(&agent, "v", 64, &raw()).await;
    let file = File::options()
        .write(true)
        .open(bytes_of(&agent, &id))
        .unwrap();
    file.write_all_at(&vec![7; 64 << 20], 0).unwrap();
    let mut controller = agent.controller();
    let mut taken = 0;
    let message = loop {
        // What is shared costs no metadata, and what is written to all over the volume is shared no more.
        for place in 0..8 {
            file.write_all_at(&[8; 4096], place << 23).unwrap();
        }
        file.sync_all().unwrap();
        let answer = controller
            .create_snapshot(snapshot(&format!("s{taken}"), &id))
            .await;
        match answer {
            Ok(_) => taken += 1,
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                break status.message().to_owned();
            }
        }
        assert!(taken < 100, "it has no more blocks than that");
    };
    // LVM's own words would be others.
    assert!(
        message.contains(&pool) && message.contains("% of its metadata"),
        "{message}"
    );
    assert!(message.contains("lvextend --poolmetadatasize"), "{message}");
    let before = names(&agent);
    let new = controller.create_volume(create("new", 4, &raw())).await;
    assert_eq!(refused(new, Code::ResourceExhausted), message);
    let grown = controller.controller_expand_volume(expand(&id, 128)).await;
    refused(grown, Code::ResourceExhausted);
    assert_eq!(names(&agent), before);
    let room = ok(controller.get_capacity(GetCapacityRequest::default()).await);
    assert_eq!(room.available_capacity, 0);
    let seen = condition(&agent, &id).await;
    assert!(
        seen.abnormal && seen.message.contains("metadata"),
        "{seen:?}"
    );
    lvm("lvextend", &["--poolmetadatasize", "+4M", &pool]);
    assert!(!condition(&agent, &id).await.abnormal);
    volume(&agent, "new", 4, &raw()).await;
    ok(controller.controller_expand_volume(expand(&id, 128)).await);
    ok(controller.create_snapshot(snapshot("more", &id)).await);
}

#[tokio::test]
async fn a_full_volume_group_refuses_what_needs_more_and_keeps_nothing_of_it() {
    let agent = thick(128, "snapshotSize: 50%").await;
    let mut controller = agent.controller();
    let capability = mounted("ext4");
    let id = volume(&agent, "v", 64, &capability).await;
    let at = mount(&agent, "v", &id, &capability).await;
    let room = ok(controller.get_capacity(GetCapacityRequest::default()).await);
    let rest = room.available_capacity / MIB;
    let filler = volume(&agent, "filler", rest, &raw()).await;
    let room = ok(controller.get_capacity(GetCapacityRequest::default()).await);
    assert_eq!(room.available_capacity, 0);
    let before = names(&agent);
    let copy = CreateVolumeRequest {
        volume_content_source: from_volume(&id),
        ..create("copy", 64, &capability)
    };
    for refusal in [
        controller
            .create_volume(create("new", 4, &raw()))
            .await
            .map(drop),
        controller.create_volume(copy).await.map(drop),
        controller
            .create_snapshot(snapshot("s", &id))
            .await
            .map(drop),
        controller
            .controller_expand_volume(expand(&id, 80))
            .await
            .map(drop),
    ] {
        let status = refusal.expect_err("there is no room");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert!(status.message().contains(&group(&agent)), "{status:?}");
    }
    assert_eq!(names(&agent), before);
    assert!(
        !condition(&agent, &id).await.abnormal,
        "it has all it needs"
    );
    put(&at.1, "file", b"works");
    ok(controller.delete_volume(delete(&filler)).await);
    ok(controller.create_snapshot(snapshot("s", &id)).await);
    unmount(&agent, &id, &at).await;
}

/// All snapshots: their ids, and whether volumes can be made from them.
async fn snapshots(agent: &Agent) -> Vec<(String, bool)> {
    let request = ListSnapshotsRequest::default();
    let list = ok(agent.controller().list_snapshots(request).await);
    let all = list
        .entries
        .into_iter()
        .map(|entry| entry.snapshot.unwrap());
    all.map(|one| (one.snapshot_id, one.ready_to_use)).collect()
}

#[tokio::test]
async fn a_snapshot_whose_store_has_overflowed_is_of_no_use_and_harms_nobody() {
    let agent = thick(400, "snapshotSize: 1%").await;
    let mut controller = agent.controller();
    let capability = mounted("ext4");
    let id = volume(&agent, "v", 200, &capability).await;
    let at = mount(&agent, "v", &id, &capability).await;
    let taken = ok(controller.create_snapshot(snapshot("s", &id)).await);
    let taken = taken.snapshot.unwrap().snapshot_id;
    assert_eq!(snapshots(&agent).await, [(taken.clone(), true)]);
    write(&Path::new(&at.1).join("big"), 20).unwrap();
    assert_eq!(snapshots(&agent).await, [(taken.clone(), false)]);
    let before = names(&agent);
    let restore = CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken),
        ..create("restored", 200, &capability)
    };
    let message = refused(
        controller.create_volume(restore).await,
        Code::FailedPrecondition,
    );
    assert!(
        message.contains(&taken)
            && message.contains("exception store")
            && message.contains("snapshotSize"),
        "{message}"
    );
    assert_eq!(names(&agent), before);
    // The same name again tells the same.
    let again = ok(controller.create_snapshot(snapshot("s", &id)).await);
    assert!(!again.snapshot.unwrap().ready_to_use);
    assert!(!condition(&agent, &id).await.abnormal);
    write(&Path::new(&at.1).join("more"), 20).unwrap();
    assert_eq!(get(&at.1, "big").len(), 20 << 20);
    let request = delete_snapshot(&taken);
    ok(controller.delete_snapshot(request).await);
    assert_eq!(snapshots(&agent).await, []);
    write(&Path::new(&at.1).join("more"), 20).unwrap();
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn a_copy_whose_moment_is_lost_while_it_is_made_ends_with_a_clear_error() {
    let mut agent = thick(800, "snapshotSize: 1%").await;
    stop_at(&mut agent, "thick.copy.step").await;
    let id = volume(&agent, "v", 400, &raw()).await;
    let source = File::options()
        .write(true)
        .open(bytes_of(&agent, &id))
        .unwrap();
    let all = vec![7; 400 << 20];
    source.write_all_at(&all, 0).unwrap();
    source.sync_all().unwrap();
    let before = names(&agent);
    let request = CreateVolumeRequest {
        volume_content_source: from_volume(&id),
        ..create("copy", 400, &raw())
    };
    let mut controller = agent.controller();
    let mut copy = tokio::spawn(async move { controller.create_volume(request).await });
    // The agent stands still in the middle, and the volume is written over.
    thaw_watchdog::until_stopped(&agent, &mut copy).await;
    assert_eq!(names(&agent).len(), before.len() + 2);
    source.write_all_at(&all[..40 << 20], 360 << 20).unwrap();
    source.sync_all().unwrap();
    agent.signal(Signal::SIGCONT);
    let message = refused(copy.await.unwrap(), Code::ResourceExhausted);
    assert!(message.contains("snapshotSize"), "{message}");
    assert_eq!(names(&agent), before);
}
