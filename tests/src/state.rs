//! Everything that an agent has to do with: files, records, loop devices, mounts, frozen file systems.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    agent::PATIENCE,
    programs::run,
    storage::{attached_images_below, lvm, mounts_below},
};

/// A state, without what differs from run to run: times, device numbers, the ids of file systems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Files by path, each with its size, or for a record what it says.
    pub files: BTreeMap<PathBuf, String>,
    /// Images that have a loop device, as often as they have one.
    pub loop_devices: Vec<String>,
    /// What is mounted, with its access.
    pub mounts: Vec<String>,
    /// Mounts of frozen file systems.
    pub frozen: Vec<String>,
    /// The logical volumes of the volume group, each with its size, its tags, and whether it has a device; and the tags of
    /// the group.
    pub volumes: Vec<String>,
}

impl State {
    /// The state of everything below `root`, with `root` itself left out of all paths, once nothing of it is on its way
    /// out: what an interrupted call has left is removed beside other calls.
    pub fn of(root: &Path) -> Self {
        let begun = Instant::now();
        loop {
            let now = Self::now(root);
            let is_leaving = |path: &PathBuf| path.to_string_lossy().contains("/.deleting-");
            if begun.elapsed() > PATIENCE || !now.files.keys().any(is_leaving) {
                return now;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn now(root: &Path) -> Self {
        let shown = root.to_string_lossy().into_owned();
        let mut files = BTreeMap::new();
        for part in ["state/images", "targets", "staging"] {
            collect(&root.join(part), root, &mut files);
        }
        let mut loop_devices: Vec<String> = attached_images_below(&shown)
            .iter()
            .map(|device| backing(device, &shown))
            .collect();
        loop_devices.sort();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let ours = mounts_below(&shown);
        let mut mounts: Vec<String> = table
            .lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                let target = *fields.get(4)?;
                let is_ours = ours.iter().any(|mount| mount == target);
                let access = fields.get(5)?.split(',').next()?;
                is_ours.then(|| format!("{} {access}", target.replace(&shown, "")))
            })
            .collect();
        mounts.sort();
        let frozen = ours
            .iter()
            .filter(|target| is_frozen(target))
            .map(|target| target.replace(&shown, ""))
            .collect();
        Self {
            files,
            loop_devices,
            mounts,
            frozen,
            volumes: volumes(root),
        }
    }
}

/// What LVM says of the volumes in the group of the scratch directory at `root`, if it has one; all in order besides.
fn volumes(root: &Path) -> Vec<String> {
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    if std::env::var_os("DRUMLIN_LAB").is_none() {
        return Vec::new();
    }
    let columns = "lv_name,lv_size,lv_active,lv_health_status,lv_suspended,lv_tags";
    let listed = lvm(
        "lvs",
        &["--noheadings", "--separator", "|", "-o", columns, &name],
    );
    // The pool itself has a device of its own or none; what is in it works either way.
    let listed = listed
        .lines()
        .filter(|line| !line.trim().starts_with("pool|"));
    let mut volumes: Vec<String> = listed.map(volume).collect();
    volumes.sort();
    let tags = lvm("vgs", &["--noheadings", "-o", "vg_tags", &name]);
    let mut tags: Vec<String> = tags
        .trim()
        .split(',')
        .filter(|tag| !tag.contains(":l.created="))
        .map(|tag| masked(tag, "+22"))
        .collect();
    tags.sort_unstable();
    volumes.push(tags.join(","));
    assert_devices_work(&name);
    volumes
}

/// Checks that no device of a volume group is suspended, or half-made.
///
/// # Panics
/// When one is, with its state.
pub fn assert_devices_work(group: &str) {
    let columns = "name,suspended,tables_loaded";
    let devices = run("dmsetup", &["info", "-c", "--noheadings", "-o", columns]);
    let prefix = group.replace('-', "--");
    for device in devices.lines() {
        let is_ours = device.trim().starts_with(&prefix);
        assert!(!is_ours || device.contains(":Active:Live"), "{device}");
    }
}

/// Checks that a volume group knows all devices that are in a pool of it, and no others, and that none had to be set aside.
///
/// # Panics
/// When there are others, with the numbers of all, or one was set aside.
pub fn assert_pool_is_known(group: &str, pool: &str) {
    lvm("lvchange", &["-ay", &format!("{group}/{pool}")]);
    let mapped = format!("{}-{pool}", group.replace('-', "--"));
    let tell = |what| {
        run(
            "dmsetup",
            &["message", &format!("{mapped}-tpool"), "0", what],
        )
    };
    tell("reserve_metadata_snap");
    let metadata = format!("/dev/mapper/{mapped}_tmeta");
    let words = ["--metadata-snap", "--no-headers", "-o", "DEV", &metadata];
    let listed = run("thin_ls", &words);
    tell("release_metadata_snap");
    let numbers = |text: &str| {
        let words = text.split_whitespace();
        let mut numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    };
    let known = lvm("lvs", &["--noheadings", "-o", "thin_id", group]);
    assert_eq!(
        numbers(&listed),
        numbers(&known),
        "devices of the pool, and those that the group knows"
    );
    let names = lvm("lvs", &["--noheadings", "-o", "lv_name", group]);
    assert!(!names.contains("orphan"), "{names}");
}

/// A line without what differs from run to run.
fn volume(line: &str) -> String {
    let (values, tags) = line.trim().rsplit_once('|').unwrap_or_default();
    let mut tags: Vec<String> = tags
        .split(',')
        .filter(|tag| !tag.starts_with("drumlin.l.created="))
        // Without the digest of a path.
        .map(|tag| if tag.starts_with(STAGED) { STAGED } else { tag })
        .map(|tag| masked(tag, "+22"))
        .collect();
    tags.sort_unstable();
    format!("{values} {}", tags.join(","))
}

fn collect(path: &Path, root: &Path, files: &mut BTreeMap<PathBuf, String>) {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return;
    };
    let name = path.strip_prefix(root).unwrap_or(path).to_owned();
    if metadata.is_dir() {
        files.insert(name, "directory".to_owned());
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            // What is inside a mounted volume is not the agent's.
            if entry.file_name() != "lost+found" {
                collect(&entry.path(), root, files);
            }
        }
        return;
    }
    let says = if path.file_name().is_some_and(|name| name == "record.json") {
        record(path)
    } else {
        format!("{} bytes", metadata.len())
    };
    files.insert(name, says);
}

