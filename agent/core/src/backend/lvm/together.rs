//! Snapshots of one moment, for a group of volumes.
//!
//! They are made the ordinary way while writers run, so that LVM's record of them is right, and emptied again. What is
//! left for the moment in which all writers wait are a message to the pool, or a device, for each; LVM sees nothing of
//! that. No program of LVM's may run meanwhile: it would let go what is held.

use std::{fs::File, sync::Arc};

use super::{
    ImageSpec, Lvm, Volumes,
    metadata::{LogicalVolume, VolumeGroup, VolumeKind},
    name_of,
    settings::Thick,
    thick::check_group_room,
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{
        MountTable,
        device_mapper::{DeviceMapper, Mapped},
        moment::{Held, Lock, Member, Moment, SHORT, Step},
    },
};

impl Lvm {
    /// Refuses what cannot be made, before anything is.
    pub(super) async fn check_copies(&self, specs: &[ImageSpec]) -> Result<()> {
        self.ready().await?;
        let now = self.group.now().await?;
        Self::check_records(&now)?;
        let mut stores = 0_u64;
        for spec in specs {
            self.check_names(&now, spec.id)?;
            let source = self.finished(&now, spec.source()?)?;
            let volume = source.volume;
            match (&self.settings.volumes, &volume.kind) {
                (Volumes::Thin(_), VolumeKind::Thin { .. }) => {}
                (Volumes::Thick(thick), VolumeKind::Plain | VolumeKind::Mirrored) => {
                    let store = thick.store(now.bytes(volume));
                    stores = stores.saturating_add(store.next_multiple_of(now.extent));
                }
                _ => {
                    return Err(Error::new(
                        Kind::Precondition,
                        format!(
                            "{} is no volume any more that this class can copy",
                            self.group.path(&volume.name)
                        ),
                    ));
                }
            }
        }
        match &self.settings.volumes {
            Volumes::Thin(pool) => self.check_pool_room(&now, pool, 0).await,
            Volumes::Thick(thick) => check_stores(&now, thick, stores),
        }
    }

    /// Makes the copies, and says what is left to be done with them at their moment.
    pub(super) async fn prepare_copies(&self, specs: &[ImageSpec]) -> Result<Moment> {
        for spec in specs {
            let made = self.prepare_copy(spec).await;
            let source = spec.source()?;
            made.map_err(|error| Error::new(error.kind(), source.to_string()).because(error))?;
            fail::point("lvm.together.made");
        }
        let now = self.group.now().await?;
        let (group, wanted) = (Arc::clone(&self.group), specs.to_vec());
        let (members, expected) = blocking(move || {
            let mapper = group.mapper()?;
            let members = wanted.iter().map(|spec| plan(&now, mapper, spec));
            let members = members.collect::<Result<Vec<Member>>>()?;
            let copies = wanted.iter().map(|spec| copy_in(&now, spec).cloned());
            Ok((members, copies.collect::<Result<Vec<LogicalVolume>>>()?))
        })
        .await?;
        let (locked, checked) = (Arc::clone(&self.group), Arc::clone(&self.group));
        Ok(Moment {
            locks: vec![Lock::new(&self.group.name, move || {
                let lock = locked.lock();
                lock.map_err(|error| {
                    Error::new(Kind::Busy, "LVM's lock cannot be had; ask again").because(error)
                })
            })],
            checks: vec![Box::new(move || {
                let now = checked.read_known();
                let is_there = |copy: &LogicalVolume| {
                    let found = now.as_ref().and_then(|now| now.volumes.get(&copy.name));
                    found.is_some_and(|found| found.uuid == copy.uuid && found.kind == copy.kind)
                };
                if expected.iter().all(is_there) {
                    return Ok(());
                }
                Err(Error::new(
                    Kind::Busy,
                    format!(
                        "somebody else changes volume group {}; ask again",
                        checked.name
                    ),
                ))
            })],
            members,
            limit: SHORT,
        })
    }

    async fn prepare_copy(&self, spec: &ImageSpec) -> Result<()> {
        let now = self.group.now().await?;
        let origin = spec.source()?;
        if self.finished(&now, origin)?.tags.clean.is_some() {
            // What it would show of former volumes must not be copied.
            self.clean(origin).await?;
        }
        let now = self.group.now().await?;
        Self::check_records(&now)?;
        let source = self.finished(&now, origin)?;
        let commands = match &self.settings.volumes {
            Volumes::Thin(pool) => self.copy_thin(&now, pool, spec, spec.size, &source).await?,
            Volumes::Thick(thick) => vec![self.new_snapshot(&now, thick, spec, &source)?],
        };
        self.group.change(commands).await
    }
}

