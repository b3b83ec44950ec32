//! Directory classes: their directory and its file system, half-made images, and records.

use std::{fs, io, os::unix::fs::MetadataExt};

use drumlin_core::{
    backend::{
        Health,
        directory::{self, Allocation, DirectorySettings, Leftover, LeftoverKind, Missing, Survey},
    },
    host::{Disk, MountTable, file_locks, loop_device},
    types::{ClassName, ImageKind},
};

use super::{
    check::Check,
    finding::{Finding, quoted},
    subject::Subject,
};

/// A file system with so much in use, in percent, is nearly full.
const FULL: u64 = 90;
/// File systems that share blocks between files, or may.
const REFLINKS: [&str; 4] = ["xfs", "btrfs", "bcachefs", "overlay"];

/// Looks at each directory class.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let classes = subject.directories();
    classes
        .flat_map(|(name, settings)| class(subject, name, settings))
        .collect()
}

fn class(subject: &Subject, name: &ClassName, settings: &DirectorySettings) -> Vec<Finding> {
    let path = &settings.path;
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && settings.missing == Missing::Create =>
        {
            // It is created with the first volume.
            return Vec::new();
        }
        // It may be there, and as it shall be.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let object = path.display().to_string();
            return vec![Finding::not_checked(object, error)];
        }
        Err(error) => {
            let mut classes = subject.classes.iter();
            let is_retired = classes.any(|class| class.name == *name && class.is_retired);
            let (retired, advice) = if is_retired {
                (
                    ", which is retired,",
                    "mount the file system that it is on; if the class never had volumes, create it: the agent forgets the class then",
                )
            } else {
                ("", "create it, or mount the file system that it is on")
            };
            let message = format!("the directory of class {name}{retired} cannot be used: {error}");
            return vec![Finding::at(Check::DirectoryMissing, path, message).advice(advice)];
        }
    };
    let mut found = replaced(subject, name, settings, metadata.dev());
    found.extend(file_system(name, settings));
    match directory::survey(path) {
        Ok(survey) => {
            found.extend(owner(name, settings, &survey));
            found.extend(promised(name, settings, &survey));
            found.extend(images(name, &survey));
            if subject.agent.is_none() {
                found.extend(survey.leftovers.iter().filter_map(leftover));
            }
        }
        Err(error) => found.push(Finding::not_checked(format!("class {name}"), error.chain())),
    }
    found
}

/// Whether the images that are in use are those of another directory than the one that is there now.
fn replaced(
    subject: &Subject,
    name: &ClassName,
    settings: &DirectorySettings,
    device: u64,
) -> Vec<Finding> {
    let path = &settings.path;
    let advice = "unmount what was mounted over it, or mount the former file system again; then restart the agent";
    let mut found = Vec::new();
    let agent = subject.agent.as_ref();
    if agent.is_some_and(|agent| file_locks::has_open_before(agent.pid, path)) {
        let message = format!(
            "the agent has another directory of class {name} open than the one that is there now"
        );
        found.push(Finding::at(Check::DirectoryReplaced, path, message).advice(advice));
        return found;
    }
    match loop_device::list_below(path) {
        Ok(devices) => {
            let other = devices
                .iter()
                .find(|one| !one.backing.deleted && one.backing.device != device);
            found.extend(other.map(|other| {
                let message = format!(
                    "{} has an image of class {name} on another file system than the one that is there now",
                    other.path.display()
                );
                Finding::at(Check::DirectoryReplaced, path, message).advice(advice)
            }));
        }
        Err(error) => found.push(Finding::not_checked("loop devices", error.chain())),
    }
    found
}

