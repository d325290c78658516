//! What there is to say of a command line and of the configuration and files that it names, before anything is started.
//! A start and `epp check` take it from here, so that both say the same.

use std::fmt;
use std::fs::File;

use sluice_config::{Assembled, Diagnostic, Diagnostics, Options, Severity, Source};
use sluice_follow::read_at_most;
use sluice_plugins::BUILTIN;

use crate::flags::{CommandLine, ConfigSource, Flags};
use crate::kubernetes::Target;
use crate::tls::{self, Tls, TlsSettings};

/// One thing to say. Prints as a line of `epp check`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// Names what it is about.
    pub(crate) message: String,
    /// The message says that it is a warning if it is one.
    says_severity: bool,
}

impl Finding {
    pub(crate) fn mistake(message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, message: message.into(), says_severity: false }
    }

    fn warning(message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, message: message.into(), says_severity: false }
    }

    pub(crate) fn is_mistake(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl From<&Diagnostic> for Finding {
    fn from(diagnostic: &Diagnostic) -> Self {
        Self { severity: diagnostic.severity, message: diagnostic.to_string(), says_severity: true }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.severity == Severity::Warning && !self.says_severity {
            f.write_str("warning: ")?;
        }
        f.write_str(&self.message)
    }
}

/// The mistakes among them, one line each.
pub(crate) fn mistakes(findings: &[Finding]) -> Vec<String> {
    findings.iter().filter(|finding| finding.is_mistake()).map(|mistake| mistake.message.clone()).collect()
}

/// What a command line asks for.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Of the flags, then of the configuration in the order of its text, then of both together.
    pub(crate) findings: Vec<Finding>,
    /// None: there are mistakes in the configuration, or it cannot be read.
    pub(crate) configured: Option<Configured>,
}

/// A configuration without mistakes of its own.
#[derive(Debug)]
pub(crate) struct Configured {
    pub(crate) source: Source,
    pub(crate) assembled: Assembled,
    /// The pool in Kubernetes; none where endpoints come from elsewhere, or if it is not known from where.
    pub(crate) target: Option<Target>,
}

impl Setup {
    /// Of other files than the configuration none is read.
    pub(crate) fn read(line: &CommandLine) -> Self {
        let flags = &line.flags;
        let ignored = line.ignored.iter().map(|flag| format!("{flag}: has no effect in this version"));
        let mut findings: Vec<Finding> = ignored.chain(flags.warnings()).map(Finding::warning).collect();
        findings.extend(flags.mistakes().into_iter().map(Finding::mistake));
        findings.extend(mistake_in_tls(flags).map(Finding::mistake));
        let configured = match source(flags) {
            Ok(source) => configured(source, flags, &mut findings),
            Err(mistake) => {
                findings.push(Finding::mistake(mistake));
                None
            }
        };
        Self { findings, configured }
    }
}

/// The text of the configuration.
fn source(flags: &Flags) -> Result<Source, String> {
    Ok(match flags.config_source() {
        ConfigSource::File(path) => {
            // Not all of a device or a pipe without end, which is refused as too long.
            let text = File::open(&path).and_then(|file| read_at_most(file, Source::MAX_BYTES));
            let text = text.map_err(|error| format!("--config-file {}: {error}", path.display()))?;
            Source::new(&path.display().to_string(), text)
        }
        ConfigSource::Text(text) => Source::new("--config-text", text),
        ConfigSource::BuiltIn => Source::built_in(),
    })
}

fn configured(source: Source, flags: &Flags, findings: &mut Vec<Finding>) -> Option<Configured> {
    let assembled = sluice_config::load(&source, BUILTIN, &options(flags));
    let from_elsewhere = match &assembled {
        Ok(assembled) => {
            findings.extend(warnings(flags, assembled));
            assembled.discovery.is_some()
        }
        Err(diagnostics) => {
            findings.extend(of_text(diagnostics));
            // Of a text without a structure it cannot be told.
            sluice_config::names_discovery(&source).unwrap_or(true)
        }
    };
    let target = (!from_elsewhere).then(|| Target::of(flags)).transpose().unwrap_or_else(|mistakes| {
        findings.extend(mistakes.into_iter().map(Finding::mistake));
        None
    });
    Some(Configured { source, assembled: assembled.ok()?, target })
}

/// What the flags say to configurations.
pub(crate) fn options(flags: &Flags) -> Options {
    Options { allow_experimental_plugins: flags.allow_experimental_plugins, scrape_interval: flags.scrape_interval() }
}

/// What is wrong with a text, with the warnings in between.
pub(crate) fn of_text(diagnostics: &Diagnostics) -> Vec<Finding> {
    let unkept = diagnostics.unkept().map(Finding::mistake);
    diagnostics.iter().map(Finding::from).chain(unkept).collect()
}

/// Of a configuration that is good, and of the flags together with it.
pub(crate) fn warnings(flags: &Flags, assembled: &Assembled) -> Vec<Finding> {
    let from_file = assembled.discovery.is_some();
    let elects = flags.ha_enable_leader_election;
    let together = [
        (elects && from_file, "--ha-enable-leader-election: has no effect where endpoints come from a file"),
        (
            !elects && !assembled.populate_standbys,
            "haPopulateNonLeaderDatastore=false: has no effect without --ha-enable-leader-election",
        ),
        (
            flags.metrics_endpoint_auth == Some(true) && from_file,
            "--metrics-endpoint-auth: without a pool in Kubernetes there is no API server to ask, and everybody may read the \
             metrics port",
        ),
    ];
    let together = together.into_iter().filter(|(is_so, _)| *is_so).map(|(_, message)| message.to_owned());
    let together = together.chain(scraped_too_seldom(flags, assembled)).map(Finding::warning);
    assembled.warnings.iter().map(Finding::from).chain(together).collect()
}

fn scraped_too_seldom(flags: &Flags, assembled: &Assembled) -> Option<String> {
    let (scraping, threshold) = (assembled.scraping.as_ref()?, flags.metrics_staleness_threshold);
    let gap = scraping.longest_gap();
    (gap >= threshold).then(|| {
        format!(
            "--metrics-staleness-threshold: {threshold:?} is too short for metrics that are read once in up to {gap:?}: in \
             between the gauges of the pool show none"
        )
    })
}

/// What no file can make good.
fn mistake_in_tls(flags: &Flags) -> Option<String> {
    let settings = TlsSettings { directory: None, client_authorities: None, ..flags.tls()? };
    Tls::new(&tls::EXT_PROC, settings).err().map(|error| format!("{error:#}"))
}

/// Reads the files that flags and configuration name, as a start does, and says what there is to say of them.
pub(crate) fn findings_in_files(flags: &Flags, assembled: &Assembled) -> Vec<Finding> {
    let ports = [(&tls::EXT_PROC, flags.tls()), (&tls::METRICS, flags.metrics_tls())];
    let ports = ports.into_iter().filter_map(|(port, settings)| Tls::new(port, settings?).err());
    let ports = ports.map(|error| Finding::mistake(format!("{error:#}")));
    ports.chain(assembled.files.check().iter().map(Finding::from)).collect()
}
