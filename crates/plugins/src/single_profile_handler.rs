use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::Request;
use sluice_schedule::{Next, ProfileHandler, ProfileResult};

use crate::ignored_params::IgnoredParams;

/// Runs the only profile there is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SingleProfileHandler;

impl Plugin for SingleProfileHandler {
    const TYPE: &'static str = "single-profile-handler";
    const STABILITY: Stability = Stability::Beta;
    type Params = IgnoredParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        params.warn(cx);
        Ok(Roles::profile_handler(Self))
    }
}

impl ProfileHandler for SingleProfileHandler {
    fn check(&self, profile_names: &[&str]) -> Result<(), String> {
        match profile_names {
            [_] => Ok(()),
            _ => Err(format!("there must be one, there are {}", profile_names.len())),
        }
    }

    fn next(&self, _request: &Request, results: &[Option<ProfileResult>]) -> Next {
        match results {
            [None, ..] => Next::Run(0),
            _ => Next::Finish { primary: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

    #[test]
    fn the_profile_runs_once_and_is_primary() {
        let ran = Some(ProfileResult { targets: Vec::new() });
        assert_eq!(SingleProfileHandler.next(&request(), &[None]), Next::Run(0));
        assert_eq!(SingleProfileHandler.next(&request(), &[ran]), Next::Finish { primary: 0 });
    }

    #[test]
    fn more_than_one_profile_is_refused() {
        assert_eq!(SingleProfileHandler.check(&["a"]), Ok(()));
        assert!(SingleProfileHandler.check(&["a", "b"]).is_err());
    }
}
