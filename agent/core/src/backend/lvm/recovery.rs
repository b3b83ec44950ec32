//! Recovery: finds and completes or undoes what a killed predecessor left, before anything else is done.
//!
//! The order matters: a volume's device is resumed only while its pool is running, and LVM's commands come last,
//! because they wait for suspended devices.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use drumlin_lvm::{
    command::Command,
    lock_files,
    metadata::{GroupMetadata, LogicalVolume, Message, Pool, VolumeKind},
    placement::NOTES,
};

use super::{
    group::Group,
    group_snapshot::HIDDEN,
    name_of,
    tags::Tags,
    temporary_snapshot_of,
    thick::remove::{holds_bytes, mark_deleting},
    thin::orphan_thin_devices::thin_volumes,
};
use crate::{
    Error, Kind, Result, blocking,
    host::{
        Sectors,
        device_mapper::{DeviceMapper, Mapped},
    },
    types::{ImageId, ImageKind, Key, NodeName},
};

/// Timeout for the lock of a group: an LVM command that holds it longer is reported as hanging.
const PATIENCE: Duration = Duration::from_mins(1);

impl Group {
    /// Makes sure that nothing is left incomplete; runs once, and again after an error.
    ///
    /// # Errors
    /// [`Kind::HalfDone`] or [`Kind::Precondition`] saying what the administrator must do.
    pub(super) async fn ready(self: &Arc<Self>, node: &NodeName) -> Result<()> {
        if self.is_recovered() {
            return Ok(());
        }
        let _ = self.node.set(node.clone());
        let _turn = self.turn().await;
        if self.is_recovered() {
            return Ok(());
        }
        // LVM's remove and refresh commands can leave devices behind in turn.
        for _ in 0..3 {
            let now = self.now().await?;
            let (this, of) = (Arc::clone(self), node.clone());
            let left = blocking(move || this.repair_devices(&now, &of)).await?;
            for (name, bytes) in &left.grown {
                tracing::warn!(pool = %name, group = %self.name, bytes, "completing interrupted extension of a thin pool's metadata");
                let words = [
                    "--poolmetadatasize".to_owned(),
                    format!("{bytes}b"),
                    self.path(name),
                ];
                self.run(Command::new("lvextend").words(words)).await?;
            }
            for name in &left.stale {
                tracing::warn!(volume = %name, group = %self.name, "refreshing devices that differ from the LVM metadata");
                let refresh = Command::new("lvchange").words(["--refresh", &self.path(name)]);
                if let Err(error) = self.run(refresh).await {
                    tracing::warn!(volume = %name, group = %self.name, error = %error.chain(), "volume not refreshed");
                }
            }
            for name in &left.doomed {
                tracing::warn!(volume = %name, group = %self.name, "removing a volume whose creation was interrupted");
                self.remove_broken(name).await?;
            }
            if left.is_nothing() {
                break;
            }
        }
        let now = self.now().await?;
        for volume in with_queued_messages(&now) {
            if let Err(error) = self.flush_queued_messages(&now, volume, node).await {
                tracing::warn!(volume = %volume.name, group = %self.name, error = %error.chain(), "queued thin-pool messages not flushed");
            }
        }
        let now = self.now().await?;
        for volume in never_finished(&now, node) {
            let id = Tags::read(&volume.tags).map(|tags| tags.id);
            if id.is_some_and(|id| self.in_flight.has(&name_of(id))) {
                continue;
            }
            if Tags::read(&volume.tags).is_some_and(|tags| holds_bytes(volume, &tags)) {
                // Its class knows whether it must be wiped first.
                tracing::warn!(volume = %volume.name, group = %self.name, "marking an incomplete volume for deletion");
                self.run(mark_deleting(self.path(&volume.name))).await?;
                continue;
            }
            tracing::warn!(volume = %volume.name, group = %self.name, "removing an incomplete volume");
            self.remove_broken(&volume.name).await?;
        }
        self.repairs.fetch_add(1, Ordering::Release);
        self.set_recovered();
        Ok(())
    }

