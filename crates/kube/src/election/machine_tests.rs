use k8s_openapi::jiff::SignedDuration;

use super::*;

const OWN: &str = "a";
const OTHER: &str = "b";

fn wall(seconds: u64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(i64::try_from(seconds).unwrap())
}

fn at(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

/// One election, and the server that it would ask.
struct Bench {
    election: Election,
    lease: Option<Lease>,
    version: u32,
}

impl Bench {
    fn new() -> Self {
        Self { election: Election::new("lease".into(), OWN.into(), Timings::default()), lease: None, version: 0 }
    }

    /// Held by `OTHER`, who renewed just now by a clock of its own.
    fn held_by_other(seconds: i32) -> Self {
        let mut bench = Self::new();
        bench.renewed_by_other(seconds, 1);
        bench
    }

    fn renewed_by_other(&mut self, seconds: i32, renewed: u64) {
        let spec = LeaseSpec {
            holder_identity: Some(OTHER.into()),
            lease_duration_seconds: Some(seconds),
            acquire_time: Some(MicroTime(wall(0))),
            renew_time: Some(MicroTime(wall(renewed))),
            lease_transitions: Some(4),
            ..LeaseSpec::default()
        };
        let metadata = ObjectMeta { name: Some("lease".into()), ..ObjectMeta::default() };
        self.store(Lease { metadata, spec: Some(spec) });
    }

    fn store(&mut self, mut lease: Lease) {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease);
    }

    fn spec(&mut self) -> &mut LeaseSpec {
        self.lease.as_mut().unwrap().spec.as_mut().unwrap()
    }

    fn step(&mut self, now: u64) -> Step {
        self.election.step(at(now), wall(now))
    }

    /// Everything is answered at once, until the next wait, whose end is returned.
    fn run(&mut self, now: u64) -> Option<Time> {
        loop {
            match self.step(now) {
                Step::Wait(until) => return Some(until),
                Step::Leave => return None,
                Step::Read => self.election.read(at(now), self.lease.clone()),
                Step::Write(lease) => self.write(now, *lease),
            }
        }
    }

    fn write(&mut self, now: u64, lease: Lease) {
        let present = self.lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
        if lease.metadata.resource_version == present {
            self.store(lease);
            self.election.written(at(now), self.lease.clone().unwrap());
        } else {
            self.election.outdated(at(now));
        }
    }

    fn leads(&self, now: u64) -> bool {
        self.election.leads(at(now))
    }
}

#[test]
fn a_lease_that_is_not_there_is_made_and_renewed() {
    let mut bench = Bench::new();
    assert_eq!(bench.run(5), Some(at(7)));
    assert!(bench.leads(5));
    let expected = LeaseSpec {
        holder_identity: Some(OWN.into()),
        lease_duration_seconds: Some(15),
        acquire_time: Some(MicroTime(wall(5))),
        renew_time: Some(MicroTime(wall(5))),
        lease_transitions: Some(0),
        ..LeaseSpec::default()
    };
    assert_eq!(*bench.spec(), expected);
    assert_eq!(bench.run(7), Some(at(9)));
    assert_eq!(*bench.spec(), LeaseSpec { renew_time: Some(MicroTime(wall(7))), ..expected });
    assert_eq!(bench.election.leads_until(at(7)), Some(at(17)));
}

#[test]
fn a_renewal_takes_one_request() {
    let mut bench = Bench::new();
    bench.run(0);
    assert!(matches!(bench.step(2), Step::Write(_)));
}

#[test]
fn a_lease_of_another_holder_is_looked_at_every_second_and_taken_when_it_has_not_changed_for_its_duration() {
    let mut bench = Bench::held_by_other(15);
    for second in 100..115 {
        assert_eq!(bench.run(second), Some(at(second + 1)));
        assert!(!bench.leads(second));
    }
    // By the writer's clock the lease was old all along, and it is not asked.
    bench.run(115);
    assert!(bench.leads(115));
    assert_eq!(bench.spec().lease_transitions, Some(5));
    assert_eq!(bench.spec().acquire_time, Some(MicroTime(wall(115))));
}

#[test]
fn a_renewal_by_another_holder_counts_from_when_it_is_seen() {
    let mut bench = Bench::held_by_other(15);
    bench.run(100);
    bench.renewed_by_other(15, 2);
    bench.run(114);
    bench.run(128);
    assert!(!bench.leads(128));
    bench.run(129);
    assert!(bench.leads(129));
}

