//! Snapshots of one moment, for a group of volumes.
//!
//! They are made by LVM while writers run, so that its record of them is right, and emptied again. What is
//! left for the moment in which all writers wait are a message to the pool, or a device, for each; LVM sees nothing of
//! that. No program of LVM's may run meanwhile: it would let go what is held.

use std::sync::Arc;

use super::{
    ImageSpec, Lvm, ThinPool, Volumes,
    command::Command,
    create::exists,
    flushing::{mounted, unflushed},
    metadata::{LogicalVolume, VolumeGroup, VolumeKind},
    name_of,
    preflight::Dmeventd,
    settings::Thick,
    thick::check_group_room,
    thin::Device,
    volume_group::Group,
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{
        device_mapper::{DeviceMapper, Line, SECTOR},
        quiesce::{Check, Lock, Member, QuiescePlan, QuiesceTarget, SHORT, Step},
        udev::Visibility,
    },
};

/// What the devices are called through which the stores of snapshots are emptied.
pub(super) const HIDDEN: &str = "DRUMLIN-";

impl Lvm {
    /// Refuses what cannot be made, before anything is.
    pub(super) async fn check_copies(&self, specs: &[ImageSpec]) -> Result<()> {
        self.ready().await?;
        let now = self.group.now().await?;
        Self::check_records(&now)?;
        let mut stores = 0_u64;
        for spec in specs {
            self.check_names(&now, spec.id)?;
            let source = self.settled(&now, spec.source()?)?;
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
                            "{} cannot be copied by this class: it was changed or removed meanwhile",
                            self.group.path(&volume.name)
                        ),
                    ));
                }
            }
        }
        match &self.settings.volumes {
            Volumes::Thin(pool) => self.check_pool_room(&now, pool, 0, 0).await,
            Volumes::Thick(thick) => check_stores(&now, thick, stores),
        }
    }

    /// Makes the copies, and says what is left to be done with them at their moment.
    pub(super) async fn prepare_copies(&self, specs: &[ImageSpec]) -> Result<QuiescePlan> {
        for spec in specs {
            let made = self.prepare_copy(spec).await;
            let source = spec.source()?;
            made.map_err(|error| Error::new(error.kind(), source.to_string()).because(error))?;
            fail::point("lvm.group-snapshot.made");
        }
        let now = self.group.now().await?;
        let pair = |spec: &ImageSpec| {
            let origin = self.settled(&now, spec.source()?)?.volume;
            Ok((copy_in(&now, spec)?.clone(), origin.clone()))
        };
        let pairs = specs.iter().map(pair);
        let pairs = pairs.collect::<Result<Vec<(LogicalVolume, LogicalVolume)>>>()?;
        let all = pairs.iter().flat_map(|(copy, origin)| [copy, origin]);
        let expected: Vec<LogicalVolume> = all.cloned().collect();
        let (group, seen) = (Arc::clone(&self.group), Arc::clone(&now));
        let members = blocking(move || {
            let mapper = group.mapper()?;
            let members = pairs.iter();
            members
                .map(|(copy, origin)| plan(&seen, mapper, copy, origin))
                .collect::<Result<Vec<Member>>>()
        })
        .await?;
        let (locked, checked) = (Arc::clone(&self.group), Arc::clone(&self.group));
        let room = match &self.settings.volumes {
            Volumes::Thin(pool) => Some(self.room_check(&now, pool)?),
            Volumes::Thick(_) => None,
        };
        Ok(QuiescePlan {
            locks: vec![Lock::new(&self.group.name, move || {
                let lock = locked.lock();
                lock.map_err(|error| {
                    Error::new(Kind::Busy, "could not lock the volume group; retry").because(error)
                })
            })],
            checks: room
                .into_iter()
                .chain([is_unchanged(checked, expected)])
                .collect(),
            members,
            limit: self.settings.longest_freeze.unwrap_or(SHORT),
        })
    }

    async fn prepare_copy(&self, spec: &ImageSpec) -> Result<()> {
        let now = self.group.now().await?;
        let origin = spec.source()?;
        Self::check_records(&now)?;
        if matches!(self.settings.volumes, Volumes::Thick(_)) {
            self.flush(&now, origin).await?;
        }
        let source = self.settled(&now, origin)?;
        let commands = match &self.settings.volumes {
            Volumes::Thin(pool) if self.device(&now, source.volume)?.is_some() => {
                return self.reserve(&now, pool, spec, source.volume).await;
            }
            Volumes::Thin(pool) => self.copy_thin(&now, pool, spec, spec.size, &source).await?,
            Volumes::Thick(thick) => vec![self.new_member(&now, thick, spec, &source)?],
        };
        self.group.change(commands).await
    }

    /// Has dmeventd monitor the stores of copies again, which it may grow: it let go of them with the devices that were taken
    /// away for the moment. A copy that is not monitored is one all the same.
    pub(super) async fn monitor_copies(&self, specs: &[ImageSpec]) -> Result<()> {
        // LVM starts it for the first snapshot, unless the host's settings say that nothing is monitored.
        if matches!(self.settings.volumes, Volumes::Thin(_)) || Dmeventd::now() != Dmeventd::Runs {
            return Ok(());
        }
        let now = self.group.now().await?;
        let mut paths = Vec::new();
        for spec in specs {
            let copy = copy_in(&now, spec)?;
            // LVM refuses one that has no device, and has it monitored when it gets one.
            if self.device(&now, copy)?.is_some() {
                paths.push(self.group.path(&copy.name));
            }
        }
        if paths.is_empty() {
            return Ok(());
        }
        // Not to be taken for what is monitored still, while dmeventd has not met yet that its device is gone.
        let commands = ["n", "y"].map(|monitor| {
            Command::new("lvchange")
                .words(["-q", "--monitor", monitor])
                .words(paths.clone())
        });
        if let Err(error) = self.group.change(commands.into()).await {
            tracing::warn!(group = %self.group.name, error = %error.chain(), "snapshots of a group snapshot not registered with dmeventd");
        }
        Ok(())
    }

    /// Makes a thin volume that becomes a copy at its moment. To make a snapshot of a volume that is used LVM has its
    /// writers wait, which is for the moment alone; of this one it need know the number and the size.
    async fn reserve(
        &self,
        now: &VolumeGroup,
        pool: &ThinPool,
        spec: &ImageSpec,
        origin: &LogicalVolume,
    ) -> Result<()> {
        self.check_pool_room(now, pool, 0, 0).await?;
        let (name, tags) = (name_of(spec.id), self.tags(spec).write());
        let create = || {
            Command::new("lvcreate")
                .words(["-an", "-ky", "-V", &format!("{}b", now.bytes(origin))])
                .words(["-T".to_owned(), self.group.path(&pool.name)])
                .words(["-n", &name])
                .add_tags(tags.clone())
                .done_when(exists(name.clone()))
        };
        self.new_thin(pool, &name, Device::None, create)
            .await
            .map(drop)
    }

    /// Whether nothing is in a thin volume that has no device.
    pub(super) async fn is_blank(&self, now: &VolumeGroup, volume: &LogicalVolume) -> Result<bool> {
        // "<mapped sectors> <highest mapped sector>"
        let words = self.hidden_status(now, volume).await?;
        Ok(words.split_whitespace().next() == Some("0"))
    }

    /// What a thin volume says of itself through a device that only we know.
    ///
    /// # Errors
    /// When it has no device of its number in its pool, or that is not active.
    pub(super) async fn hidden_status(
        &self,
        now: &VolumeGroup,
        volume: &LogicalVolume,
    ) -> Result<String> {
        let VolumeKind::Thin { pool, device, .. } = &volume.kind else {
            return Err(Error::new(
                Kind::Bug,
                "a volume of a thin class is not thin",
            ));
        };
        let (pool, _) = now.pool(pool).ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!("thin pool {pool} does not exist any more"),
            )
        })?;
        let pool = now.pool_uuid(pool);
        let name = format!("drumlin-{}", volume.uuid);
        let uuid = format!("{HIDDEN}{}{}", now.uuid, volume.uuid);
        let (length, device) = (now.bytes(volume) / SECTOR, *device);
        let _hand = self.group.in_hand.take(uuid.clone());
        let group = Arc::clone(&self.group);
        let words = blocking(move || {
            let mapper = group.mapper()?;
            let pool = mapper.find(&pool)?.ok_or_else(|| {
                Error::new(
                    Kind::HalfDone,
                    "the thin pool of an active volume is not active",
                )
            })?;
            let line = Line {
                start: 0,
                length,
                kind: "thin".to_owned(),
                words: format!("{}:{} {device}", pool.number.major, pool.number.minor),
            };
            if mapper.find(&uuid)?.is_some() {
                mapper.remove(&uuid)?;
            }
            mapper.create(&name, &uuid, &[line], Visibility::Hidden)?;
            let words = mapper.status(&uuid);
            mapper.remove(&uuid)?;
            words
        })
        .await?;
        Ok(words.unwrap_or_default())
    }
}

