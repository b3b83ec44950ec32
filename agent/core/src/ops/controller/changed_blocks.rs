//! Changed blocks of snapshots (CSI, `GetMetadataAllocated`, `GetMetadataDelta`).

use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tracing::Instrument as _;

use crate::ops::{
    Operations,
    labels::{self, Read},
    locks::LockMode,
    lookup::{LocatedImage, not_here},
};
use crate::{
    Error, Kind, Result,
    backend::{ChangedQuery, RangeSink},
    types::{ImageId, ImageKind, Reference, Size},
};

/// Ranges that are on their way to a slow client.
const ON_THE_WAY: usize = 4096;

/// A request for changed blocks.
#[derive(Debug, Clone)]
pub struct ChangedRequest {
    /// The snapshot that the blocks shall differ from, with the name of its field; none for all that hold data.
    pub base: Option<Reference>,
    /// The snapshot.
    pub target: Reference,
    /// Ranges that end at or before this offset, in bytes, are left out.
    pub start: i64,
}

/// The changed blocks of a snapshot, as they are found.
#[derive(Debug)]
pub struct ChangedRanges {
    /// The size of the snapshot in bytes.
    pub size: Size,
    ranges: mpsc::Receiver<Range<u64>>,
    /// The search; gone when its end was told.
    search: Option<JoinHandle<Result<()>>>,
}

impl ChangedRanges {
    /// Adds the next ranges in bytes, ascending and merged, to `found`: those that are there, at most so many. Waits for
    /// the first of them; adds none at the end.
    ///
    /// # Errors
    /// Those of the back end; then not all ranges were found.
    pub async fn next(&mut self, found: &mut Vec<Range<u64>>, most: usize) -> Result<()> {
        if self.ranges.recv_many(found, most).await > 0 {
            return Ok(());
        }
        match self.search.take() {
            Some(search) => ended(search.await),
            None => Ok(()),
        }
    }
}

/// Sends ranges to whoever asked.
struct Sending(mpsc::Sender<Range<u64>>);

impl RangeSink for Sending {
    fn found(&mut self, range: Range<u64>) -> ControlFlow<()> {
        match self.0.blocking_send(range) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn is_gone(&self) -> bool {
        self.0.is_closed()
    }
}

fn ended<T>(joined: Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    joined.map_err(|error| Error::new(Kind::Bug, "a search ended early").because(error))?
}

impl Operations {
    /// Searches for the changed blocks of a snapshot. The snapshots cannot be deleted meanwhile. The search ends early
    /// when the result is dropped.
    ///
    /// # Errors
    /// `Invalid` if the snapshots are of several volumes, `NotFound`, `OutOfRange` for the offset, `Busy`,
    /// `Precondition` if one is damaged, `HalfDone` if the storage is busy.
    pub async fn changed_blocks(
        self: &Arc<Self>,
        request: ChangedRequest,
    ) -> Result<ChangedRanges> {
        let kind = ImageKind::Snapshot;
        let mut ids: Vec<ImageId> = Vec::new();
        for reference in request.base.iter().chain([&request.target]) {
            let place = self.place(kind, reference).map_err(not_here)?;
            if !ids.contains(&place.id) {
                ids.push(place.id);
            }
        }
        let holds = ids.into_iter().map(LockMode::Shared).collect();
        let (checked, size) = oneshot::channel();
        let (sender, ranges) = mpsc::channel(ON_THE_WAY);
        let this = Arc::clone(self);
        let search = async move {
            let operations = Arc::clone(&this);
            let search = async move {
                let (target, query) = operations.query(&request).await?;
                // Nobody may be there any more.
                let _ = checked.send(target.image.size);
                target
                    .class
                    .backend
                    .changed(query, Box::new(Sending(sender)))
                    .await
            };
            this.changes.run(holds, search).await
        };
        let search = tokio::spawn(search.in_current_span());
        if let Ok(size) = size.await {
            return Ok(ChangedRanges {
                size,
                ranges,
                search: Some(search),
            });
        }
        ended(search.await)?;
        Err(Error::new(Kind::Bug, "a search ended without a result"))
    }

    async fn query(&self, request: &ChangedRequest) -> Result<(LocatedImage, ChangedQuery)> {
        let target = self.find_snapshot(&request.target).await;
        let target = target.map_err(not_here)?;
        target.healthy()?;
        let base = match &request.base {
            None => None,
            Some(base) => {
                let base = self.find_snapshot(base).await.map_err(not_here)?;
                base.healthy()?;
                let of = |found: &LocatedImage| {
                    let of = found.image.label(labels::SNAPSHOT_OF);
                    of.map(|of| (of.to_owned(), found.class.name.clone()))
                };
                if of(&base) != of(&target) {
                    return Err(Error::invalid(format!(
                        "base_snapshot_id {} and target_snapshot_id {} are not snapshots of one volume",
                        base.handle, target.handle
                    )));
                }
                Some(base.image.id)
            }
        };
        let size = target.image.size;
        let start = u64::try_from(request.start).ok();
        let Some(start) = start.filter(|start| *start <= size.bytes()) else {
            return Err(Error::new(
                Kind::OutOfRange,
                format!(
                    "starting_offset {} is not within the {size} of snapshot {}",
                    request.start, target.handle
                ),
            ));
        };
        let query = ChangedQuery {
            base,
            target: target.image.id,
            start,
        };
        Ok((target, query))
    }
}
