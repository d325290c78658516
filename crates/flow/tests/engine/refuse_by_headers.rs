//! Headers came, and no body yet.

use sluice_core::Priority;
use sluice_flow::{Ask, GlobalLimits, Outcome, Signal, WhenFull};

use crate::harness::rig::{Rig, ask, dropped, plain, with_ceilings};

fn refusal(rig: &mut Rig, ask: &Ask) -> Option<Outcome> {
    rig.engine.refuse_by_headers(rig.now, ask)
}

#[test]
fn headers_alone_tell_of_a_full_band_a_closed_gate_and_the_end() {
    let mut config = with_ceilings(&[(0, 1.0), (-1, 0.5)]);
    config.bands.get_mut(&Priority(-1)).unwrap().shed = true;
    config.bands.get_mut(&Priority(0)).unwrap().max_requests = 1;
    let mut rig = Rig::new(config, &[1]);
    let refusal = |rig: &mut Rig, priority| refusal(rig, &ask("a", priority));
    assert_eq!(refusal(&mut rig, 0), None);
    assert_eq!(refusal(&mut rig, -1), None);
    rig.grant(ask("a", 0));
    assert_eq!(refusal(&mut rig, -1), Some(Outcome::RejectedCapacity));
    assert_eq!(refusal(&mut rig, 0), None);
    rig.queue(ask("a", 0));
    assert_eq!(refusal(&mut rig, 0), Some(Outcome::RejectedCapacity));
    rig.observe(Signal::Drain);
    assert_eq!(refusal(&mut rig, 0), Some(Outcome::RejectedOther));
    let totals = rig.engine.stats(rig.now).totals;
    assert_eq!(totals[&Priority(-1)].outcome(Outcome::RejectedCapacity), 1);
    assert_eq!(totals[&Priority(0)].outcome(Outcome::RejectedCapacity), 1);
    assert_eq!(totals[&Priority(0)].outcome(Outcome::RejectedOther), 1);
}

#[test]
fn headers_alone_tell_of_a_full_queue_of_all_bands() {
    let mut config = plain();
    config.global = GlobalLimits { requests: Some(3), bytes: Some(100) };
    let mut rig = Rig::new(config.clone(), &[0]);
    rig.queue(Ask { bytes: 50, ..ask("a", -1) });
    assert_eq!(refusal(&mut rig, &Ask { bytes: 50, ..ask("a", 5) }), None);
    assert_eq!(refusal(&mut rig, &Ask { bytes: 51, ..ask("a", 5) }), Some(Outcome::RejectedCapacity));
    rig.queue(ask("a", 0));
    rig.queue(ask("a", 0));
    assert_eq!(refusal(&mut rig, &ask("a", 5)), Some(Outcome::RejectedCapacity));
    // Those who would have to go for it are no obstacle; they stay until it comes.
    config.when_full = WhenFull::Displace;
    assert_eq!(rig.observe(Signal::Reload { config: Box::new(config), desired: None }), []);
    assert_eq!(refusal(&mut rig, &ask("a", 5)), None);
    assert_eq!(refusal(&mut rig, &ask("a", -1)), Some(Outcome::RejectedCapacity));
    assert_eq!(rig.stats().waiting.requests, 3);
}

#[test]
fn the_largest_request_is_what_an_empty_queue_takes() {
    let mut config = with_ceilings(&[(0, 1.0), (-1, 1.0)]);
    config.bands.get_mut(&Priority(0)).unwrap().max_bytes = 100;
    config.bands.get_mut(&Priority(-1)).unwrap().shed = true;
    config.global.bytes = Some(1_000);
    let mut rig = Rig::new(config, &[1]);
    assert_eq!(rig.engine.largest_request(Priority(0)), Some(100));
    assert_eq!(rig.engine.largest_request(Priority(7)), Some(1_000), "of all queues together");
    assert_eq!(rig.engine.largest_request(Priority(-1)), None, "nothing waits there");
    for (priority, bytes, expected) in [(0, 100, None), (0, 101, Some(Outcome::RejectedCapacity)), (-1, 9_999, None)] {
        assert_eq!(refusal(&mut rig, &Ask { bytes, ..ask("a", priority) }), expected, "{priority}, {bytes}");
    }
}

#[test]
fn headers_alone_tell_of_a_closed_gate_though_the_band_does_not_exist_yet() {
    let mut config = with_ceilings(&[(0, 1.0), (-1, 0.5)]);
    config.bands.remove(&Priority(-1));
    config.negative_template = Some(sluice_flow::BandConfig { shed: true, ..config.template.clone() });
    let mut rig = Rig::new(config, &[2]);
    assert_eq!(refusal(&mut rig, &ask("a", -1)), None);
    rig.grant(ask("a", 0));
    let before = rig.stats();
    assert_eq!(refusal(&mut rig, &ask("a", -1)), Some(Outcome::RejectedCapacity));
    assert_eq!(rig.stats().bands, before.bands, "nothing is left of the question");
    // It is what the engine would say.
    let (ticket, effects) = rig.submit(ask("a", -1));
    assert_eq!(dropped(&effects), [(ticket, Outcome::RejectedCapacity)]);
}