    /// Returns true if recovery would find no device to repair.
    pub(super) fn check_devices(&self, now: &GroupMetadata) -> Result<bool> {
        let Some(node) = self.node.get() else {
            return Ok(false);
        };
        let mapper = self.mapper()?;
        let devices = mapper.list(&format!("LVM-{}", now.uuid))?;
        let works =
            |device: &Mapped| device.is_live && !device.is_suspended && !device.has_waiting_table;
        let is_told = |volume: &LogicalVolume| match &volume.kind {
            VolumeKind::Pool(pool) => pool.messages.is_empty(),
            _ => true,
        };
        Ok(devices.iter().all(works)
            && now.volumes.values().all(is_told)
            && half_done(now, mapper, node)?.is_nothing())
    }

    /// Flushes queued thin-pool messages. LVM appends deletions to a queue that already exists, and does not send
    /// them to a pool that has already processed the queue; the pool would keep the device as an orphan. Only the
    /// creation of a volume flushes the queue first, and a snapshot never reuses the number of an orphan thin device.
    async fn flush_queued_messages(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        node: &NodeName,
    ) -> Result<()> {
        tracing::warn!(volume = %volume.name, group = %self.name, "flushing queued thin-pool messages");
        let id = ImageId {
            kind: ImageKind::Snapshot,
            key: Key::NIL,
        };
        let name = name_of(id);
        if !now.volumes.contains_key(&name) {
            let mut tags = Tags::new(id, "", node.as_str());
            // It is removed by recovery if this is interrupted.
            tags.is_incomplete = true;
            let snapshot = Command::new("lvcreate")
                .words(["-s".to_owned(), self.path(&volume.name)])
                .words(["-n", &name])
                .add_tags(tags.write());
            self.run(snapshot).await?;
        }
        self.remove_broken(&name).await
    }

    /// Removes a volume; the first attempt can fail because of an incomplete device.
    async fn remove_broken(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        let remove = || Command::new("lvremove").words([path.clone()]);
        match self.run(remove()).await {
            Err(error) if error.kind() == Kind::HalfDone => self.run(remove()).await,
            other => other,
        }
    }

    /// Resumes suspended devices and removes incomplete ones; returns what LVM's commands must do afterwards.
    fn repair_devices(&self, before: &GroupMetadata, node: &NodeName) -> Result<PendingCommands> {
        // An LVM command that is still running may be doing exactly this.
        let _lock = self.lock()?;
        let now = self.read_locked(before)?;
        let mapper = self.mapper()?;
        let prefix = format!("LVM-{}", now.uuid);
        let is_free = |device: &Mapped| !self.in_flight.has(&device.uuid);
        let hidden = mapper.list(&format!("{HIDDEN}{}", now.uuid))?;
        for device in hidden.iter().filter(|device| is_free(device)) {
            tracing::warn!(device = %device.name, "removing an unused device-mapper device");
            mapper.remove(&device.uuid)?;
        }
        let depth = |device: &Mapped| depth(&now, device);
        let mut devices = mapper.list(&prefix)?;
        devices.sort_by_key(depth);
        for device in devices.iter().filter(|device| is_free(device)) {
            if device.is_live && (device.is_suspended || device.has_waiting_table) {
                tracing::warn!(device = %device.name, "resuming a device that was left suspended");
                if device.has_waiting_table {
                    mapper.clear(&device.uuid)?;
                }
                if device.is_suspended {
                    mapper.resume(&device.uuid)?;
                }
            }
        }
        // Removing one device may free the ones below it.
        for _ in 0..3 {
            let mut devices = mapper.list(&prefix)?;
            devices.sort_by_key(depth);
            for device in devices.iter().rev().filter(|device| device.open == 0) {
                let mut volumes = now.volumes.values();
                let known =
                    volumes.find(|volume| device.uuid.starts_with(&now.mapped_uuid(volume)));
                // LVM does not activate a pool of which a part is already active; but it activates the parts that it
                // moves to another disk, and the mirror that copies them, whether they are in use or not.
                let is_moving = known.is_some_and(|volume| volume.is_moving);
                let is_loose_part = depth(device) == 0 && !is_moving;
                if !device.is_live || known.is_none() || is_loose_part {
                    tracing::warn!(device = %device.name, "removing an unused device-mapper device");
                    mapper.remove(&device.uuid)?;
                }
            }
        }
        let mut left = half_done(&now, mapper, node)?;
        left.doomed
            .extend(Self::undo_queued_creations(&now, mapper)?);
        Ok(left)
    }

