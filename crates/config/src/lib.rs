//! The EndpointPickerConfig: from text to the parts it describes, or to everything that is wrong with it.
//!
//! ```text
//!          parse              decode           resolve           assemble
//! Source ─────────> Document ───────> raw ──────────> resolved ──────────> Assembled
//!                      │                │                │        plugins      │
//!                      └────────────────┴────────────────┴─────────────────────┴──> Diagnostics
//! ```
//!
//! * *raw* is what is written, *resolved* has every name bound and every default of a setting, *assembled* is
//!   what the process runs on.
//! * A mistake does not end a step: what it leaves is looked at too, so that one start shows all mistakes.
//! * Plugins come from a list that the caller passes in. This crate knows none.

mod assemble;
mod carry_over;
mod catalog;
mod diagnostics;
mod document;
mod files;
mod plugin;
mod quantity;
mod raw;
mod resolve;
pub mod settings;
mod slots;
mod source;
mod timeout;
mod weight;
mod yaml;

use std::sync::Arc;
use std::time::Duration;

use sluice_core::TokenEstimate;
use sluice_data::{Discovery, Scraping};
use sluice_flow::policy::SaturationDetector;
use sluice_flow::{Config, DesiredPriorities};
use sluice_payload::Parsers;
use sluice_schedule::Scheduler;

pub use carry_over::Previous;
pub use diagnostics::{Diagnostic, Diagnostics, Position, Rule, Severity};
pub use files::{FileReport, Files};
pub use plugin::{BuildContext, BuildError, Plugin, PluginType, Produced, Roles, Stability};
pub use quantity::{ByteSize, Count, Quantity, QuantityError};
pub use settings::Settings;
pub use slots::{BandSlots, Slots};
pub use source::Source;
pub use timeout::{Timeout, TimeoutError};

/// What a configuration cannot decide by itself.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Plugin types of stability [`Stability::Alpha`] may be used.
    pub allow_experimental_plugins: bool,
    /// How often endpoints are scraped where the source of their metrics does not say.
    pub scrape_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { allow_experimental_plugins: false, scrape_interval: Duration::from_millis(50) }
    }
}

/// What the process runs on.
#[derive(Debug)]
pub struct Assembled {
    pub scheduler: Scheduler,
    /// Where the endpoints come from if not from Kubernetes.
    pub discovery: Option<Discovery>,
    /// What endpoints are asked of themselves, again and again; none: nothing.
    pub scraping: Option<Scraping>,
    /// None: the feature gate is off, nothing waits.
    pub flow_control: Option<FlowControl>,
    /// Without flow control: sheddable requests are refused while this finds their own candidates saturated. None:
    /// nothing is refused for saturation.
    pub legacy_detector: Option<Arc<dyn SaturationDetector>>,
    /// What tells the API of a request, and so what of its body is read.
    pub parsers: Parsers,
    /// What a request weighs before anything has counted its tokens.
    pub token_estimate: TokenEstimate,
    /// The name of the plugin that estimates it: what is in flight is shown under it.
    pub load_producer: String,
    /// Headers that name the tenant of a request without a fairness id, the first non-empty one counting; in lower
    /// case.
    pub tenant_headers: Vec<String>,
    /// Replicas that do not lead keep up with the cluster, too.
    pub populate_standbys: bool,
    pub settings: Settings,
    /// A configuration that says the same, with everything filled in that was left out, parameters of plugins among it.
    pub effective: serde_json::Value,
    /// In the order of the text.
    pub warnings: Vec<Diagnostic>,
    /// What it needs beside itself.
    pub files: Files,
    /// For [`reload`], once this is in force.
    pub as_previous: Previous,
}

/// What the admission engine runs on.
#[derive(Clone, Debug)]
pub struct FlowControl {
    pub config: Config,
    /// The priorities of [`Settings::objectives`].
    pub desired: DesiredPriorities,
}

/// Reads `source` and builds what it describes of the plugin types in `registry`.
///
/// On failure the diagnostics hold at least one error, and the warnings as well.
pub fn load(source: &Source, registry: &[PluginType], options: &Options) -> Result<Assembled, Diagnostics> {
    load_after(None, source, registry, options)
}

/// As [`load`], for a process that runs on `previous`. A plugin with unchanged type, name and parameters is the same
/// object as before, so that it and whoever keeps state for it go on. What cannot change while the process runs is an
/// error.
pub fn reload(
    source: &Source,
    registry: &[PluginType],
    options: &Options,
    previous: &Previous,
) -> Result<Assembled, Diagnostics> {
    load_after(Some(previous), source, registry, options)
}

/// The plugin types of llm-d-router's EPP, whether a registry has them or not.
pub fn known_types() -> impl Iterator<Item = &'static str> {
    catalog::known()
}

/// Whether `source` says where endpoints come from, right or wrong; none if it has no structure in which it could.
pub fn names_discovery(source: &Source) -> Option<bool> {
    let document = document::Document::parse(&source.text, &mut Diagnostics::new(Arc::clone(&source.name)))?;
    Some(document.descend(document::Document::ROOT, &["dataLayer", "discovery"]).is_some())
}

fn load_after(
    previous: Option<&Previous>,
    source: &Source,
    registry: &[PluginType],
    options: &Options,
) -> Result<Assembled, Diagnostics> {
    let mut diagnostics = Diagnostics::new(Arc::clone(&source.name));
    let assembled = read(previous, source, registry, options, &mut diagnostics);
    diagnostics.sort();
    match assembled {
        Some((parts, settings)) if !diagnostics.has_errors() => {
            let assemble::Parts {
                scheduler,
                discovery,
                scraping,
                flow_control,
                legacy_detector,
                parsers,
                token_estimate,
                load_producer,
                tenant_headers,
                populate_standbys,
                effective,
                files,
                as_previous,
            } = parts;
            let warnings = diagnostics.into_list();
            Ok(Assembled {
                scheduler,
                discovery,
                scraping,
                flow_control,
                legacy_detector,
                parsers,
                token_estimate,
                load_producer,
                tenant_headers,
                populate_standbys,
                settings,
                effective,
                warnings,
                files: Files { source: Arc::clone(&source.name), named: files },
                as_previous,
            })
        }
        _ => Err(diagnostics),
    }
}

fn read(
    previous: Option<&Previous>,
    source: &Source,
    registry: &[PluginType],
    options: &Options,
    diagnostics: &mut Diagnostics,
) -> Option<(assemble::Parts, Settings)> {
    let document = document::Document::parse(&source.text, diagnostics)?;
    let resolved = resolve::resolve(&document, registry, diagnostics)?;
    let parts = assemble::assemble(&resolved, &document, registry, options, previous, diagnostics)?;
    Some((parts, resolved.settings))
}
