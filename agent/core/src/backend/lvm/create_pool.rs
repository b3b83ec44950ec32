//! A thin pool that is not there yet: how large it becomes, and making it when it is first needed.

use super::{
    Lvm, NewPool, PoolSize, ThinPool,
    command::Command,
    metadata::{LogicalVolume, VolumeGroup, VolumeKind},
};
use crate::{Error, Kind, Result, fail};

/// The mark of a pool that we made. LVM begins with an ordinary volume of that name, which has the mark already.
const MARK: &str = "drumlin.pool=made";
/// The mark of a group in which a pool is being made: behind it the group's number then, and the extents of the metadata.
/// LVM first makes the spare metadata, of which nothing tells whose it is until the change after that.
const MAKING: &str = "drumlin.making-pool=";
/// So often others may change the group while a pool is to be made.
const TRIES: u32 = 5;
/// What a chunk takes of the metadata, by LVM's own rule.
const PER_CHUNK: u64 = 64;
/// The least metadata that LVM makes for a pool, and the most that a pool can use, in bytes.
pub const POOL_METADATA: std::ops::RangeInclusive<u64> = (2 << 20)..=(16_192 << 20);

/// What is made for a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Its data, in extents.
    data: u64,
    /// Its metadata, in extents.
    metadata: u64,
}

impl Plan {
    /// What is made in this group.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when the group has no room for it, [`Kind::Precondition`] when there can be no such pool.
    pub(super) fn of(now: &VolumeGroup, name: &str, new: NewPool) -> Result<Self> {
        let free: u64 = now.free().iter().sum();
        let all: u64 = now.disks.values().map(|disk| disk.extents).sum();
        // A second area of metadata waits for the day on which one must be repaired; all pools share it.
        let spares = now.volumes.values().filter(|volume| is_spare(volume));
        let spare = spares.map(|volume| volume.extents).max().unwrap_or(0);
        let beside = |metadata: u64| metadata + metadata.saturating_sub(spare);
        let part = |extents: u64, hundredths: u32| extents * u64::from(hundredths) / 100;
        let whole = match new.size {
            PoolSize::Data(bytes) => bytes.div_ceil(now.extent),
            PoolSize::OfGroup(hundredths) => part(all, hundredths),
            PoolSize::OfFree(hundredths) => part(free, hundredths),
        };
        let bytes = new.metadata.unwrap_or_else(|| {
            let chunks = whole.saturating_mul(now.extent) / new.chunk;
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
        let metadata = bytes.div_ceil(now.extent);
        let data = match new.size {
            PoolSize::Data(_) => whole,
            PoolSize::OfGroup(_) | PoolSize::OfFree(_) => whole.saturating_sub(beside(metadata)),
        };
        let (needed, least) = (data + beside(metadata), new.chunk.div_ceil(now.extent));
        if data < least || needed > free {
            let needed = needed.max(least + beside(metadata));
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "thin pool {}/{name} cannot be created: it needs {} bytes including metadata and spare metadata, but volume group {} has {} of {} available for it; add a disk with vgextend, or set thin.create.size lower",
                    now.name,
                    needed.saturating_mul(now.extent),
                    now.name,
                    free.saturating_mul(now.extent),
                    all.saturating_mul(now.extent),
                ),
            ));
        }
        Ok(Self { data, metadata })
    }

    /// The size of the pool's data in bytes.
    pub(super) fn bytes(self, now: &VolumeGroup) -> u64 {
        self.data.saturating_mul(now.extent)
    }
}

impl Lvm {
    /// Whether volumes can be made in the pool, which may be one that is yet to be made.
    pub(super) async fn check_pool(&self, now: &VolumeGroup, pool: &ThinPool) -> Result<()> {
        match self.planned(now, pool)? {
            Some(_) => Ok(()),
            None => self.pool_state(now, pool).await.map(drop),
        }
    }

