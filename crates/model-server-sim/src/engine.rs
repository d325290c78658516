//! Continuous batching, as a pure state machine.
//!
//! The engine works in steps, one after the other as long as there is work. A step computes the next token of
//! every running sequence and, with what is left of its token budget, prompts; its length is known when it
//! begins (`cost`), and what it produced comes out when it ends. Between two steps the engine admits
//! and preempts:
//!
//! ```text
//!            a slot and blocks free                 last token
//!   waiting ────────────────────────> running ────────────────────> finished
//!      ^                                 │
//!      └───── out of blocks: newest ─────┘        abort: from either, at once
//! ```
//!
//! Time is an argument. The shell calls [`Engine::on_time`] at [`Engine::next_wakeup`] and drains the outputs
//! after every call. A late call loses nothing: steps end and begin at the times they are due, so that the
//! rate of tokens does not depend on the shell's timers.

mod cost;
mod sequence;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{VecDeque, vec_deque};
use std::num::NonZeroU32;
use std::time::Duration;

use sluice_core::Time;

use crate::settings::Settings;
use crate::text::{Context, Token};
use cost::{StepCost, StepLoad};
use sequence::Sequence;

/// Names a sequence for the life of its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

/// A request for text.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The prompt.
    pub context: Context,
    /// The most tokens to produce; as many as the model has room for if unset.
    pub max_tokens: Option<NonZeroU32>,
    /// Go on where the model would end the text.
    pub ignore_eos: bool,
}

/// Why an [`Ask`] cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error(
        "the prompt has {prompt} tokens, but the model's maximum context length is {limit} tokens, the output included"
    )]
    PromptTooLong { prompt: u32, limit: u32 },
    #[error(
        "the prompt has {prompt} tokens and {requested} more were requested, \
         but the model's maximum context length is {limit} tokens"
    )]
    OutputTooLong { prompt: u32, requested: u32, limit: u32 },
}

/// One token of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    pub id: SequenceId,
    /// When the token came out.
    pub at: Time,
    pub token: Token,
    /// Set on the last token of a sequence.
    pub finish: Option<FinishReason>,
}

/// Why a sequence ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the text.
    Stop,
    /// As many tokens as were asked for.
    Length,
}

/// What the engine holds at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    pub running: usize,
    pub waiting: usize,
    pub used_blocks: u32,
    pub total_blocks: u32,
    /// Sequences put back to wait since the start, because the KV cache ran out.
    pub preemptions: u64,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    max_running: usize,
    step_tokens: u32,
    block_size: NonZeroU32,
    max_model_len: u32,
    first_token_floor: Duration,
    mean_output_tokens: NonZeroU32,
    cost: StepCost,

    total_blocks: u32,
    free_blocks: u32,
    /// In the order of admission, the newest last.
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    /// When the step under way ends.
    step_ends: Option<Time>,
    outputs: VecDeque<Output>,
    next_id: u64,
    preemptions: u64,
}

impl Engine {
    /// An idle engine. `settings` have passed [`Settings::check`]: the KV cache can hold the longest sequence.
    pub fn new(settings: &Settings) -> Self {
        Self {
            max_running: settings.max_num_seqs.get() as usize,
            step_tokens: settings.max_num_batched_tokens.get(),
            block_size: settings.block_size,
            max_model_len: settings.max_model_len.get(),
            first_token_floor: settings.first_token_floor,
            mean_output_tokens: settings.mean_output_tokens,
            cost: StepCost::new(settings),
            total_blocks: settings.kv_cache_blocks.get(),
            free_blocks: settings.kv_cache_blocks.get(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            step_ends: None,
            outputs: VecDeque::new(),
            next_id: 0,
            preemptions: 0,
        }
    }

    /// Queues a sequence. It ends exactly once: with an output that says `finish`, or by [`Engine::abort`].
    pub fn submit(&mut self, now: Time, ask: Ask) -> Result<SequenceId, AskError> {
        let max_tokens = self.admissible(&ask)?;
        self.on_time(now);
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Sequence::new(id, ask, max_tokens, now.saturating_add(self.first_token_floor)));
        self.begin_step_if_idle(now);
        Ok(id)
    }

    /// Ends a sequence and frees what it holds at once; false if it has ended already.
    pub fn abort(&mut self, now: Time, id: SequenceId) -> bool {
        self.on_time(now);
        if let Some(index) = self.running.iter().position(|sequence| sequence.id == id) {
            let sequence = self.running.remove(index);
            self.free_blocks += sequence.blocks;
        } else if let Some(index) = self.waiting.iter().position(|sequence| sequence.id == id) {
            self.waiting.remove(index);
        } else {
            return false;
        }
        self.begin_step_if_idle(now);
        true
    }

