use super::*;
use crate::collection::Key;
use crate::status::SubjectKind;

const NOW: Time = Time::from_secs(1_000);

fn stand(holds: bool, message: &str) -> Stand {
    Stand { holds, reason: "Reason", message: message.to_owned() }
}

fn subject(name: &str) -> Subject {
    let key = Key { name: name.to_owned(), uid: "1".to_owned() };
    Subject { kind: SubjectKind::Objective, group: "llm-d.ai", key }
}

fn verdict(name: &str, accepted: Stand, present: &[Condition]) -> Verdict {
    let wanted = Conditions { generation: Some(3), accepted, resolved_refs: stand(true, "there") };
    Verdict { subject: subject(name), wanted: Some(wanted), present: present.to_vec() }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

#[test]
fn a_condition_keeps_its_time_until_it_stands_otherwise() {
    let mut ledger = Ledger::default();
    let first = ledger.next(&[verdict("a", stand(true, "fine"), &[])], NOW, at(5)).unwrap().1;
    let times = |conditions: &[Condition]| {
        conditions.iter().map(|condition| condition.last_transition_time.clone()).collect::<Vec<_>>()
    };
    assert_eq!(times(&first), ["1970-01-01T00:00:05Z", "1970-01-01T00:00:05Z"]);
    assert_eq!(first[0].observed_generation, Some(3));
    let reworded = ledger.next(&[verdict("a", stand(true, "still fine"), &first)], NOW, at(9)).unwrap().1;
    assert_eq!(times(&reworded), times(&first), "another message is no transition");
    let turned = ledger.next(&[verdict("a", stand(false, "bad"), &reworded)], NOW, at(9)).unwrap().1;
    assert_eq!(times(&turned), ["1970-01-01T00:00:09Z", "1970-01-01T00:00:05Z"]);
}

#[test]
fn what_the_status_says_already_is_not_said_again() {
    let mut ledger = Ledger::default();
    let written = ledger.next(&[verdict("a", stand(true, "fine"), &[])], NOW, at(5)).unwrap().1;
    let mut foreign = written[0].clone();
    foreign.kind = "Programmed".to_owned();
    let present = [written, vec![foreign]].concat();
    assert!(ledger.next(&[verdict("a", stand(true, "fine"), &present)], NOW, at(9)).is_none());
    assert_eq!(ledger.due(), None);
}

#[test]
fn what_does_not_stay_is_said_again_at_longer_and_longer_intervals_and_other_things_at_once() {
    let mut ledger = Ledger::default();
    let wiped = [verdict("a", stand(true, "fine"), &[])];
    let mut now = NOW;
    for seconds in [10, 20, 40, 80, 160, 320, 600, 600] {
        let (told, _) = ledger.next(&wiped, now, at(5)).unwrap();
        ledger.tell(told, now);
        assert!(ledger.next(&wiped, now, at(9)).is_none());
        let due = ledger.due().unwrap();
        assert_eq!(due.saturating_since(now), Duration::from_secs(seconds));
        now = due;
    }
    ledger.tell(&wiped[0], now);
    assert!(ledger.next(&[verdict("a", stand(false, "bad"), &[])], now, at(9)).is_some(), "other things are news");
    ledger.forget();
    assert!(ledger.next(&wiped, now, at(9)).is_some());
}

#[test]
fn what_has_stayed_for_long_is_said_again_at_once() {
    let mut ledger = Ledger::default();
    let wiped = [verdict("a", stand(true, "fine"), &[])];
    ledger.tell(&wiped[0], NOW);
    ledger.tell(&wiped[0], NOW.saturating_add(FIRST_WAIT));
    let later = NOW.saturating_add(Duration::from_secs(3_600));
    assert!(ledger.next(&wiped, later, at(9)).is_some());
    ledger.tell(&wiped[0], later);
    assert!(ledger.next(&wiped, later, at(9)).is_none());
    assert_eq!(ledger.due().unwrap().saturating_since(later), FIRST_WAIT, "the row of failures is over");
}

#[test]
fn one_that_waits_holds_up_no_other() {
    let mut ledger = Ledger::default();
    let verdicts = ["a", "b"].map(|name| verdict(name, stand(true, "fine"), &[]));
    ledger.tell(&verdicts[0], NOW);
    let next = ledger.next(&verdicts, NOW, at(5)).unwrap().0;
    assert_eq!(next.subject.key.name, "b");
}

#[test]
fn what_is_taken_back_is_taken_back_for_as_long_as_it_is_there() {
    let mut ledger = Ledger::default();
    let released = [Verdict { subject: subject("a"), wanted: None, present: vec![] }];
    let (told, conditions) = ledger.next(&released, NOW, at(5)).unwrap();
    assert!(conditions.is_empty());
    ledger.tell(told, NOW);
    assert!(ledger.next(&released, NOW, at(5)).is_none());
    assert!(ledger.next(&released, NOW.saturating_add(FIRST_WAIT), at(5)).is_some());
}

#[test]
fn an_object_that_is_made_anew_is_told_anew() {
    let mut ledger = Ledger::default();
    let verdicts = [verdict("a", stand(true, "fine"), &[])];
    ledger.tell(&verdicts[0], NOW);
    let mut anew = verdicts.clone();
    anew[0].subject.key.uid = "2".to_owned();
    assert!(ledger.next(&verdicts, NOW, at(5)).is_none());
    assert!(ledger.next(&anew, NOW, at(5)).is_some());
    assert!(ledger.next(&[], NOW, at(5)).is_none());
    assert!(ledger.next(&verdicts, NOW, at(5)).is_some(), "it was forgotten when it was gone");
}
