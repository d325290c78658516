use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration in the notation of Go: `300ms`, `1h2m`, `1.5s`, `-2s`, `0`.
///
/// An optional sign, then one or more decimal numbers with an optional fraction and a unit each: `ns`, `us`
/// (or `µs`), `ms`, `s`, `m`, `h`. Only zero may go without a unit. The range is that of a signed 64-bit
/// number of nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration {
    nanos: i64,
}

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GoDurationError {
    #[error("invalid duration {text:?}: expected numbers with units, such as 30s or 1h2m")]
    Malformed { text: String },
    #[error("invalid duration {text:?}: a number has no unit, use ns, us, ms, s, m or h")]
    NoUnit { text: String },
    #[error("invalid duration {text:?}: unknown unit {unit:?}, use ns, us, ms, s, m or h")]
    Unit { text: String, unit: String },
    #[error("invalid duration {text:?}: out of range")]
    Range { text: String },
}

impl GoDuration {
    pub const fn from_nanos(nanos: i64) -> Self {
        Self { nanos }
    }

    pub const fn as_nanos(self) -> i64 {
        self.nanos
    }

    /// The same as an unsigned duration; `None` if negative.
    pub fn non_negative(self) -> Option<Duration> {
        u64::try_from(self.nanos).ok().map(Duration::from_nanos)
    }
}

/// The magnitude of the smallest duration; the largest is one nanosecond less.
const RANGE: u64 = 1 << 63;

impl FromStr for GoDuration {
    type Err = GoDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let out_of_range = || GoDurationError::Range { text: text.to_owned() };
        let malformed = || GoDurationError::Malformed { text: text.to_owned() };

        let negative = text.starts_with('-');
        let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
        if rest == "0" {
            return Ok(Self { nanos: 0 });
        }
        if rest.is_empty() {
            return Err(malformed());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (whole, after_whole) = split_while(rest, |letter| letter.is_ascii_digit());
            let (fraction, after_number) = match after_whole.strip_prefix('.') {
                Some(after_point) => split_while(after_point, |letter| letter.is_ascii_digit()),
                None => ("", after_whole),
            };
            if whole.is_empty() && fraction.is_empty() {
                return Err(malformed());
            }
            let (unit, after_unit) = split_while(after_number, |letter| letter != '.' && !letter.is_ascii_digit());
            if unit.is_empty() {
                return Err(GoDurationError::NoUnit { text: text.to_owned() });
            }
            let unit = unit_nanos(unit)
                .ok_or_else(|| GoDurationError::Unit { text: text.to_owned(), unit: unit.to_owned() })?;
            let whole = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| out_of_range())? };
            total = unit
                .checked_mul(whole)
                .and_then(|nanos| nanos.checked_add(fraction_nanos(fraction, unit)))
                .and_then(|nanos| nanos.checked_add(total))
                .filter(|&nanos| nanos <= RANGE)
                .ok_or_else(out_of_range)?;
            rest = after_unit;
        }
        let nanos = if negative {
            0_i64.checked_sub_unsigned(total).ok_or_else(out_of_range)?
        } else {
            i64::try_from(total).map_err(|_| out_of_range())?
        };
        Ok(Self { nanos })
    }
}

fn split_while(text: &str, keep: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|letter| !keep(letter)).unwrap_or(text.len());
    text.split_at(end)
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign and the Greek letter mu look the same.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return None,
    })
}

/// `0.fraction` of a unit, in nanoseconds, with the rounding of Go: floating point, then cut off.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the result is less than a unit; the rounding is the one of Go"
)]
fn fraction_nanos(fraction: &str, unit: u64) -> u64 {
    let mut digits: u64 = 0;
    let mut scale: f64 = 1.0;
    for digit in fraction.bytes() {
        // Go ignores the digits that do not fit.
        if digits > (RANGE - 1) / 10 {
            break;
        }
        let more = digits * 10 + u64::from(digit - b'0');
        if more > RANGE {
            break;
        }
        digits = more;
        scale *= 10.0;
    }
    (digits as f64 * (unit as f64 / scale)) as u64
}

impl fmt::Display for GoDuration {
    /// Hours, minutes and seconds, which read back as the same duration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        let nanos = self.nanos.unsigned_abs();
        let (seconds, below) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        if seconds > 0 || nanos == 0 {
            write!(f, "{seconds}s")?;
        }
        match below {
            0 => Ok(()),
            _ if below % 1_000_000 == 0 => write!(f, "{}ms", below / 1_000_000),
            _ => write!(f, "{below}ns"),
        }
    }
}

#[cfg(test)]
#[path = "go_duration_tests.rs"]
mod tests;