fn check_stores(now: &VolumeGroup, thick: &Thick, bytes: u64) -> Result<()> {
    let room = check_group_room(now, thick, super::Layout::Linear, bytes);
    room.map_err(|error| {
        Error::new(
            error.kind(),
            "the volume group has no room for all exception stores of the group snapshot",
        )
        .because(error)
    })
}

fn copy_in<'a>(now: &'a VolumeGroup, spec: &ImageSpec) -> Result<&'a LogicalVolume> {
    let found = now.volumes.get(&name_of(spec.id));
    found.ok_or_else(|| {
        Error::new(
            Kind::HalfDone,
            format!("{} was created, but another process removed it", spec.id),
        )
    })
}

/// Makes sure that LVM's record still has what a group snapshot is made of.
fn is_unchanged(group: Arc<Group>, expected: Vec<LogicalVolume>) -> Check {
    Box::new(move || {
        let now = group.read_known();
        let is_there = |one: &LogicalVolume| {
            let found = now.as_ref().and_then(|now| now.volumes.get(&one.name));
            found.is_some_and(|found| found.uuid == one.uuid && found.kind == one.kind)
        };
        if expected.iter().all(is_there) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Busy,
            format!(
                "another process is changing volume group {}; retry",
                group.name
            ),
        ))
    })
}

