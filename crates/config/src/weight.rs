use serde::de::{self, Deserialize, Deserializer};

/// What a scorer's verdict is worth in a profile: any finite number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Weight(f32);

impl Weight {
    pub(crate) const ONE: Self = Self(1.0);

    pub(crate) const fn as_f32(self) -> f32 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[expect(clippy::cast_possible_truncation, reason = "precision does not matter, the range is checked")]
        let weight = f64::deserialize(deserializer)? as f32;
        if weight.is_finite() { Ok(Self(weight)) } else { Err(de::Error::custom("a weight must be a finite number")) }
    }
}
