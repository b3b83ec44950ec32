//! The data of an image between its holes.

use std::ops::Range;

use super::{
    block::{block_end, block_start},
    image::Image,
};
use crate::Result;

/// Walks through the data of an image, from block to block: a block with any data is data.
pub(super) struct Data<'a> {
    image: &'a Image,
    /// What was found last; it holds for every offset between the one that it was found from and its end.
    found: Range<u64>,
}

impl<'a> Data<'a> {
    pub(super) fn of(image: &'a Image) -> Self {
        Self { image, found: 0..0 }
    }

    /// The first range of data that ends behind `offset`, without what lies before; empty and at the end of the image
    /// if there is none. Offsets are whole blocks, in ascending order.
    pub(super) fn next(&mut self, offset: u64) -> Result<Range<u64>> {
        let size = self.image.size;
        if offset >= self.found.end {
            self.found = match self.image.data(offset)? {
                Some(data) => block_start(data.start)..block_end(data.end).min(size),
                None => size..size,
            };
        }
        Ok(self.found.start.max(offset)..self.found.end)
    }
}
