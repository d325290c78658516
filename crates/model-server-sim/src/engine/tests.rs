use super::*;

fn count(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap()
}

/// Ten milliseconds per step whatever is in it, but for prompts: a millisecond per token beyond the first.
fn settings() -> Settings {
    Settings {
        max_num_seqs: count(2),
        max_num_batched_tokens: count(100),
        time_per_output_token: Duration::from_millis(10),
        fixed_step_share: 1.0,
        prefill_rate: count(1_000),
        kv_cache_blocks: count(64),
        block_size: count(4),
        max_model_len: count(256),
        ..Settings::default()
    }
}

fn ask(prompt_tokens: usize, max_tokens: u32) -> Ask {
    let mut context = Context::new(0);
    context.push_text("word ".repeat(prompt_tokens).as_bytes());
    Ask { context, max_tokens: Some(count(max_tokens)), ignore_eos: true }
}

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

/// Runs until `until` and says which sequence put out a token when, in milliseconds.
fn outputs(engine: &mut Engine, until: u64) -> Vec<(u64, SequenceId)> {
    engine.on_time(at(until));
    engine.drain_outputs().map(|output| (output.at.as_nanos() / 1_000_000, output.id)).collect()
}

fn queue(engine: &Engine) -> (usize, usize) {
    let Stats { running, waiting, .. } = engine.stats();
    (running, waiting)
}

#[test]
fn an_idle_engine_begins_at_once_and_goes_idle_again() {
    let mut engine = Engine::new(&settings());
    assert_eq!(engine.next_wakeup(), None);
    let id = engine.submit(at(5), ask(1, 2)).unwrap();
    assert_eq!(engine.next_wakeup(), Some(at(15)));
    assert_eq!(outputs(&mut engine, 100), [(15, id), (25, id)]);
    assert_eq!(engine.next_wakeup(), None);
    assert_eq!(engine.stats().used_blocks, 0);
}

#[test]
fn a_late_call_does_not_slow_the_tokens_down() {
    let mut engine = Engine::new(&settings());
    let id = engine.submit(at(0), ask(1, 5)).unwrap();
    assert_eq!(outputs(&mut engine, 27), [(10, id), (20, id)]);
    assert_eq!(outputs(&mut engine, 49), [(30, id), (40, id)]);
}

#[test]
fn a_prompt_delays_the_first_token_and_the_tokens_of_others() {
    let mut engine = Engine::new(&settings());
    let first = engine.submit(at(0), ask(1, 3)).unwrap();
    let second = engine.submit(at(0), ask(21, 2)).unwrap();
    // The second joins the step that begins at 10 ms, which its prompt makes 20 ms longer.
    assert_eq!(outputs(&mut engine, 100), [(10, first), (40, first), (40, second), (50, first), (50, second)]);
}

#[test]
fn a_prompt_beyond_the_step_budget_comes_in_chunks() {
    let mut engine = Engine::new(&settings());
    let id = engine.submit(at(0), ask(250, 1)).unwrap();
    // Twice 100 tokens in 10 + 99 ms, 50 in 10 + 49 ms.
    assert_eq!(outputs(&mut engine, 1_000), [(277, id)]);
}

#[test]
fn tokens_come_before_a_prompt_in_the_step_budget() {
    let mut engine = Engine::new(&settings());
    let first = engine.submit(at(0), ask(1, 100)).unwrap();
    let second = engine.submit(at(0), ask(150, 1)).unwrap();
    let come = outputs(&mut engine, 400);
    let before_second = come.iter().take_while(|&&(_, id)| id != second).filter(|&&(_, id)| id == first).count();
    assert_eq!(before_second, 3, "one alone and one in each of the two steps with a chunk: {come:?}");
}

#[test]
fn sequences_beyond_the_cap_wait_in_order() {
    let mut engine = Engine::new(&settings());
    let ids: Vec<_> = (0..4).map(|_| engine.submit(at(0), ask(1, 1)).unwrap()).collect();
    assert_eq!(queue(&engine), (1, 3));
    assert_eq!(outputs(&mut engine, 15), [(10, ids[0])]);
    assert_eq!(queue(&engine), (2, 1));
    assert_eq!(outputs(&mut engine, 100), [(20, ids[1]), (20, ids[2]), (30, ids[3])]);
}

