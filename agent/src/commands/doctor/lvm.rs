//! Volume groups of classes: their disks, the tags in them, and who has their lock. The metadata is read from the disks.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    thread,
    time::{Duration, SystemTime},
};

use drumlin_core::{
    backend::lvm::{LvmSettings, Owned, keeps_orphan, owned, wrong_group_tags, wrong_tags},
    host::file_locks,
    ops::created,
    types::ClassName,
};
use drumlin_lvm::metadata::{self, FoundGroup, GroupMetadata};

use super::{
    check::Check,
    device_mapper,
    finding::{Finding, quoted, shell},
    pools,
    processes::holder,
    state,
    subject::Subject,
};

/// Time for a disk to answer.
const PATIENCE: Duration = Duration::from_secs(4);
/// A program of LVM's has the lock of a group for less than this, unless something is wrong.
const LOCKED: Duration = Duration::from_millis(2500);
/// Where LVM has its locks unless its configuration says otherwise.
const LOCKS: &str = "/run/lock/lvm";
/// At so much of the metadata area, in percent, there is a warning. The agent creates nothing at 90.
const FILLING: u64 = 75;
/// Clocks may differ so much.
const TOLERANCE: Duration = Duration::from_mins(2);

/// The classes of one volume group.
pub(super) type Classes<'a> = Vec<(&'a ClassName, &'a LvmSettings)>;

/// Looks at each volume group of a class.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let mut classes: BTreeMap<String, Classes<'_>> = BTreeMap::new();
    for (name, settings) in subject.volume_groups() {
        let group = classes.entry(settings.volume_group.clone()).or_default();
        group.push((name, settings));
    }
    let names: BTreeSet<String> = classes.keys().cloned().collect();
    if names.is_empty() {
        return Vec::new();
    }
    let scan = match metadata::scan(&names, PATIENCE) {
        Ok(scan) => scan,
        Err(error) => return vec![Finding::not_checked("volume groups", error.chain())],
    };
    let silent = scan.silent.iter().map(|disk| {
        let message = format!(
            "this disk has not answered for {} s; whether it is one of a class is not known",
            PATIENCE.as_secs()
        );
        Finding::at(Check::SilentDisk, disk, message)
            .advice("look at `dmsetup info` for suspended devices, and at the kernel's log")
    });
    let mut found: Vec<Finding> = silent.collect();
    for (name, classes) in &classes {
        let groups = scan.groups.iter();
        let groups: Vec<&FoundGroup> = groups
            .filter(|group| group.metadata.name == *name)
            .collect();
        match groups.as_slice() {
            [] => found.push(missing(name, &scan.suspended)),
            [group] => found.extend(look(subject, group, classes)),
            several => found.push(duplicate(name, several)),
        }
        found.extend(locked(name));
    }
    found
}

fn missing(name: &str, suspended: &[std::path::PathBuf]) -> Finding {
    let disks: Vec<String> = suspended
        .iter()
        .map(|disk| disk.display().to_string())
        .collect();
    let hint = if disks.is_empty() {
        String::new()
    } else {
        format!(
            "; these disks are suspended and were not read: {}",
            disks.join(", ")
        )
    };
    Finding::new(
        Check::VolumeGroupMissing,
        name,
        format!("no disk of this volume group was found{hint}"),
    )
    .advice("reconnect its disks, or create it")
}

fn duplicate(name: &str, groups: &[&FoundGroup]) -> Finding {
    let named: Vec<String> = groups
        .iter()
        .map(|group| {
            let disks = group
                .disks
                .iter()
                .map(|(_, path)| path.display().to_string());
            let disks: Vec<String> = disks.collect();
            format!("{} on {}", dashed(&group.metadata.uuid), disks.join(", "))
        })
        .collect();
    Finding::new(
        Check::DuplicateVolumeGroup,
        name,
        format!("several volume groups have this name: {}", named.join("; ")),
    )
    .advice("rename the wrong one (`vgrename UUID NEWNAME`), or disconnect its disks")
}

/// A UUID as LVM's commands want it.
fn dashed(uuid: &str) -> String {
    let mut text = String::new();
    for (at, letter) in uuid.chars().enumerate() {
        if [6, 10, 14, 18, 22, 26].contains(&at) {
            text.push('-');
        }
        text.push(letter);
    }
    text
}

fn look(subject: &Subject, group: &FoundGroup, classes: &Classes<'_>) -> Vec<Finding> {
    let now = &group.metadata;
    let mut found = Vec::new();
    if let Some(why) = &now.refusal {
        found.push(
            Finding::new(
                Check::VolumeGroupRefused,
                &now.name,
                format!("volume group {} {why}", now.name),
            )
            .advice("do as the message says; the agent does not use the group until then"),
        );
    }
    let lost = now.disks.iter().filter(|(_, disk)| disk.is_missing);
    found.extend(lost.map(|(name, disk)| {
        Finding::new(
            Check::MissingDisk,
            &now.name,
            format!("its disk {name} (UUID {}) is missing, or was when LVM wrote the metadata", dashed(&disk.uuid)),
        )
        .advice(format!(
            "reconnect it; if it is back, run `vgextend --restoremissing {0} DISK`; see `pvs -o +missing` and `lvs -a -o +devices {0}`",
            now.name
        ))
    }));
    let part = now.text.saturating_mul(100) / now.largest_text.max(1);
    if part >= FILLING {
        found.push(
            Finding::new(
                Check::MetadataAreaFilling,
                &now.name,
                format!("{part} % of LVM's metadata area is used ({} of {} bytes); at 90 % nothing new is created", now.text, now.largest_text),
            )
            .advice(format!(
                "delete volumes or snapshots, or add a disk with a larger area (`pvcreate --metadatasize 64m DISK`, `vgextend {} DISK`) and run `pvchange --metadataignore y` on the other disks",
                now.name
            )),
        );
    }
    found.extend(tags(now));
    found.extend(volumes(subject, now, classes));
    found.extend(objects(subject, now, classes));
    found.extend(device_mapper::check(subject, now));
    found.extend(pools::check(now, classes));
    found
}

