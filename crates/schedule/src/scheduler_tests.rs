use std::collections::BTreeMap;

use rand::SeedableRng as _;
use sluice_core::{Api, EndpointId, EndpointUid, Headers, RequestId, Time};

use super::*;
use crate::{Filter, Picker, Scorer, WeightedScorer};

fn request() -> Request {
    Request {
        id: RequestId("r".into()),
        received: Time::ZERO,
        api: Api::OpenAiChat,
        headers: Headers::new(),
        model: Some("m".into()),
        target_model: Some("m".into()),
        rewritten_by: None,
        stream: false,
        max_output_tokens: None,
        body_bytes: 0,
    }
}

fn endpoints(names: &[&str]) -> Vec<Arc<Endpoint>> {
    names
        .iter()
        .map(|name| {
            Arc::new(Endpoint::new(
                EndpointId::new("default", name),
                EndpointUid((*name).into()),
                "127.0.0.1:1".parse().unwrap(),
                BTreeMap::new(),
            ))
        })
        .collect()
}

/// Runs profile 0, then finishes with it.
#[derive(Debug)]
struct OnlyFirst;

impl ProfileHandler for OnlyFirst {
    fn check(&self, _profile_names: &[&str]) -> Result<(), String> {
        Ok(())
    }

    fn next(&self, _request: &Request, results: &[Option<ProfileResult>]) -> Next {
        if results[0].is_some() { Next::Finish { primary: 0 } } else { Next::Run(0) }
    }
}

#[derive(Debug)]
struct Always(Next);

impl ProfileHandler for Always {
    fn check(&self, _profile_names: &[&str]) -> Result<(), String> {
        Ok(())
    }

    fn next(&self, _request: &Request, _results: &[Option<ProfileResult>]) -> Next {
        self.0
    }
}

#[derive(Debug)]
struct Drop(&'static str);

impl Filter for Drop {
    fn filter(&self, _request: &Request, candidates: &mut Candidates<'_>) {
        candidates.retain(|endpoint| &*endpoint.id.name != self.0);
    }
}

/// Scores by position: the n-th candidate gets the n-th value.
#[derive(Debug)]
struct Fixed(&'static [f32]);

impl Scorer for Fixed {
    fn score(&self, _request: &Request, _candidates: &[&Arc<Endpoint>], scores: &mut [f32]) {
        scores.copy_from_slice(self.0);
    }
}

#[derive(Debug)]
struct Best;

impl Picker for Best {
    fn pick(
        &self,
        _request: &Request,
        _candidates: &[&Arc<Endpoint>],
        scores: &[f32],
        _rng: &mut Rng,
        picked: &mut SmallVec<[usize; 4]>,
    ) {
        picked.extend((0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b])));
    }
}

fn profile(filters: Vec<Arc<dyn Filter>>, scorers: Vec<WeightedScorer>) -> Profile {
    Profile { name: "main".into(), filters, scorers, picker: Arc::new(Best) }
}

fn schedule(scheduler: &Scheduler, names: &[&str]) -> Result<String, ScheduleError> {
    let endpoints = endpoints(names);
    scheduler
        .schedule(&request(), &Candidates::new(&endpoints), &mut Rng::seed_from_u64(1))
        .map(|decision| decision.targets[0].id.name.to_string())
}

#[test]
fn weights_multiply_clamped_scores() {
    // b wins 0.5 * 1 + 1.0 * 2 = 2.5 against a: 1.0 * 1 + 0.0 * 2 = 1, although a's raw score is 9.
    let scorers = vec![
        WeightedScorer { scorer: Arc::new(Fixed(&[9.0, 0.5])), weight: 1.0 },
        WeightedScorer { scorer: Arc::new(Fixed(&[f32::NAN, 1.0])), weight: 2.0 },
    ];
    let scheduler = Scheduler::new(Arc::new(OnlyFirst), vec![profile(vec![], scorers)]).unwrap();
    assert_eq!(schedule(&scheduler, &["a", "b"]), Ok("b".into()));
}

#[test]
fn filters_that_leave_nothing_are_an_error_with_the_profile() {
    let filters: Vec<Arc<dyn Filter>> = vec![Arc::new(Drop("a")), Arc::new(Drop("b"))];
    let scheduler = Scheduler::new(Arc::new(OnlyFirst), vec![profile(filters, vec![])]).unwrap();
    assert_eq!(schedule(&scheduler, &["a", "b"]), Err(ScheduleError::Filtered { profile: "main".into() }));
    assert_eq!(schedule(&scheduler, &["a", "b", "c"]), Ok("c".into()));
    assert_eq!(schedule(&scheduler, &[]), Err(ScheduleError::Filtered { profile: "main".into() }));
}

/// Drops everything, as where every endpoint is full.
#[derive(Debug)]
struct AllFull;

impl Filter for AllFull {
    fn filter(&self, _request: &Request, candidates: &mut Candidates<'_>) {
        candidates.retain(|_| false);
    }

    fn is_by_load(&self) -> bool {
        true
    }
}

#[test]
fn suitable_are_those_that_only_their_load_rules_out() {
    let filters: Vec<Arc<dyn Filter>> = vec![Arc::new(AllFull), Arc::new(Drop("a"))];
    let scheduler = Scheduler::new(Arc::new(OnlyFirst), vec![profile(filters, vec![])]).unwrap();
    let suitable = |names: &[&str]| {
        let endpoints = endpoints(names);
        let suitable = scheduler.suitable(&request(), &Candidates::new(&endpoints))?;
        Ok(suitable.iter().map(|endpoint| endpoint.id.name.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(suitable(&["a", "b", "c"]), Ok(vec!["b".to_owned(), "c".to_owned()]));
    assert_eq!(suitable(&["a"]), Err(ScheduleError::Filtered { profile: "main".into() }));
}

#[test]
fn a_handler_that_misbehaves_ends_in_an_error_not_in_a_loop() {
    for next in [Next::Run(0), Next::Run(7), Next::Finish { primary: 0 }, Next::Finish { primary: 7 }] {
        let scheduler = Scheduler::new(Arc::new(Always(next)), vec![profile(vec![], vec![])]).unwrap();
        assert!(matches!(schedule(&scheduler, &["a"]), Err(ScheduleError::Handler { .. })), "{next:?}");
    }
}

#[test]
fn no_profile_is_refused() {
    assert_eq!(Scheduler::new(Arc::new(OnlyFirst), vec![]).unwrap_err(), SchedulerError::NoProfile);
}
