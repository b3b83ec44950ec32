//! Placement: the extents of volumes whose parts must be on different disks.
//!
//! LVM allocates areas by the free space of the disks, in the order of the disks, and gives the first area to the
//! first leg of a mirror, regardless of the disks that its legs are already on. So two legs can end up on one disk:
//! when a volume is extended, and on disks with several free areas. LVM before 2.03.22 does not notice, and up to
//! 2.03.25 it removes the whole volume when it does. Therefore the extents of legs are chosen here. LVM keeps to the
//! choice when a command names one disk for each leg, in the order of the legs, and areas of equal length on each of
//! them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
};

use crate::{
    Extents,
    metadata::{Area, GroupMetadata, LogicalVolume, PhysicalVolume},
};

/// The name part of the metadata volumes of a mirror's legs.
pub const NOTES: &str = "_rmeta_";

/// The part of each mirror leg that has LVM's raid metadata.
pub const NOTE: Extents = Extents(1);

/// Extents for each leg or stripe of a volume, in their order, with the same count for each.
pub type Row = Vec<Area>;

/// The disks that each leg of a volume uses, in LVM's order; none if it is not a raid1 mirror.
pub fn legs(now: &GroupMetadata, volume: &LogicalVolume) -> Vec<BTreeSet<String>> {
    let (notes, images): (Vec<&String>, Vec<&String>) =
        volume.parts.iter().partition(|part| part.contains(NOTES));
    let images = images.into_iter().filter(|part| part.contains("_rimage_"));
    let leg = |(number, image): (usize, &String)| {
        // A leg is lost together with its raid metadata.
        let parts = [image].into_iter().chain(notes.get(number).copied());
        parts.flat_map(|part| disks_of(now, part)).collect()
    };
    images.enumerate().map(leg).collect()
}

/// The disks that a volume uses, including those of its parts.
fn disks_of(now: &GroupMetadata, name: &str) -> BTreeSet<String> {
    let mut disks = BTreeSet::new();
    let mut names = vec![name];
    let mut seen = BTreeSet::new();
    while let Some(name) = names.pop() {
        let Some(volume) = now.volumes.get(name).filter(|_| seen.insert(name)) else {
            continue;
        };
        disks.extend(volume.areas.iter().map(|area| area.disk.clone()));
        let below = volume.parts.iter().chain(&volume.below);
        names.extend(below.map(String::as_str));
    }
    disks
}

/// A disk that several legs use, if any: its loss would be the loss of all of them.
pub fn shared_disk(legs: &[BTreeSet<String>]) -> Option<&String> {
    let mut seen = BTreeSet::new();
    legs.iter().flatten().find(|disk| !seen.insert(*disk))
}

/// The free areas of each usable disk, largest first; the disks in LVM's order.
pub fn free_areas(now: &GroupMetadata) -> Vec<Vec<Area>> {
    let mut taken: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for area in now.volumes.values().flat_map(|volume| &volume.areas) {
        let span = (area.start, area.end());
        taken.entry(&area.disk).or_default().push(span);
    }
    let usable = now
        .disks
        .iter()
        .filter(|(_, disk)| disk.is_allocatable && !disk.is_missing);
    let mut disks: Vec<(&String, &PhysicalVolume)> = usable.collect();
    // "pv10" comes after "pv9".
    disks.sort_by_key(|(name, _)| (name.len(), *name));
    let areas = disks.into_iter().map(|(name, disk)| {
        let taken = taken.remove(name.as_str()).unwrap_or_default();
        gaps(name, disk.extents, taken)
    });
    areas.collect()
}

/// The gaps between the allocated areas of a disk, largest first.
fn gaps(disk: &str, extents: Extents, mut taken: Vec<(u64, u64)>) -> Vec<Area> {
    taken.sort_unstable();
    let (mut gaps, mut at) = (Vec::new(), 0);
    for (start, end) in taken.into_iter().chain([(extents.0, extents.0)]) {
        if start > at {
            gaps.push(Area {
                disk: disk.to_owned(),
                start: at,
                count: Extents(start - at),
            });
        }
        at = at.max(end);
    }
    gaps.sort_by_key(|area| Reverse(area.count));
    gaps
}

/// Returns true if all extents of the rows are free.
pub fn is_free(now: &GroupMetadata, rows: &[Row]) -> bool {
    let free = free_areas(now);
    let is_in = |area: &Area, gap: &Area| {
        let is_within = gap.start <= area.start && area.end() <= gap.end();
        gap.disk == area.disk && is_within
    };
    let mut areas = rows.iter().flatten();
    areas.all(|area| free.iter().flatten().any(|gap| is_in(area, gap)))
}