    /// Incomplete volumes of ours that a killed LVM had begun to create: the message to the pool is queued, and no
    /// caller got a reply. They are removed; if the pool already has the snapshot, LVM cannot do that by itself.
    fn undo_queued_creations(now: &GroupMetadata, mapper: &DeviceMapper) -> Result<Vec<String>> {
        let mut doomed = Vec::new();
        for volume in now.volumes.values() {
            let VolumeKind::Pool(pool) = &volume.kind else {
                continue;
            };
            let uuid = now.pool_uuid(volume);
            let is_live = mapper.find(&uuid)?.is_some_and(|device| device.is_live);
            let kernel: Option<u64> = if is_live && !pool.messages.is_empty() {
                let words = mapper.status(&uuid)?.unwrap_or_default();
                let first = words.split_whitespace().next();
                first.and_then(|word| word.parse().ok())
            } else {
                None
            };
            // The pool has processed the messages; only the queue was left.
            if kernel == Some(pool.transaction) {
                continue;
            }
            for message in &pool.messages {
                let Message::Create(name) = message else {
                    continue;
                };
                let Some(begun) = now.volumes.get(name) else {
                    continue;
                };
                if Tags::read(&begun.tags).is_none() {
                    continue;
                }
                if let (true, VolumeKind::Thin { device, origin: Some(_), .. }) = (is_live, &begun.kind)
                    // A device that does not exist in the pool yet is harmless and need not be deleted.
                    && mapper.message(&uuid, &format!("delete {device}")).is_ok()
                {
                    tracing::warn!(volume = %name, group = %now.name, "deleted the snapshot of an interrupted creation from its thin pool");
                }
                doomed.push(name.clone());
            }
        }
        Ok(doomed)
    }

    /// Takes the lock with which LVM's commands exclude each other from the group.
    pub(super) fn lock(&self) -> Result<Flock<File>> {
        let directory = lock_files::directory()?;
        let path = directory.join(format!("V_{}", self.name));
        let failed =
            |error: io::Error| Error::io(format!("could not lock {}", path.display()), error);
        let begun = Instant::now();
        loop {
            std::fs::create_dir_all(directory).map_err(failed)?;
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(failed)?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                // LVM removes the lock file when it is done: a lock on a removed file excludes no one.
                Ok(lock) => {
                    let ours = lock.metadata().map_err(failed)?.ino();
                    if std::fs::metadata(&path).is_ok_and(|there| there.ino() == ours) {
                        return Ok(lock);
                    }
                }
                Err((_, Errno::EWOULDBLOCK)) if begun.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(10));
                }
                Err((_, Errno::EWOULDBLOCK)) => {
                    return Err(Error::new(
                        Kind::Busy,
                        format!(
                            "another LVM process has locked volume group {} for {} s; find it with `fuser {}`",
                            self.name,
                            PATIENCE.as_secs(),
                            path.display()
                        ),
                    ));
                }
                Err((_, error)) => return Err(failed(error.into())),
            }
        }
    }
}

