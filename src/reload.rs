//! Puts each good content of the configuration file in force, on the thread that follows the file.

use std::collections::BTreeSet;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use anyhow::Context as _;
use serde_json::Value;
use sluice_config::{Assembled, Previous, Source};
use sluice_core::Tasks;
use sluice_extproc::Service;
use sluice_follow::{Consumer, FileError, FollowedFile, Follower, Verdict};
use sluice_plugins::BUILTIN;

use crate::flags::Flags;
use crate::in_force::{InForce, Shown, sha256};
use crate::run::log_warnings;
use crate::setup::{self, Finding};
use crate::standing::Standing;

/// Follows the file that `source` was read from.
pub(crate) fn start(reloading: Reloading, file: FollowedFile, source: &Source, tasks: &Tasks) -> anyhow::Result<()> {
    let mut follower = Follower::new(file);
    follower.has_taken(source.text().to_vec());
    follower.start("configuration", reloading, tasks).context("starting the thread that follows the configuration")
}

/// The configuration in force and everything that it is in force in.
#[derive(Debug)]
pub(crate) struct Reloading {
    pub(crate) flags: Flags,
    /// The name of the file, as messages have it.
    pub(crate) name: String,
    pub(crate) previous: Previous,
    /// With everything filled in.
    pub(crate) effective: Value,
    pub(crate) standing: Arc<Standing>,
    pub(crate) service: Service,
    pub(crate) in_force: InForce,
    pub(crate) is_followed: bool,
    /// What was wrong with the content that was refused last, as it was told.
    pub(crate) refusal: Option<Refusal>,
}

/// Why a content is not put in force.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    findings: Vec<Finding>,
    /// It is the content for good, or else something outside it, such as a file that it names.
    is_final: bool,
}

impl Refusal {
    const fn verdict(&self) -> Verdict {
        if self.is_final { Verdict::Refused } else { Verdict::NotYet }
    }
}

impl Reloading {
    /// As [`put_in_force`](Self::put_in_force). A plugin that panics over its parameters is no reason to stop serving. What
    /// has been swapped by then, if anything, is whole: each part is made before it takes the place of another.
    fn attempt(&mut self, content: &[u8]) -> Result<(), Refusal> {
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| self.put_in_force(content)));
        outcome.unwrap_or_else(|_panic| {
            let mistake = format!("{}: building what it describes has failed: this is a bug", self.name);
            Err(Refusal { findings: vec![Finding::mistake(mistake)], is_final: true })
        })
    }

    /// Everything is built aside; nothing has changed after an error.
    fn put_in_force(&mut self, content: &[u8]) -> Result<(), Refusal> {
        let source = Source::new(&self.name, content);
        let read = sluice_config::reload(&source, BUILTIN, &setup::options(&self.flags), &self.previous);
        // What a text says wrong stays wrong, whatever else changes: reading it looks at nothing else.
        let of_text = |diagnostics| Refusal { findings: setup::of_text(&diagnostics), is_final: true };
        let assembled = read.map_err(of_text)?;
        let warnings = setup::warnings(&self.flags, &assembled);
        if let Err(error) = self.standing.reconfigure(&self.service, &assembled) {
            let mistake = Finding::mistake(format!("{error:#}"));
            return Err(Refusal { findings: warnings.into_iter().chain([mistake]).collect(), is_final: false });
        }
        self.note(content, assembled, &warnings);
        Ok(())
    }

    /// Says what is wrong with `content`.
    fn tell(&mut self, content: &[u8], refusal: Refusal) -> Verdict {
        let Refusal { findings, is_final } = &refusal;
        log_warnings(findings);
        let mistakes = setup::mistakes(findings);
        mistakes.iter().for_each(|mistake| tracing::error!("{mistake}"));
        let and = if *is_final { "" } else { "; this one is tried again" };
        tracing::error!(path = self.name, "configuration not reloaded, the previous one stays in force{and}");
        self.in_force.refused(sha256(content), mistakes);
        let verdict = refusal.verdict();
        self.refusal = Some(refusal);
        verdict
    }

    fn note(&mut self, content: &[u8], assembled: Assembled, warnings: &[Finding]) {
        let Assembled { effective, as_previous, settings, .. } = assembled;
        let changed = changed_settings(&self.effective, &effective);
        let changed = if changed.is_empty() { "nothing".to_owned() } else { changed.join(", ") };
        let sha256 = sha256(content);
        tracing::info!(path = self.name, sha256, changed, "configuration reloaded");
        log_warnings(warnings);
        self.is_followed = settings.reload.enabled;
        if !self.is_followed {
            tracing::info!(path = self.name, "changes of the configuration are not followed from now on");
        }
        self.previous = as_previous;
        self.effective = effective.clone();
        let warnings = warnings.iter().map(|warning| warning.message.clone()).collect();
        self.in_force.applied(self.is_followed, Shown { sha256, warnings, effective });
    }
}

impl Consumer for Reloading {
    fn changed(&mut self, content: &[u8]) -> Verdict {
        match self.attempt(content) {
            Ok(()) => Verdict::Taken,
            Err(refusal) => self.tell(content, refusal),
        }
    }

    /// Nothing is said of what was said already.
    fn again(&mut self, content: &[u8]) -> Verdict {
        match self.attempt(content) {
            Ok(()) => Verdict::Taken,
            Err(refusal) if self.refusal.as_ref() == Some(&refusal) => refusal.verdict(),
            Err(refusal) => self.tell(content, refusal),
        }
    }

    fn unreadable(&mut self, error: &FileError) {
        tracing::error!(%error, "configuration not reloaded, the previous one stays in force");
        self.in_force.unreadable(error.to_string());
    }

    fn as_before(&mut self) {
        tracing::info!(path = self.name, "configuration file is good again, configuration as before");
        self.in_force.as_before();
    }

    fn is_following(&self) -> bool {
        self.is_followed
    }
}

/// The sections in which two configurations differ, and the settings in them where a section is a mapping: `plugins`,
/// `flowControl.maxRequests`.
fn changed_settings(before: &Value, after: &Value) -> Vec<String> {
    let mut changed = Vec::new();
    for section in keys(before, after) {
        let (before, after) = (&before[section], &after[section]);
        if before == after {
            continue;
        }
        let settings: Vec<&str> = keys(before, after).into_iter().filter(|key| before[key] != after[key]).collect();
        if settings.is_empty() {
            changed.push(section.to_owned());
        }
        changed.extend(settings.into_iter().map(|setting| format!("{section}.{setting}")));
    }
    changed
}

/// Of both; none of what is no mapping.
fn keys<'a>(before: &'a Value, after: &'a Value) -> BTreeSet<&'a str> {
    let objects = [before, after].into_iter().filter_map(Value::as_object);
    objects.flat_map(|object| object.keys().map(String::as_str)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_has_changed_is_told_by_section_and_setting() {
        let before = json!({"plugins": [1], "flowControl": {"maxRequests": 1, "maxBytes": 2}, "sluice": {"drain": {}}});
        assert!(changed_settings(&before, &before.clone()).is_empty());
        let after =
            json!({"plugins": [2], "flowControl": {"maxRequests": 2, "priorityBands": []}, "sluice": {"drain": {}}});
        let expected = ["flowControl.maxBytes", "flowControl.maxRequests", "flowControl.priorityBands", "plugins"];
        assert_eq!(changed_settings(&before, &after), expected);
    }
}
