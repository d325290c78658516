//! With flow control: who waits, for what, and how it ends.

use super::*;

#[test]
fn an_endpoint_never_gets_more_than_its_limit_and_a_freed_place_is_used_at_once() {
    let world = World::queueing(&[1, 2]);
    let (first, held) = destination_of(world.place(0, None));
    let (second, _other) = destination_of(world.place(0, None));
    assert_eq!((first.as_str(), second.as_str()), ("10.0.0.1:1", "10.0.0.1:2"), "the preferred one was full");

    let mut waiting = world.route(0, None);
    assert!(poll(&mut waiting).is_none());
    held.unwrap().finish(TerminationCause::Natural, TokenUsage::default(), Usage::default());
    let (third, _held) = destination_of(poll(&mut waiting));
    assert_eq!(third, "10.0.0.1:1");
    assert_eq!(world.loads(), [1, 1]);
}

#[test]
fn of_2000_waiting_a_raised_limit_lets_in_the_first_ones_within_one_call_and_no_more() {
    const RAISED: usize = 500;
    let limited = |limit: usize| {
        let labels = BTreeMap::from([(Endpoint::MAX_CONCURRENCY.to_owned(), limit.to_string())]);
        EndpointSpec { labels, ..spec(1) }
    };
    let world = World::queueing(&[1]);
    let (_, _held) = destination_of(world.place(0, None));
    let mut waiting: Vec<_> = (0..2_000).map(|_| world.route(0, None)).collect();
    assert!(waiting.iter_mut().all(|request| poll(request).is_none()));

    // Whoever is let in is known when this returns, before any of them goes on.
    world.table.replace([limited(1 + RAISED)]);
    let stats = world.admission.as_ref().unwrap().stats();
    assert_eq!((stats.leases.granted, stats.leases.started), (RAISED as u64, 1));
    let started: Vec<_> = waiting.iter_mut().map(poll).collect();
    assert!(started[..RAISED].iter().all(Option::is_some) && started[RAISED..].iter().all(Option::is_none));
}

#[test]
fn a_reload_that_raises_the_limit_is_seen_by_whoever_picks() {
    let world = World::queueing(&[1]);
    let (_, _held) = destination_of(world.place(0, None));
    let mut waiting = world.route(0, None);
    assert!(poll(&mut waiting).is_none());
    let detector = ConcurrencyDetector { max_concurrency: 2, ..ConcurrencyDetector::default() };
    let raised = Config { detector: Arc::new(detector), ..one_per_endpoint() };
    world.admission.as_ref().unwrap().observe(Signal::Reload { config: Box::new(raised), desired: None });
    let (destination, _held) = destination_of(poll(&mut waiting));
    assert_eq!((destination.as_str(), world.loads().as_slice()), ("10.0.0.1:1", &[2][..]));
}

/// The filter goes by the limit that was in force when the request came: by it the endpoint stays full.
#[test]
fn whoever_waits_is_placed_by_the_filters_that_come_with_the_raised_limit() {
    let world = World::queueing_with(&[Arc::new(Only::Idle)], &[1]);
    let (_, _held) = destination_of(world.place(0, None));
    let mut waiting = world.route(0, None);
    assert!(poll(&mut waiting).is_none());
    let detector = ConcurrencyDetector { max_concurrency: 2, ..ConcurrencyDetector::default() };
    let raised = Config { detector: Arc::new(detector), ..one_per_endpoint() };
    world.router.scheduler.replace(scheduler(&[]), || {
        world.admission.as_ref().unwrap().observe(Signal::Reload { config: Box::new(raised), desired: None });
    });
    let (destination, _held) = destination_of(poll(&mut waiting));
    assert_eq!((destination.as_str(), world.loads().as_slice()), ("10.0.0.1:1", &[2][..]));
}

#[test]
fn a_request_hinted_to_a_full_endpoint_waits_for_that_one_and_delays_nobody() {
    let world = World::queueing(&[1, 2]);
    let (_, held) = destination_of(world.place(0, None));
    let mut hinted = world.route(0, Some("10.0.0.1:1"));
    assert!(poll(&mut hinted).is_none(), "there is room in the pool, but not there");
    let (unhinted, other) = destination_of(world.place(-5, None));
    assert_eq!(unhinted, "10.0.0.1:2");
    drop(other);
    assert!(poll(&mut hinted).is_none());
    drop(held);
    let (destination, _held) = destination_of(poll(&mut hinted));
    assert_eq!(destination, "10.0.0.1:1");
}

