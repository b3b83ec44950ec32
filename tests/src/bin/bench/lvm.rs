//! Calls over a thin pool, each in turns with the bare command of LVM's that does the same. Runs in the lab.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{ListVolumesRequest, NodeExpandVolumeRequest};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::run,
    requests::{
        MIB, create, delete, expand, mounted, publish, raw, snapshot, stage, unpublish, unstage,
    },
    storage::{Scratch, lvm},
};

use crate::{
    idle,
    measure::{Table, median, timed},
};

/// How often each pair is measured.
const PAIRS: usize = 10;
/// As many tags, and as long ones, as our own volumes have.
const TAGS: [&str; 7] = [
    "drumlin.schema=1",
    "bare.id=volume:cd807910-8153-542d-a7a7-0bd88d867605",
    "drumlin.class=default",
    "drumlin.node=node-a",
    "drumlin.l.created=1795252000000000000",
    "drumlin.l.name=v1000000",
    "drumlin.l.parameters=+7b+7d",
];

async fn subject() -> (Agent, String) {
    pool(Options::default()).await
}

/// A group with room for many volumes' metadata, and an agent over a pool in it.
pub(crate) async fn pool(options: Options) -> (Agent, String) {
    let scratch = Scratch::new();
    let group = scratch.volume_group(2 << 10);
    run("vgremove", &["-q", "-y", &group]);
    let disks = run("pvs", &["--noheadings", "-o", "pv_name", "-S", "vg_name="]);
    let disks: Vec<&str> = disks.split_whitespace().collect();
    run("pvremove", &[&["-q", "-y"], disks.as_slice()].concat());
    run(
        "vgcreate",
        &[
            &["-q", "-s", "1M", "--metadatasize", "64m", &group],
            disks.as_slice(),
        ]
        .concat(),
    );
    let pool = format!("{group}/pool");
    run(
        "lvcreate",
        &["-q", "-L", "3G", "--poolmetadatasize", "160M", "-T", &pool],
    );
    let options = Options {
        config: Some(format!(
            "classes: [{{name: default, thin: {{volumeGroup: {group}, pool: pool, overcommit: 1000}}}}]\n"
        )),
        ..options
    };
    (Agent::with(scratch, options).await, group)
}

/// Runs one of LVM's commands as people run it, with the settings of the host.
pub(crate) fn bare(words: &[&str]) -> Duration {
    let begun = Instant::now();
    run(words[0], &words[1..]);
    begun.elapsed()
}

/// `lvcreate -V` with as many tags as ours.
fn bare_create(group: &str, name: &str) -> Duration {
    let pool = format!("{group}/pool");
    let tags = TAGS.iter().flat_map(|tag| ["--addtag", tag]);
    let words = ["lvcreate", "-q", "-V", "4M", "-T", &pool, "-n", name];
    bare(&words.into_iter().chain(tags).collect::<Vec<_>>())
}

