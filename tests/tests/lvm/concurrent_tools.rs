//! What others do with devices and volumes while the agent is at them: who looks, udev, an administrator's own commands.

use std::{
    fs,
    fs::File,
    os::unix::fs::{FileExt, symlink},
    time::Duration,
};

use drumlin_proto::csi::v1::{
    ControllerExpandVolumeResponse, ListSnapshotsRequest, ListVolumesRequest,
    NodeGetVolumeStatsRequest,
};
use drumlin_tests::{
    agent::Agent,
    requests::{MIB, create, delete, expand, mounted, publish, raw, snapshot, unpublish, unstage},
    storage::lvm,
};
use nix::sys::signal::Signal;
use tokio::task::JoinHandle;
use tonic::Code;

use crate::{
    copies::leave_bytes,
    group_snapshots::take,
    groups::{group, name_of, stop_at, thick, thin},
    helpers::{get, mount, ok, put, refused, unmount, volume},
    rollback::{self, Pair},
    thaw_watchdog,
};

async fn volumes(agent: &Agent) -> Vec<String> {
    let request = ListVolumesRequest::default();
    let list = ok(agent.controller().list_volumes(request).await);
    let volumes = list.entries.into_iter();
    volumes
        .map(|entry| entry.volume.unwrap().volume_id)
        .collect()
}

async fn snapshots(agent: &Agent) -> Vec<String> {
    let request = ListSnapshotsRequest::default();
    let list = ok(agent.controller().list_snapshots(request).await);
    let snapshots = list.entries.into_iter();
    snapshots
        .map(|entry| entry.snapshot.unwrap().snapshot_id)
        .collect()
}

/// The node of a device of device-mapper's by its name, if there is one.
pub(crate) fn node_of(is_it: impl Fn(&str) -> bool) -> Option<String> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let mut names = devices.map(|entry| entry.file_name().into_string().unwrap());
    let found = names.find(|device| {
        let name = fs::read_to_string(format!("/sys/block/{device}/dm/name"));
        // Device-mapper's names have each dash of a part twice.
        name.is_ok_and(|name| is_it(&name.trim().replace("--", "-")))
    });
    found.map(|device| format!("/dev/{device}"))
}

/// The node of what is wiped to become the end of a volume.
pub(crate) fn end() -> Option<String> {
    node_of(|name| name.contains("-dl-e-"))
}

/// Has a device open for a moment, as udev has it or another program of LVM's, and sees that `call` waits for that.
async fn look_while<T: Send + 'static>(
    seen: impl Send,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send + 'static,
) -> T {
    let call = tokio::spawn(call);
    // Far less than anybody who looks is waited for.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(
        !call.is_finished(),
        "nobody was in the way: {:?}",
        call.await.unwrap().map(drop)
    );
    drop(seen);
    ok(call.await.unwrap())
}

