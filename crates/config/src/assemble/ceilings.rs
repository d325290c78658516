//! Bands that are set up so that none of their requests is ever let in.

use sluice_flow::{Config, DesiredPriorities};

use super::Assembler;
use crate::diagnostics::Remark;
use crate::document::{Document, Located};
use crate::resolve::Choice;
use crate::slots::ceilings_at_start;

impl Assembler<'_, '_> {
    /// Warns of ceilings of 0 for the bands that are there from the start, where ceilings are applied.
    pub(super) fn warn_of_closed_bands(
        &mut self,
        policy: Option<&Choice>,
        config: &Config,
        desired: &DesiredPriorities,
    ) {
        if config.dry_run.ceilings {
            return;
        }
        let ceilings = ceilings_at_start(config, desired);
        let closed = ceilings.iter().filter(|(_, ceiling)| *ceiling <= 0.0);
        let closed: Vec<String> = closed.map(|(priority, _)| priority.to_string()).collect();
        if closed.is_empty() {
            return;
        }
        let node = match policy {
            Some(&Choice::Declared(Located { node, .. })) => node,
            Some(Choice::Default(_)) | None => Document::ROOT,
        };
        let bands = if closed.len() == 1 { "the ceiling of priority" } else { "the ceilings of priorities" };
        let are = if closed.len() == 1 { "is" } else { "are" };
        let remark = Remark::new(format!("{bands} {} {are} 0: their requests are never let in", closed.join(", ")));
        self.warn(node, remark.hint("a ceiling above 0 lets in at least one request"));
    }
}
