use std::sync::Arc;

use sluice_schedule::{Picker, Profile, ProfileHandler, WeightedScorer};

use super::Assembler;
use crate::diagnostics::Remark;
use crate::document::Document;
use crate::plugin::Roles;
use crate::resolve::{ProfileEntry, ResolvedProfile};
use crate::weight::Weight;

const DEFAULT_PROFILE: &str = "default";
pub(super) const DEFAULT_PICKER: &str = "max-score-picker";
const DEFAULT_HANDLER: &str = "single-profile-handler";

impl Assembler<'_, '_> {
    pub(super) fn default_profile(&self) -> ResolvedProfile {
        let entries = self
            .having(Roles::has_profile_role)
            .into_iter()
            .map(|instance| ProfileEntry { instance, weight: None, node: self.instances[instance].node })
            .collect();
        ResolvedProfile { name: DEFAULT_PROFILE.to_owned(), entries, node: Document::ROOT }
    }

    pub(super) fn profile(&mut self, profile: &ResolvedProfile) -> Option<Profile> {
        let mut filters = Vec::new();
        let mut scorers = Vec::new();
        let mut picker: Option<Arc<dyn Picker>> = None;
        let mut seen = Vec::new();
        for &ProfileEntry { instance, weight, node } in &profile.entries {
            self.used[instance] = true;
            let Some(roles) = self.roles[instance].clone() else { continue };
            let name = &self.instances[instance].name;
            if !roles.has_profile_role() {
                self.warn(node, Remark::new(format!("has no effect: {name:?} is neither filter, scorer nor picker")));
            } else if roles.scorer.is_some() && seen.contains(&instance) {
                self.warn(node, Remark::new(format!("the scorer {name:?} counts twice, its weights add up")));
            }
            seen.push(instance);
            filters.extend(roles.filter);
            match (roles.scorer, weight) {
                (Some(scorer), weight) => {
                    let place = weight.map_or(node, |weight| weight.node);
                    let weight = weight.map_or(Weight::ONE, |weight| weight.value);
                    if weight.as_f32() == 0.0 {
                        self.warn(
                            place,
                            Remark::new(format!("has no effect: with weight 0 the scorer {name:?} does not count")),
                        );
                    } else if weight.as_f32() < 0.0 {
                        let message =
                            format!("a negative weight turns {name:?} around: its best endpoints are picked last");
                        self.warn(place, Remark::new(message));
                    }
                    scorers.push(WeightedScorer { scorer, weight: weight.as_f32() });
                }
                (None, Some(weight)) => {
                    self.warn(weight.node, Remark::new("has no effect: only a scorer has a weight"));
                }
                (None, None) => {}
            }
            if let Some(another) = roles.picker
                && picker.replace(another).is_some()
            {
                let remark = Remark::new(format!("a second picker in the profile {:?}", profile.name));
                let remark = if profile.node == Document::ROOT {
                    remark.hint("list the plugins to use under schedulingProfiles")
                } else {
                    remark
                };
                self.error(node, remark);
            }
        }
        let picker = match picker {
            Some(picker) => picker,
            None => self.picker_of_last_resort(profile)?,
        };
        Some(Profile { name: profile.name.as_str().into(), filters, scorers, picker })
    }

    fn picker_of_last_resort(&mut self, profile: &ResolvedProfile) -> Option<Arc<dyn Picker>> {
        let declared = self.having(|roles| roles.picker.is_some());
        let Some(&first) = declared.first() else {
            return self.inject(DEFAULT_PICKER)?.picker;
        };
        if declared.len() > 1 {
            let name = &self.instances[first].name;
            let remark = Remark::new(format!("names no picker, so it takes {name:?}, the first one declared"));
            self.warn(profile.node, remark.hint("name the picker"));
        }
        self.used[first] = true;
        self.roles[first].as_ref().and_then(|roles| roles.picker.clone())
    }

    pub(super) fn handler(&mut self, profiles: &[ResolvedProfile]) -> Option<Arc<dyn ProfileHandler>> {
        let declared = self.having(|roles| roles.profile_handler.is_some());
        let handler = match *declared.as_slice() {
            [] if profiles.len() > 1 => {
                if self.all_usable {
                    let message =
                        format!("there are {} profiles and no profile handler to choose between them", profiles.len());
                    self.error(profiles[1].node, Remark::new(message));
                }
                return None;
            }
            [] => return self.inject(DEFAULT_HANDLER)?.profile_handler,
            [only] => only,
            [first, second, ..] => {
                let message = format!("a second profile handler, {:?} is one already", self.instances[first].name);
                self.error(self.instances[second].node, Remark::new(message));
                first
            }
        };
        let roles = self.roles[handler].as_ref()?;
        let profile_handler = roles.profile_handler.clone()?;
        let names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        if let Err(reason) = profile_handler.check(&names) {
            self.error(
                self.instances[handler].node,
                Remark::new(format!("does not suit the scheduling profiles: {reason}")),
            );
        }
        Some(profile_handler)
    }
}
