/// How many tokens a request is taken for before anything has counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenEstimate {
    /// None: only the prompt counts.
    pub output: Option<OutputEstimate>,
}

/// How many tokens an answer is taken for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutputEstimate {
    /// Tokens of output for each of the prompt; finite and not negative.
    pub ratio: f64,
    /// No answer is taken for more than this.
    pub max: Option<u64>,
}

/// Bytes of a request's body per token of its prompt.
const BYTES_PER_TOKEN: u64 = 4;

impl TokenEstimate {
    /// The tokens of a request with a body of `body_bytes` whose client wants at most `max_output_tokens`.
    pub fn tokens(&self, body_bytes: u64, max_output_tokens: Option<u64>) -> u64 {
        let prompt = body_bytes.div_ceil(BYTES_PER_TOKEN);
        let output = self.output.map_or(0, |output| output.tokens(prompt, max_output_tokens));
        prompt.saturating_add(output)
    }
}

impl OutputEstimate {
    /// Without a prompt there is no answer.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate needs no more precision, and the conversion saturates"
    )]
    fn tokens(&self, prompt: u64, max_output_tokens: Option<u64>) -> u64 {
        let estimate = (prompt as f64 * self.ratio).round() as u64;
        estimate.min(max_output_tokens.unwrap_or(u64::MAX)).min(self.max.unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT_ONLY: TokenEstimate = TokenEstimate { output: None };

    const fn with_output(ratio: f64, max: Option<u64>) -> TokenEstimate {
        TokenEstimate { output: Some(OutputEstimate { ratio, max }) }
    }

    #[test]
    fn four_bytes_are_a_token_of_the_prompt() {
        for (bytes, tokens) in [(0, 0), (1, 1), (4, 1), (5, 2), (400, 100), (u64::MAX, 1 << 62)] {
            assert_eq!(PROMPT_ONLY.tokens(bytes, Some(7)), tokens, "{bytes}");
        }
    }

    #[test]
    fn the_output_is_a_rounded_multiple_of_the_prompt() {
        assert_eq!(with_output(1.5, None).tokens(400, None), 100 + 150);
        assert_eq!(with_output(1.5, None).tokens(12, None), 3 + 5);
        assert_eq!(with_output(0.4, None).tokens(4, None), 1);
        assert_eq!(with_output(0.0, None).tokens(400, None), 100);
    }

    #[test]
    fn client_and_operator_bound_the_output_and_not_the_prompt() {
        assert_eq!(with_output(1.5, Some(60)).tokens(400, None), 100 + 60);
        assert_eq!(with_output(1.5, Some(60)).tokens(400, Some(20)), 100 + 20);
        assert_eq!(with_output(1.5, Some(60)).tokens(400, Some(90)), 100 + 60);
        assert_eq!(with_output(1.5, None).tokens(400, Some(0)), 100);
        assert_eq!(with_output(1.5, Some(0)).tokens(400, Some(90)), 100);
    }

    #[test]
    fn without_a_prompt_there_is_no_output() {
        assert_eq!(with_output(f64::MAX, None).tokens(0, Some(500)), 0);
    }

    #[test]
    fn what_is_too_large_to_count_saturates() {
        assert_eq!(with_output(f64::MAX, None).tokens(u64::MAX, None), u64::MAX);
    }
}