#[test]
fn the_duration_is_that_of_the_holder_and_the_usual_one_where_it_says_none() {
    for (seconds, expected) in [(Some(3), 3), (Some(60), 60), (None, 15), (Some(0), 15), (Some(-1), 15)] {
        let mut bench = Bench::held_by_other(1);
        bench.spec().lease_duration_seconds = seconds;
        bench.run(0);
        bench.run(expected - 1);
        assert!(!bench.leads(expected - 1), "{seconds:?}");
        bench.run(expected);
        assert!(bench.leads(expected), "{seconds:?}");
    }
}

#[test]
fn a_change_of_something_else_is_no_sign_of_life() {
    let mut bench = Bench::held_by_other(15);
    bench.run(100);
    let mut lease = bench.lease.clone().unwrap();
    lease.metadata.labels = Some([("team".to_owned(), "search".to_owned())].into());
    bench.store(lease);
    bench.run(110);
    bench.run(115);
    assert!(bench.leads(115));
    assert!(bench.lease.unwrap().metadata.labels.is_some(), "and it is kept");
}

#[test]
fn a_lease_that_was_given_up_is_taken_at_once() {
    for nobody in [None, Some(String::new())] {
        let mut bench = Bench::held_by_other(15);
        bench.run(100);
        let given_up = LeaseSpec { holder_identity: nobody, lease_duration_seconds: Some(1), ..bench.spec().clone() };
        *bench.spec() = given_up;
        bench.run(101);
        assert!(bench.leads(101));
        assert_eq!(bench.spec().lease_transitions, Some(5));
    }
}

#[test]
fn a_lease_that_somebody_took_the_name_out_of_is_waited_for_as_if_it_had_been_renewed() {
    let emptied: [fn(&LeaseSpec) -> LeaseSpec; 2] =
        [|_| LeaseSpec::default(), |spec| LeaseSpec { lease_duration_seconds: Some(5), ..spec.clone() }];
    for name in [None, Some(String::new())] {
        for change in emptied {
            let mut bench = Bench::held_by_other(15);
            bench.run(100);
            *bench.spec() = LeaseSpec { holder_identity: name.clone(), ..change(bench.spec()) };
            for second in 101..116 {
                bench.run(second);
                assert!(!bench.leads(second), "its leader may not know for so long");
            }
            bench.run(116);
            assert!(bench.leads(116));
        }
    }
}

#[test]
fn a_leader_puts_its_name_back_that_somebody_took_out() {
    let mut bench = Bench::new();
    bench.run(100);
    assert!(bench.leads(100));
    let mut lease = bench.lease.clone().unwrap();
    lease.spec = None;
    bench.store(lease);
    for second in 101..104 {
        bench.run(second);
        assert!(bench.leads(second), "{second}");
    }
    assert_eq!(bench.spec().holder_identity.as_deref(), Some(OWN));
}

#[test]
fn whoever_was_overtaken_looks_again_and_heeds_the_winner() {
    let mut bench = Bench::held_by_other(15);
    bench.run(100);
    assert_eq!(bench.step(115), Step::Read);
    let before = bench.lease.clone();
    bench.election.read(at(115), before);
    let Step::Write(lease) = bench.step(115) else { panic!("the lease is free") };
    bench.renewed_by_other(15, 3);
    bench.write(115, *lease);
    assert!(!bench.leads(115));
    assert_eq!(bench.step(115), Step::Wait(at(116)), "a server that always refuses is not asked in a loop");
    bench.run(116);
    bench.run(130);
    assert!(!bench.leads(130));
    bench.run(131);
    assert!(bench.leads(131));
}

#[test]
fn a_leader_whose_lease_was_changed_by_somebody_renews_it_within_the_same_attempt() {
    let mut bench = Bench::new();
    bench.run(0);
    let lease = bench.lease.clone().unwrap();
    bench.store(lease);
    assert_eq!(bench.run(2), Some(at(4)));
    assert_eq!(bench.spec().renew_time, Some(MicroTime(wall(2))));
    assert_eq!(bench.spec().lease_transitions, Some(0));
    assert_eq!(bench.election.leads_until(at(2)), Some(at(12)));
}

