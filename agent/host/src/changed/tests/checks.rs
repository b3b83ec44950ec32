//! What a search must find, computed from all bytes of both images.

use std::{
    ops::{ControlFlow, Range},
    path::Path,
};

use crate::{
    Result,
    changed::{BLOCK, Pair, Sink, allocated, differing},
    zeros::is_zero,
};

/// The ranges that a search finds.
pub(super) fn found(search: impl FnOnce(&mut dyn Sink) -> Result<()>) -> Result<Vec<Range<u64>>> {
    let mut all = Vec::new();
    let mut sink = |range| {
        all.push(range);
        Ok(ControlFlow::Continue(()))
    };
    search(&mut sink)?;
    Ok(all)
}

pub(super) fn found_allocated(target: &Path, start: u64) -> Vec<Range<u64>> {
    found(|sink| allocated(target, start, sink)).unwrap()
}

pub(super) fn found_differing(pair: Pair<'_>, start: u64) -> Vec<Range<u64>> {
    found(|sink| differing(pair, start, sink)).unwrap()
}

fn bytes<'a>(image: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    let at = |offset: u64| usize::try_from(offset).unwrap().min(image.len());
    &image[at(range.start)..at(range.end)]
}

fn size(image: &[u8]) -> u64 {
    u64::try_from(image.len()).unwrap()
}

/// Refuses ranges that are not in order, not merged, not of whole blocks or not between `start` and `end`.
pub(super) fn check_form(ranges: &[Range<u64>], start: u64, end: u64) -> Result<(), String> {
    let mut before = None;
    for range in ranges {
        let is_behind = before.is_none_or(|before| range.start > before) && range.start >= start;
        let begins = range.start.is_multiple_of(BLOCK) || range.start == start;
        let ends = range.end.is_multiple_of(BLOCK) || range.end == end;
        if !is_behind || !begins || !ends || range.is_empty() || range.end > end {
            return Err(format!("{range:?} of {ranges:?} behind {start}"));
        }
        before = Some(range.end);
    }
    Ok(())
}

/// Refuses ranges that leave out data of the image.
pub(super) fn check_allocated(
    image: &[u8],
    start: u64,
    ranges: &[Range<u64>],
) -> Result<(), String> {
    check_form(ranges, start, size(image))?;
    let mut at = start;
    for range in ranges.iter().chain([&(size(image)..size(image))]) {
        if !is_zero(bytes(image, &(at..range.start))) {
            return Err(format!("data in {at}..{} is left out", range.start));
        }
        at = range.end;
    }
    Ok(())
}

/// Refuses ranges that do not make the target of the base, and those with a block that both have.
pub(super) fn check_differing(
    (base, target): (&[u8], &[u8]),
    start: u64,
    ranges: &[Range<u64>],
) -> Result<(), String> {
    let end = size(target);
    check_form(ranges, start, end)?;
    let mut made = base.to_vec();
    made.resize(target.len(), 0);
    for range in ranges {
        let at = usize::try_from(range.start).unwrap();
        let part = bytes(target, range);
        made[at..at + part.len()].copy_from_slice(part);
    }
    if bytes(&made, &(start..end)) != bytes(target, &(start..end)) {
        return Err("what is made of the base is not the target".to_owned());
    }
    let mut at = start;
    while at < end {
        let next = ((at / BLOCK + 1) * BLOCK).min(end);
        let block = at / BLOCK * BLOCK..next;
        let is_within = next <= size(base);
        let differs = !is_within || bytes(base, &block) != bytes(target, &block);
        let is_found = ranges.iter().any(|range| range.contains(&at));
        if differs != is_found {
            return Err(format!(
                "block {block:?} differs: {differs}, found: {is_found}"
            ));
        }
        at = next;
    }
    Ok(())
}
