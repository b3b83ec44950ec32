//! Which parts of a snapshot hold data, or differ from an earlier one: changed block tracking.

use std::ops::{ControlFlow, Range};

use async_trait::async_trait;

use crate::{Result, host::changed, types::ImageId};

/// Which parts of a snapshot are asked for.
#[derive(Debug, Clone, Copy)]
pub struct ChangedQuery {
    /// The snapshot of the same volume that they shall differ from; none for all that hold data.
    pub base: Option<ImageId>,
    /// The snapshot.
    pub target: ImageId,
    /// Parts that end at or before this offset in bytes are left out.
    pub start: u64,
}

/// Receives the parts, on a thread that may be blocked.
pub trait RangeSink: Send {
    /// Takes the next range, in bytes. It may stop the search, which then succeeds.
    fn found(&mut self, range: Range<u64>) -> ControlFlow<()>;

    /// Returns true if nobody wants the rest: a search can take long without finding anything.
    fn is_gone(&self) -> bool;
}

impl changed::Sink for Box<dyn RangeSink> {
    fn found(&mut self, range: Range<u64>) -> Result<ControlFlow<()>> {
        Ok(self.as_mut().found(range))
    }

    fn reached(&mut self, _offset: u64) -> ControlFlow<()> {
        if self.is_gone() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Finds changed blocks.
#[async_trait]
pub trait ChangedBlocks {
    /// Calls `sink` with the ranges, in ascending order, merged, within the size of the target. They are a superset of
    /// what differs; what lies behind the end of the base differs.
    ///
    /// # Errors
    /// `Precondition` when one of the snapshots is damaged, `HalfDone` when its storage is busy; after any error not all
    /// ranges were found.
    async fn changed(&self, query: ChangedQuery, sink: Box<dyn RangeSink>) -> Result<()>;
}
