//! What an administrator, or a stranger, does to a volume group meanwhile: the next answer is the truth.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use drumlin_proto::csi::v1::{
    ControllerGetVolumeRequest, CreateVolumeRequest, GetCapacityRequest, ListVolumesRequest,
    ProbeRequest,
};
use drumlin_tests::{
    agent::{Agent, Options, Volumes, eventually},
    programs::{output, run},
    requests::{MIB, create, delete, expand, mounted, raw, snapshot},
    storage::{Scratch, lvm},
};
use tonic::Code;

use crate::helpers::{bytes_of, get, mount, ok, put, refused, unmount, volume};

fn group(agent: &Agent) -> String {
    agent.scratch.group().unwrap()
}

fn name_of(id: &str) -> String {
    format!("dl-v-{}", id.rsplit('/').next().unwrap())
}

async fn volumes(agent: &Agent) -> Vec<(String, i64)> {
    let list = ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    let volumes = list.entries.into_iter().map(|entry| entry.volume.unwrap());
    volumes
        .map(|volume| (volume.volume_id, volume.capacity_bytes))
        .collect()
}

#[tokio::test]
async fn what_is_done_by_hand_is_seen_at_once() {
    let agent = Agent::start().await;
    let group = group(&agent);
    let capability = mounted("ext4");
    let id = volume(&agent, "v", 64, &capability).await;
    let at = mount(&agent, "v", &id, &capability).await;
    put(&at.1, "file", b"precious");
    unmount(&agent, &id, &at).await;
    let path = format!("{group}/{}", name_of(&id));

    // Tagged: kept, beside ours.
    lvm("lvchange", &["--addtag", "backup=daily", &path]);
    ok(agent
        .controller()
        .controller_expand_volume(expand(&id, 80))
        .await);
    let tags = lvm("lvs", &["--noheadings", "-o", "lv_tags", &path]);
    assert!(tags.contains("backup=daily"), "{tags}");

    // Grown: the size is the new one, and the file system follows at the next stage.
    lvm("lvextend", &["-L", "128M", &path]);
    assert_eq!(volumes(&agent).await, [(id.clone(), 128 * MIB)]);
    let at = mount(&agent, "v", &id, &capability).await;
    assert_eq!(get(&at.1, "file"), b"precious");
    let df = run("df", &["--block-size=1M", "--output=size", &at.1]);
    let size: i64 = df.lines().last().unwrap().trim().parse().unwrap();
    assert!(size > 100, "{df}");
    unmount(&agent, &id, &at).await;

    // Renamed: still the same volume, and never a second one.
    lvm("lvrename", &[&group, &name_of(&id), "mine"]);
    assert_eq!(volume(&agent, "v", 128, &capability).await, id);
    assert_eq!(volumes(&agent).await.len(), 1);
    let at = mount(&agent, "v", &id, &capability).await;
    assert_eq!(get(&at.1, "file"), b"precious");
    unmount(&agent, &id, &at).await;

    // Volumes of others in the same pool are none of ours, and count as promised.
    let before = ok(agent
        .controller()
        .get_capacity(GetCapacityRequest::default())
        .await);
    lvm(
        "lvcreate",
        &["-V", "256M", "-T", &format!("{group}/pool"), "-n", "theirs"],
    );
    let after = ok(agent
        .controller()
        .get_capacity(GetCapacityRequest::default())
        .await);
    assert_eq!(
        before.available_capacity - after.available_capacity,
        256 * MIB
    );
    assert_eq!(volumes(&agent).await.len(), 1);

    // Removed: gone, and deleting it is no error.
    lvm("lvremove", &["-y", &format!("{group}/mine")]);
    assert_eq!(volumes(&agent).await, []);
    let request = ControllerGetVolumeRequest {
        volume_id: id.clone(),
    };
    refused(
        agent.controller().controller_get_volume(request).await,
        Code::NotFound,
    );
    ok(agent.controller().delete_volume(delete(&id)).await);
}

/// LVM keeps the command line beside the metadata, in the encoding of whoever typed it, and the name of the host.
#[tokio::test]
async fn a_command_line_that_is_not_utf8_blocks_nothing() {
    let agent = Agent::start().await;
    let group = group(&agent);
    let id = volume(&agent, "v", 4, &raw()).await;
    let byte = r#""global/note=\"caf$(printf '\351')\"""#;
    let words = format!("vgchange -q --config {byte} --addtag latin1 {group}");
    run("sh", &["-c", &words]);
    let mut head = vec![0; 1 << 20];
    let disk = File::open(agent.path("disk-a")).unwrap();
    disk.read_exact_at(&mut head, 0).unwrap();
    assert!(head.windows(4).any(|bytes| bytes == b"caf\xe9"));

    assert_eq!(volumes(&agent).await, [(id.clone(), 4 * MIB)]);
    let other = volume(&agent, "other", 4, &raw()).await;
    run("sh", &["-c", &words.replace("--addtag", "--deltag")]);
    for id in [id, other] {
        ok(agent.controller().delete_volume(delete(&id)).await);
    }
    assert_eq!(volumes(&agent).await, []);
}

