use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};
use sluice_core::GoDuration;

/// A duration that is not negative, in the notation of [`GoDuration`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timeout(pub Duration);

impl Timeout {
    pub(crate) const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl Serialize for Timeout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nanos = i64::try_from(self.0.as_nanos()).unwrap_or(i64::MAX);
        serializer.collect_str(&GoDuration::from_nanos(nanos))
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
                let duration: GoDuration = text.parse().map_err(E::custom)?;
                duration
                    .non_negative()
                    .map(Timeout)
                    .ok_or_else(|| E::custom(format_args!("{duration} is negative, it must be zero or more")))
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
