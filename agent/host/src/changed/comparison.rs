//! Comparing the bytes of two images.

use std::{cmp::Ordering, ops::Range};

use super::{
    block::{BLOCK, block_start},
    data::Data,
    image::Image,
    sink::{Ranges, Walked},
};
use crate::{DirectBuffer, zeros::is_zero};

/// Bytes per read: enough for direct I/O to be fast, and to be in the processor's cache when they are compared.
const STEP: usize = 512 << 10;

/// Which of the images can hold other bytes than zeros in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Both,
    Base,
    Target,
}

/// Two images, compared from their beginnings towards their ends.
pub(super) struct Comparison<'a> {
    base: &'a Image,
    target: &'a Image,
    data: (Data<'a>, Data<'a>),
    buffers: (DirectBuffer, DirectBuffer),
    ranges: Ranges<'a>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(base: &'a Image, target: &'a Image, ranges: Ranges<'a>) -> Self {
        Self {
            base,
            target,
            data: (Data::of(base), Data::of(target)),
            buffers: (DirectBuffer::new(STEP), DirectBuffer::new(STEP)),
            ranges,
        }
    }

    /// What both images have, from the block that results begin in: the target, but for the blocks that the base does
    /// not have or not wholly.
    pub(super) fn common(&self) -> Range<u64> {
        let end = if self.target.size <= self.base.size {
            self.target.size
        } else {
            block_start(self.base.size)
        };
        block_start(self.ranges.start()).min(end)..end
    }

    /// Compares a range of what both have, which begins with a block and at or behind the end of the one before.
    /// Holes of both are not read.
    pub(super) fn compare(&mut self, range: Range<u64>) -> Walked {
        let mut at = range.start;
        while at < range.end {
            let (base, target) = (self.data.0.next(at)?, self.data.1.next(at)?);
            let (holder, data) = match base.start.cmp(&target.start) {
                Ordering::Equal => (Holder::Both, base.start..base.end.min(target.end)),
                Ordering::Less => (Holder::Base, base.start..base.end.min(target.start)),
                Ordering::Greater => (Holder::Target, target.start..target.end.min(base.start)),
            };
            at = data.end.min(range.end);
            self.compare_bytes(data.start..at, holder)?;
            self.ranges.reached(at)?;
        }
        Ok(())
    }

    fn compare_bytes(&mut self, range: Range<u64>, holder: Holder) -> Walked {
        let mut at = range.start;
        while at < range.end {
            let length = usize::try_from(range.end - at).map_or(STEP, |left| left.min(STEP));
            let before = self.buffers.0.bytes_mut().get_mut(..length);
            let now = self.buffers.1.bytes_mut().get_mut(..length);
            let (before, now) = (before.unwrap_or_default(), now.unwrap_or_default());
            if holder != Holder::Target {
                self.base.read(before, at)?;
            }
            if holder != Holder::Base {
                self.target.read(now, at)?;
            }
            let is_same = |before: &[u8], now: &[u8]| match holder {
                Holder::Both => before == now,
                Holder::Base => is_zero(before),
                Holder::Target => is_zero(now),
            };
            let end = at + u64::try_from(length).unwrap_or_default();
            if !is_same(before, now) {
                let unit = DirectBuffer::BLOCK;
                let blocks = before.chunks(unit).zip(now.chunks(unit));
                for (start, (before, now)) in (at..end).step_by(unit).zip(blocks) {
                    if !is_same(before, now) {
                        self.ranges.push(start..(start + BLOCK).min(end))?;
                    }
                }
            }
            at = end;
            self.ranges.reached(at)?;
        }
        Ok(())
    }

    /// Tells the sink how far the search is.
    pub(super) fn reached(&mut self, offset: u64) -> Walked {
        self.ranges.reached(offset)
    }

    /// Ends the search: what lies behind the end of the base differs.
    pub(super) fn end(mut self) -> Walked {
        self.ranges.push(self.common().end..self.target.size)?;
        self.ranges.flush()
    }
}