/// What is left to be done for one copy. A snapshot of a volume without a device, which nobody can write to, is right
/// already.
fn plan(
    now: &VolumeGroup,
    mapper: &DeviceMapper,
    copy: &LogicalVolume,
    origin: &LogicalVolume,
) -> Result<Member> {
    let device = mapper.find(&now.mapped_uuid(origin))?;
    let device = device.filter(|device| device.is_live);
    let is_reserved = matches!(copy.kind, VolumeKind::Thin { origin: None, .. });
    if device.is_none() && !is_reserved {
        return Ok(Member::default());
    }
    let (before, within) = match (&copy.kind, &origin.kind) {
        (
            VolumeKind::Thin {
                pool, device: new, ..
            },
            VolumeKind::Thin { device: old, .. },
        ) => {
            let (volume, _) = now.pool(pool).ok_or_else(|| {
                Error::new(
                    Kind::HalfDone,
                    format!("thin pool {pool} does not exist any more"),
                )
            })?;
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
    let (mut flushed, mut settled, mut held) = (Vec::new(), Vec::new(), Vec::new());
    if let Some(device) = device {
        flushed.extend(unflushed(&device)?);
        if let Some((directory, fs_type)) = mounted(&device)? {
            // To suspend a device freezes what is mounted from it, but not btrfs in all kernels.
            if fs_type == "btrfs" {
                let directory = directory.try_clone();
                let directory = directory
                    .map_err(|error| Error::io("could not keep a directory open", error))?;
                held.push(QuiesceTarget::FileSystem(directory));
            }
            settled.push(QuiesceTarget::FileSystem(directory));
        }
        held.push(QuiesceTarget::Device { uuid: device.uuid });
    }
    Ok(Member {
        flushed,
        settled,
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
            // A snapshot reads its store when it is prepared, and keeps nothing before it starts.
            Step::Prepare {
                name: copy.name,
                uuid: uuid.clone(),
                table,
            },
        ],
        vec![Step::Start { uuid }],
    ))
}