#[test]
fn the_first_token_is_held_back_until_the_floor_and_keeps_its_slot() {
    let mut engine = Engine::new(&Settings { first_token_floor: Duration::from_millis(120), ..settings() });
    let id = engine.submit(at(0), ask(1, 2)).unwrap();
    assert_eq!(outputs(&mut engine, 119), []);
    assert_eq!(engine.next_wakeup(), Some(at(120)));
    assert_eq!(queue(&engine), (1, 0));
    assert_eq!(outputs(&mut engine, 200), [(120, id), (130, id)]);
}

#[test]
fn the_floor_runs_while_a_sequence_waits() {
    let mut engine =
        Engine::new(&Settings { first_token_floor: Duration::from_millis(30), max_num_seqs: count(1), ..settings() });
    let first = engine.submit(at(0), ask(1, 2)).unwrap();
    let second = engine.submit(at(0), ask(1, 1)).unwrap();
    assert_eq!(outputs(&mut engine, 100), [(30, first), (40, first), (50, second)]);
}

#[test]
fn an_abort_frees_slot_and_blocks_for_the_next_step() {
    let mut engine = Engine::new(&Settings { max_num_seqs: count(1), ..settings() });
    let first = engine.submit(at(0), ask(1, 50)).unwrap();
    let second = engine.submit(at(0), ask(1, 1)).unwrap();
    engine.on_time(at(12));
    assert!(engine.abort(at(14), first));
    assert_eq!((queue(&engine), engine.stats().used_blocks), ((0, 1), 0));
    assert_eq!(outputs(&mut engine, 100), [(10, first), (30, second)]);
    assert!(!engine.abort(at(100), first));
    assert!(!engine.abort(at(100), second));
}

#[test]
fn an_abort_of_a_held_back_sequence_lets_the_next_begin_at_once() {
    let mut engine =
        Engine::new(&Settings { first_token_floor: Duration::from_millis(50), max_num_seqs: count(1), ..settings() });
    let first = engine.submit(at(0), ask(1, 1)).unwrap();
    let second = engine.submit(at(0), ask(1, 1)).unwrap();
    assert!(engine.abort(at(20), first));
    assert_eq!(queue(&engine), (1, 0));
    assert_eq!(outputs(&mut engine, 100), [(50, second)]);
}

#[test]
fn an_abort_takes_a_waiting_sequence_out_of_the_line() {
    let mut engine = Engine::new(&Settings { max_num_seqs: count(1), ..settings() });
    let ids: Vec<_> = (0..3).map(|_| engine.submit(at(0), ask(1, 1)).unwrap()).collect();
    assert!(engine.abort(at(1), ids[1]));
    assert_eq!(outputs(&mut engine, 100), [(10, ids[0]), (20, ids[2])]);
}

#[test]
fn a_sequence_waits_while_its_prompt_finds_no_blocks() {
    let mut engine = Engine::new(&Settings { kv_cache_blocks: count(4), max_model_len: count(16), ..settings() });
    let first = engine.submit(at(0), ask(12, 2)).unwrap();
    let second = engine.submit(at(0), ask(8, 1)).unwrap();
    engine.on_time(at(22));
    assert_eq!((queue(&engine), engine.stats().used_blocks), ((1, 1), 4));
    assert_eq!(outputs(&mut engine, 100), [(21, first), (31, first), (48, second)]);
}

#[test]
fn the_newest_is_preempted_when_blocks_run_out_and_computes_again() {
    let settings = Settings { kv_cache_blocks: count(4), max_model_len: count(16), ..settings() };
    let mut engine = Engine::new(&settings);
    let first = engine.submit(at(0), ask(7, 5)).unwrap();
    let second = engine.submit(at(0), ask(6, 3)).unwrap();
    let third = engine.submit(at(1), ask(1, 1)).unwrap();
    // Both hold two blocks until 31 ms; the first then needs a third.
    assert_eq!(outputs(&mut engine, 32), [(16, first), (31, first), (31, second)]);
    assert_eq!((queue(&engine), engine.stats().preemptions), ((1, 2), 1));
    // The second comes back before the third, with its seven tokens as a prompt: 10 + 6 ms.
    assert_eq!(outputs(&mut engine, 62), [(41, first), (51, first), (61, first)]);
    assert_eq!(outputs(&mut engine, 200), [(77, second), (77, third), (87, second)]);
    assert_eq!(engine.stats().used_blocks, 0);
}

