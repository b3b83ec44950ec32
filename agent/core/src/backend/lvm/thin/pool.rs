//! Thin pools: creating volumes and copies in them, and their remaining capacity.

use std::sync::{Arc, atomic::Ordering};

use drumlin_lvm::{
    command::Command,
    metadata::{GroupMetadata, LogicalVolume, Pool, VolumeKind, unknown_flag},
};

use crate::{
    Error, Kind, Result,
    backend::lvm::{
        Capacity, ImageSpec, Lvm, OwnVolume, PoolLimits, ThinPool,
        create::exists,
        name_of,
        tags::{self, Tags},
        thin::class::ThinClass,
        thin::orphan_thin_devices::{is_set_aside, thin_volumes},
    },
    backend::{Fault, Reason, utilization::percent},
    blocking, blocking_at_once, fail,
    host::{Sectors, quiesce::Check},
    types::{ImageKind, Size},
};

/// The kernel's status of a pool (`Documentation/admin-guide/device-mapper/thin-provisioning.rst`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolState {
    /// Blocks of metadata: used and total.
    metadata: (u64, u64),
    /// Chunks of data: used and total.
    data: (u64, u64),
    /// Writes to unmapped blocks wait or fail.
    is_out_of_space: bool,
}

impl Lvm {
    /// The bytes that a volume uses in its pool or volume group; none if its pool is not active.
    pub(crate) async fn taken(
        &self,
        now: &GroupMetadata,
        ours: &OwnVolume<'_>,
    ) -> Result<Option<u64>> {
        let VolumeKind::Thin { pool, .. } = &ours.volume.kind else {
            return Ok(Some(now.bytes(ours.volume)));
        };
        let words = match self.device(now, ours.volume)? {
            Some(device) => {
                let group = Arc::clone(&self.group);
                blocking(move || group.mapper()?.status(&device.uuid)).await?
            }
            None => match now.pool(pool) {
                Some((volume, _)) if self.device(now, volume)?.is_some() => {
                    Some(self.hidden_status(now, ours.volume).await?)
                }
                _ => None,
            },
        };
        // "<mapped sectors> <highest mapped sector>"
        let sectors =
            words.and_then(|words| words.split_whitespace().next()?.parse::<Sectors>().ok());
        Ok(sectors.map(Sectors::bytes))
    }
}

impl PoolState {
    /// Parses a pool's status line.
    ///
    /// # Errors
    /// The problem of the pool, as text for people.
    fn parse(words: &str) -> Result<Self, String> {
        let mut words = words.split_whitespace();
        let transaction = words.next().unwrap_or_default();
        if transaction == "Fail" || transaction == "Error" {
            return Err(
                "has failed; run lvconvert --repair on it while no volume in it is in use"
                    .to_owned(),
            );
        }
        let mut pair = || {
            let (used, total) = words.next()?.split_once('/')?;
            Some((used.parse().ok()?, total.parse().ok()?))
        };
        let (Some(metadata), Some(data)) = (pair(), pair()) else {
            return Err("has a status that this agent cannot parse".to_owned());
        };
        let rest: Vec<&str> = words.collect();
        if rest.contains(&"needs_check") {
            return Err("needs a metadata check; run lvconvert --repair on it while no volume in it is in use".to_owned());
        }
        if rest.contains(&"ro") {
            return Err("is read-only because its metadata is full or damaged; extend its metadata with lvextend --poolmetadatasize".to_owned());
        }
        Ok(Self {
            metadata,
            data,
            is_out_of_space: rest.contains(&"out_of_data_space"),
        })
    }

    /// The used part of its data and of its metadata, in percent.
    pub(crate) fn percents(&self) -> (u32, u32) {
        let of = |(used, total)| percent(used, total);
        (of(self.data), of(self.metadata))
    }

    /// The state once this many chunks of its data are free, with which a pool that is out of space goes on.
    pub(super) fn without(&self, chunks: u64) -> Self {
        let (used, total) = self.data;
        Self {
            data: (used.saturating_sub(chunks), total),
            is_out_of_space: self.is_out_of_space && chunks == 0,
            ..self.clone()
        }
    }

