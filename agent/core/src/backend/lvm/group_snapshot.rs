//! Group snapshots: copies of several volumes at one point in time.
//!
//! LVM creates the snapshots while writers run, so that its metadata is correct; then they are emptied. Within the
//! freeze barrier only a message to the pool, or starting a device, is left for each; LVM does not notice. No LVM
//! command may run meanwhile: it would resume the quiesced devices.

use std::sync::Arc;

use drumlin_lvm::{
    command::Command,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
};

use super::{
    ImageSpec, Lvm, ThinPool,
    create::exists,
    flushing::{mounted, unflushed},
    group::Group,
    name_of,
    settings::Thick,
    thick::volumes::check_group_room,
    thin::pool::Device,
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{
        device_mapper::{DeviceMapper, Line, SECTOR},
        quiesce::{Check, DEFAULT_FREEZE_LIMIT, Lock, Member, QuiescePlan, QuiesceTarget, Step},
        udev::Visibility,
    },
};

/// The UUID prefix of the hidden devices through which the exception stores of snapshots are emptied.
pub(super) const HIDDEN: &str = "DRUMLIN-";

impl Lvm {
    /// Checks all preconditions before anything is created.
    pub(super) async fn check_copies(&self, specs: &[ImageSpec]) -> Result<()> {
        self.ready().await?;
        let now = self.group.now().await?;
        Self::check_records(&now)?;
        let mut bytes = 0_u64;
        for spec in specs {
            self.check_names(&now, spec.id)?;
            let source = self.settled(&now, spec.source()?)?;
            let taken = self.volume_type().member_bytes(&now, source.volume);
            let taken = taken.ok_or_else(|| {
                Error::new(
                    Kind::Precondition,
                    format!(
                        "{} cannot be copied by this class: it was changed or removed meanwhile",
                        self.group.path(&source.volume.name)
                    ),
                )
            })?;
            bytes = bytes.saturating_add(taken);
        }
        self.volume_type()
            .check_group_snapshot(self, &now, bytes)
            .await
    }

    /// Creates the copies, and returns the steps for the freeze barrier.
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
        let room = self.volume_type().check_before_barrier(self, &now)?;
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
            limit: self.settings.longest_freeze.unwrap_or(DEFAULT_FREEZE_LIMIT),
        })
    }

    async fn prepare_copy(&self, spec: &ImageSpec) -> Result<()> {
        let now = self.group.now().await?;
        Self::check_records(&now)?;
        self.volume_type().create_member(self, &now, spec).await
    }

    /// Registers the exception stores of the copies with dmeventd again. Failure to monitor does not fail the group
    /// snapshot.
    pub(super) async fn monitor_copies(&self, specs: &[ImageSpec]) -> Result<()> {
        let now = self.group.now().await?;
        let mut paths = Vec::new();
        for spec in specs {
            let copy = copy_in(&now, spec)?;
            // LVM refuses to monitor an inactive snapshot, and registers it on activation.
            if self.device(&now, copy)?.is_some() {
                paths.push(self.group.path(&copy.name));
            }
        }
        if paths.is_empty() {
            return Ok(());
        }
        // Unregister first: dmeventd may not have noticed yet that the device is gone, and would count as still
        // monitoring it.
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

    /// Creates a thin volume that becomes a copy within the freeze barrier. To snapshot an active volume LVM suspends
    /// it, which must only happen within the barrier; of this volume LVM only needs the device number and the size.
    pub(super) async fn create_empty_member(
        &self,
        now: &GroupMetadata,
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

    /// Returns true if an inactive thin volume has no mapped blocks.
    pub(super) async fn is_blank(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
    ) -> Result<bool> {
        // "<mapped sectors> <highest mapped sector>"
        let words = self.hidden_status(now, volume).await?;
        Ok(words.split_whitespace().next() == Some("0"))
    }

    /// The status of a thin volume, read through a hidden device.
    ///
    /// # Errors
    /// When the pool has no device of its number, or is not active.
    pub(super) async fn hidden_status(
        &self,
        now: &GroupMetadata,
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
        let _hand = self.group.in_flight.take(uuid.clone());
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

pub(super) fn check_stores(now: &GroupMetadata, thick: &Thick, bytes: u64) -> Result<()> {
    let room = check_group_room(now, thick, super::Layout::Linear, bytes);
    room.map_err(|error| {
        Error::new(
            error.kind(),
            "the volume group has no room for all exception stores of the group snapshot",
        )
        .because(error)
    })
}

fn copy_in<'a>(now: &'a GroupMetadata, spec: &ImageSpec) -> Result<&'a LogicalVolume> {
    let found = now.volumes.get(&name_of(spec.id));
    found.ok_or_else(|| {
        Error::new(
            Kind::HalfDone,
            format!("{} was created, but another process removed it", spec.id),
        )
    })
}

/// A check that LVM's metadata still contains the members of a group snapshot unchanged.
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

/// The steps that are left for one copy. A snapshot of an inactive volume, which nothing can write to, is correct
/// already.
fn plan(
    now: &GroupMetadata,
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
            // Suspending a device freezes the file system mounted from it, but not btrfs in all kernels.
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

/// The steps that remove the device of an old-style snapshot and the blocks it has kept so far, and those that create
/// it anew.
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
