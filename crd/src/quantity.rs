//! Kubernetes quantities such as `10Gi`, exactly, in bytes.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, Visitor},
};

/// The units that people use.
const UNITS: [&str; 12] = [
    "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "k", "M", "G", "T", "P", "E",
];
/// Billionths: the resolution of quantities in Kubernetes.
const NANOS: u128 = 1_000_000_000;
/// Maximum number of digits of a number of billionths; larger than any disk.
const MOST_DIGITS: usize = 30;

/// A quantity as written. Only strings are accepted: a number could have lost its unit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Quantity(#[schemars(length(max = 64))] pub String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size with its unit, such as 10Gi")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Quantity, E> {
                Ok(Quantity(text.to_owned()))
            }
        }

        deserializer.deserialize_str(Reader)
    }
}

/// Error for an invalid quantity of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantityError(String);

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

    /// The number of bytes, rounded up.
    ///
    /// # Errors
    /// If it is not a valid quantity, is negative, or exceeds 2⁶³ − 1 bytes.
    pub fn bytes(&self) -> Result<u64, QuantityError> {
        u64::try_from(self.nanos()?.div_ceil(NANOS))
            .ok()
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .ok_or_else(|| self.too_large())
    }

    /// Returns true if its unit is a part of one (`m`, `u`, `n`, `e-3`), which nobody means who asks for a size.
    #[must_use]
    pub fn is_of_parts(&self) -> bool {
        let (_, suffix) = self.parts();
        Unit::read(suffix).is_some_and(|unit| unit.tens < 0)
    }

    /// The number without its sign, and its suffix.
    fn parts(&self) -> (&str, &str) {
        let unsigned = self.0.strip_prefix('+').unwrap_or(&self.0);
        let is_of_number = |character: char| character.is_ascii_digit() || character == '.';
        let end = unsigned.find(|character| !is_of_number(character));
        unsigned.split_at(end.unwrap_or(unsigned.len()))
    }

    /// The number of billionths of a byte, rounded up as in Kubernetes; for exact comparison of two quantities.
    ///
    /// # Errors
    /// If it is not a valid quantity, is negative, or is far larger than any disk.
    pub fn nanos(&self) -> Result<u128, QuantityError> {
        if self.0.starts_with('-') {
            return Err(self.wrong("is negative"));
        }
        let (number, suffix) = self.parts();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(self.wrong("is not a quantity such as 10Gi"));
        }
        let Unit { kibis, tens } = Unit::read(suffix).ok_or_else(|| {
            let near = nearest_unit(suffix).map(|unit| format!("; did you mean {number}{unit}?"));
            self.wrong(&format!(
                "has an unknown unit: use one of {} or none{}",
                UNITS.join(", "),
                near.unwrap_or_default()
            ))
        })?;
        let mut digits: Vec<u8> = whole
            .bytes()
            .chain(fraction.bytes())
            .map(|digit| digit - b'0')
            .collect();
        for _ in 0..kibis {
            times_1024(&mut digits);
        }
        // Number of digits before the decimal point of the number of billionths.
        let zeros = digits.iter().take_while(|digit| **digit == 0).count();
        let length = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let count = length(digits.len()) - length(zeros) - length(fraction.len()) + tens + 9;
        digits.drain(..zeros);
        if digits.is_empty() {
            return Ok(0);
        }
        let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
        if count > MOST_DIGITS {
            return Err(self.too_large());
        }
        let kept = digits.iter().chain(std::iter::repeat(&0)).take(count);
        let nanos = kept.fold(0_u128, |sum, digit| sum * 10 + u128::from(*digit));
        let is_finer = digits.iter().skip(count).any(|digit| *digit != 0);
        Ok(nanos + u128::from(is_finer))
    }

    fn wrong(&self, why: &str) -> QuantityError {
        QuantityError(format!("{:?} {why}", self.0))
    }

    fn too_large(&self) -> QuantityError {
        self.wrong("exceeds the largest possible volume size: use less than 8Ei")
    }
}

/// The unit that was meant by an unknown one: with a `B`, such as `MiB`, or in other letters.
fn nearest_unit(suffix: &str) -> Option<&'static str> {
    let bare = suffix.trim_end_matches(['B', 'b']);
    UNITS
        .into_iter()
        .find(|unit| unit.eq_ignore_ascii_case(bare))
}

/// The suffix of the number: a power of 1024 times a power of 10.
struct Unit {
    kibis: u8,
    tens: i64,
}

