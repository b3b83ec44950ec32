//! What was written comes back: from clones, snapshots and restores, after growth, restarts and kills.

use std::{fs, os::unix::fs::FileExt};

use drumlin_proto::csi::v1::{
    CreateVolumeRequest, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, VolumeCapability,
    volume_usage::Unit,
};
use drumlin_tests::{
    agent::{Agent, Options, is_over_lvm},
    does_not_apply,
    requests::{MIB, create, delete, expand, from_snapshot, from_volume, mounted, raw, snapshot},
    storage::{Kind, Scratch},
};
use tonic::Code;

use crate::helpers::{bytes_of, get, mount, ok, put, refused, unbind, unmount, volume};

/// An agent whose images are on a file system with or without reflinks.
async fn on(storage: Kind) -> Agent {
    if is_over_lvm() {
        return Agent::start().await;
    }
    let scratch = Scratch::new();
    let images = scratch.file_system("images", storage, 6 << 10);
    Agent::with(scratch, Options::of_directory(&images)).await
}

async fn copy_of(agent: &Agent, name: &str, request: CreateVolumeRequest) -> String {
    let request = CreateVolumeRequest {
        name: name.to_owned(),
        ..request
    };
    ok(agent.controller().create_volume(request).await)
        .volume
        .unwrap()
        .volume_id
}

/// The size of the file system at a path, in mebibytes.
async fn size(agent: &Agent, id: &str, path: &str) -> i64 {
    let request = NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        staging_target_path: String::new(),
    };
    let stats = ok(agent.node().node_get_volume_stats(request).await);
    let bytes = stats
        .usage
        .iter()
        .find(|usage| usage.unit == i32::from(Unit::Bytes))
        .unwrap();
    assert!(bytes.used >= 0 && bytes.available > 0 && bytes.total >= bytes.used);
    assert!(!stats.volume_condition.unwrap().abnormal);
    bytes.total / MIB
}

/// Written, snapshotted while mounted, overwritten, restored larger, cloned, restarted.
async fn everything_comes_back(storage: Kind, capability: VolumeCapability, mebibytes: i64) {
    let mut agent = on(storage).await;
    let id = volume(&agent, "source", mebibytes, &capability).await;
    let at = mount(&agent, "source", &id, &capability).await;
    put(&at.1, "file", b"before");
    let taken = ok(agent.controller().create_snapshot(snapshot("s", &id)).await)
        .snapshot
        .unwrap();
    put(&at.1, "file", b"after!");
    let larger = create("", mebibytes * 2, &capability);
    let restored = copy_of(
        &agent,
        "restored",
        CreateVolumeRequest {
            volume_content_source: from_snapshot(&taken.snapshot_id),
            ..larger.clone()
        },
    )
    .await;
    let cloned = copy_of(
        &agent,
        "cloned",
        CreateVolumeRequest {
            volume_content_source: from_volume(&id),
            ..larger
        },
    )
    .await;

    // Beside their source, each with its own bytes and the size of its own volume.
    let at_restored = mount(&agent, "restored", &restored, &capability).await;
    assert_eq!(get(&at_restored.1, "file"), b"before");
    let has = size(&agent, &restored, &at_restored.1).await;
    assert!(
        has > mebibytes,
        "{has} MiB: the file system is as small as its source's"
    );
    let at_cloned = mount(&agent, "cloned", &cloned, &capability).await;
    assert_eq!(get(&at_cloned.1, "file"), b"after!");
    put(&at_restored.1, "file", b"mine");
    assert_eq!(get(&at.1, "file"), b"after!");

    unbind(&agent, &taken.snapshot_id).await;
    // A kill takes nothing away, and everything can be unmounted and mounted again afterwards.
    agent.kill();
    assert_eq!(get(&at_restored.1, "file"), b"mine");
    agent.restart().await;
    for (id, at, bytes) in [
        (&id, &at, &b"after!"[..]),
        (&restored, &at_restored, b"mine"),
        (&cloned, &at_cloned, b"after!"),
    ] {
        unmount(&agent, id, at).await;
        let name = at.1.rsplit('/').next().unwrap();
        let again = mount(&agent, name, id, &capability).await;
        assert_eq!(get(&again.1, "file"), bytes);
        unmount(&agent, id, &again).await;
        ok(agent.controller().delete_volume(delete(id)).await);
    }
}

macro_rules! everywhere {
    ($($name:ident: $storage:ident, $fs_type:literal, $mebibytes:literal;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                if is_over_lvm() && Kind::$storage != Kind::Xfs {
                    return does_not_apply!("logical volumes lie on no file system");
                }
                everything_comes_back(Kind::$storage, mounted($fs_type), $mebibytes).await;
            }
        )*
    };
}

everywhere! {
    ext4_volumes_without_reflinks: Ext4, "ext4", 64;
    ext4_volumes_with_reflinks: Xfs, "ext4", 64;
    xfs_volumes_without_reflinks: Ext4, "xfs", 300;
    xfs_volumes_with_reflinks: Xfs, "xfs", 300;
    btrfs_volumes_without_reflinks: Ext4, "btrfs", 256;
    btrfs_volumes_with_reflinks: Xfs, "btrfs", 256;
}

