//! Unresponsive disks: how LVM is kept from waiting for them.
//!
//! LVM reads every disk of the host whenever its hints are out of date: a device came or went, or udevd ran `pvscan`.
//! One read that never ends then blocks changes of groups that do not use that disk. So when something seems to hang,
//! each disk is read once with a deadline, and unresponsive ones are hidden from LVM's commands for other groups
//! until they answer. A group's own disks are never hidden from its commands: LVM would treat them as lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::system_dir;
use crate::{
    blocking_at_once, decrypted_devices,
    host::{
        exec::Program,
        lock,
        read_probe::{self, Pending, number},
    },
};

/// Timeout for reading one block from a working disk on a busy host.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for which a result is reused: hundreds of calls may ask at the same time.
const FRESH: Duration = Duration::from_secs(10);
/// All names in `/dev` of the disks that are known to be unresponsive, by their device number.
static NAMES: Mutex<BTreeMap<u64, BTreeSet<PathBuf>>> = Mutex::new(BTreeMap::new());
/// The contents of the host's own `devices/filter`, without its brackets.
static HOSTS_FILTER: Mutex<String> = Mutex::new(String::new());

fn is_silent(since: &Instant) -> bool {
    since.elapsed() >= PATIENCE
}

/// The names of the disks that are silent now.
fn silent() -> BTreeMap<u64, BTreeSet<PathBuf>> {
    let pending = read_probe::pending();
    let mut names = lock(&NAMES);
    names.retain(|number, _| pending.contains_key(number));
    let silent = names
        .iter()
        .filter(|(number, _)| pending.get(number).is_some_and(is_silent));
    silent
        .map(|(number, names)| (*number, names.clone()))
        .collect()
}

/// Reads a block of each disk of the host; disks that do not answer within a second are hidden from then on.
pub(crate) async fn look_for() {
    static LAST: tokio::sync::Mutex<Option<Instant>> = tokio::sync::Mutex::const_new(None);
    let mut last = LAST.lock().await;
    if last.is_some_and(|last| last.elapsed() < FRESH) {
        return;
    }
    let found = blocking_at_once(|| Ok(ask_all())).await.unwrap_or_default();
    if !found.is_empty() {
        tracing::warn!(disks = ?found, "unresponsive disks found; hiding them from LVM commands for volume groups that do not use them");
        keep_hosts_filter().await;
    }
    *last = Some(Instant::now());
}

/// Reads the host's own filter, which holds beside ours.
pub(crate) async fn keep_hosts_filter() {
    let hosts = hosts_filter().await;
    *lock(&HOSTS_FILTER) = hosts;
}

/// How an LVM command is kept from reading unresponsive disks and decrypted devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DiskFilter {
    /// By a setting that rejects them.
    Setting(String),
    /// By a comma-separated list of the disks that it may read: filters have no effect where there is a devices file.
    Only(String),
}

/// The option that hides the unresponsive disks from LVM, except the group's own, and decrypted devices; none when all
/// answer and there are none. A search for the disks of a group passes no own disks.
pub(crate) async fn hiding(own: &[PathBuf]) -> Option<DiskFilter> {
    let decrypted = decrypted_devices::pattern().await;
    let numbers: BTreeSet<u64> = own.iter().filter_map(|path| number(path).ok()).collect();
    let hosts = lock(&HOSTS_FILTER);
    let mut silent = silent();
    silent.retain(|number, _| !numbers.contains(number));
    let setting = setting(silent.values().flatten(), decrypted, &hosts)?;
    let Some(mut listed) = system_dir::listed_disks() else {
        return Some(DiskFilter::Setting(setting));
    };
    // A devices file lists no decrypted devices.
    if silent.is_empty() {
        return None;
    }
    if !own.is_empty() {
        own.clone_into(&mut listed);
    }
    listed.retain(|path| number(path).is_ok_and(|number| !silent.contains_key(&number)));
    let listed: Option<Vec<&str>> = listed.iter().map(|path| path.to_str()).collect();
    Some(DiskFilter::Only(listed?.join(",")))
}

/// The names of the unresponsive disks, for messages.
pub(crate) fn names() -> Vec<String> {
    let silent = silent();
    let first = silent.values().filter_map(BTreeSet::first);
    first.map(|name| name.display().to_string()).collect()
}

fn setting<'a>(
    names: impl Iterator<Item = &'a PathBuf>,
    decrypted: Option<String>,
    hosts: &str,
) -> Option<String> {
    let patterns = names.filter_map(|name| pattern(name)).chain(decrypted);
    let patterns: Vec<String> = patterns.collect();
    if patterns.is_empty() {
        return None;
    }
    let hosts = (!hosts.is_empty()).then(|| hosts.to_owned());
    let all: Vec<String> = patterns.into_iter().chain(hosts).collect();
    Some(format!("devices/filter=[{}]", all.join(",")))
}