impl Unit {
    fn read(text: &str) -> Option<Self> {
        let (kibis, tens) = match text {
            "n" => (0, -9),
            "u" => (0, -6),
            "m" => (0, -3),
            "" => (0, 0),
            "k" => (0, 3),
            "M" => (0, 6),
            "G" => (0, 9),
            "T" => (0, 12),
            "P" => (0, 15),
            "E" => (0, 18),
            "Ki" => (1, 0),
            "Mi" => (2, 0),
            "Gi" => (3, 0),
            "Ti" => (4, 0),
            "Pi" => (5, 0),
            "Ei" => (6, 0),
            _ => (
                0,
                text.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?.into(),
            ),
        };
        Some(Self { kibis, tens })
    }
}

/// Multiplies a number given as decimal digits, exactly and of any length.
fn times_1024(digits: &mut Vec<u8>) {
    let mut carry = 0_u16;
    for digit in digits.iter_mut().rev() {
        let product = u16::from(*digit) * 1024 + carry;
        *digit = u8::try_from(product % 10).unwrap_or(0);
        carry = product / 10;
    }
    while carry > 0 {
        digits.insert(0, u8::try_from(carry % 10).unwrap_or(0));
        carry /= 10;
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let quantity = Self(text.to_owned());
        quantity.bytes().map(|_| quantity)
    }
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuantityError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, bytes) in [
            ("10Gi", 10 << 30),
            ("+10Gi", 10 << 30),
            ("010Gi", 10 << 30),
            ("1.5Gi", 3 << 29),
            ("1.", 1),
            (".5Ki", 512),
            ("0.1Gi", 107_374_183),
            ("1k", 1000),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1e-3", 1),
            ("2500e-3", 3),
            ("1e+3", 1000),
            ("2E", 2_000_000_000_000_000_000),
            ("100", 100),
            ("0", 0),
            ("0e99", 0),
            ("9223372036854775807", i64::MAX.unsigned_abs()),
            ("8388607Ti", 8_388_607 << 40),
            // An amount below the resolution is still more than zero.
            ("0.5", 1),
            ("1500m", 2),
            ("1u", 1),
            ("1n", 1),
            ("0.0000000000000000000001", 1),
            ("1.0000000001Ki", 1025),
            ("1.0000000000000000000000000000001Ei", (1 << 60) + 1),
            ("100000000000000000000000000000e-29", 1),
        ] {
            assert_eq!(Quantity(text.into()).bytes(), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_or_too_large_is_refused() {
        for bad in [
            "", "Gi", ".", "+", "10GB", "-1Gi", "1..2", "1.2.3", "1 Gi", " 1", "10gi", "1K", "1e",
            "1e1.5", "1ee3", "1e+-3", "1Gi\n", "0x10", "1_000", "٣",
        ] {
            assert!(Quantity(bad.into()).bytes().is_err(), "{bad:?}");
        }
        for (bad, meant) in [
            ("200MiB", "200Mi"),
            ("1.5gib", "1.5Gi"),
            ("10GB", "10G"),
            ("10gi", "10Gi"),
            ("1K", "1k"),
        ] {
            let error = Quantity(bad.into()).bytes().unwrap_err().to_string();
            assert!(
                error.ends_with(&format!("; did you mean {meant}?")),
                "{error}"
            );
        }
        for large in [
            "8Ei",
            "9223372036854775808",
            "9223372036854775807.1",
            "10E",
            "1e99",
            "1e2147483647",
            "99999999999999999999999999999999999999999999",
        ] {
            let error = Quantity(large.into()).bytes().unwrap_err();
            assert!(error.to_string().contains("less than 8Ei"), "{error}");
        }
    }

    #[test]
    fn what_is_written_has_the_largest_unit_that_fits() {
        for (bytes, text) in [
            (0, "0"),
            (1000, "1000"),
            (1024, "1Ki"),
            (1025, "1025"),
            (1536 << 20, "1536Mi"),
            (10 << 30, "10Gi"),
            (7 << 60, "7Ei"),
        ] {
            assert_eq!(Quantity::from_bytes(bytes).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(bytes in 0..=i64::MAX.unsigned_abs()) {
            prop_assert_eq!(Quantity::from_bytes(bytes).bytes(), Ok(bytes));
        }

        #[test]
        fn a_binary_fraction_is_exact_and_rounded_up(number in 0_u64..1 << 20, places in 0_usize..12, unit in 0_u32..4) {
            let suffix = ["", "Ki", "Mi", "Gi"][usize::try_from(unit).unwrap()];
            let width = places + 1;
            let digits = format!("{number:0width$}");
            let (whole, fraction) = digits.split_at(digits.len() - places);
            let text = format!("{whole}.{fraction}{suffix}");
            let divisor = 10_u128.pow(u32::try_from(places).unwrap());
            let exact = (u128::from(number) << (10 * unit)).div_ceil(divisor);
            prop_assert_eq!(Quantity(text).bytes().map(u128::from), Ok(exact));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[-+0-9.eEkKMGTPinum]{0,70}|.{0,20}") {
            let _ = Quantity(text).bytes();
        }
    }
}
