//! Creating a thin pool that does not exist yet: its size, and its creation when it is first needed.

use drumlin_lvm::{
    Extents,
    command::Command,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
};

use crate::{
    Error, Kind, Result,
    backend::lvm::{Lvm, NewPool, PoolSize, tags::CREATED_POOL, thin::class::ThinClass},
    fail,
    host::trace::{self, Wait},
};

/// The tag of a group in which a pool is being created: followed by the group's sequence number at that time and the
/// metadata extents. LVM first creates the spare metadata, whose owner cannot be determined until the next change.
const MAKING: &str = "drumlin.making-pool=";
/// Maximum number of attempts when other processes change the group while a pool is being created.
const TRIES: u32 = 5;
/// Metadata bytes per chunk, by LVM's own rule.
const PER_CHUNK: u64 = 64;
/// Minimum metadata size of a pool that LVM creates, and the maximum that a pool can use, in bytes.
pub const POOL_METADATA: std::ops::RangeInclusive<u64> = (2 << 20)..=(16_192 << 20);

/// The sizes of a pool to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Size of its data.
    data: Extents,
    /// Size of its metadata.
    metadata: Extents,
}

impl Plan {
    /// Plans a pool in this group.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when the group has no room for it, [`Kind::Precondition`] when such a pool is not possible.
    pub(crate) fn of(now: &GroupMetadata, name: &str, new: NewPool) -> Result<Self> {
        let free: Extents = now.free().iter().sum();
        let all: Extents = now.disks.values().map(|disk| disk.extents).sum();
        // Spare metadata is kept for a later repair; all pools share it.
        let spares = now.volumes.values().filter(|volume| is_spare(volume));
        let spare = spares
            .map(|volume| volume.extents)
            .max()
            .unwrap_or_default();
        let beside = |metadata: Extents| metadata + metadata.less(spare);
        let whole = match new.size {
            PoolSize::Data(bytes) => Extents::covering(bytes, now.extent_size),
            PoolSize::OfGroup(percent) => all.percent(percent),
            PoolSize::OfFree(percent) => free.percent(percent),
        };
        let bytes = new.metadata.unwrap_or_else(|| {
            let chunks = whole.bytes(now.extent_size) / new.chunk;
            (chunks * PER_CHUNK).max(*POOL_METADATA.start())
        });
        if bytes > *POOL_METADATA.end() {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "thin pool {}/{name} cannot be created: with chunks of {} bytes it would need {bytes} bytes of metadata, but the maximum is {}; set thin.create.chunk higher",
                    now.name,
                    new.chunk,
                    POOL_METADATA.end()
                ),
            ));
        }
        let metadata = Extents::covering(bytes, now.extent_size);
        let data = match new.size {
            PoolSize::Data(_) => whole,
            PoolSize::OfGroup(_) | PoolSize::OfFree(_) => whole.less(beside(metadata)),
        };
        let least = Extents::covering(new.chunk, now.extent_size);
        let needed = data + beside(metadata);
        if data < least || needed > free {
            let needed = needed.max(least + beside(metadata));
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "thin pool {}/{name} cannot be created: it needs {} bytes including metadata and spare metadata, but volume group {} has {} of {} available for it; add a disk with vgextend, or set thin.create.size lower",
                    now.name,
                    needed.bytes(now.extent_size),
                    now.name,
                    free.bytes(now.extent_size),
                    all.bytes(now.extent_size),
                ),
            ));
        }
        Ok(Self { data, metadata })
    }

    /// The size of the pool's data in bytes.
    pub(crate) fn bytes(self, now: &GroupMetadata) -> u64 {
        self.data.bytes(now.extent_size)
    }
}

impl ThinClass {
    /// The plan for the pool; none when it exists, or when the class does not create it.
    pub(crate) fn planned(&self, now: &GroupMetadata) -> Result<Option<Plan>> {
        let is_there = |name: &str| now.volumes.get(name).is_some_and(|one| !is_begun(one));
        match self.create {
            Some(new) if !self.has_pool.initialized() && !is_there(&self.name) => {
                Plan::of(now, &self.name, new).map(Some)
            }
            _ => Ok(None),
        }
    }
}

impl Lvm {
    /// Checks that volumes can be created in the pool, which may not exist yet.
    pub(crate) async fn check_pool(&self, now: &GroupMetadata, pool: &ThinClass) -> Result<()> {
        match pool.planned(now)? {
            Some(_) => Ok(()),
            None => self.pool_state(now, pool).await.map(drop),
        }
    }

    /// Creates the pool if the class is configured to and it does not exist, once per process.
    ///
    /// Idempotent. After an interruption the incomplete pool is removed and created again.
    ///
    /// # Errors
    /// Those of [`Plan::of`] and of LVM; an incomplete pool is removed.
    pub(crate) async fn make_pool(&self, pool: &ThinClass) -> Result<()> {
        let Some(new) = pool.create else {
            return Ok(());
        };
        let made = pool.has_pool.get_or_try_init(|| async {
            let _one_at_a_time = trace::waited(Wait::Lock, self.group.making_pool.lock()).await;
            self.make_pool_now(&pool.name, new).await
        });
        made.await.copied()
    }

    async fn make_pool_now(&self, name: &str, new: NewPool) -> Result<()> {
        self.undo_begun_pool(name).await?;
        let mut tries = 1;
        loop {
            match self.try_to_make_pool(name, new).await {
                Err(error) if error.kind() == Kind::Busy && tries < TRIES => tries += 1,
                result => return result,
            }
        }
    }