/// The total number of extents of areas.
pub fn room(areas: &[Area]) -> Extents {
    areas.iter().map(|area| area.count).sum()
}

/// The extents for the legs of a new mirror, including raid metadata: each leg on one of the disks with the most free
/// space.
pub fn new_legs(now: &GroupMetadata, copies: usize, extents: Extents) -> Option<Vec<Row>> {
    let mut disks = free_areas(now);
    disks.sort_by_key(|areas| Reverse(room(areas)));
    disks.truncate(copies);
    let has_room = disks.len() == copies && disks.iter().all(|areas| room(areas) >= extents);
    has_room.then(|| {
        rows(
            disks
                .into_iter()
                .map(|areas| first(areas, extents))
                .collect(),
        )
    })
}

/// The extents by which the legs of a mirror are extended: on their own disks first, then on disks that no leg uses.
pub fn longer_legs(
    now: &GroupMetadata,
    legs: &[BTreeSet<String>],
    extents: Extents,
) -> Option<Vec<Row>> {
    let (mut used, mut unused) = (BTreeMap::new(), Vec::new());
    for areas in free_areas(now) {
        let Some(disk) = areas.first().map(|area| area.disk.clone()) else {
            continue;
        };
        if legs.iter().any(|leg| leg.contains(&disk)) {
            used.insert(disk, areas);
        } else {
            unused.push(areas);
        }
    }
    unused.sort_by_key(|areas| Reverse(room(areas)));
    let mut unused = VecDeque::from(unused);
    let is_shared = |disk: &String| legs.iter().filter(|leg| leg.contains(disk)).count() > 1;
    let own = |leg: &BTreeSet<String>| {
        let disks = leg.iter().filter(|disk| !is_shared(disk));
        let areas = disks.filter_map(|disk| used.get(disk)).flatten().cloned();
        first(areas, extents)
    };
    let mut grown: Vec<(usize, Vec<Area>)> = legs.iter().map(own).enumerate().collect();
    // The disks with the most free space go to the legs that need the most.
    grown.sort_by_key(|(_, areas)| room(areas));
    for (_, areas) in &mut grown {
        while room(areas) < extents {
            let missing = extents - room(areas);
            areas.extend(first(unused.pop_front()?, missing));
        }
    }
    grown.sort_by_key(|(number, _)| *number);
    Some(rows(grown.into_iter().map(|(_, areas)| areas).collect()))
}

/// This number of extents, from the first areas.
fn first(areas: impl IntoIterator<Item = Area>, extents: Extents) -> Vec<Area> {
    let mut missing = extents;
    let cut = areas.into_iter().map_while(|area| {
        let count = area.count.min(missing);
        missing -= count;
        (count > Extents::ZERO).then_some(Area { count, ..area })
    });
    cut.collect()
}

/// Combines areas of each leg into rows: all legs are split where one is.
fn rows(legs: Vec<Vec<Area>>) -> Vec<Row> {
    let mut legs: Vec<VecDeque<Area>> = legs.into_iter().map(VecDeque::from).collect();
    let mut rows = Vec::new();
    while let Some(count) = legs
        .iter()
        .map(|leg| leg.front().map_or(Extents::ZERO, |area| area.count))
        .min()
        .filter(|count| *count > Extents::ZERO)
    {
        let cut = |leg: &mut VecDeque<Area>| {
            let area = leg.pop_front()?;
            if area.count > count {
                leg.push_front(Area {
                    start: area.start + count.0,
                    count: area.count - count,
                    ..area.clone()
                });
            }
            Some(Area { count, ..area })
        };
        rows.push(legs.iter_mut().filter_map(cut).collect());
    }
    rows
}

/// Groups rows by the command that adds them: each command names one disk for each leg or stripe.
pub fn by_disks(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    let disks = |row: &Row| -> Vec<String> { row.iter().map(|area| area.disk.clone()).collect() };
    rows.chunk_by(move |one, other| disks(one) == disks(other))
}

/// The areas of rows, one leg or stripe after the other.
pub fn by_parts(rows: &[Row]) -> impl Iterator<Item = &Area> {
    let parts = rows.first().map_or(0, Vec::len);
    (0..parts).flat_map(move |part| rows.iter().filter_map(move |row| row.get(part)))
}

