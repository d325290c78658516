use std::sync::Arc;

use sluice_core::{Endpoint, Request};
use smallvec::SmallVec;

use crate::{Candidates, Next, Profile, ProfileHandler, Rng};

/// Runs the configured profiles for one request at a time.
#[derive(Clone, Debug)]
pub struct Scheduler {
    handler: Arc<dyn ProfileHandler>,
    profiles: Vec<Profile>,
}

/// Where one profile would send the request.
#[derive(Clone, Debug)]
pub struct ProfileResult {
    /// Best first; empty if the filters left no endpoint.
    pub targets: Vec<Arc<Endpoint>>,
}

/// Where the request goes.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The endpoints of the primary profile, best first; never empty.
    pub targets: Vec<Arc<Endpoint>>,
}

/// Why a set of profiles cannot make a scheduler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerError {
    #[error("no scheduling profile")]
    NoProfile,
    #[error("the profile handler does not accept the profiles: {0}")]
    Handler(String),
}

/// Why a request got no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("no endpoints available for the given request: the filters of profile {profile:?} left none")]
    Filtered { profile: Arc<str> },
    #[error("the profile handler asked for profile {profile:?} in a way it may not: {what}")]
    Handler { profile: Arc<str>, what: &'static str },
}

impl Scheduler {
    pub fn new(handler: Arc<dyn ProfileHandler>, profiles: Vec<Profile>) -> Result<Self, SchedulerError> {
        if profiles.is_empty() {
            return Err(SchedulerError::NoProfile);
        }
        let names: Vec<&str> = profiles.iter().map(|profile| &*profile.name).collect();
        handler.check(&names).map_err(SchedulerError::Handler)?;
        Ok(Self { handler, profiles })
    }

    /// Chooses among `candidates`, which the caller has already narrowed to what the request may use.
    pub fn schedule(
        &self,
        request: &Request,
        candidates: &Candidates<'_>,
        rng: &mut Rng,
    ) -> Result<Decision, ScheduleError> {
        self.run(request, |profile| profile.run(request, candidates.clone(), rng))
    }

    /// Those of `candidates` that the request could go to if only they had room.
    pub fn suitable(
        &self,
        request: &Request,
        candidates: &Candidates<'_>,
    ) -> Result<Vec<Arc<Endpoint>>, ScheduleError> {
        self.run(request, |profile| profile.suitable(request, candidates.clone())).map(|decision| decision.targets)
    }

    /// Runs the profiles that the handler asks for. `targets` is what one of them leads to.
    fn run(
        &self,
        request: &Request,
        mut targets: impl FnMut(&Profile) -> Vec<Arc<Endpoint>>,
    ) -> Result<Decision, ScheduleError> {
        let mut results: SmallVec<[Option<ProfileResult>; 3]> = SmallVec::from_elem(None, self.profiles.len());
        loop {
            match self.handler.next(request, &results) {
                Next::Run(index) => {
                    let profile = self.profile(index)?;
                    if results[index].is_some() {
                        return Err(self.misuse(index, "it ran already"));
                    }
                    results[index] = Some(ProfileResult { targets: targets(profile) });
                }
                Next::Finish { primary } => {
                    let profile = self.profile(primary)?;
                    let Some(result) = results[primary].take() else {
                        return Err(self.misuse(primary, "it did not run"));
                    };
                    if result.targets.is_empty() {
                        return Err(ScheduleError::Filtered { profile: Arc::clone(&profile.name) });
                    }
                    return Ok(Decision { targets: result.targets });
                }
            }
        }
    }

    fn profile(&self, index: usize) -> Result<&Profile, ScheduleError> {
        self.profiles.get(index).ok_or_else(|| self.misuse(index, "there is no such profile"))
    }

    fn misuse(&self, index: usize, what: &'static str) -> ScheduleError {
        let profile = self
            .profiles
            .get(index)
            .map_or_else(|| Arc::from(format!("#{index}")), |profile| Arc::clone(&profile.name));
        ScheduleError::Handler { profile, what }
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