fn check_stores(now: &VolumeGroup, thick: &Thick, bytes: u64) -> Result<()> {
    let room = check_group_room(now, thick, super::Layout::Linear, bytes);
    room.map_err(|error| {
        Error::new(error.kind(), "there is no room for all exception stores").because(error)
    })
}

fn copy_in<'a>(now: &'a VolumeGroup, spec: &ImageSpec) -> Result<&'a LogicalVolume> {
    let found = now.volumes.get(&name_of(spec.id));
    found.ok_or_else(|| Error::new(Kind::HalfDone, format!("{} is gone again", spec.id)))
}

/// What is left to be done for one copy. Of a volume without a device nobody can write to it is right already.
fn plan(now: &VolumeGroup, mapper: &DeviceMapper, spec: &ImageSpec) -> Result<Member> {
    let copy = copy_in(now, spec)?;
    let source = spec.source()?;
    let gone = || Error::new(Kind::HalfDone, format!("{source} is gone"));
    let origin = match &copy.kind {
        VolumeKind::Thin {
            origin: Some(origin),
            ..
        }
        | VolumeKind::Snapshot { origin } => now.volumes.get(origin).ok_or_else(gone)?,
        _ => return Err(gone()),
    };
    let device = mapper.find(&now.mapped_uuid(origin))?;
    let Some(device) = device.filter(|device| device.is_live) else {
        return Ok(Member::default());
    };
    let (before, within) = match (&copy.kind, &origin.kind) {
        (
            VolumeKind::Thin {
                pool, device: new, ..
            },
            VolumeKind::Thin { device: old, .. },
        ) => {
            let (volume, _) = now.pool(pool).ok_or_else(gone)?;
            let message = |text| Step::Message {
                pool: now.pool_uuid(volume),
                text,
            };
            (
                vec![message(format!("delete {new}"))],
                vec![message(format!("create_snap {new} {old}"))],
            )
        }
        _ => empty_again(mapper, &now.mapped_uuid(copy))?,
    };
    let mut held = frozen_first(&device)?;
    held.push(Held::Device { uuid: device.uuid });
    Ok(Member {
        held,
        before,
        within,
        ..Member::default()
    })
}

/// The steps that take an old-style snapshot's device and what it has kept so far away, and those that make it anew.
fn empty_again(mapper: &DeviceMapper, uuid: &str) -> Result<(Vec<Step>, Vec<Step>)> {
    let gone = |what: &str| Error::new(Kind::HalfDone, format!("{what} has no device"));
    let copy = mapper.find(uuid)?.ok_or_else(|| gone("a new snapshot"))?;
    let store = mapper.find(&format!("{uuid}-cow"))?;
    let store = store.ok_or_else(|| gone("the store of a new snapshot"))?;
    let table = mapper.table(uuid)?;
    let uuid = copy.uuid;
    Ok((
        vec![
            Step::Unmap { uuid: uuid.clone() },
            Step::Forget {
                store: store.node()?,
            },
        ],
        vec![Step::Map {
            name: copy.name,
            uuid,
            table,
        }],
    ))
}

/// To suspend a device freezes what is mounted from it, but not btrfs in all kernels. What can be brought to the disk
/// before is not brought there while writers wait.
fn frozen_first(device: &Mapped) -> Result<Vec<Held>> {
    let table = MountTable::read()?;
    let node = device.node()?;
    let mut mounts = table.of_block_device(&node, device.number);
    let writable =
        mounts.find(|mount| !mount.is_file_system_read_only() && mount.fs_type != "devtmpfs");
    let Some(mount) = writable.filter(|mount| mount.target.is_dir()) else {
        return Ok(Vec::new());
    };
    let failed = |error| Error::io(format!("could not sync {}", mount.target.display()), error);
    let directory = File::open(&mount.target).map_err(failed)?;
    nix::unistd::syncfs(&directory).map_err(|error| failed(error.into()))?;
    Ok(if mount.fs_type == "btrfs" {
        vec![Held::FileSystem(directory)]
    } else {
        Vec::new()
    })
}
