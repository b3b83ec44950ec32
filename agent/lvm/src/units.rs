//! Units that must not be taken for bytes.

use std::{
    fmt,
    iter::Sum,
    ops::{Add, AddAssign, Sub, SubAssign},
};

use crate::host::Sectors;

/// A number of extents, the unit in which LVM allocates; the size of one is the volume group's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Extents(pub u64);

impl Extents {
    /// No extents.
    pub const ZERO: Self = Self(0);

    /// As many as hold this number of bytes, with extents of `size` bytes.
    pub fn covering(bytes: u64, size: u64) -> Self {
        Self(bytes.div_ceil(size.max(1)))
    }

    /// In bytes, with extents of `size` bytes; the largest number for what exceeds it.
    pub fn bytes(self, size: u64) -> u64 {
        self.0.saturating_mul(size)
    }

    /// So many times as much; the largest number for what exceeds it.
    #[must_use]
    pub fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// The share of each of so many, rounded down.
    #[must_use]
    pub fn shared_by(self, parts: u64) -> Self {
        Self(self.0 / parts.max(1))
    }

    /// This part of it, rounded down.
    #[must_use]
    pub fn percent(self, percent: u32) -> Self {
        let part = u128::from(self.0) * u128::from(percent) / 100;
        Self(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// The difference; none where the other is more.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Extents {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Extents {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Extents {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl SubAssign for Extents {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Extents {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, Add::add)
    }
}

impl<'a> Sum<&'a Self> for Extents {
    fn sum<I: Iterator<Item = &'a Self>>(all: I) -> Self {
        all.copied().sum()
    }
}

impl fmt::Display for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of blocks of a thin pool, the unit in which it maps and shares; the size of one is the pool's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct ThinBlocks(pub u64);

impl ThinBlocks {
    /// No blocks.
    pub const ZERO: Self = Self(0);

    /// As many whole blocks of this size as fit into this number of bytes: also the block with the byte at this offset.
    pub fn within(bytes: u64, size: Sectors) -> Self {
        Self(bytes / size.bytes().max(1))
    }

    /// In bytes, with blocks of this size; the largest number for what exceeds it.
    pub fn bytes(self, size: Sectors) -> u64 {
        self.0.saturating_mul(size.bytes())
    }
}

impl fmt::Display for ThinBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_in_the_block_of_its_offset() {
        let size = Sectors(128);
        let within = |bytes| ThinBlocks::within(bytes, size);
        assert_eq!(
            (within(65_535), within(65_536)),
            (ThinBlocks(0), ThinBlocks(1))
        );
        assert_eq!(ThinBlocks(3).bytes(size), 196_608);
        assert_eq!(ThinBlocks(u64::MAX).bytes(size), u64::MAX);
        assert_eq!(ThinBlocks::within(1, Sectors(0)), ThinBlocks(1));
    }

    #[test]
    fn bytes_are_covered_and_what_is_too_much_is_the_most() {
        const SIZE: u64 = 4 << 20;
        assert_eq!(Extents::covering(SIZE + 1, SIZE), Extents(2));
        assert_eq!(Extents(2).bytes(SIZE), 2 * SIZE);
        assert_eq!(Extents(u64::MAX).bytes(SIZE), u64::MAX);
        assert_eq!(Extents(u64::MAX).percent(50), Extents(u64::MAX / 2));
        assert_eq!(Extents(1).less(Extents(2)), Extents::ZERO);
        let all = [Extents(u64::MAX), Extents(1)];
        assert_eq!(all.iter().sum::<Extents>(), Extents(u64::MAX));
    }
}
