//! Units that must not be taken for bytes.

use std::{fmt, iter::Sum, num::ParseIntError, str::FromStr};

/// A number of sectors of 512 bytes, the unit of device-mapper (`Documentation/admin-guide/device-mapper`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Sectors(pub u64);

impl Sectors {
    /// The size of one, in bytes.
    pub const SIZE: u64 = 512;

    /// As many whole sectors as fit into this number of bytes.
    pub fn within(bytes: u64) -> Self {
        Self(bytes / Self::SIZE)
    }

    /// In bytes; the largest number for what exceeds it.
    pub fn bytes(self) -> u64 {
        self.0.saturating_mul(Self::SIZE)
    }
}

impl FromStr for Sectors {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

impl Sum for Sectors {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        Self(all.fold(0, |sum, sectors| sum.saturating_add(sectors.0)))
    }
}

impl fmt::Display for Sectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sectors", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_sector_is_none_and_what_is_too_much_is_the_most() {
        assert_eq!(Sectors::within(1023), Sectors(1));
        assert_eq!(Sectors(3).bytes(), 1536);
        assert_eq!(Sectors(u64::MAX).bytes(), u64::MAX);
        let all = [Sectors(u64::MAX), Sectors(1)];
        assert_eq!(all.into_iter().sum::<Sectors>(), Sectors(u64::MAX));
        assert_eq!("8".parse(), Ok(Sectors(8)));
        assert!("-8".parse::<Sectors>().is_err());
    }
}
