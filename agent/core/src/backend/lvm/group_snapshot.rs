//! Group snapshots: copies of several volumes at one point in time.
//!
//! LVM creates the snapshots while writers run, so that its metadata is correct; then they are emptied. Within the
//! freeze barrier only a message to the pool, or starting a device, is left for each; LVM does not notice. No LVM
//! command may run meanwhile: it would resume the quiesced devices.

use std::sync::Arc;

use drumlin_lvm::metadata::{GroupMetadata, LogicalVolume};

use super::{
    ImageSpec, Lvm,
    devices::used_device,
    flushing::{mounted, unflushed},
    group::Group,
    name_of,
    volume_type::VolumeType,
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{
        device_mapper::DeviceMapper,
        quiesce::{Check, DEFAULT_FREEZE_LIMIT, Lock, Member, QuiescePlan, QuiesceTarget},
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
            let source = self.unmerged_volume(&now, spec.source()?)?;
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
            let origin = self.unmerged_volume(&now, spec.source()?)?.volume;
            Ok((copy_in(&now, spec)?.clone(), origin.clone()))
        };
        let pairs = specs.iter().map(pair);
        let pairs = pairs.collect::<Result<Vec<(LogicalVolume, LogicalVolume)>>>()?;
        let all = pairs.iter().flat_map(|(copy, origin)| [copy, origin]);
        let expected: Vec<LogicalVolume> = all.cloned().collect();
        let (group, seen) = (Arc::clone(&self.group), Arc::clone(&now));
        let volume_type = Arc::clone(&self.volume_type);
        let members = blocking(move || {
            let mapper = group.mapper()?;
            let members = pairs.iter();
            members
                .map(|(copy, origin)| plan(&*volume_type, &seen, mapper, copy, origin))
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
}

pub(super) fn copy_in<'a>(now: &'a GroupMetadata, spec: &ImageSpec) -> Result<&'a LogicalVolume> {
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
    volume_type: &dyn VolumeType,
    now: &GroupMetadata,
    mapper: &DeviceMapper,
    copy: &LogicalVolume,
    origin: &LogicalVolume,
) -> Result<Member> {
    let device = mapper.find(&now.mapped_uuid(origin))?;
    let device = device.filter(|device| device.is_live);
    if device.is_none() && !volume_type.is_empty_member(copy) {
        return Ok(Member::default());
    }
    let (before, within) = volume_type.barrier_steps(mapper, now, copy, origin)?;
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
        // The mapping of an encrypted volume comes first: what it still writes must reach the device below.
        let used = used_device(&device)?;
        if used != device {
            held.push(QuiesceTarget::Device { uuid: used.uuid });
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
