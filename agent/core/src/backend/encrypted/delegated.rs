//! What the inner back end does for an encrypted class: all that knows nothing of the bytes.

use std::path::Path;

use async_trait::async_trait;

use super::{
    class::{Encrypted, Reopen},
    ranges::DataRanges,
    state::shown,
};
use crate::{
    Error, Result,
    backend::{
        AdoptionSpec, Backend, Change, ChangedBlocks, ChangedQuery, Checks, Fault, ForeignVolume,
        ForeignVolumes, Image, ImageSpec, Jobs, RangeSink, Running, Selection, Snapshots,
        foreign::not_adoptable,
    },
    fail,
    host::{Access, quiesce::QuiescePlan},
    types::{ImageId, Size},
};

#[async_trait]
impl ChangedBlocks for Encrypted {
    async fn changed(&self, query: ChangedQuery, sink: Box<dyn RangeSink>) -> Result<()> {
        let Some(sealed) = self.sealed(query.target).await? else {
            return self.inner.changed(query, sink).await;
        };
        let offset = sealed.state.offset;
        let query = ChangedQuery {
            start: query.start.saturating_add(offset),
            ..query
        };
        let sink = Box::new(DataRanges { offset, sink });
        self.inner.changed(query, sink).await
    }
}

#[async_trait]
impl Checks for Encrypted {
    async fn check(&self) -> Result<()> {
        self.inner.check().await
    }

    fn known_silence(&self) -> Option<Error> {
        self.inner.known_silence()
    }

    async fn faults(&self) -> Vec<Fault> {
        self.inner.faults().await
    }

    async fn check_deletable(&self, id: ImageId) -> Result<()> {
        self.inner.check_deletable(id).await
    }

    async fn check_unbound(&self, id: ImageId) -> Result<()> {
        self.inner.check_unbound(id).await
    }

    async fn usage(&self, id: ImageId) -> Result<Option<u64>> {
        self.inner.usage(id).await
    }

    async fn room_by_deleting(
        &self,
        needed: Size,
        oldest_first: &[ImageId],
    ) -> Result<Vec<ImageId>> {
        let header = match self.keys.now() {
            Some(_) => self.header().await?.bytes(),
            None => 0,
        };
        let needed = Size::try_from(needed.bytes().saturating_add(header))?;
        self.inner.room_by_deleting(needed, oldest_first).await
    }
}

#[async_trait]
impl Snapshots for Encrypted {
    async fn check_group_snapshot(&self, specs: &[ImageSpec]) -> Result<()> {
        let specs = self.inner_specs(specs).await?;
        self.inner.check_group_snapshot(&specs).await
    }

    async fn prepare_group_snapshot(&self, specs: &[ImageSpec]) -> Result<QuiescePlan> {
        let specs = self.inner_specs(specs).await?;
        self.inner.prepare_group_snapshot(&specs).await
    }

    async fn flush_group_snapshot(&self, specs: &[ImageSpec]) -> Result<()> {
        let specs = self.inner_specs(specs).await?;
        self.inner.flush_group_snapshot(&specs).await
    }

    async fn check_rollback(&self, pairs: &[(ImageId, ImageId)]) -> Result<()> {
        self.inner.check_rollback(pairs).await
    }

    /// The header comes back with the data, and so does what the record says of it.
    async fn roll_back(&self, id: ImageId, from: ImageId) -> Result<()> {
        let reopen = self.close_sealed(id).await?;
        self.inner.roll_back(id, from).await?;
        fail::point("encrypted.rollback.below");
        if let Some(snapshot) = self.sealed(from).await? {
            self.inner.relabel(id, &snapshot.state.change()).await?;
        }
        if reopen == Reopen::Yes {
            self.attach(id, Access::ReadWrite).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl ForeignVolumes for Encrypted {
    async fn foreign(&self, selection: Selection<'_>) -> Result<Vec<ForeignVolume>> {
        let mut found = self.inner.foreign(selection).await?;
        if let Some(refusal) = self.refusal() {
            for volume in &mut found {
                volume.refusals.push(refusal.to_owned());
            }
        }
        Ok(found)
    }

    async fn check_adoption(&self, spec: &AdoptionSpec) -> Result<()> {
        match self.refusal() {
            Some(refusal) => Err(not_adoptable(&spec.source, &[refusal.to_owned()])),
            None => self.inner.check_adoption(spec).await,
        }
    }

    async fn adopt(&self, spec: &AdoptionSpec) -> Result<Change<Image>> {
        if self.inner.get(spec.id).await?.is_none()
            && let Some(refusal) = self.refusal()
        {
            return Err(not_adoptable(&spec.source, &[refusal.to_owned()]));
        }
        Ok(self.inner.adopt(spec).await?.map(shown))
    }

    async fn check_release(&self, id: ImageId, to: Option<&Path>) -> Result<String> {
        self.inner.check_release(id, to).await
    }

    async fn release(&self, id: ImageId, to: Option<&Path>) -> Result<String> {
        self.close_sealed(id).await?;
        self.inner.release(id, to).await
    }
}

impl Jobs for Encrypted {
    fn running(&self) -> &Running {
        self.inner.running()
    }
}