    /// The reason why the pool accepts no new volumes and existing ones may fail, if any.
    pub(super) fn refusal(&self, limits: PoolLimits) -> Option<String> {
        let (data, metadata) = self.percents();
        if self.is_out_of_space {
            return Some(
                "is out of data space, so writes to its volumes wait or fail; extend it with lvextend, or delete volumes or snapshots and run fstrim".to_owned(),
            );
        }
        if data >= limits.data_limit {
            return Some(format!(
                "{data} % of its data space is used; extend it with lvextend, or delete volumes or snapshots"
            ));
        }
        if metadata >= limits.metadata_limit {
            return Some(format!(
                "{metadata} % of its metadata space is used; extend it with lvextend --poolmetadatasize"
            ));
        }
        None
    }
}

/// The device through which a new thin volume is checked for contents.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CheckedThrough {
    /// Its own: it is activated.
    OwnDevice,
    /// A hidden one: it stays inactive.
    HiddenDevice,
}

impl Lvm {
    /// The state of the pool; none when it is not active in the kernel.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when it is missing or failed, `Busy` when it does not answer.
    pub(crate) async fn pool_state(
        &self,
        now: &GroupMetadata,
        wanted: &ThinClass,
    ) -> Result<(u64, Option<PoolState>)> {
        let (volume, _) = find_pool(now, wanted)?;
        let bytes = now.bytes(volume);
        let uuid = now.pool_uuid(volume);
        let words = self.status_words(uuid).await?;
        let Some(words) = words else {
            return Ok((bytes, None));
        };
        let state = PoolState::parse(&words).map_err(|why| {
            Error::new(
                Kind::Precondition,
                format!("thin pool {}/{} {why}", now.name, wanted.name),
            )
        })?;
        self.warn(wanted, &state);
        Ok((bytes, Some(state)))
    }

    /// The status of an active device of the pool. The kernel reads the pool's metadata for that, and waits while it
    /// is being written.
    async fn status_words(&self, uuid: String) -> Result<Option<String>> {
        let group = Arc::clone(&self.group);
        let look = blocking_at_once(move || group.mapper()?.status(&uuid));
        self.group.look(look).await
    }

    /// Logs a warning when the pool is filling up; once, and again only after it had room in between.
    fn warn(&self, wanted: &ThinClass, state: &PoolState) {
        let (data, _) = state.percents();
        let is_high = data >= wanted.limits.warn_at;
        if is_high && !wanted.is_warned.swap(is_high, Ordering::Relaxed) {
            tracing::warn!(
                class = %self.settings.class,
                pool = %self.group.path(&wanted.name),
                data_percent = data,
                "thin pool is filling up; extend it with lvextend, or delete volumes or snapshots"
            );
        }
        if !is_high {
            wanted.is_warned.store(false, Ordering::Relaxed);
        }
    }

    /// The fault of a pool that is filling up.
    pub(crate) async fn pool_low(&self, now: &GroupMetadata, pool: &ThinClass) -> Option<Fault> {
        let (_, state) = self.pool_state(now, pool).await.ok()?;
        let (used, _) = state?.percents();
        (used >= pool.limits.warn_at).then(|| {
            Fault::new(
                Reason::PoolSpaceLow,
                format!(
                    "thin pool {}/{} uses {used} % of its data; extend it with lvextend, or delete volumes or snapshots",
                    now.name, pool.name
                ),
            )
        })
    }

    /// The fault of all volumes of the class when their pool may not accept writes, though each volume by itself
    /// is healthy.
    pub(crate) async fn pool_danger(&self, now: &GroupMetadata, pool: &ThinClass) -> Option<Fault> {
        match self.pool_state(now, pool).await {
            Ok((_, state)) => {
                let mirrors = || {
                    let (volume, _) = now.pool(&pool.name)?;
                    let mirrors = self.mirrors_of_pool(now, volume);
                    let why = mirrors.unwrap_or_else(|error| Some(error.chain()))?;
                    Some((Reason::MirrorLegLost, why))
                };
                let full = state.and_then(|state| state.refusal(pool.limits));
                let full = full.map(|why| (Reason::PoolFull, why));
                let (reason, why) = full.or_else(mirrors)?;
                let message = format!("thin pool {}/{}: {why}", now.name, pool.name);
                Some(Fault::new(reason, message))
            }
            Err(error) => Some(Fault::new(Reason::PoolFailed, error.chain())),
        }
    }

