//! Runs of blocks: of one device those that are mapped, of two those that differ.

use std::ops::Range;

use super::cursor::{Cursor, Head};
use crate::{Result, ThinBlocks};

/// Runs of virtual blocks, ascending, none of which touches the next one.
///
/// After an error it ends.
#[derive(Debug)]
pub struct ThinRuns<'a> {
    source: Source<'a>,
    /// The run that the next block may belong to.
    begun: Option<Range<ThinBlocks>>,
    is_over: bool,
}

#[derive(Debug)]
enum Source<'a> {
    Mapped(Cursor<'a>),
    Differing {
        base: Box<Cursor<'a>>,
        target: Box<Cursor<'a>>,
    },
}

impl<'a> ThinRuns<'a> {
    pub(super) fn mapped(device: Cursor<'a>) -> Self {
        Self::of(Source::Mapped(device))
    }

    pub(super) fn differing(base: Cursor<'a>, target: Cursor<'a>) -> Self {
        let (base, target) = (Box::new(base), Box::new(target));
        Self::of(Source::Differing { base, target })
    }

    fn of(source: Source<'a>) -> Self {
        Self {
            source,
            begun: None,
            is_over: false,
        }
    }

    fn next_run(&mut self) -> Result<Option<Range<ThinBlocks>>> {
        while !self.is_over {
            let Some(block) = self.source.next_block()? else {
                self.is_over = true;
                break;
            };
            // No mapping is at the largest number: the offset of its end would not be one.
            let (block, behind) = (ThinBlocks(block), ThinBlocks(block.saturating_add(1)));
            match &mut self.begun {
                Some(run) if run.end == block => run.end = behind,
                begun => {
                    if let Some(run) = begun.replace(block..behind) {
                        return Ok(Some(run));
                    }
                }
            }
        }
        Ok(self.begun.take())
    }
}

impl Iterator for ThinRuns<'_> {
    type Item = Result<Range<ThinBlocks>>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_run();
        if next.is_err() {
            self.is_over = true;
            self.begun = None;
        }
        next.transpose()
    }
}

impl Source<'_> {
    fn next_block(&mut self) -> Result<Option<u64>> {
        match self {
            Self::Mapped(device) => Ok(device.next_entry()?.map(|(block, _)| block)),
            Self::Differing { base, target } => next_difference(base, target),
        }
    }
}

/// The next block that differs.
///
/// Of two heads the one with the lower key is dealt with, and of two with the same key the higher one: so when the walks
/// come to a node that both trees have, it is before both of them unread, however high and split the trees are above it.
/// Should one of them have read it, it is compared entry by entry.
fn next_difference<'a>(base: &mut Cursor<'a>, target: &mut Cursor<'a>) -> Result<Option<u64>> {
    loop {
        let (old, new) = (base.head(), target.head());
        match (old, new) {
            (Some(Head::Subtree { block: old, .. }), Some(Head::Subtree { block: new, .. }))
                if old == new =>
            {
                base.skip();
                target.skip();
                continue;
            }
            (
                Some(Head::Entry { key, number: old }),
                Some(Head::Entry {
                    key: other,
                    number: new,
                }),
            ) if key == other => {
                base.skip();
                target.skip();
                if data_block(old) != data_block(new) {
                    return Ok(Some(key));
                }
                continue;
            }
            _ => {}
        }
        let (walk, head) = match (old, new) {
            (None, None) => return Ok(None),
            (Some(old), Some(new)) if is_before(old, new) => (&mut *base, old),
            (Some(old), None) => (&mut *base, old),
            (_, Some(new)) => (&mut *target, new),
        };
        match head {
            Head::Subtree { .. } => walk.expand()?,
            Head::Entry { key, .. } => {
                walk.skip();
                return Ok(Some(key));
            }
        }
    }
}

/// Returns true if this one is to be dealt with before the other one, or either of them.
fn is_before(one: Head, other: Head) -> bool {
    let order = |head: Head| match head {
        Head::Subtree { first, height, .. } => (first, usize::MAX - height),
        Head::Entry { key, .. } => (key, usize::MAX),
    };
    order(one) <= order(other)
}

/// The data block of a mapping: the low bits are the pool's time at which it was made.
fn data_block(value: u64) -> u64 {
    value >> 24
}
