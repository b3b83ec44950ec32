//! Ranges that differ between two images.

use std::{ops::Range, path::Path};

use super::{
    block::{block_end, block_start},
    comparison::Comparison,
    image::{Image, finish},
    same_blocks::{Mapped, same_blocks},
    sink::{Ranges, Sink, Walked},
};
use crate::{Error, Kind, Result, trace};

/// Two images of one volume.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// The image that is there already, such as the older snapshot.
    pub base: &'a Path,
    /// The image that is wanted.
    pub target: &'a Path,
}

impl Pair<'_> {
    fn open(&self) -> Result<(Image, Image)> {
        Ok((Image::open(self.base)?, Image::open(self.target)?))
    }
}

/// Finds the ranges of the target that differ from the base and end behind the offset `start`. What lies behind the
/// end of the base differs.
///
/// Files that share blocks are compared by these, and only the rest of them is read.
///
/// # Errors
/// `Io`, also of a file that becomes shorter meanwhile; those of the sink.
pub fn differing(pair: Pair<'_>, start: u64, sink: &mut dyn Sink) -> Result<()> {
    let _span = trace::compare();
    let (base, target) = pair.open()?;
    let comparison = Comparison::new(&base, &target, Ranges::new(start, sink));
    // The same offset on two devices is not the same block.
    let walked = if base.device == target.device {
        compare_mapped(comparison, &base, &target)
    } else {
        compare_all(comparison)
    };
    finish(walked, [&base, &target])
}

fn compare_all(mut comparison: Comparison<'_>) -> Walked {
    comparison.compare(comparison.common())?;
    comparison.end()
}

/// Compares what is not the same blocks in both maps.
pub(super) fn compare_mapped(
    mut comparison: Comparison<'_>,
    base: &dyn Mapped,
    target: &dyn Mapped,
) -> Walked {
    let common = comparison.common();
    let mut at = common.start;
    while at < common.end {
        let window = same_blocks(base, target, at..common.end)?;
        for same in window.same {
            comparison.compare(at..same.start)?;
            at = same.end;
        }
        comparison.compare(at..window.end)?;
        at = window.end;
        comparison.reached(at)?;
    }
    comparison.end()
}

/// Finds the ranges of the target that differ from the base, end behind the offset `start`, and are among the
/// candidates: ranges in ascending order of their beginnings, the only ones that can differ. What lies behind the end of
/// the base differs.
///
/// # Errors
/// `Io`, also of a file that becomes shorter meanwhile; those of the candidates and of the sink. `Bug` when the
/// candidates are in another order.
pub fn differing_in(
    pair: Pair<'_>,
    candidates: &mut dyn Iterator<Item = Result<Range<u64>>>,
    start: u64,
    sink: &mut dyn Sink,
) -> Result<()> {
    let _span = trace::compare();
    let (base, target) = pair.open()?;
    let mut comparison = Comparison::new(&base, &target, Ranges::new(start, sink));
    let walk = || -> Walked {
        let common = comparison.common();
        let mut at = common.start;
        let mut before = 0;
        for candidate in candidates {
            let candidate = candidate?;
            if candidate.start < before {
                let message = format!("the candidate {candidate:?} lies before {before}");
                return Err(Error::new(Kind::Bug, message).into());
            }
            before = candidate.start;
            let end = block_end(candidate.end).min(common.end);
            let start = block_start(candidate.start).max(at);
            if start < end {
                comparison.compare(start..end)?;
                at = end;
            }
        }
        comparison.end()
    };
    finish(walk(), [&base, &target])
}
