//! One request inside the engine.

use std::num::NonZeroU32;

use sluice_core::Time;

use super::{Ask, FinishReason, SequenceId};
use crate::text::{Context, Token};

/// A sequence of tokens: the prompt and what has been produced so far.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    /// No token comes out before. It matters for the first one only.
    pub(super) first_token_due: Time,
    /// Blocks of the KV cache held.
    pub(super) blocks: u32,
    context: Context,
    ignore_eos: bool,
    max_tokens: u32,
    produced: u32,
    /// Tokens of the context whose keys and values are in the cache.
    computed: u32,
    /// Tokens that the step under way adds to `computed`.
    in_step: u32,
}

impl Sequence {
    pub(super) fn new(id: SequenceId, ask: Ask, max_tokens: u32, first_token_due: Time) -> Self {
        let Ask { context, max_tokens: _, ignore_eos } = ask;
        Self { id, first_token_due, blocks: 0, context, ignore_eos, max_tokens, produced: 0, computed: 0, in_step: 0 }
    }

    /// Tokens to compute before the next one can come out: the prompt at first, then one at a time, everything
    /// after a preemption; zero while the first token is held back.
    pub(super) fn uncomputed(&self) -> u32 {
        self.context.tokens() - self.computed
    }

    /// Blocks that computing `tokens` more takes beyond those held.
    pub(super) fn missing_blocks(&self, tokens: u32, block_size: NonZeroU32) -> u32 {
        (self.computed + tokens).div_ceil(block_size.get()).saturating_sub(self.blocks)
    }

    /// Takes part in a step with `tokens`, holding `blocks` more.
    pub(super) fn begin_step(&mut self, tokens: u32, blocks: u32) {
        self.in_step = tokens;
        self.blocks += blocks;
    }

    /// Books the step's tokens. Returns the next token if it is complete and due.
    pub(super) fn end_step(&mut self, at: Time, mean_length: NonZeroU32) -> Option<(Token, Option<FinishReason>)> {
        self.computed += std::mem::take(&mut self.in_step);
        if self.uncomputed() > 0 || at < self.first_token_due {
            return None;
        }
        self.produced += 1;
        if !self.ignore_eos && self.context.ends_here(mean_length) {
            return Some((Token::EndOfText, Some(FinishReason::Stop)));
        }
        let token = self.context.next_word();
        if let Token::Word { word, .. } = token {
            self.context.push_word(word);
        }
        Some((token, (self.produced == self.max_tokens).then_some(FinishReason::Length)))
    }

    /// Forgets what is in the cache; returns the blocks that held it.
    pub(super) fn release_cache(&mut self) -> u32 {
        self.computed = 0;
        self.in_step = 0;
        std::mem::take(&mut self.blocks)
    }
}