    /// The bytes that remain within the overcommit limit, or why nothing can be created.
    async fn promise(
        &self,
        now: &GroupMetadata,
        wanted: &ThinClass,
    ) -> Result<Result<u64, String>> {
        let (bytes, state) = self.pool_state(now, wanted).await?;
        if let Some(why) = state.and_then(|state| state.refusal(wanted.limits)) {
            return Ok(Err(why));
        }
        Ok(Ok(promisable(bytes, wanted, promised(now, wanted))))
    }

    /// The remaining capacity of the pool.
    pub(crate) async fn thin_capacity(
        &self,
        now: &GroupMetadata,
        wanted: &ThinClass,
    ) -> Result<Capacity> {
        let left = match wanted.planned(now) {
            Ok(Some(plan)) => promisable(plan.bytes(now), wanted, 0),
            Ok(None) => self.promise(now, wanted).await?.unwrap_or(0),
            Err(error) if error.kind() == Kind::NoSpace => 0,
            Err(error) => return Err(error),
        };
        let available = Size::try_from(left)?.round_down(Size::try_from(now.extent_size)?);
        Ok(Capacity {
            available,
            largest: available,
        })
    }

    /// Refuses a request that exceeds the capacity of the pool, including earlier reservations.
    pub(crate) async fn check_pool_room(
        &self,
        now: &GroupMetadata,
        wanted: &ThinClass,
        more: u64,
        ahead: u64,
    ) -> Result<()> {
        let left = self.promise(now, wanted).await?;
        let why = match left.map(|left| left.saturating_sub(ahead)) {
            Err(why) => why,
            Ok(left) if more > left => {
                format!(
                    "{more} bytes exceed the {left} bytes that remain within its overcommit limit"
                )
            }
            Ok(_) => return Ok(()),
        };
        Err(Error::new(
            Kind::NoSpace,
            format!("thin pool {}/{}: {why}", now.name, wanted.name),
        ))
    }

    /// Checks the pool again right before the command runs, when no other process can change it: the flush has used
    /// space, and a device of a full pool would stay suspended for as long as it is full.
    pub(crate) fn room_check(&self, now: &GroupMetadata, wanted: &ThinClass) -> Result<Check> {
        let (volume, _) = find_pool(now, wanted)?;
        let (uuid, limits) = (now.pool_uuid(volume), wanted.limits);
        let (group, path) = (Arc::clone(&self.group), self.group.path(&wanted.name));
        Ok(Box::new(move || {
            let words = group.mapper()?.status(&uuid)?;
            let state = words.map(|words| PoolState::parse(&words)).transpose();
            let failed = |kind, why| Error::new(kind, format!("thin pool {path} {why}"));
            let state = state.map_err(|why| failed(Kind::Precondition, why))?;
            match state.and_then(|state| state.refusal(limits)) {
                Some(why) => Err(failed(Kind::NoSpace, why)),
                None => Ok(()),
            }
        }))
    }

    /// Creates a volume that reads as zeros.
    pub(crate) async fn make_thin(
        &self,
        now: &GroupMetadata,
        pool: &ThinClass,
        spec: &ImageSpec,
        size: Size,
    ) -> Result<()> {
        let name = name_of(spec.id);
        let ahead = self.group.reservations.ahead_of(&name, now);
        self.check_pool_room(now, pool, size.bytes(), ahead).await?;
        let mut tags = self.tags(spec);
        // It stays invisible until it was checked, even after an interruption.
        tags.is_incomplete = true;
        let create = || {
            Command::new("lvcreate")
                .words(["-V".to_owned(), format!("{}b", size.bytes())])
                .words(["-T".to_owned(), self.group.path(&pool.name)])
                .words(["-n".to_owned(), name.clone()])
                .add_tags(tags.write())
                .done_when(exists(name.clone()))
        };
        let made = self
            .new_thin(pool, &name, CheckedThrough::OwnDevice, create)
            .await?;
        fail::point("thin.create.checked");
        if made {
            let show = self.finish_thin(&name, None);
            return self.group.change(vec![show]).await;
        }
        Ok(())
    }

