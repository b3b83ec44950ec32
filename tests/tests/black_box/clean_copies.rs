//! A copy of a mounted volume that a group snapshot has needs no repair: its log is clean, although files were being
//! made and removed in it. Copies that nobody froze are looked at in the same way, and must be found out.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{
    CreateVolumeRequest, NodePublishVolumeRequest, VolumeCapability,
    volume_capability::access_mode::Mode,
};
use drumlin_tests::{
    agent::{Agent, is_over_lvm},
    programs::{output, run},
    requests::{
        create, delete, delete_group_snapshot, for_mode, from_snapshot, mounted, publish, stage,
    },
};

use crate::{
    group_snapshots::{take, with_reflinks},
    helpers::{bytes_of, mount, ok, paths, unmount, volume},
};

/// So many group snapshots are looked at.
const MOMENTS: usize = 4;
/// So many tries a copy that nobody froze has to be found out.
const TRIES: usize = 20;
/// So many files a worker keeps.
const KEPT: u64 = 8;
/// The file systems, each with a size in mebibytes that they take.
const FILE_SYSTEMS: [(&str, i64); 3] = [("ext4", 128), ("xfs", 300), ("btrfs", 256)];

/// Somebody who makes files and removes them, each brought to the disk.
struct Worker {
    stops: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
    thread: JoinHandle<io::Result<()>>,
}

impl Worker {
    /// One who goes on after the last file that is there.
    fn of(directory: &str) -> Self {
        let last = last_in(Path::new(directory));
        let (stops, made) = (Arc::<AtomicBool>::default(), Arc::new(AtomicU64::new(last)));
        let (asked, seen, directory) = (stops.clone(), made.clone(), PathBuf::from(directory));
        let thread = thread::spawn(move || {
            for number in last + 1.. {
                if asked.load(Ordering::SeqCst) {
                    break;
                }
                make(&directory, number)?;
                seen.store(number, Ordering::SeqCst);
            }
            Ok(())
        });
        Self {
            stops,
            made,
            thread,
        }
    }

    /// The number of the last file that is on the disk.
    fn made(&self) -> u64 {
        self.made.load(Ordering::SeqCst)
    }