fn file_system(name: &ClassName, settings: &DirectorySettings) -> Vec<Finding> {
    let path = &settings.path;
    let mut found = Vec::new();
    let disk = match Disk::of(path) {
        Ok(disk) => disk,
        Err(error) => return vec![Finding::not_checked(format!("class {name}"), error.chain())],
    };
    let table = MountTable::read();
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let mount = table.as_ref().ok().and_then(|table| table.holding(&target));
    if disk.is_read_only {
        let mut finding = Finding::at(
            Check::DirectoryReadOnly,
            path,
            format!(
                "the file system of class {name} is mounted read-only; nothing can be created, deleted or written"
            ),
        );
        if let Some(mount) = mount {
            finding = finding.command(format!(
                "mount -o remount,rw {}",
                quoted(&mount.target.to_string_lossy())
            ));
        }
        found.push(finding);
    }
    let usable = disk.used.saturating_add(disk.available).max(1);
    let used = disk.used.saturating_mul(100) / usable;
    if used >= FULL {
        found.push(
            Finding::at(
                Check::LowSpace,
                path,
                format!(
                    "{used} % of the file system of class {name} is used; {} MiB are left",
                    disk.available >> 20
                ),
            )
            .advice(
                "extend it, delete snapshots, or give free blocks back with fstrim in the volumes",
            ),
        );
    }
    let kind = mount.map(|mount| mount.fs_type.as_str());
    if let Some(kind) = kind.filter(|kind| !REFLINKS.contains(kind))
        && settings.allocation == Allocation::Thin
    {
        found.push(
            Finding::at(
                Check::NoReflinks,
                path,
                format!(
                    "the file system of class {name} is {kind}, which does not share blocks: a snapshot is a whole copy, and a mounted volume is frozen while it is copied"
                ),
            )
            .advice("use xfs or btrfs for a class with snapshots"),
        );
    }
    found
}

fn owner(name: &ClassName, settings: &DirectorySettings, survey: &Survey) -> Option<Finding> {
    let owner = survey.owner.as_deref()?;
    let is_adopted = settings
        .adoption
        .nodes
        .iter()
        .any(|node| node.as_str() == owner);
    let is_ours = owner == settings.node.as_str() || is_adopted || survey.images.is_empty();
    (!is_ours).then(|| {
        Finding::at(
            Check::OtherNode,
            &settings.path,
            format!("the directory of class {name} belongs to node {owner}, but this node is {}", settings.node),
        )
        .advice(format!(
            "set `adoptNode: {owner}` in the class if that node uses it no more, or restore the name of this node (--node {owner})"
        ))
    })
}

fn promised(name: &ClassName, settings: &DirectorySettings, survey: &Survey) -> Option<Finding> {
    let volumes = survey
        .images
        .iter()
        .filter(|one| one.image.id.kind == ImageKind::Volume);
    let promised: u64 = volumes.map(|one| one.image.size.bytes()).sum();
    let disk = Disk::of(&settings.path).ok()?;
    (settings.allocation == Allocation::Thin && promised > disk.total).then(|| {
        Finding::at(
            Check::Overcommitted,
            &settings.path,
            format!(
                "{} MiB are promised to volumes of class {name}, and its file system has {} MiB",
                promised >> 20,
                disk.total >> 20
            ),
        )
    })
}

fn images<'a>(name: &'a ClassName, survey: &'a Survey) -> impl Iterator<Item = Finding> + 'a {
    survey.images.iter().filter_map(move |one| {
        let id = one.image.id;
        match &one.image.health {
            Health::Good | Health::Degraded(_) => None,
            Health::Unreadable(fault) => Some(
                Finding::at(
                    Check::UnreadableRecord,
                    &one.home,
                    format!("{id} of class {name} cannot be used: {}", fault.message),
                )
                .advice("restore record.json from a backup; the data in image is as it was"),
            ),
            Health::Damaged(fault) => Some(
                Finding::at(
                    Check::DamagedImage,
                    &one.file,
                    format!("{id} of class {name} is damaged: {}", fault.message),
                )
                .advice("restore the file from a backup, or delete the volume or snapshot"),
            ),
        }
    })
}

/// A file of a change that nobody goes on with. Markers of frozen file systems are looked at with these.
fn leftover(left: &Leftover) -> Option<Finding> {
    let what = match left.kind {
        LeftoverKind::Making => "the creation",
        LeftoverKind::Deleting => "the deletion",
        LeftoverKind::Replacement => "a change",
        LeftoverKind::Adopting => "the adoption",
        LeftoverKind::Releasing => "the handover",
        LeftoverKind::Frozen => return None,
    };
    Some(
        Finding::at(
            Check::HalfMadeImage,
            &left.path,
            format!("{what} of {} was interrupted", left.id),
        )
        .since_change_of(&left.path)
        .advice("start the agent, which undoes it"),
    )
}
