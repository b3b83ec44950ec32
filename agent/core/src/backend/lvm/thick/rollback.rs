//! Rollback of a thick volume: the blocks that were overwritten since are copied back from the exception store of the
//! snapshot.

use drumlin_lvm::metadata::{GroupMetadata, LogicalVolume};

use crate::{
    Error, Kind, Result,
    backend::{
        Job,
        lvm::{Lvm, Thick, thick::wipe::stopped},
    },
    blocking, fail,
    host::{Sectors, cow_store, device_mapper::Mapped},
    types::ImageId,
};

impl Lvm {
    /// The exception store of an active snapshot.
    pub(crate) fn store(&self, now: &GroupMetadata, snapshot: &LogicalVolume) -> Result<Mapped> {
        let uuid = format!("{}-cow", now.mapped_uuid(snapshot));
        let store = self.group.mapper()?.find(&uuid)?;
        store.ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!(
                    "snapshot {} is active but its exception store is not",
                    self.group.path(&snapshot.name)
                ),
            )
        })
    }

    /// Checks the exception stores of the other snapshots, which keep the overwritten blocks.
    pub(crate) fn check_stores_of(
        &self,
        now: &GroupMetadata,
        thick: &Thick,
        volume: &LogicalVolume,
        snapshot: &LogicalVolume,
    ) -> Result<()> {
        let written = self.usage(now, snapshot)?.used;
        for other in now.snapshots_of(volume) {
            if other.uuid == snapshot.uuid {
                continue;
            }
            let StoreUsage { used: own, all, .. } = self.usage(now, other)?;
            // A store that is full already loses nothing more.
            if all > 0 && own < all && own.saturating_add(written) > all {
                return Err(Error::new(
                    Kind::NoSpace,
                    format!(
                        "snapshot {} has {} free bytes in its exception store, but the rollback would overwrite {written} bytes; delete that snapshot, or roll back without keeping a snapshot of the current state (snapshotSize of the class is {})",
                        self.group.path(&other.name),
                        all - own,
                        thick.store(now.bytes(volume))
                    ),
                ));
            }
        }
        Ok(())
    }

    /// How full the exception store of a snapshot is; zeros where it is invalid or not active.
    fn usage(&self, now: &GroupMetadata, snapshot: &LogicalVolume) -> Result<StoreUsage> {
        let words = self.group.mapper()?.status(&now.mapped_uuid(snapshot))?;
        Ok(words.as_deref().and_then(parse_store).unwrap_or_default())
    }

    /// Rolls a volume back; repeated after an interruption, it copies all blocks again.
    pub(crate) async fn roll_back_thick(&self, id: ImageId, from: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        let (volume, found) = self.pair(&now, id, from)?;
        let origin = self.activate(&now, volume.volume).await?;
        let snapshot = self.activate(&now, found.volume).await?;
        self.check_idle(&now, volume.volume).await?;
        let store = self.store(&now, found.volume)?;
        let chunks = self.usage(&now, found.volume)?.chunks();
        let progress = self.running.begin(id, Job::RollingBack, 0..chunks);
        blocking(move || {
            let store = store.node()?;
            cow_store::roll_back(&store, &snapshot, &origin, |at| {
                fail::point("thick.rollback.step");
                if progress.goes_on(at) {
                    return Ok(());
                }
                Err(stopped(id))
            })
        })
        .await
    }
}

/// How full an exception store is, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct StoreUsage {
    /// What is used, with the metadata.
    used: u64,
    /// The size of the store.
    all: u64,
    /// What the metadata uses.
    metadata: u64,
}

impl StoreUsage {
    /// The bytes of the chunks that it keeps.
    fn chunks(self) -> u64 {
        self.used.saturating_sub(self.metadata)
    }
}

/// Parses the status of an exception store: `<used>/<all> <metadata>`, in sectors.
fn parse_store(words: &str) -> Option<StoreUsage> {
    let mut words = words.split_whitespace();
    let (used, all) = words.next()?.split_once('/')?;
    let bytes = |sectors: &str| sectors.parse().ok().map(Sectors::bytes);
    Some(StoreUsage {
        used: bytes(used)?,
        all: bytes(all)?,
        metadata: bytes(words.next()?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_says_how_full_it_is() {
        let usage = parse_store("48/8192 16").unwrap();
        assert_eq!((usage.used, usage.all), (24 << 10, 4 << 20));
        assert_eq!(usage.chunks(), 16 << 10);
        for words in ["Invalid", "16/8192", ""] {
            assert_eq!(parse_store(words), None, "{words}");
        }
    }
}
