//! Ranges of two files that are the same blocks of a disk, as their file system maps them.
//!
//! A map only permits not to read. It is not believed about data that is not on the disk yet or not stored as it is
//! read (flags), nor about blocks that move while two maps are read one after the other.

use std::{cmp::Ordering, ops::Range};

use super::{
    block::{BLOCK, block_end, block_start},
    image::Image,
};
use crate::{
    Result,
    system::{
        EXTENTS, Extent, FIEMAP_EXTENT_LAST, FIEMAP_EXTENT_MERGED, FIEMAP_EXTENT_SHARED,
        FIEMAP_FLAG_SYNC,
    },
};

/// Flags that leave no doubt about where the data is.
const PLAIN: u32 = FIEMAP_EXTENT_LAST | FIEMAP_EXTENT_MERGED | FIEMAP_EXTENT_SHARED;

/// A file with a map of its extents.
pub(super) trait Mapped {
    /// The first extents of a range, at most [`EXTENTS`]; none without a map.
    fn extents(&self, range: Range<u64>) -> Result<Option<Vec<Extent>>>;
}

impl Mapped for Image {
    fn extents(&self, range: Range<u64>) -> Result<Option<Vec<Extent>>> {
        Self::extents(self, range, FIEMAP_FLAG_SYNC)
    }
}

/// What two maps say about the beginning of a range.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Whole blocks that are the same in both files, in ascending order.
    pub(super) same: Vec<Range<u64>>,
    /// Where the window ends: behind a whole block, or where the range does.
    pub(super) end: u64,
}

/// Finds the same blocks at the beginning of a range, which begins with a block.
pub(super) fn same_blocks(
    base: &dyn Mapped,
    target: &dyn Mapped,
    range: Range<u64>,
) -> Result<Window> {
    let pages = (Page::read(base, &range)?, Page::read(target, &range)?);
    let (Some(before), Some(now)) = pages else {
        return Ok(Window {
            same: Vec::new(),
            end: range.end,
        });
    };
    let mapped = before.end.min(now.end);
    let end = if mapped < range.end {
        // At least one block, so that the next window lies behind this one.
        block_start(mapped)
            .max(range.start.saturating_add(BLOCK))
            .min(range.end)
    } else {
        range.end
    };
    let window = range.start..end;
    let mut same = agreed(&before, &now, &window);
    // Between the two calls a block of the base may have moved, and one of the target to where it was: so the target's
    // map counts only between two of the base that say the same.
    if !same.is_empty() {
        let again = Page::read(base, &window)?;
        if again.is_none_or(|again| agreed(&again, &now, &window) != same) {
            same.clear();
        }
    }
    Ok(Window { same, end })
}

/// The first extents of a range.
struct Page {
    extents: Vec<Extent>,
    /// Where the next page begins.
    end: u64,
}

impl Page {
    /// None without a map, and of a map that makes no sense, such as one that changes while it is read.
    fn read(file: &dyn Mapped, range: &Range<u64>) -> Result<Option<Self>> {
        let Some(extents) = file.extents(range.clone())? else {
            return Ok(None);
        };
        let mut end = 0;
        for extent in &extents {
            match extent.logical.checked_add(extent.length) {
                Some(next) if extent.logical >= end && extent.length > 0 => end = next,
                _ => return Ok(None),
            }
        }
        let is_all = extents.len() < EXTENTS;
        Ok(Some(Self {
            extents,
            end: if is_all { range.end } else { end },
        }))
    }
}

/// The whole blocks of a window that both pages map to the same place.
fn agreed(before: &Page, now: &Page, window: &Range<u64>) -> Vec<Range<u64>> {
    let mut same: Vec<Range<u64>> = Vec::new();
    let (mut before, mut now) = (before.extents.iter(), now.extents.iter());
    let (mut one, mut other) = (before.next(), now.next());
    while let (Some(base), Some(target)) = (one, other) {
        let (base_end, target_end) = (end(base), end(target));
        let start = base.logical.max(target.logical).max(window.start);
        let until = base_end.min(target_end).min(window.end);
        if start < until && is_same_place(base, target) {
            match same.last_mut() {
                Some(last) if last.end == start => last.end = until,
                _ => same.push(start..until),
            }
        }
        let order = base_end.cmp(&target_end);
        if order != Ordering::Greater {
            one = before.next();
        }
        if order != Ordering::Less {
            other = now.next();
        }
    }
    let whole = |range: Range<u64>| {
        let is_last = range.end == window.end;
        let end = if is_last {
            range.end
        } else {
            block_start(range.end)
        };
        block_end(range.start)..end
    };
    let whole = same.into_iter().map(whole);
    whole.filter(|range| !range.is_empty()).collect()
}

/// Returns true if two extents are on the same blocks where they overlap. Both are then known to be shared, unless the
/// offsets are those of different devices.
fn is_same_place(base: &Extent, target: &Extent) -> bool {
    let displacement = |extent: &Extent| extent.physical.wrapping_sub(extent.logical);
    let is_plain =
        |extent: &Extent| extent.flags & !PLAIN == 0 && extent.flags & FIEMAP_EXTENT_SHARED != 0;
    displacement(base) == displacement(target) && is_plain(base) && is_plain(target)
}