    /// Creates a thin volume until it has a new device. LVM reuses the number of an orphan thin device, and its
    /// former contents, for a new volume; such a device is kept separately. Returns whether the volume exists.
    pub(crate) async fn new_thin(
        &self,
        pool: &ThinClass,
        name: &str,
        through: CheckedThrough,
        create: impl Fn() -> Command,
    ) -> Result<bool> {
        /// Maximum number of orphan thin devices that are kept for one new volume.
        const TRIES: usize = 8;
        for _ in 0..TRIES {
            self.group.change(vec![create()]).await?;
            let now = self.group.now().await?;
            let Some(volume) = now.volumes.get(name) else {
                return Ok(false);
            };
            let VolumeKind::Thin {
                pool,
                device: number,
                ..
            } = &volume.kind
            else {
                return Ok(false);
            };
            let is_empty = match through {
                CheckedThrough::OwnDevice => self.is_empty(&now, volume).await?,
                CheckedThrough::HiddenDevice => self.is_blank(&now, volume).await?,
            };
            if is_empty {
                return Ok(true);
            }
            self.set_aside(pool, *number, volume).await?;
        }
        Err(Error::new(
            Kind::HalfDone,
            format!(
                "creating a volume in thin pool {} met {TRIES} orphan thin devices, which are now kept as separate volumes; retry",
                self.group.path(&pool.name)
            ),
        ))
    }

    /// The command that makes a volume visible.
    fn finish_thin(&self, name: &str, option: Option<&str>) -> Command {
        let path = self.group.path(name);
        let name = name.to_owned();
        Command::new("lvchange")
            .words(option)
            .words(["--deltag", &tags::incomplete(), &path])
            .done_when(move |now| {
                let volume = now.volumes.get(&name);
                let tags = volume.and_then(|volume| Tags::read(&volume.tags));
                tags.is_some_and(|tags| !tags.is_incomplete)
            })
    }

    /// Returns true if a new volume has no mapped blocks. The pool can have an orphan thin device of the same number,
    /// with former contents.
    async fn is_empty(&self, now: &GroupMetadata, volume: &LogicalVolume) -> Result<bool> {
        if self.device(now, volume)?.is_none() {
            self.activate(now, volume).await?;
        }
        let words = self.status_words(now.mapped_uuid(volume)).await?;
        let words = words.ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!(
                    "{} was created but has no device",
                    self.group.path(&volume.name)
                ),
            )
        })?;
        // "<mapped sectors> <highest mapped sector>"
        Ok(words.split_whitespace().next() == Some("0"))
    }

    /// Creates a thin volume that becomes a copy within the freeze barrier. To snapshot an active volume LVM suspends
    /// it, which must only happen within the barrier; of this volume LVM only needs the device number and the size.
    pub(crate) async fn create_empty_member(
        &self,
        now: &GroupMetadata,
        pool: &ThinClass,
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
        self.new_thin(pool, &name, CheckedThrough::HiddenDevice, create)
            .await
            .map(drop)
    }

    /// The commands that create a copy: it shares all blocks with its source, at the point in time of its creation.
    pub(crate) async fn copy_thin(
        &self,
        now: &GroupMetadata,
        pool: &ThinClass,
        spec: &ImageSpec,
        size: Size,
        source: &OwnVolume<'_>,
    ) -> Result<Vec<Command>> {
        let promised = match spec.id.kind {
            ImageKind::Volume => size.bytes(),
            // It is not written to.
            _ => 0,
        };
        let name = name_of(spec.id);
        let ahead = self.group.reservations.ahead_of(&name, now);
        self.check_pool_room(now, pool, promised, ahead).await?;
        let path = self.group.path(&name);
        let is_larger = size.bytes() > now.bytes(source.volume);
        let mut tags = self.tags(spec);
        tags.is_incomplete = is_larger;
        let mut create = Command::new("lvcreate")
            .words(["-s".to_owned(), self.group.path(&source.volume.name)])
            .words(["-n", &name])
            .add_tags(tags.write())
            .done_when(exists(name.clone()));
        if spec.id.kind == ImageKind::Volume && !is_larger {
            create = create.words(["-kn"]);
        }
        let mut commands = vec![create];
        if is_larger {
            // While it is inactive, which suspends nothing else in the pool; it stays invisible until it is large
            // enough.
            let (bytes, grown) = (size.bytes(), name.clone());
            commands.push(
                Command::new("lvextend")
                    .words(["-L".to_owned(), format!("{bytes}b"), path.clone()])
                    .done_when(move |now| {
                        let volume = now.volumes.get(&grown);
                        volume.is_some_and(|volume| now.bytes(volume) >= bytes)
                    }),
            );
            commands.push(self.finish_thin(&name, Some("-kn")));
        }
        Ok(commands)
    }
}