    /// Creates the pool unless it exists.
    ///
    /// # Errors
    /// In addition [`Kind::Busy`], with nothing changed, when another process changes the group at the same time.
    async fn try_to_make_pool(&self, name: &str, new: NewPool) -> Result<()> {
        let now = self.group.now().await?;
        if let Some(there) = now.volumes.get(name) {
            return match there.kind {
                VolumeKind::Pool(_) => Ok(()),
                _ => Err(Error::new(
                    Kind::Precondition,
                    format!(
                        "thin pool cannot be created: volume {} has its name and is not a thin pool; set thin.pool to another name",
                        self.group.path(name)
                    ),
                )),
            };
        }
        let plan = Plan::of(&now, name, new)?;
        let metadata = plan.metadata.bytes(now.extent_size);
        let mark = format!("{MAKING}{}.{}", now.sequence + 1, plan.metadata);
        let wanted = name.to_owned();
        let create = Command::new("lvcreate")
            .words(["--type", "thin-pool", "-Zy", "-n", name])
            .words(["-l".to_owned(), plan.data.to_string()])
            .words(["-c".to_owned(), format!("{}b", new.chunk)])
            .words(["--poolmetadatasize".to_owned(), format!("{metadata}b")])
            .add_tags([CREATED_POOL.to_owned()])
            .words([&self.group.name])
            .done_when(move |now| now.pool(&wanted).is_some());
        fail::point("lvm.pool.planned");
        // Recovery relies on the sequence number in the tag. Both run in one turn, so that no other class changes the
        // group in between.
        let commands = vec![
            only_at(now.sequence, self.marking("--addtag", &mark)),
            only_at(now.sequence + 1, create),
        ];
        let unmark = self.marking("--deltag", &mark);
        if let Err(error) = self.group.change(commands).await {
            let left = match error.kind() {
                // The tag may be wrong, so only the tag itself is removed.
                Kind::Busy => self.group.change(vec![unmark]).await,
                // LVM removes by itself what it can.
                _ => self.undo_begun_pool(name).await,
            };
            return Err(match left {
                Ok(()) => error,
                Err(second) => {
                    error.undo_failed("the incomplete pool could not be removed", &second)
                }
            });
        }
        fail::point("lvm.pool.made");
        self.group.change(vec![unmark]).await?;
        tracing::info!(pool = %name, group = %now.name, bytes = plan.bytes(&now), metadata, chunk = new.chunk, "thin pool created");
        Ok(())
    }

    /// Removes the parts of a pool whose creation was interrupted because LVM was killed; they contain no data.
    async fn undo_begun_pool(&self, name: &str) -> Result<()> {
        let now = self.group.now().await?;
        let begun = now.volumes.get(name).filter(|volume| is_begun(volume));
        let marks = now.tags.iter().filter(|tag| tag.starts_with(MAKING));
        let spares = marks.clone().filter_map(|mark| begun_spare(&now, mark));
        let mut commands = Vec::new();
        for volume in begun.into_iter().chain(spares) {
            tracing::warn!(volume = %volume.name, pool = %name, group = %now.name, "removing part of a thin pool whose creation was interrupted");
            commands.push(self.removal(volume));
        }
        commands.extend(marks.map(|mark| self.marking("--deltag", mark)));
        if commands.is_empty() {
            return Ok(());
        }
        self.group.change(commands).await
    }

    /// The command that adds the tag to the group, or removes it.
    fn marking(&self, option: &str, mark: &str) -> Command {
        let (is_set, mark) = (option == "--addtag", mark.to_owned());
        Command::new("vgchange")
            .words([option, &mark, &self.group.name])
            .done_when(move |now| now.tags.contains(&mark) == is_set)
    }
}

/// Refuses the command if the group has changed since it had this sequence number.
fn only_at(sequence: u64, command: Command) -> Command {
    command.allowed_by(move |now| {
        if now.sequence == sequence {
            return Ok(());
        }
        Err(Error::new(
            Kind::Busy,
            format!(
                "volume group {} was changed by another process before the thin pool was created; retry",
                now.name
            ),
        ))
    })
}

/// The spare metadata that a killed LVM had created for a pool: a volume without a tag, created by the single change
/// since the group was tagged.
fn begun_spare<'a>(now: &'a GroupMetadata, mark: &str) -> Option<&'a LogicalVolume> {
    let (sequence, extents) = mark.strip_prefix(MAKING)?.split_once('.')?;
    let (sequence, extents): (u64, u64) = (sequence.parse().ok()?, extents.parse().ok()?);
    if now.sequence != sequence + 1 {
        return None;
    }
    now.volumes.values().find(|volume| {
        let number = volume.name.strip_prefix("lvol").unwrap_or_default();
        number.parse::<u32>().is_ok()
            && volume.kind == VolumeKind::Plain
            && volume.tags.is_empty()
            && volume.extents == Extents(extents)
    })
}

/// Returns true if the volume is a pool of ours before its conversion to a pool: LVM begins with a plain volume of the
/// pool's name, which already has the tag.
fn is_begun(volume: &LogicalVolume) -> bool {
    volume.kind == VolumeKind::Plain && volume.tags.iter().any(|tag| tag == CREATED_POOL)
}

fn is_spare(volume: &LogicalVolume) -> bool {
    volume.name.ends_with("_pmspare")
}