#[test]
fn a_request_whose_only_suitable_endpoints_are_full_waits_for_them() {
    for filters in [vec![Arc::new(Only::Even) as _], vec![Arc::new(Only::Even) as _, Arc::new(Only::Idle) as _]] {
        let world = World::queueing_with(&filters, &[1, 2]);
        let (first, held) = destination_of(world.place(0, None));
        assert_eq!(first, "10.0.0.1:2");
        let mut waiting = world.route(0, None);
        assert!(poll(&mut waiting).is_none(), "the endpoint with room does not suit");
        assert_eq!(world.admission.as_ref().unwrap().stats().bands[0].parked, 1);
        drop(held);
        let (second, held) = destination_of(poll(&mut waiting));
        assert_eq!(second, "10.0.0.1:2");

        let mut waiting = world.route(0, None);
        assert!(poll(&mut waiting).is_none());
        world.table.replace([1, 2, 3, 4].map(spec));
        assert_eq!(destination_of(poll(&mut waiting)).0, "10.0.0.1:4", "a new endpoint is tried");
        drop(held);
    }
}

#[test]
fn a_request_that_no_endpoint_suits_is_refused() {
    let world = World::queueing_with(&[Arc::new(Only::Even)], &[1, 3]);
    let rejection = world.place(0, None).unwrap().unwrap_err();
    assert!(matches!(rejection, Rejection::NoneAvailable { retry_after: 1..=2 }), "{rejection:?}");
    let stats = world.admission.as_ref().unwrap().stats();
    assert_eq!((stats.leases.granted, stats.leases.started), (0, 0), "its place is free again");
    let outcome = |outcome| stats.totals[&Priority(0)].outcome(outcome);
    assert_eq!((outcome(Outcome::EvictedOther), outcome(Outcome::EvictedContextCancelled)), (1, 0), "no client left");
}

#[test]
fn a_filter_that_never_agrees_with_the_ledger_holds_nobody_up() {
    let world = World::queueing_with(&[Arc::new(Only::Idle)], &[1]);
    // Something that the ledger does not know of.
    assert!(world.table.snapshot().endpoints()[0].load().try_book(u64::MAX));
    world.table.snapshot().endpoints()[0].load().set_limits(u64::MAX, u64::MAX);
    let rejection = world.place(0, None).unwrap().unwrap_err();
    assert!(matches!(rejection, Rejection::NoneAvailable { .. }), "{rejection:?}");
}

#[test]
fn a_subset_without_endpoints_is_refused_at_once_and_an_empty_pool_waits() {
    let world = World::queueing(&[1]);
    let rejection = world.place(0, Some("10.9.9.9")).unwrap().unwrap_err();
    let Rejection::NotAdmitted { outcome, .. } = rejection else { panic!("{rejection:?}") };
    assert_eq!(outcome.reason(), Some(DropReason::RejectedNoEndpoints));

    world.table.replace([]);
    let mut waiting = world.route(0, None);
    assert!(poll(&mut waiting).is_none());
    world.table.replace([spec(7)]);
    let (destination, _held) = destination_of(poll(&mut waiting));
    assert_eq!(destination, "10.0.0.1:7");
}

#[test]
fn whoever_stops_waiting_leaves_nothing_behind() {
    let world = World::queueing(&[1]);
    let (_, held) = destination_of(world.place(0, None));
    let mut waiting = world.route(0, None);
    assert!(poll(&mut waiting).is_none());
    drop(waiting);
    let stats = world.admission.as_ref().unwrap().stats();
    assert_eq!(stats.waiting.requests, 0);
    assert_eq!(stats.totals[&Priority(0)].outcome(Outcome::EvictedContextCancelled), 1);
    drop(held);
    assert_eq!(world.loads(), [0]);
    destination_of(world.place(0, None));
}

#[test]
fn the_end_of_admission_answers_what_waits_and_refuses_by_headers() {
    let world = World::queueing(&[1]);
    let (_, _held) = destination_of(world.place(0, None));
    let mut waiting = world.route(0, None);
    assert!(poll(&mut waiting).is_none());
    world.admission.as_ref().unwrap().observe(Signal::Drain);
    let rejection = poll(&mut waiting).unwrap().unwrap_err();
    assert!(matches!(rejection, Rejection::NotAdmitted { outcome: Outcome::EvictedOther, retry_after: Some(1..=30) }));
    let identity = Identity { priority: Priority(0), tenant: "a".into() };
    let refusal = |header_only| world.router.refuse_by_headers(&identity, 0, header_only);
    assert!(matches!(refusal(false), Some(Rejection::NotAdmitted { outcome: Outcome::RejectedOther, .. })));
    assert_eq!(refusal(true), None, "what is not admitted is not refused");
}

