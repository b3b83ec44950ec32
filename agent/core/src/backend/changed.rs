//! Which parts of a snapshot hold data, or differ from an earlier one: changed block tracking.

use std::ops::{ControlFlow, Range};

use async_trait::async_trait;

use crate::{Result, types::ImageId};

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

/// Receives the parts, as ranges in bytes, on a thread that may be blocked; it may stop the search.
pub type RangeSink = Box<dyn FnMut(Range<u64>) -> ControlFlow<()> + Send>;

/// Finds changed blocks.
#[async_trait]
pub trait ChangedBlocks {
    /// Calls `sink` with the ranges, in ascending order, merged, within the size of the target. They are a superset of
    /// what differs; what lies behind the end of the base differs.
    ///
    /// # Errors
    /// `Precondition` when one of the snapshots is damaged, `HalfDone` when its storage is busy; after any error not all
    /// ranges were found.
    async fn changed(&self, query: ChangedQuery, sink: RangeSink) -> Result<()>;
}
