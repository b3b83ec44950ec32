//! Changed blocks of thin snapshots, from the metadata of their pool.

use std::{ops::Range, path::Path, sync::Arc};

use drumlin_lvm::{
    ThinBlocks, ThinMetadata, ThinView,
    metadata::{LogicalVolume, VolumeKind},
};

use crate::{
    Error, Kind, Result,
    backend::{
        ChangedQuery, RangeSink,
        lvm::{
            Lvm, OwnVolume,
            group::Group,
            range_spool::RangeSpool,
            thin::{class::ThinClass, devices::to_its_end},
        },
    },
    blocking, fail,
    host::trace::{self, Wait},
};

/// What is read of the metadata of a pool.
#[derive(Debug, Clone, Copy)]
struct Walk {
    /// The number of the base in the pool, and its size in bytes.
    base: Option<(u64, u64)>,
    target: u64,
    /// The size of the target in bytes.
    size: u64,
    start: u64,
}

impl Lvm {
    /// Finds the changed blocks of a thin snapshot. The metadata snapshot of the pool is held while its trees are read;
    /// what is found is spooled meanwhile.
    pub(crate) async fn changed_thin(
        &self,
        pool: &ThinClass,
        query: ChangedQuery,
        mut sink: Box<dyn RangeSink>,
    ) -> Result<()> {
        let now = self.group.now().await?;
        let target = self.complete_volume(&now, query.target)?;
        let base = query.base.map(|base| self.complete_volume(&now, base));
        let base = base.transpose()?;
        let size = |ours: &OwnVolume<'_>| {
            let size = ours.tags.size;
            size.unwrap_or_else(|| now.bytes(ours.volume))
        };
        let walk = Walk {
            base: match &base {
                Some(base) => Some((number(base.volume)?, size(base))),
                None => None,
            },
            target: number(target.volume)?,
            size: size(&target),
            start: query.start,
        };
        // A pool has one metadata snapshot at a time.
        let turn = trace::waited(Wait::Lock, pool.reading_metadata.lock()).await;
        let mut spool = self.read_pool(&pool.name, walk).await?;
        if spool.is_none() {
            // The metadata can be read of an active pool alone.
            self.activate(&now, target.volume).await?;
            spool = self.read_pool(&pool.name, walk).await?;
        }
        drop(turn);
        let spool = spool.ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!(
                    "the metadata of thin pool {} is being read by another program; repeat the call later",
                    self.group.path(&pool.name)
                ),
            )
        })?;
        blocking(move || spool.drain(sink.as_mut())).await
    }

    /// None when the pool is not active, or another program reads its metadata.
    async fn read_pool(&self, pool: &str, walk: Walk) -> Result<Option<RangeSpool>> {
        let (group, pool) = (Arc::clone(&self.group), pool.to_owned());
        to_its_end(async move { group.read_held(&pool, walk).await }).await
    }
}

impl Group {
    async fn read_held(self: &Arc<Self>, pool: &str, walk: Walk) -> Result<Option<RangeSpool>> {
        let reserved = {
            let _held = self.hold_changes().await;
            let (this, name) = (Arc::clone(self), pool.to_owned());
            blocking(move || {
                let _lock = this.lock()?;
                this.reserve(&name)
            })
            .await?
        };
        let Some((_, uuid, metadata)) = reserved else {
            return Ok(None);
        };
        fail::point("thin.changed.reserved");
        let found = blocking(move || walk.spooled(&metadata)).await;
        let this = Arc::clone(self);
        let released =
            blocking(move || this.mapper()?.message(&uuid, "release_metadata_snap")).await;
        let found = found?;
        released?;
        Ok(Some(found))
    }
}

impl Walk {
    fn spooled(&self, metadata: &Path) -> Result<RangeSpool> {
        let metadata = ThinMetadata::open(metadata, ThinView::MetadataSnapshot)?;
        let block = metadata.block_size();
        let from = ThinBlocks::within(self.start, block);
        let runs = match self.base {
            Some((base, _)) => metadata.differing(base, self.target, from)?,
            None => metadata.mapped(self.target, from)?,
        };
        // What lies behind the end of the base is one range, whatever is mapped there.
        let common = self.base.map_or(self.size, |(_, size)| size.min(self.size));
        let mut found = Merged::default();
        for run in runs {
            let run = run?;
            let start = run.start.bytes(block).max(self.start);
            if start >= common {
                break;
            }
            found.push(start..run.end.bytes(block).min(common))?;
        }
        found.push(common.max(self.start)..self.size)?;
        metadata.verify_unchanged()?;
        found.end()
    }
}

/// Merges ranges that touch on their way to a spool.
#[derive(Default)]
struct Merged {
    spool: RangeSpool,
    last: Range<u64>,
}

impl Merged {
    fn push(&mut self, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if !self.last.is_empty() && range.start <= self.last.end {
            self.last.end = range.end;
            return Ok(());
        }
        let last = std::mem::replace(&mut self.last, range);
        self.keep(last)
    }

    fn keep(&mut self, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.spool.push(range)
    }

    fn end(mut self) -> Result<RangeSpool> {
        let last = std::mem::take(&mut self.last);
        self.keep(last)?;
        Ok(self.spool)
    }
}

fn number(volume: &LogicalVolume) -> Result<u64> {
    match &volume.kind {
        VolumeKind::Thin { device, .. } => Ok(*device),
        _ => Err(Error::new(
            Kind::Precondition,
            format!("volume {} is not a thin volume any more", volume.name),
        )),
    }
}
