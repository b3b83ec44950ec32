//! Beside udevd: what it is told of devices that the agent makes without LVM, and what is left to it.

use std::{fs, fs::File, os::unix::fs::FileExt, path::Path};

use drumlin_tests::{
    does_not_apply,
    programs::{output, run},
    requests::{publish, raw, stage},
    storage::lvm,
};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::{
    concurrent_tools::{end, grow_until, node_of},
    group_snapshots::together,
    groups::{group, name_of, thick},
    helpers::{mount, ok, paths, refused, unmount, volume},
};

/// Whether this machine has one: that of the lab, but for `-c`.
pub(crate) fn has_udevd() -> bool {
    Path::new("/run/udev/control").exists()
}

/// What udevd knows of a device.
fn known(node: &str) -> String {
    run("udevadm", &["settle", "--timeout=30"]);
    run("udevadm", &["info", "--query=property", "--name", node])
}

/// Has udevd look at a device as if it were new, and as if it had changed.
fn trigger(node: &str) {
    for action in ["change", "add"] {
        let action = format!("--action={action}");
        run("udevadm", &["trigger", "--settle", &action, node]);
    }
}

/// The superblock of an md array of version 1.2, as much of it as `mdadm` and `blkid` look at.
fn md_superblock() -> Vec<u8> {
    let mut block = vec![0; 4096];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &0xa92b_4efc_u32.to_le_bytes());
    put(4, &1_u32.to_le_bytes());
    put(16, b"a former tenant!");
    // Where it is itself, in sectors.
    put(144, &8_u64.to_le_bytes());
    let words = block.as_chunks::<4>().0.iter().take(64);
    let sum: u64 = words.map(|word| u64::from(u32::from_le_bytes(*word))).sum();
    let sum = u32::try_from((sum & 0xffff_ffff) + (sum >> 32)).unwrap();
    block[216..220].copy_from_slice(&sum.to_le_bytes());
    block
}

#[tokio::test(flavor = "multi_thread")]
async fn what_former_tenants_left_is_not_looked_at_before_it_is_wiped() {
    if !has_udevd() {
        return does_not_apply!("there is no udevd");
    }
    for is_active in [true, false] {
        let mut agent = thick(512, "layout: linear").await;
        let id = volume(&agent, "v", 32, &raw()).await;
        let former = format!("{}/former", group(&agent));
        lvm("lvcreate", &["-L", "32M", "-n", "former", &group(&agent)]);
        let device = File::options().write(true).open(format!("/dev/{former}"));
        let device = device.unwrap();
        device.write_all_at(&md_superblock(), 4096).unwrap();
        device.sync_all().unwrap();
        drop(device);
        lvm("lvremove", &["-y", &former]);
        // Its rules activate all of a group whose disks have just come.
        run("udevadm", &["settle", "--timeout=30"]);
        let path = format!("{}/{}", group(&agent), name_of(&id));
        lvm("lvchange", &[if is_active { "-ay" } else { "-an" }, &path]);

        let growing = grow_until(&mut agent, &id, 64, "thick.end.made").await;
        let end = end().unwrap();
        let blkid = ["-p", "-s", "TYPE", "-o", "value", &end];
        assert_eq!(output("blkid", &blkid).stdout, b"", "LVM did not wipe it");
        for is_triggered in [false, true] {
            if is_triggered {
                trigger(&end);
            }
            let known = known(&end);
            assert!(!known.contains("ID_FS_TYPE"), "{known}");
        }
        agent.signal(Signal::SIGCONT);
        ok(growing.await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_group_snapshot_keep_their_links() {
    if !has_udevd() {
        return does_not_apply!("there is no udevd");
    }
    let agent = thick(512, "layout: linear").await;
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        let id = volume(&agent, name, 32, &raw()).await;
        mount(&agent, name, &id, &raw()).await;
        ids.push(id);
    }
    let mut groups = agent.group_controller();
    let taken = groups.create_volume_group_snapshot(together("g", &ids));
    let taken = ok(taken.await).group_snapshot.unwrap();
    let link = |id: &str| {
        format!(
            "/dev/{}/dl-s-{}",
            group(&agent),
            id.rsplit('/').next().unwrap()
        )
    };
    let snapshots = taken.snapshots.iter();
    let links: Vec<String> = snapshots.map(|one| link(&one.snapshot_id)).collect();
    run("udevadm", &["settle", "--timeout=30"]);
    let nodes = links.iter().map(|link| fs::canonicalize(link).unwrap());
    let nodes: Vec<_> = nodes.collect();
    for (link, node) in links.iter().zip(nodes) {
        trigger(node.to_str().unwrap());
        assert_eq!(fs::canonicalize(link).unwrap(), node);
        let known = known(node.to_str().unwrap());
        let has = |property: &str| known.lines().any(|line| line == property);
        assert!(
            has("DM_UDEV_PRIMARY_SOURCE_FLAG=1") && has("DM_UDEV_LOW_PRIORITY_FLAG=1"),
            "{known}"
        );
    }
}

#[tokio::test]
async fn nodes_are_left_to_udevd() {
    if !has_udevd() {
        return does_not_apply!("there is no udevd");
    }
    let agent = thick(512, "layout: linear").await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let node = node_of(|name| name.ends_with(&name_of(&id))).unwrap();
    let linked = fs::read_dir("/dev/mapper").unwrap().flatten();
    let mut linked = linked.map(|entry| entry.path());
    let name = linked
        .find(|path| fs::canonicalize(path).is_ok_and(|at| at == Path::new(&node)))
        .unwrap();
    // What it still has to do for the new device would give the link back.
    run("udevadm", &["settle", "--timeout=30"]);
    fs::remove_file(&name).unwrap();
    let (staging, target) = paths(&agent, "v");
    let stage = stage(&id, &staging, &raw());
    let message = refused(
        agent.node().node_stage_volume(stage.clone()).await,
        Code::Aborted,
    );
    assert!(
        message.contains("udevd") && message.contains("udevadm trigger"),
        "{message}"
    );
    assert!(fs::symlink_metadata(&name).is_err(), "it was made by hand");
    trigger(&node);
    ok(agent.node().node_stage_volume(stage).await);
    let publish = publish(&id, (&staging, &target), &raw());
    ok(agent.node().node_publish_volume(publish).await);
    unmount(&agent, &id, &(staging, target)).await;
}