fn end(extent: &Extent) -> u64 {
    extent.logical.saturating_add(extent.length)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const SHARED: u32 = FIEMAP_EXTENT_SHARED;
    const MIB: u64 = 1 << 20;

    /// A file whose map is read so often, and is another one each time.
    struct Moving(RefCell<Vec<Option<Vec<Extent>>>>);

    impl Mapped for Moving {
        fn extents(&self, _: Range<u64>) -> Result<Option<Vec<Extent>>> {
            Ok(self.0.borrow_mut().remove(0))
        }
    }

    fn moving<const N: usize>(maps: [&[Extent]; N]) -> Moving {
        let maps = maps.map(|map| Some(map.to_vec()));
        Moving(RefCell::new(maps.into()))
    }

    fn extent(logical: u64, physical: u64, length: u64, flags: u32) -> Extent {
        Extent {
            logical,
            physical,
            length,
            flags,
        }
    }

    fn same(base: &[Extent], target: &[Extent]) -> Vec<(u64, u64)> {
        let (base, target) = (moving([base, base]), moving([target]));
        let window = same_blocks(&base, &target, 0..MIB).unwrap();
        assert_eq!(window.end, MIB);
        window
            .same
            .iter()
            .map(|same| (same.start, same.end))
            .collect()
    }

    #[test]
    fn the_same_place_counts_wherever_extents_begin_and_end() {
        let whole = [extent(0, MIB, 65_536, SHARED)];
        assert_eq!(same(&whole, &whole), [(0, 65_536)]);
        let parts = [
            extent(0, MIB, 8192, SHARED),
            extent(8192, 9 * MIB, 4096, 0),
            extent(12_288, MIB + 12_288, 4096, SHARED),
            extent(16_384, MIB + 16_384, MIB, SHARED | FIEMAP_EXTENT_LAST),
        ];
        assert_eq!(same(&whole, &parts), [(0, 8192), (12_288, 65_536)]);
        assert_eq!(same(&parts, &whole), [(0, 8192), (12_288, 65_536)]);
        assert_eq!(same(&whole, &[]), []);
        assert_eq!(same(&whole, &[extent(0, 2 * MIB, 65_536, SHARED)]), []);
        // The last extent may be longer than the file.
        assert_eq!(same(&parts, &parts), [(0, 8192), (12_288, MIB)]);
    }

    #[test]
    fn only_plain_extents_that_are_known_to_be_shared_count() {
        let shared = extent(0, MIB, 8192, SHARED);
        for flags in [
            0,
            SHARED | 2,
            SHARED | 4,
            SHARED | 8,
            SHARED | 0x200,
            SHARED | 0x800,
        ] {
            let other = extent(0, MIB, 8192, flags);
            assert_eq!(same(&[shared], &[other]), [], "{flags:#x}");
            assert_eq!(same(&[other], &[shared]), [], "{flags:#x}");
            assert_eq!(same(&[other], &[other]), [], "{flags:#x}");
        }
        let merged = extent(
            0,
            MIB,
            8192,
            SHARED | FIEMAP_EXTENT_MERGED | FIEMAP_EXTENT_LAST,
        );
        assert_eq!(same(&[shared], &[merged]), [(0, 8192)]);
    }

    #[test]
    fn parts_of_blocks_do_not_count() {
        let odd = [extent(1024, MIB, 10_240, SHARED)];
        assert_eq!(same(&odd, &odd), [(4096, 8192)]);
        let small = [extent(1024, MIB, 6144, SHARED)];
        assert_eq!(same(&small, &small), []);
    }

    #[test]
    fn a_base_whose_blocks_move_meanwhile_is_not_believed() {
        let here = [extent(0, MIB, 8192, SHARED)];
        let there = [extent(0, 5 * MIB, 8192, SHARED)];
        for again in [Some(there.to_vec()), Some(Vec::new()), None] {
            let base = Moving(RefCell::new(vec![Some(here.to_vec()), again]));
            let window = same_blocks(&base, &moving([&here]), 0..MIB).unwrap();
            assert_eq!(window.same, []);
        }
        let base = moving([&here, &here]);
        let window = same_blocks(&base, &moving([&here]), 0..MIB).unwrap();
        assert_eq!(window.same.len(), 1);
        assert_eq!(window.same[0], 0..8192);
    }

    #[test]
    fn a_map_that_is_away_or_makes_no_sense_says_nothing() {
        let plain = [extent(0, MIB, 8192, SHARED)];
        let nothing = Window {
            same: Vec::new(),
            end: MIB,
        };
        let away = Moving(RefCell::new(vec![None]));
        assert_eq!(
            same_blocks(&away, &moving([&plain]), 0..MIB).unwrap(),
            nothing
        );
        for broken in [
            vec![extent(0, MIB, 0, SHARED)],
            vec![extent(u64::MAX, MIB, 4096, SHARED)],
            vec![
                extent(4096, MIB, 8192, SHARED),
                extent(8192, MIB, 4096, SHARED),
            ],
            vec![
                extent(8192, MIB, 4096, SHARED),
                extent(0, MIB, 4096, SHARED),
            ],
        ] {
            let window = same_blocks(&moving([&plain]), &moving([&broken]), 0..MIB).unwrap();
            assert_eq!(window, nothing, "{broken:?}");
        }
    }

    #[test]
    fn a_window_ends_with_the_first_full_page_and_never_stands_still() {
        let count = u64::try_from(EXTENTS).unwrap();
        let page: Vec<_> = (0..count)
            .map(|at| extent(at * 1024, at * MIB, 1024, SHARED))
            .collect();
        let whole = [extent(0, 0, MIB, SHARED)];
        let window = same_blocks(&moving([&page]), &moving([&whole]), 0..MIB).unwrap();
        assert_eq!(window.end, count * 1024);
        // All of them lie before the range.
        let window = same_blocks(&moving([&page]), &moving([&whole]), MIB..2 * MIB).unwrap();
        assert_eq!(window.end, MIB + BLOCK);
        let window = same_blocks(&moving([&page]), &moving([&whole]), MIB..MIB + 5).unwrap();
        assert_eq!(window.end, MIB + 5);
    }
}