#[tokio::test]
async fn raw_bytes_come_back() {
    // Logical volumes lie on neither.
    let storages: &[Kind] = if is_over_lvm() {
        &[Kind::Xfs]
    } else {
        &[Kind::Ext4, Kind::Xfs]
    };
    for &storage in storages {
        let agent = on(storage).await;
        let id = volume(&agent, "source", 16, &raw()).await;
        let at = mount(&agent, "source", &id, &raw()).await;
        let device = fs::File::options()
            .read(true)
            .write(true)
            .open(&at.1)
            .unwrap();
        device.write_all_at(b"raw bytes", 8 << 20).unwrap();
        device.sync_all().unwrap();
        let taken = ok(agent.controller().create_snapshot(snapshot("s", &id)).await)
            .snapshot
            .unwrap();
        device.write_all_at(b"something", 8 << 20).unwrap();
        drop(device);
        let request = CreateVolumeRequest {
            volume_content_source: from_snapshot(&taken.snapshot_id),
            ..create("", 24, &raw())
        };
        let restored = copy_of(&agent, "restored", request).await;
        let at_restored = mount(&agent, "restored", &restored, &raw()).await;
        let mut bytes = [0; 9];
        let device = fs::File::open(&at_restored.1).unwrap();
        device.read_exact_at(&mut bytes, 8 << 20).unwrap();
        assert_eq!(&bytes, b"raw bytes");
        device.read_exact_at(&mut bytes, 20 << 20).unwrap();
        assert_eq!(bytes, [0; 9]);
        drop(device);
        unbind(&agent, &taken.snapshot_id).await;
        // Growth reaches whoever has the device.
        ok(agent
            .controller()
            .controller_expand_volume(expand(&id, 32))
            .await);
        let device = fs::File::open(&at.1).unwrap();
        device.read_exact_at(&mut bytes, 31 << 20).unwrap();
        drop(device);
        unmount(&agent, &id, &at).await;
        unmount(&agent, &restored, &at_restored).await;
    }
}

/// Whether this process may grow a mounted ext4, which the kernel allows with `CAP_SYS_RESOURCE` (bit 24) alone.
fn may_grow_mounted_ext4() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap() & (1 << 24) != 0
}

#[tokio::test]
async fn a_mounted_file_system_grows_under_its_files() {
    for (fs_type, mebibytes) in [("xfs", 300), ("btrfs", 256), ("ext4", 64)] {
        let agent = on(Kind::Xfs).await;
        let capability = mounted(fs_type);
        let id = volume(&agent, "v", mebibytes, &capability).await;
        let at = mount(&agent, "v", &id, &capability).await;
        put(&at.1, "file", b"kept");
        let before = size(&agent, &id, &at.1).await;
        let answer = ok(agent
            .controller()
            .controller_expand_volume(expand(&id, mebibytes * 2))
            .await);
        assert!(answer.node_expansion_required);
        assert_eq!(answer.capacity_bytes, mebibytes * 2 * MIB);
        let request = NodeExpandVolumeRequest {
            volume_id: id.clone(),
            volume_path: at.1.clone(),
            ..Default::default()
        };
        for _ in 0..2 {
            let answer = agent.node().node_expand_volume(request.clone()).await;
            if fs_type == "ext4" && !may_grow_mounted_ext4() {
                let message = refused(answer, Code::FailedPrecondition);
                assert!(message.contains("CAP_SYS_RESOURCE"), "{message}");
            } else {
                assert_eq!(ok(answer).capacity_bytes, mebibytes * 2 * MIB);
                assert!(size(&agent, &id, &at.1).await > before);
            }
        }
        assert_eq!(get(&at.1, "file"), b"kept");
        unmount(&agent, &id, &at).await;
        // Where it could not grow while mounted, it has when it is mounted next.
        let at = mount(&agent, "v", &id, &capability).await;
        assert!(size(&agent, &id, &at.1).await > before);
        assert_eq!(get(&at.1, "file"), b"kept");
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test]
async fn a_clone_of_a_volume_that_was_never_used_is_formatted_when_it_is() {
    let agent = on(Kind::Ext4).await;
    let capability = mounted("ext4");
    let id = volume(&agent, "blank", 64, &capability).await;
    let taken = ok(agent.controller().create_snapshot(snapshot("s", &id)).await)
        .snapshot
        .unwrap();
    let request = CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken.snapshot_id),
        ..create("", 64, &capability)
    };
    let copy = copy_of(&agent, "copy", request).await;
    let at = mount(&agent, "copy", &copy, &capability).await;
    put(&at.1, "file", b"x");
    unmount(&agent, &copy, &at).await;
}

#[tokio::test]
async fn a_snapshot_of_a_mounted_volume_has_a_clean_log() {
    // Logical volumes lie on neither.
    let storages: &[Kind] = if is_over_lvm() {
        &[Kind::Xfs]
    } else {
        &[Kind::Ext4, Kind::Xfs]
    };
    for &storage in storages {
        let agent = on(storage).await;
        let capability = mounted("ext4");
        let id = volume(&agent, "v", 64, &capability).await;
        let at = mount(&agent, "v", &id, &capability).await;
        put(&at.1, "file", &vec![7; 1 << 20]);
        let taken = ok(agent.controller().create_snapshot(snapshot("s", &id)).await)
            .snapshot
            .unwrap();
        let image = bytes_of(&agent, &taken.snapshot_id);
        let checked = drumlin_tests::programs::output("e2fsck", &["-fn", &image.to_string_lossy()]);
        assert!(
            checked.status.success(),
            "{}",
            String::from_utf8_lossy(&checked.stdout)
        );
        let log = drumlin_tests::programs::run("dumpe2fs", &["-h", &image.to_string_lossy()]);
        assert!(!log.contains("needs_recovery"), "its log must be replayed");
        unmount(&agent, &id, &at).await;
    }
}