#[tokio::test]
async fn a_disk_that_is_added_meanwhile_has_part_in_the_next_change() {
    let agent = Agent::start().await;
    let group = group(&agent);
    let id = volume(&agent, "v", 4, &raw()).await;
    for (number, disk) in ["disk-c", "disk-d", "disk-e"].into_iter().enumerate() {
        let image = agent.path(disk);
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let disk = run("losetup", &["--find", "--show", image.to_str().unwrap()]);
        lvm("vgextend", &[&group, disk.trim()]);
        match number {
            0 => drop(volume(&agent, "w", 4, &raw()).await),
            1 => drop(ok(agent
                .controller()
                .controller_expand_volume(expand(&id, 8))
                .await)),
            _ => drop(ok(agent.controller().delete_volume(delete(&id)).await)),
        }
        // LVM complains of records that differ from disk to disk.
        let looked = output("vgs", &["-o", "vg_missing_pv_count,pv_count", &group]);
        let complaint = String::from_utf8_lossy(&looked.stderr);
        assert_eq!(complaint, "", "{disk}");
    }
    assert_eq!(volumes(&agent).await.len(), 1);
}

#[tokio::test]
async fn a_group_that_is_missing_makes_its_class_unhealthy_and_no_other() {
    let scratch = Scratch::new();
    let config = Volumes::Thin.classes(&scratch);
    let group = scratch.group().unwrap();
    let images = scratch.directory("images");
    let config = format!(
        "{}- {{name: files, directory: {{path: {}}}}}\n",
        config.replace("name: default,", "name: fast, default: true,"),
        images.display()
    );
    lvm("vgrename", &[&group, "away"]);
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let message = refused(
        agent.identity().probe(ProbeRequest {}).await,
        Code::FailedPrecondition,
    );
    assert!(
        message.contains("class fast") && message.contains(&group),
        "{message}"
    );
    assert!(!message.contains("class files"), "{message}");
    let answer = agent
        .controller()
        .create_volume(create("v", 4, &raw()))
        .await;
    refused(answer, Code::FailedPrecondition);
    let request = CreateVolumeRequest {
        parameters: [("class".to_owned(), "files".to_owned())].into(),
        ..create("other", 4, &raw())
    };
    ok(agent.controller().create_volume(request).await);
    // It comes back: nothing else has to be done.
    lvm("vgrename", &["away", &group]);
    ok(agent.identity().probe(ProbeRequest {}).await);
    volume(&agent, "v", 4, &raw()).await;
}

