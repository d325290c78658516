use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde::de::{self, Deserialize, Deserializer, Visitor};

const NANOS_PER_UNIT: i128 = 1_000_000_000;
/// The largest magnitude a quantity can have; larger ones are capped to it.
const MAX_NANOS: i128 = i64::MAX as i128 * NANOS_PER_UNIT;

/// A Kubernetes quantity: `1500m`, `2k`, `1Gi`, `1e3`, `0.5`.
///
/// Read as Kubernetes reads it: a sign, decimal digits with an optional fraction, and a suffix that is binary
/// (`Ki` … `Ei`), decimal (`n` … `E`) or an exponent (`e3`). What is finer than a billionth is rounded away
/// from zero. Unlike Kubernetes, a quantity without any digit (`Gi`, `-`) is refused instead of being zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nanos: i128,
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    #[error("invalid quantity {text:?}: it has no digits")]
    NoDigits { text: String },
    #[error(
        "invalid quantity {text:?}: unknown suffix {suffix:?}, use n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei or an exponent such as e3"
    )]
    Suffix { text: String, suffix: String },
}

/// A number of bytes, written as a quantity; fractions are rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ByteSize(pub u64);

/// A number of things, written as a quantity; fractions are rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

impl Quantity {
    /// The value in whole units, rounded away from zero.
    pub fn units(self) -> i64 {
        let magnitude = self.nanos.unsigned_abs().div_ceil(NANOS_PER_UNIT.unsigned_abs());
        // At most `i64::MAX`, by the cap on `nanos`.
        let magnitude = i64::try_from(magnitude).unwrap_or(i64::MAX);
        if self.nanos < 0 { -magnitude } else { magnitude }
    }

    /// As [`Quantity::units`], if it is not negative.
    fn non_negative_units(self) -> Option<u64> {
        u64::try_from(self.units()).ok()
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, unsigned) = match text.strip_prefix(['+', '-']) {
            Some(rest) => (text.starts_with('-'), rest),
            None => (false, text),
        };
        let (whole, rest) = split_digits(unsigned);
        let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), split_digits);
        if whole.is_empty() && fraction.is_empty() {
            return Err(QuantityError::NoDigits { text: text.to_owned() });
        }
        let scale = Scale::from_suffix(suffix)
            .ok_or_else(|| QuantityError::Suffix { text: text.to_owned(), suffix: suffix.to_owned() })?;
        let magnitude = scale.nanos(whole, fraction);
        Ok(Self { nanos: if negative { -magnitude } else { magnitude } })
    }
}

/// What a suffix multiplies by.
enum Scale {
    /// 2 to this power.
    Binary(u32),
    /// 10 to this power.
    Decimal(i64),
}

impl Scale {
    fn from_suffix(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "Ki" => Self::Binary(10),
            "Mi" => Self::Binary(20),
            "Gi" => Self::Binary(30),
            "Ti" => Self::Binary(40),
            "Pi" => Self::Binary(50),
            "Ei" => Self::Binary(60),
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "" => Self::Decimal(0),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E'])?;
                let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
                if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                Self::Decimal(exponent.parse().ok()?)
            }
        })
    }

    /// `whole.fraction` times this scale in billionths, rounded up, at most [`MAX_NANOS`].
    fn nanos(&self, whole: &str, fraction: &str) -> i128 {
        let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|digit| digit - b'0').collect();
        let fraction_digits = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
        let exponent = match *self {
            Self::Binary(power) => {
                multiply(&mut digits, 1 << power);
                0
            }
            Self::Decimal(power) => power,
        };
        round_up(&digits, exponent.saturating_sub(fraction_digits).saturating_add(9))
    }
}

/// Multiplies the decimal number in `digits`, most significant first.
fn multiply(digits: &mut Vec<u8>, factor: u64) {
    let mut carry: u128 = 0;
    for digit in digits.iter_mut().rev() {
        carry += u128::from(*digit) * u128::from(factor);
        *digit = last_digit(carry);
        carry /= 10;
    }
    let mut front = Vec::new();
    while carry > 0 {
        front.push(last_digit(carry));
        carry /= 10;
    }
    front.reverse();
    digits.splice(0..0, front);
}

const fn last_digit(number: u128) -> u8 {
    (number % 10) as u8
}

/// The decimal number in `digits` times 10^`exponent`, rounded up, at most [`MAX_NANOS`].
fn round_up(digits: &[u8], exponent: i64) -> i128 {
    let leading_zeros = digits.iter().take_while(|&&digit| digit == 0).count();
    let digits = &digits[leading_zeros..];
    if digits.is_empty() {
        return 0;
    }
    let length = i64::try_from(digits.len()).unwrap_or(i64::MAX);
    // How many digits stand before the point once it has moved by `exponent`.
    let whole = length.saturating_add(exponent).max(0);
    if whole > 30 {
        return MAX_NANOS;
    }
    let whole = usize::try_from(whole).unwrap_or(usize::MAX);
    let mut value: i128 = 0;
    for place in 0..whole {
        value = value * 10 + i128::from(digits.get(place).copied().unwrap_or(0));
    }
    if digits.iter().skip(whole).any(|&digit| digit != 0) {
        value += 1;
    }
    value.min(MAX_NANOS)
}

/// The leading digits of `text`, and the rest.
fn split_digits(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

impl fmt::Display for Quantity {
    /// Plain decimal, which reads back as the same quantity.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.nanos.unsigned_abs();
        let unit = NANOS_PER_UNIT.unsigned_abs();
        let (whole, fraction) = (magnitude / unit, magnitude % unit);
        let sign = if self.nanos < 0 { "-" } else { "" };
        if fraction == 0 { write!(f, "{sign}{whole}") } else { write!(f, "{sign}{whole}.{fraction:09}") }
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// From a string or a plain number.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuantityVisitor;

        impl Visitor<'_> for QuantityVisitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 2000, 20k or 1Gi")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }
        }

        deserializer.deserialize_any(QuantityVisitor)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_non_negative(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_non_negative(deserializer).map(Self)
    }
}

fn deserialize_non_negative<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let quantity = Quantity::deserialize(deserializer)?;
    quantity
        .non_negative_units()
        .ok_or_else(|| de::Error::custom(format_args!("{quantity} is negative, it must be zero or more")))
}

#[cfg(test)]
#[path = "quantity_tests.rs"]
mod tests;