/// What LVM's commands must do after the devices are resumed.
#[derive(Debug, Default)]
struct PendingCommands {
    /// Pools whose metadata device is larger in the kernel than in the metadata, and its size in bytes. The pool
    /// already uses the larger size, so this can only be completed.
    grown: Vec<(String, u64)>,
    /// Volumes to be removed: their creation or removal was interrupted.
    doomed: Vec<String>,
    /// Volumes to be refreshed: their devices differ from the metadata.
    stale: Vec<String>,
}

impl PendingCommands {
    fn is_nothing(&self) -> bool {
        self.grown.is_empty() && self.stale.is_empty() && self.doomed.is_empty()
    }
}

/// The size in bytes of a pool's metadata device, if it is larger in the kernel than in the metadata.
fn grown_metadata(now: &GroupMetadata, pool: &Pool, mapper: &DeviceMapper) -> Result<Option<u64>> {
    let Some(metadata) = now.volumes.get(&pool.metadata) else {
        return Ok(None);
    };
    let uuid = format!("{}-tmeta", now.mapped_uuid(metadata));
    if mapper.find(&uuid)?.is_none_or(|device| !device.is_live) {
        return Ok(None);
    }
    let table = mapper.table(&uuid)?;
    let sectors: Sectors = table.iter().map(|line| line.length).sum();
    let bytes = sectors.bytes();
    Ok((bytes > now.bytes(metadata)).then_some(bytes))
}

/// Thick volumes and snapshots whose creation or removal was interrupted.
fn half_done(
    now: &GroupMetadata,
    mapper: &DeviceMapper,
    node: &NodeName,
) -> Result<PendingCommands> {
    let mut left = PendingCommands::default();
    for volume in now.volumes.values().filter(|volume| volume.is_visible) {
        let live = mapper.find(&now.mapped_uuid(volume))?;
        let live = live.filter(|device| device.is_live);
        let table = match &live {
            Some(device) => mapper.table(&device.uuid)?,
            None => Vec::new(),
        };
        let shows = |kind: &str| table.iter().any(|line| line.kind == kind);
        let shows_snapshots = shows("snapshot-origin");
        // One snapshot is being merged, and the others are still valid.
        let is_merged_into = shows("snapshot-merge");
        // A visible leg was split off by an administrator, to track changes meanwhile.
        let is_note = |part: &String| {
            let is_seen = now.volumes.get(part).is_some_and(|part| part.is_visible);
            is_seen && part.contains(NOTES)
        };
        let ours = Tags::read(&volume.tags).filter(|tags| tags.node == node.as_str());
        let is_deleting = ours.as_ref().is_some_and(|tags| tags.is_deleting);
        match &volume.kind {
            // It was split from its origin to be wiped, and its device must not be a snapshot any more.
            VolumeKind::Plain if is_deleting && shows("snapshot") => {
                left.stale.push(volume.name.clone());
            }
            // A snapshot is a plain volume at the start of its creation and at the end of its removal.
            VolumeKind::Plain
                if !is_deleting
                    && ours
                        .as_ref()
                        .is_some_and(|tags| tags.id.kind == ImageKind::Snapshot) =>
            {
                left.doomed.push(volume.name.clone());
            }
            // The metadata volumes of its legs are visible until it is complete.
            VolumeKind::Mirrored if ours.is_some() && volume.parts.iter().any(is_note) => {
                left.doomed.push(volume.name.clone());
            }
            // LVM decides when the merge starts and what happens to the other snapshots: a refresh would start it.
            VolumeKind::Plain | VolumeKind::Mirrored if now.merged_into(volume).is_some() => {}
            VolumeKind::Plain | VolumeKind::Mirrored => {
                let snapshots: Vec<_> = now.snapshots_of(volume).collect();
                if shows_snapshots && snapshots.is_empty() {
                    left.stale.push(volume.name.clone());
                }
                if live.is_some() && !shows_snapshots && !is_merged_into {
                    // Later writes have bypassed them: they are no valid point-in-time copies.
                    for snapshot in snapshots {
                        match Tags::read(&snapshot.tags) {
                            // Wiping splits it from its origin first.
                            Some(tags) if tags.is_deleting => left.stale.push(volume.name.clone()),
                            Some(_) => left.doomed.push(snapshot.name.clone()),
                            None => {}
                        }
                    }
                }
            }
            VolumeKind::Pool(pool) => {
                let grown = grown_metadata(now, pool, mapper)?;
                left.grown
                    .extend(grown.map(|bytes| (volume.name.clone(), bytes)));
            }
            _ => {}
        }
    }
    Ok(left)
}

