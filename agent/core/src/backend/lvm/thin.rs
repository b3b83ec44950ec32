//! What a thin pool does: making volumes and copies in it, and how much it can still promise.

use super::{
    Capacity, Change, Image, ImageSpec, Ours, Thin, image,
    metadata::{LogicalVolume, Pool, VolumeGroup, VolumeKind},
    name_of,
    program::Command,
    tags::{self, Tags},
};
use crate::{
    Error, Kind, Result,
    backend::Origin,
    fail,
    types::{ImageKind, Size},
};

/// So full, in hundredths, a pool takes nothing new: what is in it must be able to go on.
const DATA_FULL: u64 = 95;
/// LVM itself refuses at three quarters of the metadata; before that we do, with a reason.
const METADATA_FULL: u64 = 75;

/// What the kernel says of a pool (`Documentation/admin-guide/device-mapper/thin-provisioning.rst`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolState {
    /// Blocks of metadata: used, of how many.
    metadata: (u64, u64),
    /// Chunks of data: used, of how many.
    data: (u64, u64),
}

impl PoolState {
    /// Reads the words of a pool's status.
    ///
    /// # Errors
    /// What is wrong with the pool, for people.
    fn parse(words: &str) -> Result<Self, String> {
        let mut words = words.split_whitespace();
        let transaction = words.next().unwrap_or_default();
        if transaction == "Fail" || transaction == "Error" {
            return Err("has failed; lvconvert --repair it while nothing uses it".to_owned());
        }
        let mut pair = || {
            let (used, total) = words.next()?.split_once('/')?;
            Some((used.parse().ok()?, total.parse().ok()?))
        };
        let (Some(metadata), Some(data)) = (pair(), pair()) else {
            return Err("has a status that cannot be read".to_owned());
        };
        let rest: Vec<&str> = words.collect();
        if rest.contains(&"needs_check") {
            return Err("needs a check; lvconvert --repair it while nothing uses it".to_owned());
        }
        if rest.contains(&"ro") {
            return Err("is read-only, its metadata is full or damaged; give it more with lvextend --poolmetadatasize".to_owned());
        }
        Ok(Self { metadata, data })
    }

    /// Why nothing new may be put into the pool.
    fn refusal(&self) -> Option<String> {
        let part = |(used, total): (u64, u64)| used * 100 / total.max(1);
        let (data, metadata) = (part(self.data), part(self.metadata));
        if data >= DATA_FULL {
            return Some(format!(
                "{data} % of its data is used; give it more with lvextend, or delete something"
            ));
        }
        if metadata >= METADATA_FULL {
            return Some(format!(
                "{metadata} % of its metadata is used; give it more with lvextend --poolmetadatasize"
            ));
        }
        None
    }
}