/// The pool, if volumes may be created in it.
fn find_pool<'a>(
    now: &'a GroupMetadata,
    wanted: &ThinPool,
) -> Result<(&'a LogicalVolume, &'a Pool)> {
    let name = &wanted.name;
    let (volume, pool) = now.pool(name).ok_or_else(|| {
        Error::new(
            Kind::Precondition,
            format!(
                "volume group {} has no thin pool {name}; create it with lvcreate --type thin-pool",
                now.name
            ),
        )
    })?;
    if let Some(flag) = &volume.unknown_flag {
        return Err(Error::new(
            Kind::Precondition,
            format!(
                "thin pool {}/{name} cannot be used: {}",
                now.name,
                unknown_flag(flag)
            ),
        ));
    }
    if !volume.is_complete {
        return Err(Error::new(
            Kind::Precondition,
            format!("thin pool {}/{name} uses a disk that is missing", now.name),
        ));
    }
    if !pool.zeroes {
        return Err(Error::new(
            Kind::Precondition,
            format!(
                "thin pool {}/{name} does not zero new chunks, so volumes could expose data of deleted volumes; enable zeroing with lvchange --zero y",
                now.name
            ),
        ));
    }
    Ok((volume, pool))
}

/// The bytes that remain within the overcommit limit of a pool of this size.
pub(super) fn promisable(bytes: u64, wanted: &ThinPool, promised: u64) -> u64 {
    let most = u128::from(bytes) * u128::from(wanted.overcommit) / 100;
    let left = most.saturating_sub(u128::from(promised));
    u64::try_from(left)
        .unwrap_or(u64::MAX)
        .min(Size::MAX.bytes())
}

/// The total virtual size of all volumes in the pool, including foreign ones. Snapshots are not written to.
pub(crate) fn promised(now: &GroupMetadata, wanted: &ThinPool) -> u64 {
    let in_pool = thin_volumes(now, &wanted.name).map(|(volume, _)| volume);
    let counts = |volume: &&LogicalVolume| {
        let is_snapshot =
            Tags::read(&volume.tags).is_some_and(|tags| tags.id.kind == ImageKind::Snapshot);
        !is_snapshot && !is_set_aside(volume)
    };
    in_pool.filter(counts).map(|volume| now.bytes(volume)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_pool_is_read_and_judged() {
        let good =
            PoolState::parse("2 113/1024 1/16384 - rw no_discard_passdown queue_if_no_space - 256")
                .unwrap();
        assert_eq!((good.metadata, good.data), ((113, 1024), (1, 16384)));
        let limits = PoolLimits::default();
        assert_eq!(good.refusal(limits), None);
        let full = PoolState::parse(
            "2 113/1024 16000/16384 - rw discard_passdown queue_if_no_space - 256",
        )
        .unwrap();
        assert!(full.refusal(limits).unwrap().contains("97 % of its data"));
        let later = PoolLimits {
            data_limit: 98,
            ..limits
        };
        assert_eq!(full.refusal(later), None);
        let full =
            PoolState::parse("2 800/1024 1/16384 - rw discard_passdown error_if_no_space - 1")
                .unwrap();
        assert!(full.refusal(limits).unwrap().contains("metadata"));
        let full = PoolState::parse(
            "2 8/1024 16384/16384 - out_of_data_space discard_passdown error_if_no_space - 1",
        )
        .unwrap();
        assert!(full.refusal(limits).unwrap().contains("out of data space"));
        for bad in [
            "Fail",
            "Error",
            "",
            "x",
            "1 1/2 1/2 - ro discard_passdown queue_if_no_space - 1",
            "1 1/2 1/2 - rw x y needs_check 1",
        ] {
            assert!(PoolState::parse(bad).is_err(), "{bad}");
        }
    }
}