/// One volume of each pool with queued messages.
fn with_queued_messages(now: &GroupMetadata) -> impl Iterator<Item = &LogicalVolume> {
    let volumes = now.volumes.values();
    let pools = volumes.filter_map(|volume| match &volume.kind {
        VolumeKind::Pool(pool) if !pool.messages.is_empty() => Some((volume, pool)),
        _ => None,
    });
    pools.filter_map(|(pool, settings)| {
        let mut volumes = thin_volumes(now, &pool.name).map(|(volume, _)| volume);
        volumes.find(|volume| {
            let is_incomplete = Tags::read(&volume.tags).is_some_and(|tags| tags.is_incomplete);
            let is_new = Message::Create(volume.name.clone());
            // LVM cannot snapshot these.
            let is_merging = volume.merges_into.is_some() || now.merged_into(volume).is_some();
            !is_incomplete && !is_merging && !settings.messages.contains(&is_new)
        })
    })
}

/// Volumes of this node that no caller got a reply for, and that cannot be completed.
fn never_finished<'a>(
    now: &'a GroupMetadata,
    node: &'a NodeName,
) -> impl Iterator<Item = &'a LogicalVolume> {
    let is_snapshot = |volume: &&LogicalVolume| matches!(volume.kind, VolumeKind::Snapshot { .. });
    let goes_on = move |id: ImageId| {
        let target = now.volumes.get(&name_of(id));
        let tags = target.and_then(|target| Tags::read(&target.tags));
        // A copy that has hardly begun starts over; its caller may never repeat the call.
        let has_begun =
            |tags: &Tags| tags.is_incomplete && tags.copied.is_some_and(|bytes| bytes > 0);
        let Some(tags) = tags.filter(has_begun) else {
            return false;
        };
        let Some(source) = tags.source else {
            return true;
        };
        let moment = now
            .volumes
            .get(&temporary_snapshot_of(id))
            .filter(is_snapshot);
        let mut given = now.volumes.values().filter(is_snapshot);
        moment.is_some()
            || given.any(|given| Tags::read(&given.tags).is_some_and(|given| given.id == source))
    };
    now.volumes.values().filter(move |volume| {
        let tags = Tags::read(&volume.tags);
        // An image that is being deleted is wiped first, by the deletion.
        let is_unfinished = |tags: &Tags| tags.is_incomplete && !tags.is_deleting;
        let incomplete = tags.filter(|tags| is_unfinished(tags) && tags.node == node.as_str());
        volume.is_visible && incomplete.is_some_and(|tags| !goes_on(tags.id))
    })
}

/// The layer of a device below the volumes: parts, then pools, then the rest.
fn depth(now: &GroupMetadata, device: &Mapped) -> u8 {
    let ends = |ends: &[&str]| ends.iter().any(|end| device.uuid.ends_with(end));
    let mut volumes = now.volumes.values();
    // A snapshot that waits for its merge still keeps overwritten blocks, though it is hidden.
    let is_hidden = |volume: &LogicalVolume| !volume.is_visible && volume.merges_into.is_none();
    let is_part = volumes.any(|volume| is_hidden(volume) && now.mapped_uuid(volume) == device.uuid);
    if is_part || ends(&["-tmeta", "-tdata", "-real", "-cow"]) {
        0
    } else {
        u8::from(!ends(&["-tpool"])) + 1
    }
}

#[cfg(all(test, feature = "lab"))]
#[path = "recovery_tests.rs"]
mod in_lab;