#[test]
fn a_leader_that_finds_another_name_in_the_lease_leads_no_more() {
    let mut bench = Bench::new();
    bench.run(0);
    bench.renewed_by_other(15, 1);
    bench.run(2);
    assert!(!bench.leads(2));
    assert_eq!(bench.election.holder(), Some(OTHER));
    bench.run(17);
    assert!(bench.leads(17), "and takes part again");
}

#[test]
fn a_leader_makes_a_lease_that_was_deleted_anew_and_leads_all_the_while() {
    let mut bench = Bench::new();
    bench.run(0);
    bench.lease = None;
    assert!(matches!(bench.step(2), Step::Write(_)));
    bench.election.outdated(at(2));
    assert_eq!(bench.step(2), Step::Read);
    bench.election.read(at(2), None);
    assert!(bench.leads(2), "others wait");
    bench.run(2);
    assert!(bench.lease.is_some());
    assert_eq!(bench.election.leads_until(at(2)), Some(at(12)));
}

#[test]
fn whoever_saw_a_lease_that_was_deleted_waits_as_if_it_had_just_been_renewed() {
    for (seconds, expected) in [(15, 15), (60, 60)] {
        let mut bench = Bench::held_by_other(seconds);
        bench.run(100);
        bench.run(103);
        bench.lease = None;
        for second in 104..104 + expected {
            bench.run(second);
            assert!(!bench.leads(second) && bench.election.waits_for_deleted(), "{second}");
        }
        bench.run(104 + expected);
        assert!(bench.leads(104 + expected) && !bench.election.waits_for_deleted());
    }
}

#[test]
fn whoever_slept_after_asking_asks_again_before_it_makes_a_lease() {
    let mut bench = Bench::new();
    assert_eq!(bench.step(0), Step::Read);
    bench.election.read(at(20), None);
    bench.renewed_by_other(15, 19);
    bench.run(20);
    assert_eq!(bench.election.holder(), Some(OTHER));
    assert!(!bench.leads(20));
}

#[test]
fn whoever_has_not_looked_for_long_waits_anew_for_a_lease_that_is_not_there() {
    let mut bench = Bench::held_by_other(15);
    bench.run(100);
    bench.lease = None;
    bench.run(101);
    bench.run(102);
    // Who knows what was there meanwhile.
    bench.run(118);
    bench.run(132);
    assert!(!bench.leads(132));
    bench.run(133);
    assert!(bench.leads(133));
}

#[test]
fn a_holder_that_makes_a_deleted_lease_anew_has_it() {
    let mut bench = Bench::held_by_other(15);
    bench.run(100);
    bench.lease = None;
    bench.run(101);
    bench.renewed_by_other(15, 2);
    bench.run(102);
    bench.run(116);
    assert!(!bench.leads(116));
    bench.run(117);
    assert!(bench.leads(117), "it expires as any other");
}

#[test]
fn a_leader_that_is_overtaken_in_making_the_lease_anew_leads_no_more() {
    let mut bench = Bench::new();
    bench.run(0);
    bench.election.outdated(at(2));
    bench.election.read(at(2), None);
    let Step::Write(lease) = bench.step(2) else { panic!("it leads") };
    bench.renewed_by_other(15, 1);
    bench.write(2, *lease);
    assert!(!bench.leads(2));
    bench.run(3);
    assert_eq!(bench.election.holder(), Some(OTHER));
}

#[test]
fn a_leader_of_the_past_that_finds_no_lease_waits_like_others() {
    let mut bench = Bench::new();
    bench.run(0);
    // It slept, and somebody else may have had the lease since.
    bench.lease = None;
    bench.run(60);
    assert!(!bench.leads(60));
    bench.run(74);
    assert!(!bench.leads(74));
    bench.run(75);
    assert!(bench.leads(75));
}

#[test]
fn whoever_may_have_made_a_lease_that_is_not_there_waits_and_whoever_never_heard_of_one_does_not() {
    let mut bench = Bench::new();
    assert_eq!(bench.step(0), Step::Read);
    bench.election.read(at(0), None);
    assert!(matches!(bench.step(0), Step::Write(_)), "it never heard of one");
    bench.election.failed(at(5));
    bench.run(6);
    assert!(!bench.leads(6), "what it wrote may have been there for a while");
    bench.run(21);
    assert!(bench.leads(21));
}