/// The filter pattern that rejects exactly this name; none for a name that cannot be quoted, which no disk has.
fn pattern(name: &Path) -> Option<String> {
    let mut quoted = String::new();
    for character in name.to_str()?.chars() {
        match character {
            '\'' | '"' | '|' | '\\' | '^' | ']' => return None,
            'a'..='z' | 'A'..='Z' | '0'..='9' | '/' | '-' | '_' | ':' => quoted.push(character),
            other => quoted.extend(['[', other, ']']),
        }
    }
    Some(format!("\"r|^{quoted}$|\""))
}

/// Reads all disks, and returns those that are newly found to be unresponsive.
fn ask_all() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/partitions").unwrap_or_default();
    let known = read_probe::pending();
    let disks = disks_in(&table, is_logical_volume);
    for disk in disks {
        if let Ok(number) = number(&disk) {
            read_probe::begin(disk, number);
        }
    }
    let have_answered = |pending: &Pending| pending.values().all(is_silent);
    let pending = read_probe::wait_until(Instant::now() + PATIENCE, have_answered);
    let new: BTreeSet<u64> = pending
        .into_keys()
        .filter(|number| !known.contains_key(number))
        .collect();
    if new.is_empty() {
        return Vec::new();
    }
    let names = names_below(Path::new("/dev"), &new);
    let first = names.values().filter_map(|names| names.first().cloned());
    let found = first.collect();
    lock(&NAMES).extend(names);
    found
}

/// The disks and partitions in the kernel's table, except logical volumes, which LVM does not scan.
fn disks_in(table: &str, is_logical_volume: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    // Two lines of headings: "major minor  #blocks  name", and an empty one.
    let names = table
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().nth(3));
    let disks = names.filter(|name| !is_logical_volume(name));
    disks
        .map(|name| Path::new("/dev").join(name.replace('!', "/")))
        .collect()
}

fn is_logical_volume(name: &str) -> bool {
    let uuid = fs::read_to_string(format!("/sys/block/{name}/dm/uuid"));
    uuid.is_ok_and(|uuid| uuid.starts_with("LVM-"))
}

/// All names of these devices below a directory.
fn names_below(directory: &Path, numbers: &BTreeSet<u64>) -> BTreeMap<u64, BTreeSet<PathBuf>> {
    let mut found: BTreeMap<u64, BTreeSet<PathBuf>> = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(path);
            } else if let Ok(number) = number(&path)
                && numbers.contains(&number)
            {
                found.entry(number).or_default().insert(path);
            }
        }
    }
    found
}

/// The host's `devices/filter`, which ours would replace; empty if it has none.
async fn hosts_filter() -> String {
    let asked = Program::reading("lvm").args(["lvmconfig", "devices/filter"]);
    let Ok(output) = asked.run().await else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let inner = text.trim().strip_prefix("filter=").unwrap_or_default();
    inner
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_rejected_and_what_looks_like_it_is_not() {
        assert_eq!(pattern(Path::new("/dev/sda")).unwrap(), "\"r|^/dev/sda$|\"");
        assert_eq!(
            pattern(Path::new("/dev/disk/by-id/a.b+c")).unwrap(),
            "\"r|^/dev/disk/by-id/a[.]b[+]c$|\""
        );
        assert_eq!(pattern(Path::new("/dev/a|b")), None);
    }

    #[test]
    fn the_hosts_own_filter_holds_behind_ours() {
        let names = [PathBuf::from("/dev/sda")];
        assert_eq!(setting([].iter(), None, "\"a|.*|\""), None);
        assert_eq!(
            setting(names.iter(), None, "").unwrap(),
            "devices/filter=[\"r|^/dev/sda$|\"]"
        );
        assert_eq!(
            setting(names.iter(), None, "\"r|/dev/sdz|\",\"a|.*|\"").unwrap(),
            "devices/filter=[\"r|^/dev/sda$|\",\"r|/dev/sdz|\",\"a|.*|\"]"
        );
        let decrypted = Some("\"r|^/dev/mapper/drumlin-|\"".to_owned());
        assert_eq!(
            setting([].iter(), decrypted, "\"a|.*|\"").unwrap(),
            "devices/filter=[\"r|^/dev/mapper/drumlin-|\",\"a|.*|\"]"
        );
    }

    #[test]
    fn logical_volumes_are_not_asked() {
        let table = "major minor  #blocks  name\n\n   8        0  976762584 sda\n 254        3  4096 dm-3\n 104        0  4096 cciss!c0d0\n";
        let disks = disks_in(table, |name| name == "dm-3");
        assert_eq!(
            disks,
            [PathBuf::from("/dev/sda"), PathBuf::from("/dev/cciss/c0d0")]
        );
    }
}