/// How the record of a raw staging begins.
const RAW: &str = "raw:";
/// And the tag of one.
const STAGED: &str = "drumlin.l.staged=raw";

/// A record without what differs from run to run.
fn record(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let Ok(mut record) = serde_json::from_slice::<Value>(&bytes) else {
        return "broken".to_owned();
    };
    if let Some(labels) = record.get_mut("labels").and_then(Value::as_object_mut) {
        labels.remove("created");
        // The digest of a path, which is another one in every run.
        if let Some(Value::String(staged)) = labels.get_mut("staged") {
            staged.truncate(RAW.len());
        }
    }
    masked(&record.to_string(), "\\\"")
}

/// Parameters without what makes an object that is made again another one, which differs from run to run.
fn masked(text: &str, quote: &str) -> String {
    let mut parts: Vec<&str> = text.split(quote).collect();
    let key = parts.iter().position(|part| part.ends_with("/incarnation"));
    if let Some(value) = key.and_then(|key| parts.get_mut(key + 2)) {
        *value = "-";
    }
    parts.join(quote)
}

fn backing(device: &str, root: &str) -> String {
    let name = device.trim_start_matches("/dev/");
    let file =
        fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).unwrap_or_default();
    let read_only = fs::read_to_string(format!("/sys/block/{name}/ro")).unwrap_or_default();
    format!("{} ro={}", file.trim().replace(root, ""), read_only.trim())
}

/// A second freeze of a frozen file system is refused; the try must leave it as it was.
fn is_frozen(target: &str) -> bool {
    use crate::programs::output;
    let tried = output("fsfreeze", &["--freeze", target]);
    if tried.status.success() {
        output("fsfreeze", &["--unfreeze", target]);
        return false;
    }
    // Other reasons to refuse: a read-only mount, a bind of a device node.
    tried.stderr.windows(4).any(|part| part == b"busy")
}
