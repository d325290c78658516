//! What holds after any list of operations.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Operation {
    Submit { prompt_tokens: u8, max_tokens: Option<u8>, ignore_eos: bool },
    Abort { which: usize },
    Wait { micros: u32 },
    WaitForWakeup,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (0..40u8, prop::option::of(1..30u8), any::<bool>())
            .prop_map(|(prompt_tokens, max_tokens, ignore_eos)| Operation::Submit { prompt_tokens, max_tokens, ignore_eos }),
        1 => any::<usize>().prop_map(|which| Operation::Abort { which }),
        2 => (0..60_000u32).prop_map(|micros| Operation::Wait { micros }),
        3 => Just(Operation::WaitForWakeup),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    (1..6u32, 8..40u32, 1..5u32, 0..60u64, 12..40u32).prop_map(|(seqs, budget, block, floor, max_len)| {
        let count = |value| NonZeroU32::new(value).unwrap();
        Settings {
            max_num_seqs: count(seqs),
            max_num_batched_tokens: count(budget),
            time_per_output_token: Duration::from_millis(10),
            first_token_floor: Duration::from_millis(floor),
            // Just enough for the longest sequence, so that blocks run out all the time.
            kv_cache_blocks: count(max_len.div_ceil(block)),
            block_size: count(block),
            max_model_len: count(max_len),
            mean_output_tokens: count(20),
            ..Settings::default()
        }
    })
}

/// What a sequence must put out, known from its prompt alone.
#[derive(Debug)]
struct Expected {
    context: Context,
    ignore_eos: bool,
    left: u32,
    ended: bool,
}

#[derive(Debug)]
struct Run {
    engine: Engine,
    settings: Settings,
    now: Time,
    last_output: Time,
    sequences: BTreeMap<SequenceId, Expected>,
    log: Vec<Output>,
}

impl Run {
    fn new(settings: &Settings) -> Self {
        assert_eq!(settings.check(), Ok(()));
        Self {
            engine: Engine::new(settings),
            settings: settings.clone(),
            now: Time::ZERO,
            last_output: Time::ZERO,
            sequences: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn apply(&mut self, operation: &Operation) {
        match *operation {
            Operation::Submit { prompt_tokens, max_tokens, ignore_eos } => {
                self.submit(prompt_tokens, max_tokens, ignore_eos);
            }
            Operation::Abort { which } => self.abort(which),
            Operation::Wait { micros } => {
                self.now = self.now.saturating_add(Duration::from_micros(u64::from(micros)));
                self.engine.on_time(self.now);
            }
            Operation::WaitForWakeup => self.wait_for_wakeup(),
        }
        self.collect();
        self.check();
    }

    fn submit(&mut self, prompt_tokens: u8, max_tokens: Option<u8>, ignore_eos: bool) {
        let mut context = Context::new(self.settings.seed);
        let number = self.sequences.len();
        for _ in 0..prompt_tokens {
            context.push_text(format!("{number} ").as_bytes());
        }
        let max_tokens = max_tokens.and_then(|max| NonZeroU32::new(u32::from(max)));
        let room = self.settings.max_model_len.get().saturating_sub(u32::from(prompt_tokens));
        let left = max_tokens.map_or(room, NonZeroU32::get);
        let fits = prompt_tokens > 0 && room > 0 && left <= room;
        let submitted = self.engine.submit(self.now, Ask { context, max_tokens, ignore_eos });
        assert_eq!(submitted.is_ok(), fits, "{submitted:?}");
        if let Ok(id) = submitted {
            let earlier = self.sequences.insert(id, Expected { context, ignore_eos, left, ended: false });
            assert!(earlier.is_none(), "an id was used twice");
        }
    }

    fn abort(&mut self, which: usize) {
        let Some(index) = which.checked_rem(self.sequences.len()) else { return };
        let id = *self.sequences.keys().nth(index).unwrap();
        let aborted = self.engine.abort(self.now, id);
        // Tokens that were due before the abort still come out.
        self.collect();
        let expected = self.sequences.get_mut(&id).unwrap();
        assert_eq!(aborted, !expected.ended, "a sequence ends exactly once");
        expected.ended = true;
    }

    fn wait_for_wakeup(&mut self) {
        if let Some(at) = self.engine.next_wakeup() {
            self.now = at;
            self.engine.on_time(at);
        }
    }

    /// Compares every token with the one its text calls for.
    fn collect(&mut self) {
        for output in self.engine.drain_outputs() {
            assert!(self.last_output <= output.at && output.at <= self.now, "outputs come in the order of time");
            self.last_output = output.at;
            let expected = self.sequences.get_mut(&output.id).unwrap();
            assert!(!expected.ended, "a sequence says nothing after its end");
            expected.left -= 1;
            if !expected.ignore_eos && expected.context.ends_here(self.settings.mean_output_tokens) {
                assert_eq!((output.token, output.finish), (Token::EndOfText, Some(FinishReason::Stop)));
            } else {
                assert_eq!(output.token, expected.context.next_word());
                assert_eq!(output.finish, (expected.left == 0).then_some(FinishReason::Length));
                let Token::Word { word, .. } = output.token else { panic!("not a word") };
                expected.context.push_word(word);
            }
            expected.ended = output.finish.is_some();
            self.log.push(output);
        }
    }

    fn check(&self) {
        let engine = &self.engine;
        let stats = engine.stats();
        assert!(stats.running <= engine.max_running, "slots never exceed the cap");
        let held: u32 = engine.running.iter().map(|sequence| sequence.blocks).sum();
        assert_eq!(held, stats.used_blocks, "blocks are conserved");
        assert!(engine.waiting.iter().all(|sequence| sequence.blocks == 0), "who waits holds no block");
        let alive = self.sequences.values().filter(|expected| !expected.ended).count();
        assert_eq!(stats.running + stats.waiting, alive, "no sequence is lost");
        assert_eq!(engine.next_wakeup().is_some(), alive > 0 || engine.step_ends.is_some(), "work goes on");
        assert!(engine.next_wakeup().is_none_or(|at| at > self.now), "what is due is done");
    }
}

fn run(settings: &Settings, operations: &[Operation]) -> Vec<Output> {
    let mut run = Run::new(settings);
    for operation in operations {
        run.apply(operation);
    }
    while run.engine.next_wakeup().is_some() {
        run.apply(&Operation::WaitForWakeup);
    }
    assert!(run.sequences.values().all(|expected| expected.ended), "every sequence ends");
    assert_eq!(run.engine.stats().used_blocks, 0);
    run.log
}

proptest! {
    #[test]
    fn every_sequence_says_its_text_within_slots_and_blocks(
        settings in settings(),
        operations in prop::collection::vec(operation(), 1..80),
    ) {
        let log = run(&settings, &operations);
        prop_assert_eq!(log, run(&settings, &operations), "a run can be replayed");
    }
}
