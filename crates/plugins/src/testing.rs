//! Endpoints, requests and picks for the tests of plugins.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use sluice_core::{Api, Endpoint, EndpointId, EndpointUid, Headers, Request, RequestId, Scraped, Time};
use sluice_schedule::{Picker, Rng, Scorer};
use smallvec::SmallVec;

pub(crate) fn request() -> Request {
    Request {
        id: RequestId("r".into()),
        received: Time::ZERO,
        api: Api::OpenAiChat,
        headers: Headers::new(),
        model: None,
        target_model: None,
        rewritten_by: None,
        stream: false,
        max_output_tokens: None,
        body_bytes: 0,
    }
}

/// One endpoint for each element, with so many requests in flight.
pub(crate) fn endpoints_with_load(load: &[u64]) -> Vec<Arc<Endpoint>> {
    load.iter()
        .enumerate()
        .map(|(index, &requests)| {
            let name = index.to_string();
            let endpoint = Endpoint::new(
                EndpointId::new("default", &name),
                EndpointUid(name.as_str().into()),
                "127.0.0.1:1".parse().unwrap(),
                BTreeMap::new(),
            );
            for _ in 0..requests {
                assert!(endpoint.load().try_book(u64::MAX));
            }
            Arc::new(endpoint)
        })
        .collect()
}

/// One endpoint for each element, with so many requests in flight, and so many that it says wait and run.
pub(crate) fn reporting(states: &[(u64, u64, u64)]) -> Vec<Arc<Endpoint>> {
    let endpoints = endpoints_with_load(&states.iter().map(|&(in_flight, ..)| in_flight).collect::<Vec<_>>());
    for (endpoint, &(_, waiting, running)) in endpoints.iter().zip(states) {
        endpoint.set_scraped(Scraped { waiting: Some(waiting), running: Some(running), ..Scraped::at(Time::ZERO) });
    }
    endpoints
}

pub(crate) fn scores(scorer: &dyn Scorer, endpoints: &[Arc<Endpoint>]) -> Vec<f32> {
    let mut scores = vec![0.0; endpoints.len()];
    scorer.score(&request(), &endpoints.iter().collect::<Vec<_>>(), &mut scores);
    scores
}

/// The indices that `picker` picks.
pub(crate) fn pick(picker: &dyn Picker, scores: &[f32], seed: u64) -> Vec<usize> {
    pick_with(picker, scores, &mut Rng::seed_from_u64(seed)).to_vec()
}

/// How often each index comes first in so many picks.
pub(crate) fn spread(picker: &dyn Picker, scores: &[f32], picks: usize) -> Vec<usize> {
    let mut rng = Rng::seed_from_u64(7);
    let mut spread = vec![0; scores.len()];
    for _ in 0..picks {
        spread[pick_with(picker, scores, &mut rng)[0]] += 1;
    }
    spread
}

fn pick_with(picker: &dyn Picker, scores: &[f32], rng: &mut Rng) -> SmallVec<[usize; 4]> {
    let endpoints = endpoints_with_load(&vec![0; scores.len()]);
    let mut picked = SmallVec::new();
    picker.pick(&request(), &endpoints.iter().collect::<Vec<_>>(), scores, rng, &mut picked);
    picked
}