impl Thin {
    fn pool<'a>(&self, now: &'a VolumeGroup) -> Result<(&'a LogicalVolume, &'a Pool)> {
        let name = &self.settings.pool;
        let (volume, pool) = now.pool(name).ok_or_else(|| {
            Error::new(
                Kind::Precondition,
                format!("volume group {} has no thin pool {name}; make it with lvcreate --type thin-pool", now.name),
            )
        })?;
        if !volume.is_complete {
            return Err(Error::new(
                Kind::Precondition,
                format!("thin pool {}/{name} is on a disk that is missing", now.name),
            ));
        }
        if !pool.zeroes {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "thin pool {}/{name} does not zero new chunks, so volumes could show what others deleted; switch it on with lvchange --zero y",
                    now.name
                ),
            ));
        }
        Ok((volume, pool))
    }

    /// How the pool is; none when nothing in it is active, so that the kernel does not know it.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when it is missing or does not work.
    pub(super) fn pool_state(&self, now: &VolumeGroup) -> Result<Option<PoolState>> {
        let (volume, _) = self.pool(now)?;
        let mapper = self.group.mapper()?;
        let uuid = now.pool_uuid(volume);
        if mapper.find(&uuid)?.is_none_or(|device| !device.is_live) {
            return Ok(None);
        }
        let lines = mapper.status(&uuid)?;
        let words = lines
            .first()
            .map(|line| line.words.as_str())
            .unwrap_or_default();
        let state = PoolState::parse(words).map_err(|why| {
            Error::new(
                Kind::Precondition,
                format!("thin pool {}/{} {why}", now.name, self.settings.pool),
            )
        })?;
        Ok(Some(state))
    }

    /// What the pool can still promise.
    pub(super) fn room(&self, now: &VolumeGroup) -> Result<Capacity> {
        let (pool, _) = self.pool(now)?;
        if let Some(state) = self.pool_state(now)?
            && state.refusal().is_some()
        {
            return Ok(Capacity::default());
        }
        let most = u128::from(now.bytes(pool)) * u128::from(self.settings.overcommit) / 100;
        let left = most.saturating_sub(u128::from(self.promised(now)));
        let left = u64::try_from(left)
            .unwrap_or(u64::MAX)
            .min(Size::MAX.bytes());
        let available = Size::try_from(left)?.round_down(Size::try_from(now.extent)?);
        Ok(Capacity {
            available,
            largest: available,
        })
    }

    /// What the volumes of the pool may become, whoever made them. Snapshots are not written to.
    fn promised(&self, now: &VolumeGroup) -> u64 {
        let in_pool = now.volumes.values().filter(|volume| {
            let is_snapshot =
                Tags::read(&volume.tags).is_some_and(|tags| tags.id.kind == ImageKind::Snapshot);
            matches!(&volume.kind, VolumeKind::Thin { pool, .. } if *pool == self.settings.pool)
                && !is_snapshot
        });
        in_pool.map(|volume| now.bytes(volume)).sum()
    }

    /// Refuses what the pool cannot promise.
    pub(super) fn check_room(&self, now: &VolumeGroup, more: u64) -> Result<()> {
        let refused = |why: String| {
            Err(Error::new(
                Kind::NoSpace,
                format!("thin pool {}/{}: {why}", now.name, self.settings.pool),
            ))
        };
        if let Some(why) = self.pool_state(now)?.and_then(|state| state.refusal()) {
            return refused(why);
        }
        let room = self.room(now)?.available;
        if more > room.bytes() {
            return refused(format!(
                "{more} bytes are more than the {room} that it may still promise"
            ));
        }
        Ok(())
    }

    pub(super) async fn make(&self, spec: &ImageSpec) -> Result<Change<Image>> {
        let now = self.group.now().await?;
        if let Some(found) = self.find(&now, spec.id) {
            if !found.tags.is_undone {
                return Ok(Change::Already(image(&now, &found)));
            }
            self.remove(found.volume).await?;
        }
        let unit = Size::try_from(now.extent)?;
        let size = spec.size.round_up(unit).unwrap_or(spec.size);
        match spec.id.kind {
            ImageKind::Volume => self.check_room(&now, size.bytes())?,
            ImageKind::Snapshot => self.check_room(&now, 0)?,
        }
        let result = match spec.origin {
            Origin::Blank => self.make_blank(spec, size).await,
            Origin::CopyOf(origin) => {
                let source = self.finished(&now, origin)?;
                self.make_copy(&now, spec, size, &source).await
            }
        };
        let now = self.group.now().await?;
        let found = self.find(&now, spec.id);
        if let Err(error) = result {
            if let Some(found) = found {
                self.undo(&error, found.volume).await?;
            }
            return Err(error);
        }
        let found = found.filter(|found| !found.tags.is_undone).ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!("{} was made and is gone again", spec.id),
            )
        })?;
        fail::point("lvm.create.made");
        Ok(Change::Made(image(&now, &found)))
    }

    async fn undo(&self, error: &Error, volume: &LogicalVolume) -> Result<()> {
        self.remove(volume).await.map_err(|second| {
            Error::new(
                Kind::HalfDone,
                format!("{error}; what was made of it could not be removed: {second}"),
            )
        })
    }

    fn tags(&self, spec: &ImageSpec) -> Tags {
        Tags {
            id: spec.id,
            class: self.settings.class.to_string(),
            node: self.settings.node.to_string(),
            labels: spec.labels.clone(),
            size: None,
            is_undone: false,
            is_newer: false,
        }
    }

    async fn make_blank(&self, spec: &ImageSpec, size: Size) -> Result<()> {
        let name = name_of(spec.id);
        let command = Command::new("lvcreate")
            .words(["-V".to_owned(), format!("{}b", size.bytes())])
            .words(["-T".to_owned(), self.group.path(&self.settings.pool)])
            .words(["-n".to_owned(), name.clone()])
            .add_tags(self.tags(spec).write())
            .done_when(exists(name.clone()));
        self.group.change(vec![command]).await?;
        let now = self.group.now().await?;
        match now.volumes.get(&name) {
            Some(volume) => self.check_empty(&now, volume).await,
            None => Ok(()),
        }
    }

    /// A pool can have a device of this number from before, with somebody's bytes, that LVM takes for the new one.
    async fn check_empty(&self, now: &VolumeGroup, volume: &LogicalVolume) -> Result<()> {
        let uuid = now.mapped_uuid(volume);
        if self.device(now, volume)?.is_none() {
            self.activate(now, volume).await?;
        }
        let lines = self.group.mapper()?.status(&uuid)?;
        // "<mapped sectors> <highest mapped sector>"
        let words = lines
            .first()
            .map(|line| line.words.as_str())
            .unwrap_or_default();
        if words.split_whitespace().next() == Some("0") {
            return Ok(());
        }
        tracing::warn!(
            volume = %volume.name,
            group = %now.name,
            "a new volume shows blocks of a forgotten one; it is removed with them"
        );
        Err(Error::new(
            Kind::HalfDone,
            format!(
                "thin pool {}/{} had a forgotten device with data under the number of the new volume; it is removed, ask again",
                now.name, self.settings.pool
            ),
        ))
    }

    /// A copy shares everything with its source, and is of the moment at which it is made.
    async fn make_copy(
        &self,
        now: &VolumeGroup,
        spec: &ImageSpec,
        size: Size,
        source: &Ours<'_>,
    ) -> Result<()> {
        let name = name_of(spec.id);
        let path = self.group.path(&name);
        let is_larger = size.bytes() > now.bytes(source.volume);
        let mut tags = self.tags(spec);
        tags.is_undone = is_larger;
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
            // While it is inactive, which stops nobody else in the pool; seen by nobody before it is large enough.
            let (bytes, grown) = (size.bytes(), name.clone());
            commands.push(
                Command::new("lvextend")
                    .words(["-L".to_owned(), format!("{bytes}b"), path.clone()])
                    .done_when(move |now| {
                        let volume = now.volumes.get(&grown);
                        volume.is_some_and(|volume| now.bytes(volume) >= bytes)
                    }),
            );
            commands.push(
                Command::new("lvchange")
                    .words(["-kn", "--deltag", &tags::undone(), &path])
                    .done_when(move |now| {
                        let volume = now.volumes.get(&name);
                        let tags = volume.and_then(|volume| Tags::read(&volume.tags));
                        tags.is_some_and(|tags| !tags.is_undone)
                    }),
            );
        }
        self.group.change(commands).await
    }

    /// Removes a volume, whatever it is.
    pub(super) async fn remove(&self, volume: &LogicalVolume) -> Result<()> {
        let uuid = volume.uuid.clone();
        let command = Command::new("lvremove")
            .words([self.group.path(&volume.name)])
            .done_when(move |now| now.volumes.values().all(|volume| volume.uuid != uuid));
        self.group.change(vec![command]).await
    }
}

fn exists(name: String) -> impl Fn(&VolumeGroup) -> bool {
    move |now| now.volumes.contains_key(&name)
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
        assert_eq!(good.refusal(), None);
        let full = PoolState::parse(
            "2 113/1024 16000/16384 - rw discard_passdown queue_if_no_space - 256",
        )
        .unwrap();
        assert!(full.refusal().unwrap().contains("97 % of its data"));
        let full = PoolState::parse(
            "2 800/1024 1/16384 - out_of_data_space discard_passdown error_if_no_space - 1",
        )
        .unwrap();
        assert!(full.refusal().unwrap().contains("metadata"));
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