/// So many volumes from eight callers; how long all of them take.
async fn burst(agent: &Agent, from: usize, count: usize) -> Duration {
    let begun = Instant::now();
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let mut controller = agent.controller();
            let numbers = (from..from + count).filter(move |number| number % 8 == caller);
            tokio::spawn(async move {
                for number in numbers {
                    let request = create(&format!("v{number}"), 4, &raw());
                    controller.create_volume(request).await.unwrap();
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    begun.elapsed()
}

pub(crate) async fn thin(table: &mut Table) {
    let (agent, group) = subject().await;
    bursts(table, &agent, &group).await;
    used(table, &agent, &group).await;
    drop(agent);
    let (agent, group) = subject().await;
    let mut there = 0;
    for many in [10, 100, 1000] {
        burst(&agent, there, many - there).await;
        there = many;
        // As after a boot: what is not used has no device.
        run("vgchange", &["-q", "-an", &group]);
        changes(table, &agent, &group, many).await;
        lists(table, &agent, &group, many).await;
    }
    // Until the running lvm has ended.
    tokio::time::sleep(Duration::from_secs(15)).await;
    idle::minute(table, &agent, "idle with 1,000 thin volumes").await;
}

async fn changes(table: &mut Table, agent: &Agent, group: &str, many: usize) {
    let mut controller = agent.controller();
    let [mut create_ours, mut create_bare] = [Vec::new(), Vec::new()];
    let [mut copy_ours, mut copy_bare] = [Vec::new(), Vec::new()];
    let [mut delete_ours, mut delete_bare] = [Vec::new(), Vec::new()];
    for pair in 0..PAIRS {
        let name = format!("pair-{many}-{pair}");
        // What went before is not the same for both; so they take turns at being first.
        let is_first = pair % 2 == 0;
        if !is_first {
            create_bare.push(bare_create(group, "bare"));
        }
        let (made, time) = timed(controller.create_volume(create(&name, 4, &raw()))).await;
        create_ours.push(time);
        let id = made.unwrap().into_inner().volume.unwrap().volume_id;
        if is_first {
            create_bare.push(bare_create(group, "bare"));
        }
        let source = format!("{group}/bare");
        let bare_copy = || bare(&["lvcreate", "-q", "-s", "-kn", "-n", "bare-copy", &source]);
        if !is_first {
            copy_bare.push(bare_copy());
        }
        let (taken, time) = timed(controller.create_snapshot(snapshot(&name, &id))).await;
        taken.unwrap();
        copy_ours.push(time);
        if is_first {
            copy_bare.push(bare_copy());
        }
        let bare_delete = || bare(&["lvremove", "-q", "-f", &source]);
        if !is_first {
            delete_bare.push(bare_delete());
        }
        let (deleted, time) = timed(controller.delete_volume(delete(&id))).await;
        deleted.unwrap();
        delete_ours.push(time);
        if is_first {
            delete_bare.push(bare_delete());
        }
        run("lvremove", &["-q", "-f", &format!("{group}/bare-copy")]);
    }
    let mut row = |what: &str, ours, theirs| {
        let figure = format!("{what}, {many} volumes");
        table.ratio(&figure, (median(ours), median(theirs)), 1.0);
    };
    row(
        "CreateVolume thin beside lvcreate -V",
        create_ours,
        create_bare,
    );
    row(
        "CreateSnapshot thin beside lvcreate -s -kn",
        copy_ours,
        copy_bare,
    );
    row("DeleteVolume beside lvremove -f", delete_ours, delete_bare);
}

async fn lists(table: &mut Table, agent: &Agent, group: &str, many: usize) {
    let mut controller = agent.controller();
    let [mut ours, mut theirs] = [Vec::new(), Vec::new()];
    let fields = "lv_name,lv_uuid,lv_tags,lv_size,lv_attr,origin,pool_lv,thin_id";
    for _ in 0..PAIRS {
        let (list, time) = timed(controller.list_volumes(ListVolumesRequest::default())).await;
        assert!(list.unwrap().into_inner().entries.len() >= many);
        ours.push(time);
        theirs.push(bare(&[
            "lvs",
            "--reportformat",
            "json",
            "-o",
            fields,
            group,
        ]));
    }
    let figure = format!("ListVolumes beside lvs, {many} volumes");
    table.ratio(&figure, (median(ours), median(theirs)), 1.1);
}

async fn bursts(table: &mut Table, agent: &Agent, group: &str) {
    let ours = burst(agent, 0, 50).await;
    let theirs = (0..50)
        .map(|number| bare_create(group, &format!("bare-{number}")))
        .sum();
    let figure = "burst of 50 CreateVolume from 8 callers beside 50 lvcreate in turn";
    table.ratio(figure, (ours, theirs), 0.6);
    for number in 0..50 {
        run("lvremove", &["-q", "-f", &format!("{group}/bare-{number}")]);
    }
    run("vgchange", &["-q", "-an", group]);
}

/// Volumes that are in use: staged, grown while 32 volumes of the pool are active and one of them is written.
async fn used(table: &mut Table, agent: &Agent, group: &str) {
    let (mut controller, mut node) = (agent.controller(), agent.node());
    let capability = mounted("ext4");
    let made = controller
        .create_volume(create("used", 64, &capability))
        .await;
    let id = made.unwrap().into_inner().volume.unwrap().volume_id;
    let staging = agent
        .scratch
        .directory("staging")
        .to_string_lossy()
        .into_owned();
    let target = agent.path("target").to_string_lossy().into_owned();
    let at = (staging.as_str(), target.as_str());
    node.node_stage_volume(stage(&id, at.0, &capability))
        .await
        .unwrap();
    node.node_unstage_volume(unstage(&id, at.0)).await.unwrap();

    let mount_point = agent
        .scratch
        .directory("bare")
        .to_string_lossy()
        .into_owned();
    lvm(
        "lvcreate",
        &["-V", "64M", "-T", &format!("{group}/pool"), "-n", "bare"],
    );
    let device = format!("/dev/{group}/bare");
    run("mkfs.ext4", &["-q", &device]);
    let [mut ours, mut theirs] = [Vec::new(), Vec::new()];
    for _ in 0..PAIRS {
        let (staged, time) = timed(node.node_stage_volume(stage(&id, at.0, &capability))).await;
        staged.unwrap();
        ours.push(time);
        node.node_unstage_volume(unstage(&id, at.0)).await.unwrap();
        theirs.push(bare(&["mount", &device, &mount_point]));
        run("umount", &[&mount_point]);
    }
    let figure = "NodeStageVolume of an active, formatted volume beside mount";
    table.ratio(figure, (median(ours), median(theirs)), 1.1);

    // 32 active ones: those two, and 30 of the burst.
    let known = controller.list_volumes(ListVolumesRequest::default()).await;
    let known = known
        .unwrap()
        .into_inner()
        .entries
        .into_iter()
        .filter_map(|entry| entry.volume);
    for volume in known.filter(|volume| volume.volume_id != id).take(30) {
        let key = volume.volume_id.rsplit('/').next().unwrap().to_owned();
        lvm("lvchange", &["-ay", &format!("{group}/dl-v-{key}")]);
    }
    node.node_stage_volume(stage(&id, at.0, &capability))
        .await
        .unwrap();
    node.node_publish_volume(publish(&id, at, &capability))
        .await
        .unwrap();
    run("mount", &[&device, &mount_point]);
    lvm(
        "lvcreate",
        &["-V", "16M", "-T", &format!("{group}/pool"), "-n", "written"],
    );
    let writer = Writer::start(&format!("/dev/{group}/written"));
    let [mut ours, mut theirs, mut our_stalls, mut their_stalls] = [const { Vec::new() }; 4];
    for step in 1..=3 {
        let size = 64 + step * 16;
        writer.longest();
        let (grown, first) = timed(controller.controller_expand_volume(expand(&id, size))).await;
        grown.unwrap();
        let request = NodeExpandVolumeRequest {
            volume_id: id.clone(),
            volume_path: target.clone(),
            ..NodeExpandVolumeRequest::default()
        };
        let (grown, second) = timed(node.node_expand_volume(request)).await;
        grown.unwrap();
        ours.push(first + second);
        our_stalls.push(writer.longest());
        let size = format!("{}b", size * MIB);
        theirs.push(bare(&[
            "lvextend",
            "-q",
            "-r",
            "-L",
            &size,
            &format!("{group}/bare"),
        ]));
        their_stalls.push(writer.longest());
    }
    writer.stop();
    table.ratio(
        "ControllerExpandVolume and NodeExpandVolume of a published volume beside lvextend -r",
        (median(ours), median(theirs)),
        0.5,
    );
    let figure = format!(
        "longest stall of another volume's writer meanwhile, 32 active (lvextend -r: {} ms)",
        median(their_stalls).as_millis()
    );
    table.most(
        &figure,
        median(our_stalls).as_secs_f64() * 1000.0,
        40.0,
        "ms",
    );
    run("umount", &[&mount_point]);
    node.node_unpublish_volume(unpublish(&id, &target))
        .await
        .unwrap();
    node.node_unstage_volume(unstage(&id, at.0)).await.unwrap();
}

/// Writes a block after the other, and knows which took the longest.
struct Writer {
    is_over: Arc<AtomicBool>,
    longest: Arc<std::sync::Mutex<Duration>>,
    thread: std::thread::JoinHandle<()>,
}

impl Writer {
    fn start(path: &str) -> Self {
        let file: File = OpenOptions::new()
            .write(true)
            .custom_flags(nix::libc::O_DSYNC)
            .open(path)
            .unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let longest = Arc::new(std::sync::Mutex::new(Duration::ZERO));
        let (over, most) = (Arc::clone(&is_over), Arc::clone(&longest));
        let thread = std::thread::spawn(move || {
            let block = [7; 4096];
            for number in 0_u64.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let begun = Instant::now();
                file.write_all_at(&block, number % 1024 * 4096).unwrap();
                let mut most = most.lock().unwrap();
                *most = most.max(begun.elapsed());
                drop(most);
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        Self {
            is_over,
            longest,
            thread,
        }
    }

    /// The longest write since the last time.
    fn longest(&self) -> Duration {
        std::mem::take(&mut *self.longest.lock().unwrap())
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}