fn tags(now: &GroupMetadata) -> Vec<Finding> {
    let wrong = |object: String, tag: &str, command: &str| {
        let line = format!("{command} --deltag {} {}", quoted(tag), quoted(&object));
        Finding::new(
            Check::UnparsableTag,
            object,
            format!("its tag {tag} has the prefix of the agent, and no agent writes such a tag"),
        )
        .command(line)
    };
    let of_group = wrong_group_tags(now).into_iter();
    let of_group = of_group.map(|tag| wrong(now.name.clone(), tag, "vgchange"));
    let of_volumes = now.volumes.values().flat_map(|volume| {
        let path = format!("{}/{}", now.name, volume.name);
        let tags = wrong_tags(volume).into_iter();
        tags.map(move |tag| wrong(path.clone(), tag, "lvchange"))
    });
    of_group.chain(of_volumes).collect()
}

fn volumes(subject: &Subject, now: &GroupMetadata, classes: &Classes<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut others: BTreeMap<String, usize> = BTreeMap::new();
    let is_here = |own: &Owned| {
        classes.iter().any(|(_, settings)| {
            let adopted = settings
                .adoption
                .iter()
                .flat_map(|adoption| &adoption.nodes);
            let mut nodes = adopted.chain([&settings.node]);
            nodes.any(|node| node.as_str() == own.node)
        })
    };
    for volume in now.volumes.values() {
        let path = format!("{}/{}", now.name, volume.name);
        if keeps_orphan(volume) {
            found.push(
                Finding::new(
                    Check::OrphanThinDevice,
                    &path,
                    "it keeps a device that the thin pool had and no logical volume named: perhaps the last copy of some data",
                )
                .advice(format!("inspect it (`lvchange -ay -K {path}`), and remove it (`lvremove {path}`) if its data is not needed")),
            );
        }
        let Some(own) = owned(volume) else { continue };
        if !is_here(&own) {
            *others.entry(own.node).or_default() += usize::from(volume.is_visible);
            continue;
        }
        if let (Some(what), None) = (own.half_made, &subject.agent) {
            found.push(
                Finding::new(
                    Check::HalfMadeVolume,
                    &path,
                    format!("the {what} of {} was interrupted", own.id),
                )
                .advice("start the agent, which completes or undoes it"),
            );
        }
        let ahead =
            created(&own.labels).and_then(|time| time.duration_since(SystemTime::now()).ok());
        if let Some(ahead) = ahead.filter(|ahead| *ahead > TOLERANCE) {
            found.push(
                Finding::new(
                    Check::ClockJump,
                    &path,
                    format!(
                        "{} was created {} s in the future: the clock was set back since",
                        own.id,
                        ahead.as_secs()
                    ),
                )
                .advice("correct the clock of this host (`timedatectl`)"),
            );
        }
    }
    found.extend(others.into_iter().map(|(node, count)| {
        Finding::new(
            Check::OtherNode,
            &now.name,
            format!("volumes and snapshots in it belong to node {node} ({count}); this agent does not list them, and another agent may use the group"),
        )
        .advice(format!(
            "make sure that no other agent uses the group; set `adoptNode: {node}` in the class if that node is gone, or was the name of this one"
        ))
    }));
    found
}

/// Objects whose volume or snapshot is not in the group any more.
fn objects(subject: &Subject, now: &GroupMetadata, classes: &Classes<'_>) -> Vec<Finding> {
    let (Some(node), Ok(table)) = (subject.node(), &subject.table) else {
        return Vec::new();
    };
    let ours = now.volumes.values().filter_map(owned);
    let keys: BTreeSet<_> = ours.map(|own| own.id.key).collect();
    let place = format!("volume group {}", now.name);
    let lost = classes.iter().flat_map(|(class, _)| {
        let known = state::Known {
            node,
            class,
            keys: &keys,
            place: &place,
        };
        state::lost_in(table, &known)
    });
    lost.collect()
}

/// A program that has the lock of the group, and goes on having it.
fn locked(name: &str) -> Option<Finding> {
    let path = Path::new(LOCKS).join(format!("V_{name}"));
    let first = file_locks::holder(&path).ok()??;
    thread::sleep(LOCKED);
    let still = file_locks::holder(&path).ok()??;
    let process = holder(&path).ok()??;
    (first == still).then(|| {
        Finding::new(
            Check::LockHeld,
            name,
            format!(
                "process {still} ({}) has had LVM's lock on this volume group for {} ms; all other changes wait",
                process.command,
                LOCKED.as_millis()
            ),
        )
        .advice(format!("see what it waits for (`cat /proc/{still}/stack`, `dmsetup info`); the lock is {}", shell(&path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_lvm_writes_it() {
        assert_eq!(
            dashed("aaaaaabbbbccccddddeeeeffffgggggg"),
            "aaaaaa-bbbb-cccc-dddd-eeee-ffff-gggggg"
        );
    }
}
