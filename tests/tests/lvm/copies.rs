//! Snapshots, clones and restores, and what they mean for growing and deleting; and the bytes of former volumes.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use drumlin_proto::csi::v1::{CreateVolumeRequest, VolumeCapability, VolumeContentSource};
use drumlin_tests::{
    agent::{Agent, Options, eventually},
    programs::run,
    requests::{
        MIB, create, delete, delete_snapshot, expand, from_snapshot, from_volume, mounted,
        node_expand, publish, raw, snapshot, unpublish,
    },
    storage::lvm,
};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::{
    groups::{group, names, stop_at, thick, thin},
    helpers::{bytes_of, get, mount, ok, put, refused, unmount, volume},
    thaw_watchdog,
};

async fn over_a_pool() -> Agent {
    thin(1 << 10, &["-L", "1900M"], "overcommit: 10").await
}

async fn snapshot_of(agent: &Agent, name: &str, id: &str) -> String {
    let answer = agent.controller().create_snapshot(snapshot(name, id)).await;
    ok(answer).snapshot.unwrap().snapshot_id
}

async fn copy(
    agent: &Agent,
    name: &str,
    source: Option<VolumeContentSource>,
    (mebibytes, capability): (i64, &VolumeCapability),
) -> String {
    let request = CreateVolumeRequest {
        volume_content_source: source,
        ..create(name, mebibytes, capability)
    };
    let answer = agent.controller().create_volume(request).await;
    ok(answer).volume.unwrap().volume_id
}

/// The size of a mounted file system in mebibytes.
fn size_at(path: &str) -> i64 {
    let df = run("df", &["--block-size=1M", "--output=size", path]);
    df.lines().last().unwrap().trim().parse().unwrap()
}

/// A volume, its clone and a restore of its snapshot are mounted at a time, and each has its own files.
async fn mount_beside_their_source(agent: &Agent) {
    for (fs_type, mebibytes) in [("ext4", 32), ("xfs", 320), ("btrfs", 256)] {
        let capability = mounted(fs_type);
        let wanted = (mebibytes, &capability);
        let source = volume(agent, "source", mebibytes, &capability).await;
        let at = mount(agent, "source", &source, &capability).await;
        put(&at.1, "file", b"at first");
        let taken = snapshot_of(agent, fs_type, &source).await;
        put(&at.1, "file", b"then");
        let clone = copy(agent, "clone", from_volume(&source), wanted).await;
        put(&at.1, "file", b"at last");
        let restored = copy(agent, "restored", from_snapshot(&taken), wanted).await;
        let mut all = vec![(source, at, b"at last".as_slice())];
        for (name, id, has) in [
            ("clone", clone, b"then".as_slice()),
            ("restored", restored, b"at first"),
        ] {
            let at = mount(agent, name, &id, &capability).await;
            all.push((id, at, has));
        }
        for (id, at, has) in &all {
            assert_eq!(get(&at.1, "file"), *has, "{fs_type}");
            put(&at.1, "own", id.as_bytes());
        }
        for (id, at, _) in all.iter().rev() {
            assert_eq!(get(&at.1, "own"), id.as_bytes(), "{fs_type}");
            unmount(agent, id, at).await;
        }
        let request = delete_snapshot(&taken);
        ok(agent.controller().delete_snapshot(request).await);
        for (id, ..) in &all {
            ok(agent.controller().delete_volume(delete(id)).await);
        }
    }
}

#[tokio::test]
async fn thin_copies_mount_beside_their_source() {
    mount_beside_their_source(&over_a_pool().await).await;
}

#[tokio::test]
async fn thick_copies_mount_beside_their_source() {
    mount_beside_their_source(&thick(1 << 10, "layout: linear").await).await;
}

