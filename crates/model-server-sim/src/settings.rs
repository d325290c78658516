//! What one simulated server is like.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::Parser;
use hyper::header::HeaderValue;

/// The settings of a server. Each field is also a command line flag of the same name.
///
/// `Settings::default()` is what the flags default to.
#[derive(Clone, Debug, Parser)]
pub struct Settings {
    /// Name under which the model is served; may be repeated. The first one labels the metrics.
    #[arg(long = "model", value_name = "NAME", default_value = "sim-model")]
    pub models: Vec<String>,

    /// How the server names itself in the response header `x-served-by`; its address if unset.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// The most sequences that run at once. Others wait, first come first served.
    #[arg(long, value_name = "COUNT", default_value = "256")]
    pub max_num_seqs: NonZeroU32,

    /// The most tokens that one step computes, over all sequences. Longer prompts are cut into chunks.
    #[arg(long, value_name = "TOKENS", default_value = "2048")]
    pub max_num_batched_tokens: NonZeroU32,

    /// Milliseconds between two tokens of a sequence when all `max-num-seqs` sequences run and no prompt is computed.
    #[arg(long, value_name = "MS", default_value = "20", value_parser = milliseconds)]
    pub time_per_output_token: Duration,

    /// The share of `time-per-output-token` that a step takes however few sequences it holds; the rest grows
    /// with the number of sequences.
    #[arg(long, value_name = "0..1", default_value = "0.4")]
    pub fixed_step_share: f64,

    /// Tokens of prompts that are computed per second, on top of the step they share with running sequences.
    #[arg(long, value_name = "TOKENS_PER_SECOND", default_value = "40000")]
    pub prefill_rate: NonZeroU32,

    /// Milliseconds from a request's arrival before which its first token does not come.
    #[arg(long, value_name = "MS", default_value = "0", value_parser = milliseconds)]
    pub first_token_floor: Duration,

    /// Blocks of the KV cache.
    #[arg(long, value_name = "COUNT", default_value = "16384")]
    pub kv_cache_blocks: NonZeroU32,

    /// Tokens that one block of the KV cache holds.
    #[arg(long, value_name = "TOKENS", default_value = "16")]
    pub block_size: NonZeroU32,

    /// The most tokens of a prompt and its output together.
    #[arg(long, value_name = "TOKENS", default_value = "32768")]
    pub max_model_len: NonZeroU32,

    /// Tokens after which the model ends a text, on average, if the request does not set `ignore_eos`.
    #[arg(long, value_name = "TOKENS", default_value = "256")]
    pub mean_output_tokens: NonZeroU32,

    /// Stands for the model's weights: servers with the same seed continue a text alike.
    #[arg(long, default_value = "0")]
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self::parse_from(["model-server-sim"])
    }
}

impl Settings {
    /// Every contradiction in the settings.
    pub fn check(&self) -> Result<(), InvalidSettings> {
        let mut mistakes = Vec::new();
        if self.models.is_empty() {
            mistakes.push(Mistake::NoModel);
        }
        if self.name.as_deref().is_some_and(|name| HeaderValue::from_str(name).is_err()) {
            mistakes.push(Mistake::NotAHeaderValue);
        }
        if self.time_per_output_token.is_zero() {
            mistakes.push(Mistake::NoTimePerToken);
        }
        if !(0.0..=1.0).contains(&self.fixed_step_share) {
            mistakes.push(Mistake::NotAShare(self.fixed_step_share));
        }
        if self.max_num_batched_tokens < self.max_num_seqs {
            mistakes.push(Mistake::StepTooSmall { tokens: self.max_num_batched_tokens, sequences: self.max_num_seqs });
        }
        let cache = self.kv_cache_blocks.saturating_mul(self.block_size);
        if cache < self.max_model_len {
            mistakes.push(Mistake::CacheTooSmall { cache, model: self.max_model_len });
        }
        if mistakes.is_empty() { Ok(()) } else { Err(InvalidSettings(mistakes)) }
    }
}

/// All the mistakes in one [`Settings`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct InvalidSettings(pub Vec<Mistake>);

impl fmt::Display for InvalidSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid settings")?;
        for (index, mistake) in self.0.iter().enumerate() {
            write!(f, "{}{mistake}", if index == 0 { ": " } else { "; " })?;
        }
        Ok(())
    }
}

/// One contradiction in a [`Settings`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Mistake {
    #[error("no model is named")]
    NoModel,
    #[error("name cannot stand in a header")]
    NotAHeaderValue,
    #[error("time-per-output-token is zero")]
    NoTimePerToken,
    #[error("fixed-step-share {0} is not between 0 and 1")]
    NotAShare(f64),
    #[error("max-num-batched-tokens {tokens} is less than max-num-seqs {sequences}")]
    StepTooSmall { tokens: NonZeroU32, sequences: NonZeroU32 },
    #[error("the KV cache holds {cache} tokens, less than max-model-len {model}")]
    CacheTooSmall { cache: NonZeroU32, model: NonZeroU32 },
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let millis: f64 = text.parse().map_err(|error| format!("{error}"))?;
    Duration::try_from_secs_f64(millis / 1_000.0).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_agree_with_each_other() {
        assert_eq!(Settings::default().check(), Ok(()));
    }

    #[test]
    fn times_are_fractions_of_milliseconds() {
        let settings = Settings::parse_from(["sim", "--time-per-output-token", "6.9"]);
        assert_eq!(settings.time_per_output_token, Duration::from_micros(6_900));
        for wrong in ["-1", "soon", "NaN", "1e300"] {
            assert!(Settings::try_parse_from(["sim", "--first-token-floor", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let settings = Settings {
            models: Vec::new(),
            name: Some("two\nlines".into()),
            time_per_output_token: Duration::ZERO,
            fixed_step_share: f64::NAN,
            max_num_batched_tokens: NonZeroU32::new(255).unwrap(),
            kv_cache_blocks: NonZeroU32::new(2_047).unwrap(),
            ..Settings::default()
        };
        let InvalidSettings(mistakes) = settings.check().unwrap_err();
        assert!(
            matches!(
                mistakes[..],
                [
                    Mistake::NoModel,
                    Mistake::NotAHeaderValue,
                    Mistake::NoTimePerToken,
                    Mistake::NotAShare(_),
                    Mistake::StepTooSmall { .. },
                    Mistake::CacheTooSmall { .. }
                ]
            ),
            "{mistakes:?}"
        );
    }
}
