//! Which images are deleted to make room.

use crate::types::ImageId;

/// Chooses the images that are deleted so that there is room: the first of them, which are the oldest, without those that
/// free nothing that is needed. None if there is room already, or never will be.
///
/// `fits` says whether there is room once those with these positions are deleted; more of them never make it false.
pub(super) fn choose(oldest_first: &[ImageId], fits: impl Fn(&[usize]) -> bool) -> Vec<ImageId> {
    let mut chosen: Vec<usize> = (0..oldest_first.len()).collect();
    if fits(&[]) || !fits(&chosen) {
        return Vec::new();
    }
    // The newest is kept first.
    for position in (0..oldest_first.len()).rev() {
        let rest = chosen.iter().copied().filter(|other| *other != position);
        let rest: Vec<usize> = rest.collect();
        if fits(&rest) {
            chosen = rest;
        }
    }
    let chosen = chosen.into_iter();
    chosen
        .filter_map(|position| oldest_first.get(position).copied())
        .collect()
}

/// The sum of what those with these positions free.
pub(super) fn freed(by: &[u64], deleted: &[usize]) -> u64 {
    let freed = deleted.iter().filter_map(|position| by.get(*position));
    freed.fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ImageKind, Key, Name};

    #[test]
    fn the_oldest_go_that_free_something_and_nothing_goes_in_vain() {
        let images: Vec<ImageId> = ["a", "b", "c", "d"]
            .into_iter()
            .map(|name| ImageId {
                kind: ImageKind::Trash,
                key: Key::of(ImageKind::Volume, &Name::parse("name", name).unwrap()),
            })
            .collect();
        // The second shares its blocks with others.
        let frees = [10, 0, 30, 20];
        for (needed, wanted) in [
            (0, &[][..]),
            (1, &[0]),
            (10, &[0]),
            (11, &[2]),
            (31, &[0, 2]),
            (41, &[2, 3]),
            (60, &[0, 2, 3]),
            (61, &[]),
        ] {
            let chosen = choose(&images, |deleted| freed(&frees, deleted) >= needed);
            let wanted: Vec<ImageId> = wanted.iter().map(|at| images[*at]).collect();
            assert_eq!(chosen, wanted, "{needed}");
        }
        assert_eq!(choose(&[], |_| false), []);
    }
}
