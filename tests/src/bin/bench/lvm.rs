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

use drumlin_proto::csi::v1::ListVolumesRequest;
use drumlin_tests::{
    agent::{Agent, Options},
    programs::run,
    requests::{
        MIB, create, delete, expand, mounted, node_expand, publish, raw, snapshot, stage,
        unpublish, unstage,
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

/// A volume of ours and a bare one, of 64 MiB each with ext4.
struct Pair<'a> {
    agent: &'a Agent,
    group: &'a str,
    id: String,
    staging: String,
    target: String,
    device: String,
    mount_point: String,
}

/// Volumes that are in use: staged, grown while 32 volumes of the pool are active and one of them is written.
async fn used(table: &mut Table, agent: &Agent, group: &str) {
    let pair = Pair::make(agent, group).await;
    pair.stages(table).await;
    pair.activate_others().await;
    pair.grows(table).await;
}

impl<'a> Pair<'a> {
    async fn make(agent: &'a Agent, group: &'a str) -> Self {
        let made = agent
            .controller()
            .create_volume(create("used", 64, &mounted("ext4")))
            .await;
        let id = made.unwrap().into_inner().volume.unwrap().volume_id;
        let directory = |name| {
            let path = agent.scratch.directory(name);
            path.to_string_lossy().into_owned()
        };
        let pair = Self {
            agent,
            group,
            id,
            staging: directory("staging"),
            target: agent.path("target").to_string_lossy().into_owned(),
            device: format!("/dev/{group}/bare"),
            mount_point: directory("bare"),
        };
        // The first time makes the file system.
        pair.stage().await;
        pair.unstage().await;
        lvm(
            "lvcreate",
            &["-V", "64M", "-T", &format!("{group}/pool"), "-n", "bare"],
        );
        run("mkfs.ext4", &["-q", &pair.device]);
        pair
    }

    async fn stage(&self) -> Duration {
        let request = stage(&self.id, &self.staging, &mounted("ext4"));
        let (staged, time) = timed(self.agent.node().node_stage_volume(request)).await;
        staged.unwrap();
        time
    }

    async fn unstage(&self) {
        let request = unstage(&self.id, &self.staging);
        let unstaged = self.agent.node().node_unstage_volume(request).await;
        unstaged.unwrap();
    }

    async fn stages(&self, table: &mut Table) {
        let [mut ours, mut theirs] = [Vec::new(), Vec::new()];
        for _ in 0..PAIRS {
            ours.push(self.stage().await);
            self.unstage().await;
            theirs.push(bare(&["mount", &self.device, &self.mount_point]));
            run("umount", &[&self.mount_point]);
        }
        let figure = "NodeStageVolume of an active, formatted volume beside mount";
        table.ratio(figure, (median(ours), median(theirs)), 1.1);
    }

    /// 32 active ones: those two, and 30 of the burst.
    async fn activate_others(&self) {
        let mut controller = self.agent.controller();
        let known = controller.list_volumes(ListVolumesRequest::default()).await;
        let known = known
            .unwrap()
            .into_inner()
            .entries
            .into_iter()
            .filter_map(|entry| entry.volume);
        for volume in known.filter(|volume| volume.volume_id != self.id).take(30) {
            let key = volume.volume_id.rsplit('/').next().unwrap().to_owned();
            lvm("lvchange", &["-ay", &format!("{}/dl-v-{key}", self.group)]);
        }
    }

    /// Grows the published volume; how long both calls take.
    async fn grow(&self, mebibytes: i64) -> Duration {
        let request = expand(&self.id, mebibytes);
        let mut controller = self.agent.controller();
        let (grown, first) = timed(controller.controller_expand_volume(request)).await;
        grown.unwrap();
        let request = node_expand(&self.id, &self.target);
        let (grown, second) = timed(self.agent.node().node_expand_volume(request)).await;
        grown.unwrap();
        first + second
    }

    /// `lvextend -r` of the bare one.
    fn bare_grow(&self, mebibytes: i64) -> Duration {
        let size = format!("{}b", mebibytes * MIB);
        let volume = format!("{}/bare", self.group);
        bare(&["lvextend", "-q", "-r", "-L", &size, &volume])
    }

    async fn grows(&self, table: &mut Table) {
        let at = (self.staging.as_str(), self.target.as_str());
        self.stage().await;
        let request = publish(&self.id, at, &mounted("ext4"));
        let mut node = self.agent.node();
        node.node_publish_volume(request).await.unwrap();
        run("mount", &[&self.device, &self.mount_point]);
        let pool = format!("{}/pool", self.group);
        lvm("lvcreate", &["-V", "16M", "-T", &pool, "-n", "written"]);
        let writer = Writer::start(&format!("/dev/{}/written", self.group));
        let [mut ours, mut theirs, mut our_stalls, mut their_stalls] = [const { Vec::new() }; 4];
        for step in 1..=3 {
            let size = 64 + step * 16;
            writer.longest();
            ours.push(self.grow(size).await);
            our_stalls.push(writer.longest());
            theirs.push(self.bare_grow(size));
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
        let stall = median(our_stalls).as_secs_f64() * 1000.0;
        table.most(&figure, stall, 40.0, "ms");
        run("umount", &[&self.mount_point]);
        node.node_unpublish_volume(unpublish(&self.id, at.1))
            .await
            .unwrap();
        self.unstage().await;
    }
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