/// Has an agent grow a volume until it comes to `point`, where it stops.
pub(crate) async fn grow_until(
    agent: &mut Agent,
    id: &str,
    mebibytes: i64,
    point: &str,
) -> JoinHandle<Result<tonic::Response<ControllerExpandVolumeResponse>, tonic::Status>> {
    stop_at(agent, point).await;
    let (mut controller, request) = (agent.controller(), expand(id, mebibytes));
    let mut growing =
        tokio::spawn(async move { controller.controller_expand_volume(request).await });
    thaw_watchdog::until_stopped(agent, &mut growing).await;
    growing
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_at_each_new_device_is_waited_for() {
    let mut agent = thick(512, "layout: linear").await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    let growing = grow_until(&mut agent, &id, 64, "thick.end.wiped").await;
    let seen = File::open(end().unwrap()).unwrap();
    agent.signal(Signal::SIGCONT);
    let grown = look_while(seen, async { growing.await.unwrap() }).await;
    assert_eq!(grown.capacity_bytes, 64 * MIB);
    assert_eq!(end(), None);
    unmount(&agent, &id, &at).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_at_a_volume_is_waited_for_before_it_goes() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    let key = id.rsplit('/').next().unwrap();
    let node = node_of(|name| name.ends_with(key)).unwrap();
    let look = || File::open(&node).unwrap();
    let (mut used, request) = (agent.node(), unpublish(&id, &at.1));
    ok(used.node_unpublish_volume(request).await);
    let request = unstage(&id, &at.0);
    look_while(
        look(),
        async move { used.node_unstage_volume(request).await },
    )
    .await;
    let (mut controller, request) = (agent.controller(), delete(&id));
    look_while(
        look(),
        async move { controller.delete_volume(request).await },
    )
    .await;
    assert!(volumes(&agent).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_at_a_volume_is_waited_for_before_it_is_rolled_back() {
    let mut pair = Pair::new().await;
    pair.write("one").await;
    let taken = take(&pair.agent, "before", &pair.ids()).await;
    pair.write("two").await;
    stop_at(&mut pair.agent, "lvm.rollback.locked").await;
    let mut own = pair.agent.own();
    let request = rollback::request("back", &taken);
    let mut call = tokio::spawn(async move { own.rollback_volume_group_snapshot(request).await });
    thaw_watchdog::until_stopped(&pair.agent, &mut call).await;
    let look = |id: String| {
        let key = id.rsplit('/').next().unwrap();
        File::open(node_of(|name| name.ends_with(key)).unwrap()).unwrap()
    };
    let seen: Vec<File> = pair.ids().into_iter().map(look).collect();
    pair.agent.signal(Signal::SIGCONT);
    look_while(seen, async { call.await.unwrap() }).await;
    assert_eq!(pair.read().await, ["one", "one"]);
}

#[tokio::test]
async fn raw_volumes_are_found_where_udev_has_links_for_nodes() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    unmount(&agent, &id, &at).await;
    // As udev's rules have it: the node is the kernel's, and its name a link.
    let key = id.rsplit('/').next().unwrap();
    let device = node_of(|name| name.ends_with(key)).unwrap();
    let named = fs::read_dir("/dev/mapper")
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let mut named = named.filter(|path| path.to_str().unwrap().replace("--", "-").ends_with(key));
    let name = named.next().unwrap();
    fs::remove_file(&name).unwrap();
    symlink(device.replace("/dev/", "../"), &name).unwrap();

    let at = mount(&agent, "v", &id, &raw()).await;
    let again = publish(&id, (&at.0, &at.1), &raw());
    ok(agent.node().node_publish_volume(again).await);
    let stats = NodeGetVolumeStatsRequest {
        volume_id: id.clone(),
        volume_path: at.1.clone(),
        ..NodeGetVolumeStatsRequest::default()
    };
    ok(agent.node().node_get_volume_stats(stats).await);
    refused(
        agent.controller().delete_volume(delete(&id)).await,
        Code::FailedPrecondition,
    );
    refused(
        agent.node().node_unstage_volume(unstage(&id, &at.0)).await,
        Code::FailedPrecondition,
    );
    unmount(&agent, &id, &at).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_at_the_same_time_is_not_promised_more_than_there_is() {
    let agent = thin(1 << 10, &["-L", "1000M"], "overcommit: 1").await;
    let calls = (0..8).map(|number| {
        let mut controller = agent.controller();
        let request = create(&format!("v{number}"), 300, &raw());
        async move { controller.create_volume(request).await }
    });
    let answers = futures::future::join_all(calls).await;
    let (made, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert!(
        (1..=3).contains(&made.len()),
        "{} of 300 MiB in 1000",
        made.len()
    );
    for refusal in refused {
        let code = refusal.unwrap_err().code();
        assert!(
            matches!(code, Code::OutOfRange | Code::ResourceExhausted),
            "{code:?}"
        );
    }
    // Who came too early for what was refused finds the rest.
    for number in 0..3 - made.len() {
        volume(&agent, &format!("later{number}"), 300, &raw()).await;
    }
    let ids = volumes(&agent).await;
    assert_eq!(ids.len(), 3);
    let calls = ids.iter().map(|id| {
        let mut controller = agent.controller();
        let request = expand(id, 350);
        async move { controller.controller_expand_volume(request).await }
    });
    let answers = futures::future::join_all(calls).await;
    let grown = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(grown <= 2, "{grown} grew by 50 MiB in 100");
}

/// How much of a group is free, in mebibytes.
fn free(agent: &Agent) -> u64 {
    let group = agent.scratch.group().unwrap();
    let words = [
        "--noheadings",
        "--nosuffix",
        "--units",
        "m",
        "-o",
        "vg_free",
    ];
    let printed = lvm("vgs", &[&words[..], &[&group]].concat());
    let whole = printed.trim().split('.').next().unwrap();
    whole.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_to_stay_free_of_a_group_does_so_whatever_is_asked_for_at_the_same_time() {
    let agent = thick(1 << 10, "reserve: 50%, wipe: none, snapshotSize: 10%").await;
    let (all, reserved) = (free(&agent), free(&agent) / 2);
    let calls = (0..8).map(|number| {
        let mut controller = agent.controller();
        let request = create(&format!("v{number}"), 300, &raw());
        async move { controller.create_volume(request).await }
    });
    let answers = futures::future::join_all(calls).await;
    assert_eq!(
        free(&agent),
        all - 900,
        "three fit, and come first or later"
    );
    let refused = answers.into_iter().filter_map(Result::err);
    for refusal in refused {
        assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal}");
    }
    let ids = volumes(&agent).await;
    let calls = ids.iter().map(|id| {
        let mut controller = agent.controller();
        let request = expand(id, 350);
        async move { controller.controller_expand_volume(request).await }
    });
    let answers = futures::future::join_all(calls).await;
    let grown = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(grown, 2, "of 50 MiB each, for which 122 are there");
    // A store takes 30 MiB or more.
    let calls = (0..8).map(|number| {
        let mut controller = agent.controller();
        let request = snapshot(&format!("s{number}"), &ids[number % ids.len()]);
        async move { controller.create_snapshot(request).await }
    });
    futures::future::join_all(calls).await;
    assert!(free(&agent) >= reserved, "{} of {all}", free(&agent));
}

/// Has the agent look for what a killed one may have left.
async fn start_anew(agent: &mut Agent) {
    agent.kill();
    agent.restart().await;
    let id = volume(agent, "another", 4, &raw()).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
}

#[tokio::test]
async fn a_leg_that_somebody_split_off_is_no_interrupted_creation() {
    let mut agent = thick(512, "layout: raid1").await;
    let capability = mounted("ext4");
    let id = volume(&agent, "v", 32, &capability).await;
    let at = mount(&agent, "v", &id, &capability).await;
    put(&at.1, "file", b"precious");
    unmount(&agent, &id, &at).await;
    let path = format!("{}/{}", group(&agent), name_of(&id));
    while !lvm("lvs", &["--noheadings", "-o", "copy_percent", &path]).contains("100.00") {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    lvm(
        "lvconvert",
        &["-y", "--splitmirrors", "1", "--trackchanges", &path],
    );
    start_anew(&mut agent).await;
    assert_eq!(volumes(&agent).await, [id.clone()]);
    let at = mount(&agent, "v", &id, &capability).await;
    assert_eq!(get(&at.1, "file"), b"precious");
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn snapshots_outlive_that_somebody_merges_another_one() {
    let mut agent = thick(512, "layout: linear").await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let mut taken = Vec::new();
    for name in ["s1", "s2"] {
        let answer = agent
            .controller()
            .create_snapshot(snapshot(name, &id))
            .await;
        taken.push(ok(answer).snapshot.unwrap().snapshot_id);
    }
    let path = format!("{}/{}", group(&agent), name_of(&id));
    let merged = format!(
        "{}/{}",
        group(&agent),
        name_of(&taken[0]).replace("dl-v-", "dl-s-")
    );
    // Nobody is told that it is done, so it is never ended.
    lvm("lvchange", &["-an", &path]);
    lvm("lvconvert", &["--merge", &merged]);
    lvm("lvchange", &["-ay", "--poll", "n", &path]);
    let table = drumlin_tests::programs::run("dmsetup", &["table"]);
    assert!(table.contains("snapshot-merge"), "{table}");
    start_anew(&mut agent).await;
    let left = snapshots(&agent).await;
    assert!(left.contains(&taken[1]), "{left:?}\n{}", agent.log());
}

/// What a volume grows by is seen by nobody before it is wiped, whoever loads its device anew meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_volume_is_not_seen_unwiped_whatever_others_do() {
    for is_used in [true, false] {
        let mut agent = thick(160, "layout: linear").await;
        leave_bytes(&agent);
        let id = volume(&agent, "v", 32, &raw()).await;
        let at = mount(&agent, "v", &id, &raw()).await;
        put_bytes(&at.1);
        let path = format!("{}/{}", group(&agent), name_of(&id));
        if !is_used {
            unmount(&agent, &id, &at).await;
            lvm("lvchange", &["-an", &path]);
        }
        let growing = grow_until(&mut agent, &id, 64, "thick.wipe.step").await;
        if is_used {
            lvm("lvchange", &["--refresh", &path]);
        } else {
            // As a host that starts does, and udevd's rules.
            lvm("vgchange", &["-ay", &group(&agent)]);
        }
        let disks = lvm(
            "vgs",
            &["--noheadings", "--rows", "-o", "pv_name", &group(&agent)],
        );
        let disk = disks.split_whitespace().next().unwrap();
        lvm("pvmove", &["-i", "1", disk]);
        let seen = fs::read(format!("/dev/{path}")).unwrap();
        assert_eq!(seen.len(), 32 << 20);
        assert!(!seen.contains(&b'S'), "bytes of a former volume");
        agent.signal(Signal::SIGCONT);
        ok(growing.await.unwrap());
        assert_eq!(end(), None);
        let seen = fs::read(format!("/dev/{path}")).unwrap();
        assert_eq!(seen.len(), 64 << 20);
        assert!(!seen.contains(&b'S'), "bytes of a former volume");
        assert!(seen.starts_with(b"precious"));
        if is_used {
            unmount(&agent, &id, &at).await;
        }
    }
}

fn put_bytes(device: &str) {
    let device = File::options().write(true).open(device).unwrap();
    device.write_all_at(b"precious", 0).unwrap();
    device.sync_all().unwrap();
}

/// Somebody takes what was wiped before the volume has it, and gives it back with other bytes.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_wiped_and_used_again_does_not_become_the_end_of_a_volume() {
    let mut agent = thick(64, "layout: linear").await;
    let id = volume(&agent, "v", 16, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    let growing = grow_until(&mut agent, &id, 32, "thick.end.freed").await;
    leave_bytes(&agent);
    agent.signal(Signal::SIGCONT);
    let message = refused(growing.await.unwrap(), Code::Aborted);
    assert!(message.contains("was changed"), "{message}");
    let request = expand(&id, 32);
    let grown = agent.controller().controller_expand_volume(request).await;
    assert_eq!(ok(grown).capacity_bytes, 32 * MIB);
    assert!(!fs::read(&at.1).unwrap().contains(&b'S'));
    unmount(&agent, &id, &at).await;
}