    /// Waits until so many more files were made.
    fn goes_on(&self, files: u64) {
        let wanted = self.made() + files;
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.made() < wanted {
            assert!(Instant::now() < deadline, "the worker is stuck");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn stop(self) {
        self.stops.store(true, Ordering::SeqCst);
        self.thread.join().unwrap().unwrap();
    }
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(700)
}

fn make(directory: &Path, number: u64) -> io::Result<()> {
    let passing = directory.join("passing");
    let mut file = File::create(&passing)?;
    file.write_all(&content(number))?;
    file.sync_all()?;
    fs::rename(&passing, directory.join(format!("file-{number}")))?;
    File::open(directory)?.sync_all()?;
    if number > KEPT {
        fs::remove_file(directory.join(format!("file-{}", number - KEPT)))?;
    }
    Ok(())
}

/// The number of the last file that a worker has made in what is mounted here; those before it must be whole.
fn last_in(directory: &Path) -> u64 {
    let names = fs::read_dir(directory).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let number = |name: String| name.strip_prefix("file-")?.parse::<u64>().ok();
    let numbers: Vec<u64> = names.filter_map(number).collect();
    let last = numbers.iter().copied().max().unwrap_or_default();
    // The oldest one may be being removed.
    for number in last.saturating_sub(KEPT - 1).max(1)..=last {
        let path = directory.join(format!("file-{number}"));
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(bytes, content(number), "{}", path.display());
    }
    last
}

/// What must be taken out of the log of a copy before all of its files are seen.
fn left_in_log(copy: &Path, fs_type: &str) -> Option<String> {
    let copy = copy.to_string_lossy();
    let (printed, has_more) = match fs_type {
        "ext4" => {
            let printed = run("dumpe2fs", &["-h", &copy]);
            let has_more = printed.contains("needs_recovery");
            (printed, has_more)
        }
        "xfs" => {
            let printed = run("xfs_logprint", &["-t", &copy]);
            // A freeze leaves the superblock in it on purpose: the next mount has to look for files that were removed while
            // they were open.
            let of_superblock = printed.matches("SUPER Block Buffer").count();
            let has_more = printed.matches("TRANS:").count() > of_superblock;
            (printed, has_more)
        }
        _ => {
            let printed = run("btrfs", &["inspect-internal", "dump-super", &copy]);
            let mut lines = printed.lines().map(str::split_whitespace);
            let has_none = lines.any(|words| words.eq(["log_root", "0"]));
            (printed, !has_none)
        }
    };
    has_more.then(|| format!("{fs_type}: {printed}"))
}

/// Has the file system's own program check a copy, which it does not touch.
fn check(copy: &Path, fs_type: &str) {
    let of_file = if copy.is_file() { "-f" } else { "-d" };
    let copy = copy.to_string_lossy();
    match fs_type {
        "ext4" => run("e2fsck", &["-fn", &copy]),
        "xfs" => run("xfs_repair", &["-n", of_file, &copy]),
        _ => run("btrfs", &["check", "--readonly", &copy]),
    };
}

/// Mounts a copy for reading only, and looks at its files; or why it cannot be mounted.
fn last_of(agent: &Agent, copy: &Path, fs_type: &str) -> Result<u64, String> {
    // From a device that is for reading only no log can be taken away; an xfs does that with its superblock's.
    let (access, options) = match fs_type {
        "xfs" => (None, "ro,nouuid"),
        _ => (Some("--read-only"), "ro"),
    };
    // Of two btrfs of one id it may be the other one.
    output("btrfs", &["device", "scan", "--forget"]);
    let words = access.into_iter().chain(["--find", "--show"]);
    let words: Vec<&str> = words.chain(copy.to_str()).collect();
    let device = run("losetup", &words);
    let target = agent.scratch.directory("copy");
    let target = target.to_str().unwrap();
    let words = ["-t", fs_type, "-o", options, device.trim(), target];
    let mounted = output("mount", &words);
    let last = if mounted.status.success() {
        let last = last_in(Path::new(target));
        run("umount", &[target]);
        Ok(last)
    } else {
        Err(String::from_utf8_lossy(&mounted.stderr).into_owned())
    };
    run("losetup", &["--detach", device.trim()]);
    last
}

/// A volume with a file system.
struct Volume {
    fs_type: &'static str,
    mebibytes: i64,
    id: String,
}

/// What is done with it.
struct Use {
    at: (String, String),
    worker: Worker,
}

async fn volumes(agent: &Agent) -> Vec<Volume> {
    let mut volumes = Vec::new();
    for (fs_type, mebibytes) in FILE_SYSTEMS {
        let id = volume(agent, fs_type, mebibytes, &mounted(fs_type)).await;
        volumes.push(Volume {
            fs_type,
            mebibytes,
            id,
        });
    }
    volumes
}

/// Has all of them used, until each has seen some files come and go.
async fn begin(agent: &Agent, volumes: &[Volume]) -> Vec<Use> {
    let mut uses = Vec::new();
    for volume in volumes {
        let capability = mounted(volume.fs_type);
        let at = mount(agent, volume.fs_type, &volume.id, &capability).await;
        let worker = Worker::of(&at.1);
        uses.push(Use { at, worker });
    }
    go_on(&uses);
    uses
}

fn go_on(uses: &[Use]) {
    for used in uses {
        used.worker.goes_on(KEPT + 2);
    }
}

fn made(uses: &[Use]) -> Vec<u64> {
    uses.iter().map(|used| used.worker.made()).collect()
}

async fn end(agent: &Agent, volumes: &[Volume], uses: Vec<Use>) {
    for (volume, used) in volumes.iter().zip(uses) {
        used.worker.stop();
        unmount(agent, &volume.id, &used.at).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_member_has_a_clean_log_and_needs_no_repair() {
    let agent = with_reflinks(4 << 10).await;
    let volumes = volumes(&agent).await;
    let ids: Vec<String> = volumes.iter().map(|volume| volume.id.clone()).collect();
    for number in 0..MOMENTS {
        let uses = begin(&agent, &volumes).await;
        let before = made(&uses);
        let taken = take(&agent, &format!("g{number}"), &ids).await;
        let after = made(&uses);
        // Two btrfs of one id cannot be mounted together on every kernel, and a thick copy has room for some changes only.
        end(&agent, &volumes, uses).await;
        for (index, volume) in volumes.iter().enumerate() {
            let fs_type = volume.fs_type;
            let mut members = taken.snapshots.iter();
            let member = members.find(|member| member.source_volume_id == volume.id);
            let snapshot = &member.unwrap().snapshot_id;
            let copy = bytes_of(&agent, snapshot);
            let left = left_in_log(&copy, fs_type);
            assert_eq!(left, None, "snapshot {number}");
            let mut lasts = vec![last_of(&agent, &copy, fs_type).unwrap()];
            check(&copy, fs_type);
            if number == 0 {
                lasts.push(restored(&agent, volume, snapshot).await);
            }
            let expected = before[index]..=after[index] + 1;
            for last in lasts {
                assert!(expected.contains(&last), "{fs_type}: {last} {expected:?}");
            }
        }
        let mut groups = agent.group_controller();
        ok(groups
            .delete_volume_group_snapshot(delete_group_snapshot(&taken))
            .await);
    }
}

/// The last file in a volume that is made from a snapshot, and published for reading only.
async fn restored(agent: &Agent, volume: &Volume, snapshot: &str) -> u64 {
    let (name, capability) = (
        format!("restored-{}", volume.fs_type),
        mounted(volume.fs_type),
    );
    let request = CreateVolumeRequest {
        volume_content_source: from_snapshot(snapshot),
        ..create(&name, volume.mebibytes, &capability)
    };
    let made = ok(agent.controller().create_volume(request).await);
    let id = made.volume.unwrap().volume_id;
    let at = read(agent, &name, &id, &capability).await;
    let last = last_in(Path::new(&at.1));
    unmount(agent, &id, &at).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
    last
}

async fn read(
    agent: &Agent,
    name: &str,
    id: &str,
    capability: &VolumeCapability,
) -> (String, String) {
    let capability = for_mode(capability, Mode::SingleNodeReaderOnly);
    let (staging, target) = paths(agent, name);
    let request = stage(id, &staging, &capability);
    ok(agent.node().node_stage_volume(request).await);
    let request = NodePublishVolumeRequest {
        readonly: true,
        ..publish(id, (&staging, &target), &capability)
    };
    ok(agent.node().node_publish_volume(request).await);
    (staging, target)
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_file_systems_that_nobody_froze_are_found_out() {
    let agent = with_reflinks(4 << 10).await;
    let volumes = volumes(&agent).await;
    let uses = begin(&agent, &volumes).await;
    let mut found = BTreeSet::new();
    for _ in 0..TRIES {
        for Volume { fs_type, id, .. } in &volumes {
            let copy = unfrozen(&agent, id);
            let has_log = left_in_log(&copy, fs_type).is_some();
            // An xfs can be mounted with any log.
            let mounts = || last_of(&agent, &copy, fs_type).is_ok();
            if has_log && (*fs_type == "xfs" || !mounts()) {
                found.insert(*fs_type);
            }
            fs::remove_file(&copy).unwrap();
        }
        if found.len() == volumes.len() {
            end(&agent, &volumes, uses).await;
            return;
        }
        go_on(&uses);
    }
    panic!("copies that nobody froze were taken for good, but for {found:?}");
}

/// A copy of what is on a volume's device while it is used.
fn unfrozen(agent: &Agent, id: &str) -> PathBuf {
    let from = bytes_of(agent, id);
    if !is_over_lvm() {
        let to = from.with_file_name("wrong");
        let (from, to_text) = (from.to_string_lossy(), to.to_string_lossy());
        run("cp", &["--reflink=always", &from, &to_text]);
        return to;
    }
    // A snapshot of LVM's own would freeze it.
    let to = agent.path("wrong");
    let (input, result) = (
        format!("if={}", from.display()),
        format!("of={}", to.display()),
    );
    let words = ["bs=1M", "iflag=direct", "conv=sparse", "status=none"];
    run("dd", &[&[input.as_str(), &result], &words[..]].concat());
    to
}