    /// What will be made for the pool; none when it is there, or nobody asked for it.
    pub(super) fn planned(&self, now: &VolumeGroup, pool: &ThinPool) -> Result<Option<Plan>> {
        let is_there = |name: &str| now.volumes.get(name).is_some_and(|one| !is_begun(one));
        match pool.create {
            Some(new) if !self.has_pool.initialized() && !is_there(&pool.name) => {
                Plan::of(now, &pool.name, new).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Makes the pool if the class says so and it is not there, once in the life of this process.
    ///
    /// A repeat finds it; after an interruption what was begun is removed and made again, unless it was finished.
    ///
    /// # Errors
    /// Those of [`Plan::of`], and LVM's; then nothing is left.
    pub(super) async fn make_pool(&self, pool: &ThinPool) -> Result<()> {
        let Some(new) = pool.create else {
            return Ok(());
        };
        let made = self.has_pool.get_or_try_init(|| async {
            let _one_at_a_time = self.group.making_pool.lock().await;
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

    /// Makes the pool unless it is there.
    ///
    /// # Errors
    /// Besides the others' [`Kind::Busy`], with nothing done, when somebody changes the group at the same time.
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
        let metadata = plan.metadata.saturating_mul(now.extent);
        let mark = format!("{MAKING}{}.{}", now.sequence + 1, plan.metadata);
        let wanted = name.to_owned();
        let create = Command::new("lvcreate")
            .words(["--type", "thin-pool", "-Zy", "-n", name])
            .words(["-l".to_owned(), plan.data.to_string()])
            .words(["-c".to_owned(), format!("{}b", new.chunk)])
            .words(["--poolmetadatasize".to_owned(), format!("{metadata}b")])
            .add_tags([MARK.to_owned()])
            .words([&self.group.name])
            .done_when(move |now| now.pool(&wanted).is_some());
        fail::point("lvm.pool.planned");
        // Who looks at the mark later believes its number. In one turn, so that no other class comes in between.
        let commands = vec![
            only_at(now.sequence, self.marking("--addtag", &mark)),
            only_at(now.sequence + 1, create),
        ];
        let unmark = self.marking("--deltag", &mark);
        if let Err(error) = self.group.change(commands).await {
            let left = match error.kind() {
                // The mark may be wrong, so nothing but the mark is taken away by it.
                Kind::Busy => self.group.change(vec![unmark]).await,
                // LVM takes back by itself what it can.
                _ => self.undo_begun_pool(name).await,
            };
            return Err(match left {
                Ok(()) => error,
                Err(second) => Error::new(
                    Kind::HalfDone,
                    format!("{error}; the incomplete pool could not be removed: {second}"),
                ),
            });
        }
        fail::point("lvm.pool.made");
        self.group.change(vec![unmark]).await?;
        tracing::info!(pool = %name, group = %now.name, bytes = plan.bytes(&now), metadata, chunk = new.chunk, "thin pool created");
        Ok(())
    }

    /// Removes what LVM had begun to make a pool of when it was killed; nobody has anything in that.
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

    /// The command that marks the group, or takes the mark away.
    fn marking(&self, option: &str, mark: &str) -> Command {
        let (is_set, mark) = (option == "--addtag", mark.to_owned());
        Command::new("vgchange")
            .words([option, &mark, &self.group.name])
            .done_when(move |now| now.tags.contains(&mark) == is_set)
    }
}

/// The command, refused when anybody has changed the group since it had this number.
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

/// The spare metadata that LVM had made for a pool before it was killed: a volume without a mark, but the work of the one
/// change since the group was marked.
fn begun_spare<'a>(now: &'a VolumeGroup, mark: &str) -> Option<&'a LogicalVolume> {
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
            && volume.extents == extents
    })
}

/// Whether this is what a pool of ours is before it is one.
fn is_begun(volume: &LogicalVolume) -> bool {
    volume.kind == VolumeKind::Plain && volume.tags.iter().any(|tag| tag == MARK)
}

fn is_spare(volume: &LogicalVolume) -> bool {
    volume.name.ends_with("_pmspare")
}