#[test]
fn who_was_preempted_does_not_come_back_in_the_same_step() {
    let settings = Settings {
        max_num_batched_tokens: count(8),
        kv_cache_blocks: count(6),
        max_model_len: count(24),
        ..settings()
    };
    let mut engine = Engine::new(&settings);
    engine.submit(at(0), ask(7, 10)).unwrap();
    engine.submit(at(0), ask(14, 1)).unwrap();
    // In the third step, which begins at 32 ms, the first needs a third block and the second two more of three.
    engine.on_time(at(33));
    assert_eq!((queue(&engine), engine.stats().preemptions), ((1, 1), 1));
    assert_eq!(engine.stats().used_blocks, 3, "there would be room for a chunk of it");
}

#[test]
fn what_cannot_fit_is_refused() {
    let mut engine = Engine::new(&settings());
    assert_eq!(engine.submit(at(0), ask(0, 1)), Err(AskError::EmptyPrompt));
    assert_eq!(engine.submit(at(0), ask(256, 1)), Err(AskError::PromptTooLong { prompt: 256, limit: 256 }));
    assert_eq!(
        engine.submit(at(0), ask(250, 7)),
        Err(AskError::OutputTooLong { prompt: 250, requested: 7, limit: 256 })
    );
    assert_eq!(engine.next_wakeup(), None);
    assert!(engine.submit(at(0), ask(250, 6)).is_ok());
}

#[test]
fn without_a_limit_the_text_ends_where_the_model_has_no_more_room() {
    let mut engine = Engine::new(&settings());
    engine.submit(at(0), Ask { max_tokens: None, ..ask(250, 1) }).unwrap();
    engine.on_time(at(10_000));
    let outputs: Vec<_> = engine.drain_outputs().collect();
    assert_eq!(outputs.len(), 6);
    assert_eq!(outputs[5].finish, Some(FinishReason::Length));
}

#[test]
fn the_model_ends_a_text_unless_told_to_go_on() {
    let mut engine = Engine::new(&Settings { mean_output_tokens: count(10), ..settings() });
    engine.submit(at(0), Ask { ignore_eos: false, ..ask(1, 200) }).unwrap();
    engine.on_time(at(10_000));
    let ended: Vec<_> = engine.drain_outputs().collect();
    let last = ended.last().unwrap();
    assert_eq!((last.token, last.finish), (Token::EndOfText, Some(FinishReason::Stop)));
    assert!(ended.len() < 200, "{} tokens", ended.len());

    engine.submit(at(10_000), ask(1, 200)).unwrap();
    engine.on_time(at(100_000));
    let whole: Vec<_> = engine.drain_outputs().collect();
    assert_eq!(whole.len(), 200);
    let words = ended.len() - 1;
    assert!(ended[..words].iter().map(|o| o.token).eq(whole[..words].iter().map(|o| o.token)));
}

/// A published run on one H200: 192 requests of 1,500 tokens on 32 slots took about 62 s; a request that finds a
/// free slot sees its first token after about 0.12 s.
#[test]
fn a_published_run_can_be_reproduced() {
    let settings = Settings {
        max_num_seqs: count(32),
        time_per_output_token: Duration::from_micros(6_900),
        first_token_floor: Duration::from_millis(115),
        ..Settings::default()
    };
    let mut engine = Engine::new(&settings);
    for _ in 0..192 {
        engine.submit(at(0), ask(17, 1_500)).unwrap();
    }
    engine.on_time(at(120_000));
    let end = engine.drain_outputs().map(|output| output.at).max().unwrap();
    assert!((61_500..63_500).contains(&(end.as_nanos() / 1_000_000)), "{end}");

    let start = at(200_000);
    for _ in 0..31 {
        engine.submit(start, ask(17, 1_500)).unwrap();
    }
    engine.on_time(at(202_001));
    engine.drain_outputs();
    let interactive = engine.submit(at(202_001), ask(17, 256)).unwrap();
    engine.on_time(at(203_000));
    let first = engine.drain_outputs().find(|output| output.id == interactive).unwrap();
    let millis = first.at.saturating_since(at(202_001)).as_millis();
    assert!((115..125).contains(&millis), "{millis} ms to the first token");
}
