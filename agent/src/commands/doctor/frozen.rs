//! File systems whose writers wait, and thaw watchdogs without their agent.
//!
//! The kernel does not tell which file systems are frozen, and to try it would freeze or thaw them. There are three signs:
//! the marker that an agent leaves before it freezes one for a copy, processes that wait for one to be thawed, and for
//! device-mapper the state of the device, which is looked at with the volume groups.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use drumlin_core::{
    backend::directory::{self, LeftoverKind},
    host::{MountTable, loop_device},
};

use super::{
    check::Check,
    finding::{Finding, shell},
    own_mounts::{self, OwnMount},
    subject::Subject,
};

/// Functions of the kernel in which a writer waits for a file system to be thawed.
const WAITING: [&str; 3] = ["percpu_rwsem_wait", "percpu_down_read", "sb_start_write"];

/// Looks for the signs.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let table = match MountTable::read() {
        Ok(table) => table,
        Err(error) => return vec![Finding::not_checked("frozen file systems", error.chain())],
    };
    let mounts = match own_mounts::find(subject, &table) {
        Ok(mounts) => mounts,
        Err(why) => return vec![Finding::not_checked("frozen file systems", why)],
    };
    let mut found = Vec::new();
    if subject.agent.is_none() {
        found.extend(markers(subject, &mounts));
    }
    found.extend(waiting(&mounts));
    found.extend(watchdogs(&mounts));
    found
}

/// Markers of an agent that died while it copied a mounted volume.
fn markers(subject: &Subject, mounts: &[OwnMount]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (_, settings) in subject.directories() {
        let Ok(survey) = directory::survey(&settings.path) else {
            continue;
        };
        let marks = survey
            .leftovers
            .iter()
            .filter(|left| left.kind == LeftoverKind::Frozen);
        for mark in marks {
            let image = survey.images.iter().find(|one| one.image.id == mark.id);
            let devices = image.and_then(|image| loop_device::find(&image.file).ok());
            let devices = devices.unwrap_or_default();
            let mount = mounts
                .iter()
                .find(|own| devices.iter().any(|device| device.path == own.device));
            let message = format!(
                "an agent that died may have left the file system of {} frozen ({})",
                mark.id,
                mark.path.display()
            );
            let finding = match mount {
                Some(own) => Finding::at(Check::FrozenFileSystem, &own.mount.target, message)
                    .command(thaw(&own.mount.target)),
                None => Finding::at(Check::FrozenFileSystem, &mark.path, message),
            };
            let finding = finding.since_change_of(&mark.path);
            found.push(finding.advice("start the agent, which thaws it and removes the marker"));
        }
    }
    found
}

fn thaw(target: &Path) -> String {
    format!("fsfreeze --unfreeze {}", shell(target))
}

/// Processes that wait for a file system to be thawed, which they have open.
fn waiting(mounts: &[OwnMount]) -> Vec<Finding> {
    let mut devices: BTreeMap<u64, &OwnMount> = BTreeMap::new();
    for own in mounts.iter().filter(|own| own.mount.fs_type != "devtmpfs") {
        if let Ok(file) = fs::metadata(&own.mount.target) {
            devices.entry(file.dev()).or_insert(own);
        }
    }
    let mut found: BTreeMap<&Path, Vec<String>> = BTreeMap::new();
    for process in processes() {
        if !is_waiting(&process) {
            continue;
        }
        let on = files(&process).find_map(|device| devices.get(&device));
        if let Some(own) = on {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let pid = process.file_name().unwrap_or_default().display();
            let process = format!("{pid} ({})", name.trim());
            found.entry(&own.mount.target).or_default().push(process);
        }
    }
    found
        .into_iter()
        .map(|(target, processes)| {
            let message = format!(
                "writers wait as for a file system that is frozen: process {}",
                processes.join(", ")
            );
            Finding::at(Check::FrozenFileSystem, target, message)
                .command(thaw(target))
                .advice("first make sure that no backup has frozen it on purpose")
        })
        .collect()
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// Returns true if a thread of a process waits in one of these functions.
fn is_waiting(process: &Path) -> bool {
    let threads = fs::read_dir(process.join("task"))
        .into_iter()
        .flatten()
        .flatten();
    let mut threads = threads.map(|thread| thread.path());
    threads.any(|thread| {
        let stat = fs::read_to_string(thread.join("stat")).unwrap_or_default();
        let state = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        state == Some('D') && {
            let place = fs::read_to_string(thread.join("wchan")).unwrap_or_default();
            WAITING.iter().any(|name| place.contains(name))
        }
    })
}

/// The devices of the file systems that a process has files or its working directory on.
fn files(process: &Path) -> impl Iterator<Item = u64> {
    let open = fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    let links = open.map(|entry| entry.path()).chain([process.join("cwd")]);
    links.filter_map(|link| {
        // Only what has a path can be on a volume.
        let is_path = fs::read_link(&link).is_ok_and(|path| path.starts_with("/"));
        is_path
            .then(|| fs::metadata(&link).ok())?
            .map(|file| file.dev())
    })
}

/// Thaw watchdogs of volumes of ours whose agent has died, and that have not ended.
fn watchdogs(mounts: &[OwnMount]) -> Vec<Finding> {
    let mut found = Vec::new();
    for process in processes() {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        if !line.ends_with(b"\0thaw-watchdog\0") || has_agent(&process) {
            continue;
        }
        let devices: Vec<u64> = files(&process).collect();
        let own = mounts.iter().find(|own| {
            fs::metadata(&own.mount.target).is_ok_and(|file| devices.contains(&file.dev()))
        });
        let Some(own) = own else { continue };
        let pid = process
            .file_name()
            .unwrap_or_default()
            .display()
            .to_string();
        let message = format!(
            "its agent has died, and it has not resumed the writers of {} yet; it may be stopped, or wait for a disk",
            own.mount.target.display()
        );
        found.push(
            Finding::new(
                Check::LeftoverThawWatchdog,
                format!("process {pid}"),
                message,
            )
            .command(format!("kill -CONT {pid}")),
        );
    }
    found
}

/// Returns true if the parent of a watchdog is the agent that started it.
fn has_agent(process: &Path) -> bool {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    let parent = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.split(' ').nth(1));
    let parent = parent.unwrap_or("0");
    let line = fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
    let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"drumlin"))
}
