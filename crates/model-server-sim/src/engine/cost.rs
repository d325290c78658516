//! How long a step takes.

use std::time::Duration;

use crate::settings::Settings;

/// What one step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepLoad {
    pub(super) sequences: u32,
    pub(super) tokens: u32,
}

impl StepLoad {
    /// Adds `tokens` of one sequence.
    pub(super) fn add(&mut self, tokens: u32) {
        self.sequences += u32::from(tokens > 0);
        self.tokens += tokens;
    }
}

/// A step's length: `fixed + per_sequence * sequences + per_prompt_token * (tokens - sequences)`.
///
/// Reading the weights is the fixed part, whatever the batch; a full batch of single tokens takes exactly
/// `time-per-output-token`. Each sequence's first token in a step is covered by its share of the batch, the
/// others are prompt and go at the prefill rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepCost {
    fixed: f64,
    per_sequence: f64,
    per_prompt_token: f64,
}

impl StepCost {
    pub(super) fn new(settings: &Settings) -> Self {
        let full_batch = settings.time_per_output_token.as_secs_f64();
        let fixed = full_batch * settings.fixed_step_share;
        Self {
            fixed,
            per_sequence: (full_batch - fixed) / f64::from(settings.max_num_seqs.get()),
            per_prompt_token: 1.0 / f64::from(settings.prefill_rate.get()),
        }
    }

    /// At least a nanosecond, so that time moves on.
    pub(super) fn of(&self, load: StepLoad) -> Duration {
        let StepLoad { sequences, tokens } = load;
        let seconds = self.fixed
            + self.per_sequence * f64::from(sequences)
            + self.per_prompt_token * f64::from(tokens.saturating_sub(sequences));
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).max(Duration::from_nanos(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn cost() -> StepCost {
        StepCost::new(&Settings {
            max_num_seqs: NonZeroU32::new(32).unwrap(),
            time_per_output_token: Duration::from_micros(6_900),
            fixed_step_share: 0.4,
            prefill_rate: NonZeroU32::new(10_000).unwrap(),
            ..Settings::default()
        })
    }

    fn micros(sequences: u32, tokens: u32) -> u128 {
        (cost().of(StepLoad { sequences, tokens }) + Duration::from_nanos(500)).as_micros()
    }

    #[test]
    fn a_full_batch_takes_the_time_per_output_token() {
        assert_eq!(micros(32, 32), 6_900);
    }

    #[test]
    fn a_smaller_batch_is_faster_but_not_in_proportion() {
        assert_eq!(micros(1, 1), 2_760 + 129);
        assert_eq!(micros(16, 16), 2_760 + 2_070);
    }

    #[test]
    fn prompts_go_at_the_prefill_rate_on_top() {
        assert_eq!(micros(32, 32 + 1_000) - micros(32, 32), 100_000);
    }

    #[test]
    fn no_step_is_free() {
        let instant = StepCost { fixed: 0.0, per_sequence: 0.0, per_prompt_token: 0.0 };
        assert_eq!(instant.of(StepLoad { sequences: 1, tokens: 1 }), Duration::from_nanos(1));
    }
}
