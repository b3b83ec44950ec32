//! Negative controls: searches that are wrong on purpose, which the checks of the histories must find out.

use std::{
    fs,
    ops::{ControlFlow, Range},
    path::Path,
};

use super::{
    checks::{check_differing, found, found_allocated, found_differing},
    history::{Ground, History},
};
use crate::{
    FileSystem, Result,
    changed::{
        Pair, Sink,
        comparison::Comparison,
        differing,
        differing::compare_mapped,
        differing_in,
        image::{Image, finish},
        same_blocks::Mapped,
        sink::Ranges,
    },
    system::Extent,
};

/// A file whose map is read without what is not on the disk yet.
struct Unsynced<'a>(&'a Image);

impl Mapped for Unsynced<'_> {
    fn extents(&self, range: Range<u64>) -> Result<Option<Vec<Extent>>> {
        self.0.extents(range, 0)
    }
}

fn by_unsynced_maps(pair: Pair<'_>) -> Vec<Range<u64>> {
    let search = |sink: &mut dyn Sink| {
        let (base, target) = (Image::open(pair.base)?, Image::open(pair.target)?);
        let comparison = Comparison::new(&base, &target, Ranges::new(0, sink));
        let walked = compare_mapped(comparison, &Unsynced(&base), &Unsynced(&target));
        finish(walked, [&base, &target])
    };
    found(search).unwrap()
}

/// Only where one of the images holds data.
fn by_data_of(one: &Path, pair: Pair<'_>) -> Vec<Range<u64>> {
    let mut candidates = found_allocated(one, 0).into_iter().map(Ok);
    found(|sink| differing_in(pair, &mut candidates, 0, sink)).unwrap()
}

/// Without the last range.
fn cut_short(pair: Pair<'_>) -> Vec<Range<u64>> {
    let all = found_differing(pair, 0).len();
    let mut some = Vec::new();
    let mut sink = |range| {
        some.push(range);
        if some.len() + 1 < all {
            return Ok(ControlFlow::Continue(()));
        }
        Ok(ControlFlow::Break(()))
    };
    differing(pair, 0, &mut sink).unwrap();
    some.truncate(all.saturating_sub(1));
    some
}

/// How many of some histories a search gets wrong.
fn wrong(ground: &Ground, search: impl Fn(Pair<'_>) -> Vec<Range<u64>>) -> usize {
    let is_wrong = |seed: &u64| {
        let mut history = History::new(ground, *seed);
        history.go_on();
        let base = &history.snapshot("base");
        history.go_on();
        let target = &history.live;
        let ranges = search(Pair { base, target });
        let (before, now) = (fs::read(base).unwrap(), fs::read(target).unwrap());
        check_differing((&before, &now), 0, &ranges).is_err()
    };
    (0..24).filter(is_wrong).count()
}

#[test]
fn maps_without_what_is_still_cached_are_found_out() {
    for kind in [FileSystem::Xfs, FileSystem::Btrfs] {
        let count = wrong(&Ground::of(kind), by_unsynced_maps);
        assert!(count > 5, "{kind}: {count}");
    }
}

#[test]
fn a_search_that_leaves_out_what_one_image_holds_is_found_out() {
    for ground in [Ground::of(FileSystem::Xfs), Ground::memory()] {
        let of_base = wrong(&ground, |pair| by_data_of(pair.base, pair));
        let of_target = wrong(&ground, |pair| by_data_of(pair.target, pair));
        assert!(of_base > 5 && of_target > 0, "{of_base}, {of_target}");
    }
}

#[test]
fn a_search_that_ends_before_the_last_range_is_found_out() {
    for ground in [Ground::of(FileSystem::Xfs), Ground::memory()] {
        let count = wrong(&ground, cut_short);
        assert!(count > 6, "{count}");
        assert_eq!(wrong(&ground, |pair| found_differing(pair, 0)), 0);
    }
}