    /// Ends every step that is over by `now` and begins what follows it.
    pub fn on_time(&mut self, now: Time) {
        while let Some(at) = self.next_wakeup().filter(|&at| at <= now) {
            self.step_ends = None;
            self.end_step(at);
            self.begin_step_if_idle(at);
        }
    }

    /// When the engine next has something to do by itself; `None` while it is idle. Later than the last `now`.
    pub fn next_wakeup(&self) -> Option<Time> {
        // Without a step under way, whatever runs is complete but for a first token that is held back.
        self.step_ends.or_else(|| self.running.iter().map(|sequence| sequence.first_token_due).min())
    }

    /// Takes the tokens that came out, in order.
    pub fn drain_outputs(&mut self) -> vec_deque::Drain<'_, Output> {
        self.outputs.drain(..)
    }

    pub fn stats(&self) -> Stats {
        Stats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            used_blocks: self.total_blocks - self.free_blocks,
            total_blocks: self.total_blocks,
            preemptions: self.preemptions,
        }
    }

    /// The most tokens that `ask` may produce.
    fn admissible(&self, ask: &Ask) -> Result<u32, AskError> {
        let limit = self.max_model_len;
        let prompt = ask.context.tokens();
        if prompt == 0 {
            return Err(AskError::EmptyPrompt);
        }
        let Some(room) = limit.checked_sub(prompt).filter(|&room| room > 0) else {
            return Err(AskError::PromptTooLong { prompt, limit });
        };
        match ask.max_tokens {
            Some(requested) if requested.get() > room => {
                Err(AskError::OutputTooLong { prompt, requested: requested.get(), limit })
            }
            Some(requested) => Ok(requested.get()),
            None => Ok(room),
        }
    }

    /// Books what the step computed and emits the tokens that are complete and due.
    fn end_step(&mut self, at: Time) {
        let Self { running, outputs, free_blocks, mean_output_tokens, .. } = self;
        running.retain_mut(|sequence| {
            let Some((token, finish)) = sequence.end_step(at, *mean_output_tokens) else { return true };
            outputs.push_back(Output { id: sequence.id, at, token, finish });
            if finish.is_some() {
                *free_blocks += sequence.blocks;
            }
            finish.is_none()
        });
    }

    /// Begins a step, unless one is under way or nothing can be computed.
    fn begin_step_if_idle(&mut self, now: Time) {
        if self.step_ends.is_some() {
            return;
        }
        let mut load = StepLoad::default();
        let preempted = self.schedule_running(&mut load);
        // What was just put back must not come in again in place of what it made room for.
        if !preempted {
            self.admit_waiting(&mut load);
        }
        self.step_ends = (load.sequences > 0).then(|| now.saturating_add(self.cost.of(load)));
    }

    /// Gives each running sequence its part of the step, the oldest first, preempting from the newest end where
    /// blocks run out; true if it did.
    fn schedule_running(&mut self, load: &mut StepLoad) -> bool {
        let preemptions_before = self.preemptions;
        let mut index = 0;
        while index < self.running.len() {
            let tokens = self.running[index].uncomputed().min(self.step_tokens - load.tokens);
            let blocks = self.running[index].missing_blocks(tokens, self.block_size);
            if blocks > self.free_blocks {
                // The newest may be the sequence at `index` itself, which ends the loop.
                self.preempt_newest();
                continue;
            }
            self.free_blocks -= blocks;
            self.running[index].begin_step(tokens, blocks);
            load.add(tokens);
            index += 1;
        }
        self.preemptions > preemptions_before
    }

    /// Lets waiting sequences run, in order, while slots, blocks and the step's budget last.
    fn admit_waiting(&mut self, load: &mut StepLoad) {
        while self.running.len() < self.max_running && load.tokens < self.step_tokens {
            let Some(first) = self.waiting.front() else { return };
            let tokens = first.uncomputed().min(self.step_tokens - load.tokens);
            let blocks = first.missing_blocks(tokens, self.block_size);
            if blocks > self.free_blocks {
                return;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            self.free_blocks -= blocks;
            sequence.begin_step(tokens, blocks);
            load.add(tokens);
            self.running.push(sequence);
        }
    }

    /// Puts the newest running sequence back to the head of the queue. Its tokens are kept and its KV cache is
    /// not: it is computed again when the sequence runs again.
    fn preempt_newest(&mut self) {
        if let Some(mut sequence) = self.running.pop() {
            self.free_blocks += sequence.release_cache();
            self.waiting.push_front(sequence);
            self.preemptions += 1;
        }
    }
}
