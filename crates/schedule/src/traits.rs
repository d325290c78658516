use std::fmt;
use std::sync::Arc;

use sluice_core::{Endpoint, Request};
use smallvec::SmallVec;

use crate::ProfileResult;

/// The generator handed to pickers.
pub type Rng = rand::rngs::SmallRng;

/// The endpoints still in question, in the order of the snapshot.
#[derive(Clone, Debug)]
pub struct Candidates<'a>(SmallVec<[&'a Arc<Endpoint>; 32]>);

impl<'a> Candidates<'a> {
    pub fn new(endpoints: impl IntoIterator<Item = &'a Arc<Endpoint>>) -> Self {
        Self(endpoints.into_iter().collect())
    }

    /// Keeps those for which `keep` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&Endpoint) -> bool) {
        self.0.retain(|endpoint| keep(endpoint));
    }

    pub fn as_slice(&self) -> &[&'a Arc<Endpoint>] {
        &self.0
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Takes endpoints out that must not serve the request.
pub trait Filter: fmt::Debug + Send + Sync {
    fn filter(&self, request: &Request, candidates: &mut Candidates<'_>);

    /// It looks at nothing but how full endpoints are: one that it takes out suits the request once it has room.
    fn is_by_load(&self) -> bool {
        false
    }
}

/// Says how well each endpoint suits the request.
pub trait Scorer: fmt::Debug + Send + Sync {
    /// Writes one score per candidate, in `0.0..=1.0`, higher is better. `scores` has the length of
    /// `candidates` and comes filled with zeros; what lies outside the range is clamped, NaN counts as 0.
    fn score(&self, request: &Request, candidates: &[&Arc<Endpoint>], scores: &mut [f32]);
}

/// Turns scores into a choice.
pub trait Picker: fmt::Debug + Send + Sync {
    /// Appends to `picked` the indices of the chosen candidates, best first: at least one, each once.
    /// `candidates` is never empty; `scores[i]` is the weighted sum for `candidates[i]`.
    fn pick(
        &self,
        request: &Request,
        candidates: &[&Arc<Endpoint>],
        scores: &[f32],
        rng: &mut Rng,
        picked: &mut SmallVec<[usize; 4]>,
    );
}

/// What a profile handler wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Run the profile with this index.
    Run(usize),
    /// Stop: the result of the profile with this index names the destination.
    Finish { primary: usize },
}

/// Decides which profiles run for a request, one after the other.
pub trait ProfileHandler: fmt::Debug + Send + Sync {
    /// Checks at start that the configured profiles suit the handler; `Err` tells why they do not.
    fn check(&self, profile_names: &[&str]) -> Result<(), String>;

    /// `results[i]` is the outcome of profile `i`, if it ran. Called until it finishes; each profile runs at
    /// most once.
    fn next(&self, request: &Request, results: &[Option<ProfileResult>]) -> Next;
}