#[test]
fn a_leader_leads_until_its_deadline_counted_from_the_sending_of_what_was_done() {
    let mut bench = Bench::new();
    bench.run(0);
    let Step::Write(lease) = bench.step(2) else { panic!("it is time to renew") };
    // The answer takes two seconds.
    bench.write(4, *lease);
    assert_eq!(bench.election.leads_until(at(4)), Some(at(12)));
    let mut now = 4;
    while now < 12 {
        match bench.step(now) {
            Step::Wait(until) => now = until.as_nanos() / 1_000_000_000,
            Step::Read | Step::Write(_) => bench.election.failed(at(now)),
            Step::Leave => panic!("nobody said so"),
        }
    }
    assert_eq!(now, 12, "it is woken at the end");
    assert!(!bench.leads(12));
}

#[test]
fn a_write_whose_answer_was_lost_gives_no_time_until_the_next_look() {
    let mut bench = Bench::new();
    assert_eq!(bench.step(0), Step::Read);
    bench.election.read(at(0), None);
    let Step::Write(lease) = bench.step(0) else { panic!("there is none") };
    bench.store(*lease);
    bench.election.failed(at(5));
    assert!(!bench.leads(5));
    bench.run(6);
    assert!(bench.leads(6));
    assert_eq!(bench.spec().acquire_time, Some(MicroTime(wall(0))));
    assert_eq!(bench.spec().lease_transitions, Some(0));
}

#[test]
fn an_answer_that_comes_after_the_deadline_makes_nobody_a_leader() {
    let mut bench = Bench::new();
    assert_eq!(bench.step(0), Step::Read);
    bench.election.read(at(0), None);
    let Step::Write(lease) = bench.step(0) else { panic!("there is none") };
    bench.write(10, *lease);
    assert!(!bench.leads(10));
    bench.run(10);
    assert!(bench.leads(10), "it is renewed at once");
}

#[test]
fn whoever_leaves_leads_no_more_and_empties_the_lease() {
    let mut bench = Bench::new();
    bench.run(0);
    bench.election.leave(at(1));
    assert!(!bench.leads(1));
    assert_eq!(bench.run(1), None);
    let spec = bench.spec();
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some(""), Some(1)));
    assert_eq!((&spec.renew_time, spec.lease_transitions), (&Some(MicroTime(wall(1))), Some(0)));
}

#[test]
fn whoever_leaves_touches_no_lease_of_another() {
    let mut waiting = Bench::held_by_other(15);
    waiting.run(100);
    waiting.election.leave(at(101));
    assert_eq!(waiting.step(101), Step::Leave);

    let mut overtaken = Bench::new();
    overtaken.run(0);
    overtaken.renewed_by_other(15, 1);
    overtaken.election.leave(at(1));
    assert_eq!(overtaken.run(1), None);
    assert_eq!(overtaken.spec().holder_identity.as_deref(), Some(OTHER));
}

#[test]
fn what_may_have_been_written_is_given_up_too() {
    let mut bench = Bench::new();
    assert_eq!(bench.step(0), Step::Read);
    bench.election.read(at(0), None);
    let Step::Write(lease) = bench.step(0) else { panic!("there is none") };
    bench.election.leave(at(0));
    bench.store(*lease);
    bench.election.failed(at(0));
    assert_eq!(bench.run(1), None);
    assert_eq!(bench.spec().holder_identity.as_deref(), Some(""));
}

#[test]
fn a_renewal_that_was_under_way_when_it_left_makes_no_leader() {
    let mut bench = Bench::new();
    bench.run(0);
    let Step::Write(lease) = bench.step(2) else { panic!("it is time to renew") };
    bench.election.leave(at(2));
    bench.write(2, *lease);
    assert!(!bench.leads(2));
    assert_eq!(bench.run(2), None);
    assert_eq!(bench.spec().holder_identity.as_deref(), Some(""));
}

#[test]
fn whoever_cannot_give_up_leaves_at_the_deadline() {
    let mut bench = Bench::new();
    bench.run(0);
    bench.election.leave(at(1));
    for second in 1..11 {
        match bench.step(second) {
            Step::Wait(_) => {}
            Step::Read => bench.election.failed(at(second)),
            step => panic!("{step:?}"),
        }
    }
    assert_eq!(bench.step(11), Step::Leave);
}
