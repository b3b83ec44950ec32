//! Ranges that hold data.

use std::path::Path;

use super::{
    block::block_start,
    data::Data,
    image::{Image, finish},
    sink::{Ranges, Sink, Walked},
};
use crate::{Result, trace};

/// Finds the ranges of `target` that hold data and end behind the offset `start`. All other bytes are zero; a block
/// device holds data everywhere.
///
/// # Errors
/// `Io`, also of a file that becomes shorter meanwhile; those of the sink.
pub fn allocated(target: &Path, start: u64, sink: &mut dyn Sink) -> Result<()> {
    let _span = trace::compare();
    let target = Image::open(target)?;
    let mut ranges = Ranges::new(start, sink);
    let mut walk = || -> Walked {
        let mut data = Data::of(&target);
        let mut at = block_start(start);
        while at < target.size {
            let range = data.next(at)?;
            at = range.end;
            ranges.push(range)?;
            ranges.reached(at)?;
        }
        ranges.flush()
    };
    finish(walk(), [&target])
}