/// Returns true if both are the same extents, however they are split.
pub fn is_same<'a>(
    one: impl IntoIterator<Item = &'a Area>,
    other: impl IntoIterator<Item = &'a Area>,
) -> bool {
    whole(one) == whole(other)
}

/// Areas in order, with adjacent ones merged.
fn whole<'a>(areas: impl IntoIterator<Item = &'a Area>) -> Vec<(&'a str, u64, u64)> {
    let mut areas: Vec<&Area> = areas.into_iter().collect();
    areas.sort_by_key(|area| (&area.disk, area.start));
    let mut whole: Vec<(&str, u64, u64)> = Vec::new();
    for area in areas {
        let end = area.end();
        match whole.last_mut() {
            Some((disk, _, last)) if *disk == area.disk && *last == area.start => *last = end,
            _ => whole.push((&area.disk, area.start, end)),
        }
    }
    whole
}

/// Maximum number of rows of stripes that LVM can allocate, given the lengths of the free areas of each disk.
///
/// It takes the largest area of each disk, as many as there are stripes, and from each the length of the smallest.
/// Then it continues in the same way: on the disks that it has already used, as long as those are sufficient.
pub fn stripe_rows(free: &[Vec<Extents>], stripes: usize) -> Extents {
    struct Disk {
        areas: Vec<Extents>,
        is_taken: bool,
    }
    let disk = |areas: &Vec<Extents>| Disk {
        areas: areas.clone(),
        is_taken: false,
    };
    let mut disks: Vec<Disk> = free.iter().map(disk).collect();
    let (mut rows, mut only_taken) = (Extents::ZERO, false);
    loop {
        let usable = disks
            .iter_mut()
            .filter(|disk| disk.is_taken || !only_taken)
            .filter_map(|disk| {
                let largest = disk.areas.iter_mut().max()?;
                (*largest > Extents::ZERO).then_some((largest, &mut disk.is_taken))
            });
        let mut chosen: Vec<(&mut Extents, &mut bool)> = usable.collect();
        chosen.sort_by_key(|(area, _)| Reverse(**area));
        chosen.truncate(stripes);
        let smallest = chosen.last().map_or(Extents::ZERO, |(area, _)| **area);
        if chosen.len() < stripes || smallest == Extents::ZERO {
            if only_taken {
                only_taken = false;
                continue;
            }
            return rows;
        }
        for (area, is_taken) in chosen {
            *area -= smallest;
            *is_taken = true;
        }
        rows += smallest;
        only_taken = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(disk: &str, start: u64, count: u64) -> Area {
        Area {
            disk: disk.to_owned(),
            start,
            count: Extents(count),
        }
    }

    #[test]
    fn legs_with_areas_of_other_lengths_are_cut_at_the_same_places() {
        let one = vec![area("a", 0, 30), area("a", 50, 15)];
        let other = vec![area("b", 9, 25), area("b", 70, 20)];
        let cut = rows(vec![one.clone(), other.clone()]);
        let lengths: Vec<Extents> = cut.iter().map(|row| row[0].count).collect();
        assert_eq!(lengths, [25, 5, 15].map(Extents));
        assert!(cut.iter().all(|row| row[0].count == row[1].count));
        assert_eq!(by_disks(&cut).count(), 1);
        assert!(is_same(by_parts(&cut), one.iter().chain(&other)));
        assert!(!is_same(by_parts(&cut), &one));
    }

    #[test]
    fn gaps_are_what_nobody_has() {
        let found = gaps("a", Extents(20), vec![(15, 17), (0, 4), (6, 9)]);
        let wanted = [area("a", 9, 6), area("a", 17, 3), area("a", 4, 2)];
        assert_eq!(found, wanted);
        assert_eq!(
            first(found, Extents(7)),
            [area("a", 9, 6), area("a", 17, 1)]
        );
        assert_eq!(gaps("a", Extents(20), vec![(0, 20)]), []);
    }

    #[test]
    fn stripes_are_taken_from_the_disks_with_the_largest_areas_first() {
        let rows = |free: &[&[u64]]| {
            let free = free.iter().map(|areas| areas.iter().copied().map(Extents));
            let free: Vec<Vec<Extents>> = free.map(Iterator::collect).collect();
            stripe_rows(&free, 2).0
        };
        assert_eq!(rows(&[&[100], &[100], &[100]]), 100);
        assert_eq!(rows(&[&[100], &[40], &[30]]), 70);
        // The second disk has the most room, and no large area.
        assert_eq!(rows(&[&[60], &[10; 7], &[65]]), 65);
        assert_eq!(rows(&[&[9]]), 0);
    }
}