#[tokio::test]
async fn a_thin_volume_with_snapshots_grows_while_it_is_used() {
    let agent = over_a_pool().await;
    for (fs_type, mebibytes) in [("ext4", 64), ("xfs", 320), ("btrfs", 256)] {
        let capability = mounted(fs_type);
        let id = volume(&agent, fs_type, mebibytes, &capability).await;
        let at = mount(&agent, fs_type, &id, &capability).await;
        put(&at.1, "file", b"precious");
        let taken = snapshot_of(&agent, fs_type, &id).await;
        ok(agent
            .controller()
            .controller_expand_volume(expand(&id, 2 * mebibytes))
            .await);
        let request = node_expand(&id, &at.1);
        ok(agent.node().node_expand_volume(request).await);
        assert!(size_at(&at.1) > mebibytes, "{fs_type}");
        put(&at.1, "file", b"changed");
        let name = format!("{fs_type}-before");
        let before = copy(
            &agent,
            &name,
            from_snapshot(&taken),
            (mebibytes, &capability),
        )
        .await;
        let beside = mount(&agent, &name, &before, &capability).await;
        assert_eq!(get(&beside.1, "file"), b"precious", "{fs_type}");
        assert!(size_at(&beside.1) <= mebibytes, "{fs_type}");
        unmount(&agent, &before, &beside).await;
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test]
async fn a_thick_volume_with_snapshots_grows_while_it_is_not_used() {
    let agent = thick(512, "layout: linear").await;
    let capability = mounted("ext4");
    let id = volume(&agent, "v", 64, &capability).await;
    let at = mount(&agent, "v", &id, &capability).await;
    put(&at.1, "file", b"precious");
    let taken = [
        snapshot_of(&agent, "s1", &id).await,
        snapshot_of(&agent, "s2", &id).await,
    ];
    let mut controller = agent.controller();
    let grown = controller.controller_expand_volume(expand(&id, 128)).await;
    let message = refused(grown, Code::FailedPrecondition);
    assert!(
        taken.iter().all(|snapshot| message.contains(snapshot)),
        "{message}"
    );
    put(&at.1, "file", b"changed");
    unmount(&agent, &id, &at).await;
    let answer = ok(controller.controller_expand_volume(expand(&id, 128)).await);
    assert_eq!(answer.capacity_bytes, 128 * MIB);
    let at = mount(&agent, "v", &id, &capability).await;
    assert!(size_at(&at.1) > 64);
    assert_eq!(get(&at.1, "file"), b"changed");
    for (number, snapshot) in taken.iter().enumerate() {
        let name = format!("restored{number}");
        let restored = copy(&agent, &name, from_snapshot(snapshot), (64, &capability)).await;
        let beside = mount(&agent, &name, &restored, &capability).await;
        assert_eq!(get(&beside.1, "file"), b"precious");
        unmount(&agent, &restored, &beside).await;
    }
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn a_growth_that_was_killed_gives_a_staged_volume_with_snapshots_its_device_back() {
    for wipe in ["none", "zero"] {
        let mut agent = thick(512, &format!("layout: linear, wipe: {wipe}")).await;
        let id = volume(&agent, "v", 64, &raw()).await;
        let (staging, target) = mount(&agent, "v", &id, &raw()).await;
        let request = unpublish(&id, &target);
        ok(agent.node().node_unpublish_volume(request).await);
        snapshot_of(&agent, "s", &id).await;
        let options = Options::default().killed_at("lvm.grow.recorded");
        agent.kill();
        agent.restart_with(options).await;
        let mut controller = agent.controller();
        let answer = controller.controller_expand_volume(expand(&id, 128));
        answer.await.unwrap_err();
        agent.wait_until_killed().await;
        agent.restart_with(Options::default()).await;
        let mut controller = agent.controller();
        let answer = controller.controller_expand_volume(expand(&id, 128));
        assert_eq!(ok(answer.await).capacity_bytes, 128 * MIB);
        // Who publishes it does not look for its device.
        let request = publish(&id, (&staging, &target), &raw());
        ok(agent.node().node_publish_volume(request).await);
        unmount(&agent, &id, &(staging, target)).await;
    }
}

/// A volume that has two snapshots and a clone; the ids of all, that of the volume first.
async fn family(agent: &Agent) -> (String, [String; 2], String) {
    let capability = mounted("ext4");
    let id = volume(agent, "v", 32, &capability).await;
    let at = mount(agent, "v", &id, &capability).await;
    put(&at.1, "file", b"precious");
    let first = snapshot_of(agent, "s1", &id).await;
    let clone = copy(agent, "clone", from_volume(&id), (32, &capability)).await;
    let second = snapshot_of(agent, "s2", &id).await;
    unmount(agent, &id, &at).await;
    (id, [first, second], clone)
}

async fn has_its_bytes(agent: &Agent, name: &str, id: &str) {
    let at = mount(agent, name, id, &mounted("ext4")).await;
    assert_eq!(get(&at.1, "file"), b"precious", "{name}");
    unmount(agent, id, &at).await;
}

#[tokio::test]
async fn copies_outlive_a_thin_volume() {
    let agent = over_a_pool().await;
    let (id, snapshots, clone) = family(&agent).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
    // What the next volume writes goes over nothing that they need.
    let next = volume(&agent, "next", 32, &raw()).await;
    let file = File::options()
        .write(true)
        .open(bytes_of(&agent, &next))
        .unwrap();
    file.write_all_at(&vec![b'S'; 32 << 20], 0).unwrap();
    has_its_bytes(&agent, "clone", &clone).await;
    for (number, snapshot) in snapshots.iter().enumerate() {
        let name = format!("restored{number}");
        let wanted = (32, &mounted("ext4"));
        let restored = copy(&agent, &name, from_snapshot(snapshot), wanted).await;
        has_its_bytes(&agent, &name, &restored).await;
    }
}

#[tokio::test]
async fn a_thick_volume_stays_for_its_snapshots() {
    let agent = thick(256, "layout: linear").await;
    let (id, snapshots, clone) = family(&agent).await;
    let before = names(&agent);
    let message = refused(
        agent.controller().delete_volume(delete(&id)).await,
        Code::FailedPrecondition,
    );
    assert!(
        snapshots.iter().all(|snapshot| message.contains(snapshot)),
        "{message}"
    );
    assert!(
        !message.contains(&clone),
        "a clone has bytes of its own: {message}"
    );
    assert_eq!(names(&agent), before);
    for snapshot_id in snapshots {
        let request = delete_snapshot(&snapshot_id);
        ok(agent.controller().delete_snapshot(request).await);
    }
    ok(agent.controller().delete_volume(delete(&id)).await);
    has_its_bytes(&agent, "clone", &clone).await;
}

#[tokio::test]
async fn a_thick_volume_takes_its_snapshots_with_it_when_its_class_says_so() {
    let agent = thick(256, "deletesSnapshots: true").await;
    let (id, _, clone) = family(&agent).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
    assert_eq!(names(&agent).len(), 1, "the clone");
    has_its_bytes(&agent, "clone", &clone).await;
}

/// What was on all the free extents of the group, and is not a volume any more.
pub(crate) fn leave_bytes(agent: &Agent) {
    let path = format!("{}/theirs", group(agent));
    lvm(
        "lvcreate",
        &[
            "-y",
            "-Wn",
            "-Zn",
            "-l",
            "100%FREE",
            "-n",
            "theirs",
            &group(agent),
        ],
    );
    let device = File::options()
        .write(true)
        .open(format!("/dev/{path}"))
        .unwrap();
    let bytes = vec![b'S'; 1 << 20];
    for place in 0.. {
        // To its end, which says so.
        if device.write_all_at(&bytes, place << 20).is_err() {
            break;
        }
    }
    device.sync_all().unwrap();
    drop(device);
    lvm("lvremove", &["-y", &path]);
}

/// Whether the free extents of the group have bytes of a volume that was ours.
pub(crate) fn is_left(agent: &Agent) -> bool {
    let path = format!("{}/all", group(agent));
    let make = ["-y", "-Wn", "-Zn", "-l", "100%FREE", "-n", "all"];
    lvm(
        "lvcreate",
        &[&make, [group(agent).as_str()].as_slice()].concat(),
    );
    let bytes = fs::read(format!("/dev/{path}")).unwrap();
    lvm("lvremove", &["-y", &path]);
    // LVM's own notes begin with that letter.
    bytes.windows(8).step_by(512).any(|part| part == [b'D'; 8])
}

/// Whether a published raw volume shows any of them; it must be so long.
fn shows_bytes(path: &str, mebibytes: usize) -> bool {
    let bytes = fs::read(path).unwrap();
    assert_eq!(bytes.len(), mebibytes << 20);
    bytes.contains(&b'S')
}

#[tokio::test]
async fn nobody_sees_the_bytes_of_a_former_thick_volume() {
    for layout in [
        "layout: linear",
        "layout: striped, stripes: 2",
        "layout: raid1",
    ] {
        let agent = thick(64, layout).await;
        let mut controller = agent.controller();
        leave_bytes(&agent);
        let id = volume(&agent, "v", 16, &raw()).await;
        let at = mount(&agent, "v", &id, &raw()).await;
        assert!(!shows_bytes(&at.1, 16), "{layout}: a new volume");
        // In use while it grows, over what was there.
        let held = File::options().read(true).write(true).open(&at.1).unwrap();
        held.write_all_at(b"precious", 0).unwrap();
        leave_bytes(&agent);
        ok(controller.controller_expand_volume(expand(&id, 32)).await);
        assert!(!shows_bytes(&at.1, 32), "{layout}: the end of a grown one");
        held.sync_all().unwrap();
        drop(held);
        assert!(fs::read(&at.1).unwrap().starts_with(b"precious"));
        unmount(&agent, &id, &at).await;
        // Not in use.
        leave_bytes(&agent);
        ok(controller.controller_expand_volume(expand(&id, 40)).await);
        let at = mount(&agent, "v", &id, &raw()).await;
        assert!(
            !shows_bytes(&at.1, 40),
            "{layout}: the end of one grown at rest"
        );
        unmount(&agent, &id, &at).await;
        // Nor is anything left of what we delete.
        let held = File::options()
            .write(true)
            .open(bytes_of(&agent, &id))
            .unwrap();
        held.write_all_at(&vec![b'D'; 40 << 20], 0).unwrap();
        held.sync_all().unwrap();
        drop(held);
        ok(controller.delete_volume(delete(&id)).await);
        assert!(!is_left(&agent), "{layout}: a deleted one");
    }
}

/// Writes all over a volume of 16 MiB.
pub(crate) fn write_all(agent: &Agent, id: &str, byte: u8) {
    let device = File::options()
        .write(true)
        .open(bytes_of(agent, id))
        .unwrap();
    device.write_all_at(&vec![byte; 16 << 20], 0).unwrap();
    device.sync_all().unwrap();
}

#[tokio::test]
async fn nothing_is_left_of_what_a_snapshot_has_kept() {
    for goes_with_its_volume in [false, true] {
        let agent = thick(64, "snapshotSize: 100%, deletesSnapshots: true").await;
        let mut controller = agent.controller();
        let id = volume(&agent, "v", 16, &raw()).await;
        write_all(&agent, &id, b'D');
        let taken = snapshot_of(&agent, "s", &id).await;
        write_all(&agent, &id, b'E');
        if goes_with_its_volume {
            ok(controller.delete_volume(delete(&id)).await);
        } else {
            let request = delete_snapshot(&taken);
            ok(controller.delete_snapshot(request).await);
        }
        assert!(!is_left(&agent), "with its volume: {goes_with_its_volume}");
    }
}

#[tokio::test]
async fn nothing_is_left_of_a_copy_and_of_what_held_its_moment() {
    for is_finished in [true, false] {
        let mut agent = thick(64, "snapshotSize: 100%").await;
        let id = volume(&agent, "v", 16, &raw()).await;
        write_all(&agent, &id, b'D');
        stop_at(&mut agent, "thick.copy.filled").await;
        let mut controller = agent.controller();
        let request = CreateVolumeRequest {
            volume_content_source: from_volume(&id),
            ..create("copy", 16, &raw())
        };
        let mut call = tokio::spawn(async move { controller.create_volume(request).await });
        thaw_watchdog::until_stopped(&agent, &mut call).await;
        let device = bytes_of(&agent, &id);
        let device = File::options().write(true).open(device).unwrap();
        device.write_all_at(&vec![b'E'; 16 << 20], 0).unwrap();
        device.sync_all().unwrap();
        drop(device);
        if is_finished {
            agent.signal(Signal::SIGCONT);
            ok(call.await.unwrap());
        } else {
            agent.kill();
            call.await.unwrap().unwrap_err();
            agent.restart_with(Options::default()).await;
        }
        let left = if is_finished { 2 } else { 1 };
        eventually(|| names(&agent), |names| names.len() == left).await;
        assert!(!is_left(&agent), "is finished: {is_finished}");
    }
}

#[tokio::test]
async fn a_class_that_wipes_nothing_shows_what_was_there() {
    let agent = thick(96, "wipe: none").await;
    leave_bytes(&agent);
    let id = volume(&agent, "v", 32, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    assert!(shows_bytes(&at.1, 32), "or the tests of wiping cannot fail");
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn a_snapshot_with_a_store_that_is_larger_than_its_volume_is_restored() {
    let agent = thick(256, "snapshotSize: 100%").await;
    let id = volume(&agent, "v", 16, &raw()).await;
    fs::write(bytes_of(&agent, &id), b"kept").unwrap();
    let source = from_snapshot(&snapshot_of(&agent, "s", &id).await);
    let restored = copy(&agent, "r", source, (16, &raw())).await;
    let bytes = fs::read(bytes_of(&agent, &restored)).unwrap();
    assert_eq!(&bytes[..4], b"kept");
}