#[test]
fn what_is_in_flight_counts_for_as_long_as_its_stream_lives_however_silent() {
    let clock = Arc::new(ByHand::default());
    let queueing = World::queueing_by(Arc::clone(&clock) as _, &[], &[1]);
    for world in [queueing, World::open(&[1])] {
        let minutes = |minutes: u64| {
            clock.0.store(Time::from_secs(60 * minutes).as_nanos(), Ordering::Relaxed);
            if let Some(admission) = &world.admission {
                // Whatever time may bring comes with the next call.
                admission.observe(Signal::Desired([Priority(0)].into()));
                assert_eq!(admission.stats().leases.started, 1);
            }
            assert_eq!(world.loads(), [1]);
        };
        let (_, in_flight) = destination_of(world.place(0, None));
        let mut in_flight = in_flight.unwrap();
        minutes(10);
        in_flight.sending(1);
        minutes(17);
        drop(in_flight);
        assert_eq!(world.loads(), [0]);
    }
}

#[test]
fn a_pool_that_serves_only_another_stage_is_a_503_at_once() {
    let world = World::queueing(&[1]);
    let labels = BTreeMap::from([("llm-d.ai/role".to_owned(), "prefill".to_owned())]);
    world.table.replace([EndpointSpec { labels, ..spec(1) }]);
    let rejection = world.place(0, None).unwrap().unwrap_err();
    let Rejection::NotAdmitted { outcome, .. } = rejection else { panic!("{rejection:?}") };
    assert_eq!(outcome.reason(), Some(DropReason::RejectedNoEndpoints));
}

/// However full the queue is.
#[test]
fn a_request_that_would_never_fit_is_told_so_and_not_when_to_come_back() {
    let template = BandConfig { max_bytes: 400, ..one_per_endpoint().template };
    let world = World::queueing_as(Config { template, ..one_per_endpoint() }, &[1]);
    let identity = Identity { priority: Priority(0), tenant: "a".into() };
    let too_large = Rejection::TooLarge { limit: 400, outcome: Outcome::RejectedCapacity };
    for is_busy in [false, true] {
        let _held = is_busy.then(|| destination_of(world.place(0, None)));
        let of_headers = |bytes| world.router.refuse_by_headers(&identity, bytes, false);
        assert_eq!(of_headers(400), None);
        assert_eq!(of_headers(401), Some(too_large.clone()));
        let placed = |held_bytes| {
            let intent = Intent { held_bytes, ..intent() };
            poll(&mut Box::pin(world.router.route(intent, identity.clone())))
        };
        assert_eq!(placed(401).unwrap().unwrap_err(), too_large);
        assert!(is_busy || placed(0).unwrap().is_ok(), "what is not kept takes no room");
    }
    assert_eq!(too_large.retry_after(), None);
    assert_eq!(world.router.largest_request(Priority(0)), Some(400));
    assert_eq!(World::open(&[1]).router.largest_request(Priority(0)), None);
}

#[test]
fn a_wait_ends_with_the_first_of_its_bounds() {
    let arrival = Time::from_secs(100);
    let ends = |world: &World, ttl: Option<&'static str>, deadline: Option<u64>| {
        let Intent { request, .. } = intent();
        let mut request = Arc::unwrap_or_clone(request);
        if let Some(ttl) = ttl {
            request.headers.push("x-llm-d-inference-ttl", ttl);
        }
        world.router.wait_ends(&request, Priority(0), deadline.map(Time::from_secs), arrival)
    };
    let world = World::queueing(&[1]);
    let budget = ends(&world, None, None).expect("the band has a budget");
    assert!(budget > Time::from_secs(102));
    assert_eq!(ends(&world, Some("2s"), None), Some(Time::from_secs(102)), "from when it asked, not from its headers");
    assert_eq!(ends(&world, Some("2s"), Some(101)), Some(Time::from_secs(101)));
    assert_eq!(ends(&world, Some("9000h"), None), Some(budget));
    assert_eq!(ends(&world, Some("soon"), None), Some(budget));
    // Where nothing waits nothing else ends a wait.
    assert_eq!(ends(&World::open(&[1]), Some("2s"), Some(101)), Some(Time::from_secs(101)));
}
