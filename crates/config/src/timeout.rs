use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};
use sluice_core::{GoDuration, GoDurationError};

/// A duration that is not negative, in the notation of [`GoDuration`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timeout(pub Duration);

/// Why a text is not a [`Timeout`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimeoutError {
    #[error(transparent)]
    Duration(#[from] GoDurationError),
    #[error("{duration} is negative, it must be zero or more")]
    Negative { duration: GoDuration },
    /// Go rounds it to zero, which stands for something else wherever a time may be zero.
    #[error("{text:?} is less than a nanosecond, which counts as 0; write 0s if that is meant")]
    TooShort { text: String },
}

impl FromStr for Timeout {
    type Err = TimeoutError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let duration: GoDuration = text.parse()?;
        if duration.as_nanos() == 0 && text.contains(|letter| matches!(letter, '1'..='9')) {
            return Err(TimeoutError::TooShort { text: text.to_owned() });
        }
        duration.non_negative().map(Self).ok_or(TimeoutError::Negative { duration })
    }
}

impl Timeout {
    pub(crate) const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

/// As a configuration may have it.
impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = i64::try_from(self.0.as_nanos()).unwrap_or(i64::MAX);
        GoDuration::from_nanos(nanos).fmt(f)
    }
}

impl Serialize for Timeout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timeout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DurationVisitor;

        impl Visitor<'_> for DurationVisitor {
            type Value = Timeout;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with a unit, such as 200ms or 30s")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                text.parse().map_err(E::custom)
            }

            /// Zero needs no unit, so it may also be written as a number.
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                if number == 0 {
                    return Ok(Timeout::default());
                }
                Err(E::invalid_type(de::Unexpected::Unsigned(number), &self))
            }
        }

        deserializer.deserialize_any(DurationVisitor)
    }
}
