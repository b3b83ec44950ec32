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
        let mapper = self.group.mapper()?;
        let used = |snapshot: &LogicalVolume| -> Result<(u64, u64)> {
            let words = mapper.status(&now.mapped_uuid(snapshot))?;
            Ok(words.as_deref().and_then(parse_store).unwrap_or((0, 0)))
        };
        let (written, _) = used(snapshot)?;
        for other in now.snapshots_of(volume) {
            if other.uuid == snapshot.uuid {
                continue;
            }
            let (own, all) = used(other)?;
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

    /// Rolls a volume back; repeated after an interruption, it copies all blocks again.
    pub(crate) async fn roll_back_thick(&self, id: ImageId, from: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        let (volume, found) = self.pair(&now, id, from)?;
        let origin = self.activate(&now, volume.volume).await?;
        let snapshot = self.activate(&now, found.volume).await?;
        self.check_idle(&now, volume.volume).await?;
        let store = self.store(&now, found.volume)?;
        let progress = self
            .running
            .begin(id, Job::RollingBack, 0..now.bytes(volume.volume));
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

/// Parses the status of an exception store: the bytes used, and the total.
fn parse_store(words: &str) -> Option<(u64, u64)> {
    // "<used>/<all> <metadata>", in sectors.
    let (used, all) = words.split_whitespace().next()?.split_once('/')?;
    let bytes = |sectors: &str| sectors.parse().ok().map(Sectors::bytes);
    Some((bytes(used)?, bytes(all)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_says_how_full_it_is() {
        for (words, store) in [
            ("16/8192 16", Some((8192, 4 << 20))),
            ("Invalid", None),
            ("", None),
        ] {
            assert_eq!(parse_store(words), store, "{words}");
        }
    }
}
