//! Kubernetes quantities such as `10Gi`, exactly, in bytes.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A quantity as it was written. It is a text and only a text: a number that lost its unit must not be one.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Quantity(#[schemars(length(max = 64))] pub String);

/// Why a text is no quantity of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantityError(String);

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuantityError {}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What stands behind the number, as (factor's base, factor's exponent).
fn unit(text: &str) -> Option<(u128, u32)> {
    Some(match text {
        "" => (10, 0),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (2, 10),
        "Mi" => (2, 20),
        "Gi" => (2, 30),
        "Ti" => (2, 40),
        "Pi" => (2, 50),
        "Ei" => (2, 60),
        _ => {
            let exponent = text.strip_prefix(['e', 'E'])?;
            (
                10,
                exponent
                    .parse::<u32>()
                    .ok()
                    .filter(|exponent| *exponent <= 18)?,
            )
        }
    })
}

impl Quantity {
    /// The quantity of this many bytes, in the largest unit that it is a multiple of.
    pub fn from_bytes(bytes: u64) -> Self {
        let units = [
            (60, "Ei"),
            (50, "Pi"),
            (40, "Ti"),
            (30, "Gi"),
            (20, "Mi"),
            (10, "Ki"),
        ];
        for (shift, name) in units {
            if bytes > 0 && bytes.trailing_zeros() >= shift {
                return Self(format!("{}{name}", bytes >> shift));
            }
        }
        Self(bytes.to_string())
    }

    /// The bytes, a fraction of one rounded up.
    ///
    /// # Errors
    /// When it is not written as a quantity, is negative, or is more than 2⁶³ − 1 bytes.
    pub fn bytes(&self) -> Result<u64, QuantityError> {
        let text = self.0.as_str();
        let wrong = |why: &str| QuantityError(format!("{text:?} {why}"));
        let end = text
            .find(|character: char| !character.is_ascii_digit() && character != '.')
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(wrong("is not a quantity such as 10Gi"));
        }
        let milli = suffix == "m";
        let (base, exponent) = match suffix {
            "m" => (10, 0),
            suffix => unit(suffix)
                .ok_or_else(|| wrong("has no unit of Ki, Mi, Gi, Ti, Pi, Ei, k, M, G, T, P, E"))?,
        };
        let too_large = || wrong("is more than a volume can have");
        // 9 digits of a fraction are what Kubernetes keeps.
        let fraction = fraction.get(..9).unwrap_or(fraction);
        let places = u32::try_from(fraction.len()).unwrap_or(0) + if milli { 3 } else { 0 };
        let digits: u128 = match format!("{whole}{fraction}").as_str() {
            "" => 0,
            digits => digits.parse().map_err(|_| too_large())?,
        };
        let factor = base.pow(exponent);
        let bytes = digits
            .checked_mul(factor)
            .ok_or_else(too_large)?
            .div_ceil(10_u128.pow(places));
        u64::try_from(bytes)
            .ok()
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .ok_or_else(too_large)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let quantity = Self(text.to_owned());
        quantity.bytes().map(|_| quantity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, bytes) in [
            ("10Gi", 10 << 30),
            ("1.5Gi", 3 << 29),
            ("1k", 1000),
            ("0.5", 1),
            ("1500m", 2),
            ("1e3", 1000),
            ("1E3", 1000),
            ("2E", 2_000_000_000_000_000_000),
            ("100", 100),
            (".5Ki", 512),
        ] {
            assert_eq!(Quantity(text.into()).bytes(), Ok(bytes), "{text}");
        }
        for bad in [
            "", "Gi", "10GB", "-1Gi", "1..2", "1 Gi", "10gi", "8Ei", "1e99", "1Gi\n", "0x10",
        ] {
            assert!(Quantity(bad.into()).bytes().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(bytes in 0..=i64::MAX.unsigned_abs()) {
            prop_assert_eq!(Quantity::from_bytes(bytes).bytes(), Ok(bytes));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,20}") {
            let _ = Quantity(text).bytes();
        }
    }
}