/// A volume with somebody's bytes, and a copy of it that the pool has under a number of which LVM does not know: that of
/// the volume and so many more. The number.
async fn forgotten(agent: &Agent, more: u64) -> u64 {
    let group = group(agent);
    let id = volume(agent, "theirs", 16, &raw()).await;
    let file = File::options()
        .write(true)
        .open(bytes_of(agent, &id))
        .unwrap();
    file.write_all_at(&vec![b'S'; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let path = format!("{group}/{}", name_of(&id));
    let device: u64 = lvm("lvs", &["--noheadings", "-o", "thin_id", &path])
        .trim()
        .parse()
        .unwrap();
    let snapshot = format!("create_snap {} {device}", device + more);
    run("dmsetup", &["message", &pool(&group), "0", &snapshot]);
    device + more
}

/// The pool's device.
fn pool(group: &str) -> String {
    format!("{}-pool-tpool", group.replace('-', "--"))
}

/// A new volume reads as zeros, and what was set aside has what it had.
async fn only_the_new_one_is_empty(agent: &Agent, device: u64) {
    let mine = volume(agent, "mine", 16, &raw()).await;
    let bytes = fs::read(bytes_of(agent, &mine)).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "somebody else's bytes");
    assert_eq!(
        volumes(agent).await.len(),
        2,
        "what is set aside is nobody's"
    );
    let aside = format!("{}/dl-orphan-pool-{device}", group(agent));
    lvm("lvchange", &["-ay", "-K", &aside]);
    let kept = fs::read(format!("/dev/{aside}")).unwrap();
    assert!(kept.iter().take(1 << 20).all(|byte| *byte == b'S'));
    assert!(agent.log().contains("dl-orphan-pool"), "{}", agent.log());
}

#[tokio::test]
async fn a_forgotten_device_of_the_pool_is_never_handed_out_with_its_data() {
    // LVM gives the next volume the next number, and takes it for new when the pool has that already.
    let agent = Agent::start().await;
    let device = forgotten(&agent, 1).await;
    only_the_new_one_is_empty(&agent, device).await;
}

#[tokio::test]
async fn forgotten_devices_are_found_and_set_aside_at_the_start() {
    let mut agent = Agent::start().await;
    let device = forgotten(&agent, 1).await;
    // Another one, to which LVM does not come yet.
    let far = format!("create_thin {}", device + 5);
    run("dmsetup", &["message", &pool(&group(&agent)), "0", &far]);
    agent.kill();
    // Somebody was reading, and died.
    let reserve = [
        "message",
        &pool(&group(&agent)),
        "0",
        "reserve_metadata_snap",
    ];
    run("dmsetup", &reserve);
    agent.restart().await;
    ok(agent.identity().probe(ProbeRequest {}).await);
    let wanted = format!("dl-orphan-pool-{device}");
    let names = || lvm("lvs", &["--noheadings", "-o", "lv_name", &group(&agent)]);
    eventually(names, |names| names.contains(&wanted)).await;
    let log = agent.log();
    for told in [
        "releasing an unused metadata snapshot".to_owned(),
        format!("device={device}"),
        format!("device={}", device + 5),
    ] {
        assert!(log.contains(&told), "{told}: {log}");
    }
    let status = run("dmsetup", &["status", &pool(&group(&agent))]);
    assert_eq!(status.split_whitespace().nth(6), Some("-"), "{status}");
    only_the_new_one_is_empty(&agent, device).await;
    for number in 0..8 {
        volume(&agent, &format!("more-{number}"), 16, &raw()).await;
    }
    let names = lvm("lvs", &["--noheadings", "-o", "lv_name", &group(&agent)]);
    assert!(
        !names.contains(&format!("pool-{}\n", device + 5)),
        "an empty one is as good as new: {names}"
    );
}

#[tokio::test]
async fn what_was_not_quite_set_aside_is_at_the_next_start() {
    let mut agent = Agent::start().await;
    let id = volume(&agent, "v", 16, &raw()).await;
    let path = format!("{}/{}", group(&agent), name_of(&id));
    let tags = lvm("lvs", &["--noheadings", "-o", "lv_tags", &path]);
    let tags = tags.trim().split(',').flat_map(|tag| ["--deltag", tag]);
    let words = ["--addtag", "drumlin-orphan", &path];
    lvm(
        "lvchange",
        &words.into_iter().chain(tags).collect::<Vec<_>>(),
    );
    agent.kill();
    agent.restart().await;
    volume(&agent, "v", 16, &raw()).await;
    assert_eq!(volumes(&agent).await.len(), 1);
}

#[tokio::test]
async fn a_pool_that_is_nearly_full_takes_nothing_new_until_it_has_room() {
    let scratch = Scratch::new();
    let group = scratch.volume_group(400);
    lvm("lvcreate", &["-L", "200M", "-T", &format!("{group}/pool")]);
    let options = Options {
        config: Some(format!(
            "classes: [{{name: default, thin: {{volumeGroup: {group}, pool: pool, overcommit: 10}}}}]\n"
        )),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let id = volume(&agent, "v", 400, &raw()).await;
    let file = File::options()
        .write(true)
        .open(bytes_of(&agent, &id))
        .unwrap();
    let bytes = vec![7; 1 << 20];
    for step in 0..192 {
        file.write_all_at(&bytes, step << 20).unwrap();
    }
    file.sync_all().unwrap();
    let mut controller = agent.controller();
    let more = controller.create_volume(create("more", 4, &raw())).await;
    let message = refused(more, Code::ResourceExhausted);
    assert!(message.contains("% of its data"), "{message}");
    let taken = controller.create_snapshot(snapshot("s", &id)).await;
    refused(taken, Code::ResourceExhausted);
    let grown = controller.controller_expand_volume(expand(&id, 500)).await;
    refused(grown, Code::ResourceExhausted);
    let room = ok(controller.get_capacity(GetCapacityRequest::default()).await);
    assert_eq!(room.available_capacity, 0);
    lvm("lvextend", &["-L", "+100M", &format!("{group}/pool")]);
    ok(controller.create_snapshot(snapshot("s", &id)).await);
    ok(controller.controller_expand_volume(expand(&id, 500)).await);
    // More than may be promised.
    let huge = controller
        .create_volume(create("huge", 1 << 20, &raw()))
        .await;
    let message = refused(huge, Code::ResourceExhausted);
    assert!(message.contains("overcommit limit"), "{message}");
}
