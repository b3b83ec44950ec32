//! Decrypted devices of encrypted volumes: those that are suspended, and those that nothing uses, whose keys stay in the
//! kernel.

use std::{collections::BTreeMap, path::Path, thread, time::Duration};

use drumlin_core::{
    backend::{Labels, directory},
    host::{DeviceNumber, MountTable, crypt_mapping, device_mapper::Mapped, loop_device},
    ops::was_staged_raw,
};

use super::{
    check::Check,
    finding::{Finding, quoted},
    logical_volumes::LogicalVolumes,
    mapped_devices,
    subject::Subject,
};

/// A running agent suspends a device for less than this, and uses within this time what it has opened.
const SETTLED: Duration = Duration::from_millis(1200);

/// What is wrong with a decrypted device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Its I/O waits.
    Suspended,
    /// It is open, and nothing uses it.
    Unused,
}

/// How a volume is used, as far as its labels say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Usage {
    /// By the mount of its file system.
    Mounted,
    /// As a block device, which its user need not have open; or its labels could not be read.
    Raw,
}

impl Usage {
    fn of(labels: &Labels) -> Self {
        if was_staged_raw(labels) {
            Self::Raw
        } else {
            Self::Mounted
        }
    }
}

/// The devices of the volumes of all classes, below their encryption: a class may have encrypted before.
struct Volumes {
    logical: LogicalVolumes,
    images: BTreeMap<DeviceNumber, Usage>,
}

/// Looks at the decrypted devices over the volumes of the classes. Those of other agents of this host are theirs.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    // Classes over directories need no device-mapper: a node can be there for a module that is not.
    if !Path::new("/dev/mapper/control").exists() || !mapped_devices::exist() {
        return Vec::new();
    }
    let found = look(subject).map_err(|error| error.chain());
    found.unwrap_or_else(|why| vec![Finding::not_checked("decrypted devices", why)])
}

fn look(subject: &Subject) -> drumlin_core::Result<Vec<Finding>> {
    let mappings = crypt_mapping::list()?;
    if mappings.is_empty() {
        return Ok(Vec::new());
    }
    let volumes = Volumes::of(subject)?;
    let first = volumes.troubled(mappings)?;
    if first.is_empty() {
        return Ok(Vec::new());
    }
    thread::sleep(SETTLED);
    let still = volumes.troubled(crypt_mapping::list()?)?;
    let lasting = still.iter().filter(|one| first.contains(one));
    Ok(lasting.map(finding).collect())
}

impl Volumes {
    fn of(subject: &Subject) -> drumlin_core::Result<Self> {
        let mut images = BTreeMap::new();
        for (_, settings) in subject.directories() {
            let survey = directory::survey(&settings.path).unwrap_or_default();
            let usages: BTreeMap<&Path, Usage> = survey
                .images
                .iter()
                .map(|one| (one.file.as_path(), Usage::of(&one.image.labels)))
                .collect();
            for device in loop_device::list_below(&settings.path)? {
                // An image that is gone has no user of its own any more.
                let usage = usages.get(device.backing.path.as_path());
                let usage = usage.copied().unwrap_or(Usage::Mounted);
                if let Ok(number) = DeviceNumber::of_block_device(&device.path) {
                    images.insert(number, usage);
                }
            }
        }
        Ok(Self {
            logical: LogicalVolumes::of(subject),
            images,
        })
    }

    /// How the volume is used whose device this is; none if it is no volume.
    fn usage(&self, device: DeviceNumber) -> Option<Usage> {
        if let Some(usage) = self.images.get(&device) {
            return Some(*usage);
        }
        let device = mapped_devices::at(device)?;
        let own = self.logical.find(&device);
        match own {
            Some(own) => Some(Usage::of(&own.labels)),
            None => self.logical.has(&device).then_some(Usage::Raw),
        }
    }

    /// Those of the decrypted devices that are over a volume and not as they should be.
    fn troubled(&self, mappings: Vec<Mapped>) -> drumlin_core::Result<Vec<(Mapped, Trouble)>> {
        let table = MountTable::read()?;
        let trouble = |mapping: &Mapped| {
            let mut below = mapped_devices::below(mapping.number);
            let usage = below.find_map(|device| self.usage(device))?;
            if mapping.is_suspended {
                return Some(Trouble::Suspended);
            }
            let path = mapping.path();
            let is_mounted = table
                .of_block_device(&path, mapping.number)
                .next()
                .is_some();
            let is_unused = mapping.open == 0 && !is_mounted && usage == Usage::Mounted;
            is_unused.then_some(Trouble::Unused)
        };
        let troubled = mappings.into_iter().filter_map(|mapping| {
            let trouble = trouble(&mapping)?;
            Some((mapping, trouble))
        });
        Ok(troubled.collect())
    }
}

fn finding((mapping, trouble): &(Mapped, Trouble)) -> Finding {
    let (path, name) = (mapping.path(), quoted(&mapping.name));
    match trouble {
        Trouble::Suspended => Finding::at(
            Check::SuspendedDevice,
            &path,
            "this decrypted device is suspended: whoever reads or writes it waits, and cannot be killed",
        )
        .command(format!("dmsetup resume {name}"))
        .advice("resume the device below it first, if that is suspended, too; starting the agent resumes both in order"),
        Trouble::Unused => Finding::at(
            Check::LeakedMapping,
            &path,
            "nothing uses this decrypted device, and the kernel keeps the key of its volume",
        )
        .command(format!("cryptsetup close {name}"))
        .advice("or stage the volume again, and unstage it"),
    }
}
