//! Sizes in bytes, and the rules by which a requested range becomes one size.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Kind, Result};

/// A number of bytes that fits the signed 64-bit fields of CSI.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(try_from = "u64", into = "u64")]
pub struct Size(u64);

impl Size {
    /// The largest size that CSI messages can represent.
    pub const MAX: Self = Self(i64::MAX.unsigned_abs());

    /// `mebibytes` × 2²⁰ bytes.
    #[expect(
        clippy::as_conversions,
        reason = "From is not const, and a u32 fits a u64"
    )]
    pub const fn from_mebibytes(mebibytes: u32) -> Self {
        Self((mebibytes as u64) << 20)
    }

    /// `kibibytes` × 2¹⁰ bytes.
    #[expect(
        clippy::as_conversions,
        reason = "From is not const, and a u32 fits a u64"
    )]
    pub const fn from_kibibytes(kibibytes: u32) -> Self {
        Self((kibibytes as u64) << 10)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The number of bytes as the `int64` of CSI messages.
    pub const fn to_wire(self) -> i64 {
        self.0.cast_signed()
    }

    /// The next multiple of `unit`, or none if there is no such size.
    pub fn round_up(self, unit: Self) -> Option<Self> {
        let bytes = self.0.checked_next_multiple_of(unit.0.max(1))?;
        Self::try_from(bytes).ok()
    }

    /// The multiple of `unit` at or below this size.
    #[must_use]
    pub fn round_down(self, unit: Self) -> Self {
        Self(self.0 - self.0 % unit.0.max(1))
    }
}

impl TryFrom<u64> for Size {
    type Error = Error;

    fn try_from(bytes: u64) -> Result<Self> {
        if bytes > Self::MAX.0 {
            return Err(Error::new(
                Kind::OutOfRange,
                format!("{bytes} bytes exceed the largest possible volume size"),
            ));
        }
        Ok(Self(bytes))
    }
}

impl From<Size> for u64 {
    fn from(size: Size) -> Self {
        size.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}

/// A requested size: at least `required`, at most `limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SizeRange {
    required: Option<Size>,
    limit: Option<Size>,
}

/// The sizes that a class supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeRules {
    /// Every size is a multiple of this.
    pub unit: Size,
    /// The minimum size.
    pub minimum: Size,
    /// The size if the caller requests none.
    pub default: Size,
}

impl SizeRange {
    /// Builds a range from the two numbers of a CSI message, where 0 means "not set".
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a negative number, or a limit below the required size; the message names `field`.
    pub fn from_wire(field: &str, required: i64, limit: i64) -> Result<Self> {
        let parse = |name: &str, value: i64| {
            let bytes = u64::try_from(value)
                .map_err(|_| Error::invalid(format!("{field}.{name} is negative: {value}")))?;
            Ok((bytes > 0).then_some(Size(bytes)))
        };
        let range = Self {
            required: parse("required_bytes", required)?,
            limit: parse("limit_bytes", limit)?,
        };
        if let (Some(required), Some(limit)) = (range.required, range.limit)
            && limit < required
        {
            return Err(Error::invalid(format!(
                "{field}.limit_bytes ({}) is smaller than {field}.required_bytes ({})",
                limit.0, required.0
            )));
        }
        Ok(range)
    }

    /// At least `size`, without a limit.
    pub fn at_least(size: Size) -> Self {
        Self {
            required: Some(size),
            limit: None,
        }
    }

    /// The lower end, if given.
    pub fn required(&self) -> Option<Size> {
        self.required
    }

    /// The upper end, if given.
    pub fn limit(&self) -> Option<Size> {
        self.limit
    }

    /// Returns true if `size` is within the range.
    pub fn allows(&self, size: Size) -> bool {
        self.required.is_none_or(|required| size >= required)
            && self.limit.is_none_or(|limit| size <= limit)
    }

    /// The size to create: `required` rounded up, else `at_least`, else the default within the limit.
    ///
    /// # Errors
    /// [`Kind::OutOfRange`] if `rules` permit no size within the range, or none that is at least `at_least`.
    pub fn choose(&self, rules: &SizeRules, at_least: Option<Size>) -> Result<Size> {
        let floor = at_least.unwrap_or_default().max(rules.minimum);
        let wanted = match (self.required, at_least) {
            (Some(required), _) => required,
            (None, Some(least)) => least,
            (None, None) => match self.limit {
                Some(limit) => rules.default.min(limit.round_down(rules.unit)),
                None => rules.default,
            },
        };
        if let (Some(required), Some(least)) = (self.required, at_least)
            && required < least
            && self.limit.is_some_and(|limit| limit < least)
        {
            return Err(self.impossible(&format!("the source has {least}")));
        }
        let size = wanted
            .max(floor)
            .round_up(rules.unit)
            .ok_or_else(|| self.impossible("the size exceeds the largest possible volume size"))?;
        if self.limit.is_some_and(|limit| size > limit) {
            return Err(self.impossible(&format!(
                "the smallest size is {} and sizes are multiples of {}",
                floor.0, rules.unit.0
            )));
        }
        Ok(size)
    }

    fn impossible(&self, why: &str) -> Error {
        let number = |size: Option<Size>| size.map_or("none".to_owned(), |size| size.0.to_string());
        Error::new(
            Kind::OutOfRange,
            format!(
                "no volume can have a size within capacity_range (required_bytes {}, limit_bytes {}): {why}",
                number(self.required),
                number(self.limit)
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: SizeRules = SizeRules {
        unit: Size(4096),
        minimum: Size(1 << 20),
        default: Size(1 << 30),
    };

    fn choose(required: i64, limit: i64) -> Result<u64> {
        SizeRange::from_wire("capacity_range", required, limit)?
            .choose(&RULES, None)
            .map(Size::bytes)
    }

    #[test]
    fn required_is_rounded_up_and_the_limit_is_kept() {
        assert_eq!(choose(0, 0).unwrap(), 1 << 30);
        assert_eq!(choose((1 << 21) + 1, 0).unwrap(), (1 << 21) + 4096);
        assert_eq!(choose(1, 0).unwrap(), 1 << 20);
        assert_eq!(choose(0, 1 << 21).unwrap(), 1 << 21);
        assert_eq!(choose(0, (1 << 21) + 5).unwrap(), 1 << 21);
        assert_eq!(
            choose((1 << 21) + 1, (1 << 21) + 2).unwrap_err().kind(),
            Kind::OutOfRange
        );
        assert_eq!(choose(1, 2).unwrap_err().kind(), Kind::OutOfRange);
        assert_eq!(choose(i64::MAX, 0).unwrap_err().kind(), Kind::OutOfRange);
    }

    #[test]
    fn wrong_ranges_are_the_callers_mistake() {
        assert_eq!(choose(-1, 0).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(choose(0, -1).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(choose(4096, 1).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn a_copy_is_never_smaller_than_its_source() {
        let source = Some(Size(1 << 22));
        let range =
            |required, limit| SizeRange::from_wire("capacity_range", required, limit).unwrap();
        assert_eq!(range(0, 0).choose(&RULES, source).unwrap(), Size(1 << 22));
        assert_eq!(
            range(1 << 20, 0).choose(&RULES, source).unwrap(),
            Size(1 << 22)
        );
        assert_eq!(
            range(0, 1 << 21).choose(&RULES, source).unwrap_err().kind(),
            Kind::OutOfRange
        );
    }
}
