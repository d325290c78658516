//! From the command line to a process that serves, and its way out.

use std::fs::File;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use prometheus::Registry;
use sluice_config::{Assembled, Diagnostic, Diagnostics, Options, Previous, Settings, Severity, Source};
use sluice_core::Tasks;
use sluice_follow::{FollowedFile, read_at_most};
use sluice_plugins::BUILTIN;
use tokio::runtime::{Handle, Runtime};

use crate::access::Gate;
use crate::environment::Environment;
use crate::flags::{CommandLine, ConfigSource, Flags, Task};
use crate::in_force::{InForce, Shown, sha256};
use crate::kubernetes::Followed;
use crate::reload::Reloading;
use crate::serve::{self, Parts};
use crate::signals::StopSignals;
use crate::standing::Standing;
use crate::tasks::RuntimeTasks;
use crate::tls::{Tls, TlsSettings};
use crate::{check, logging, reload, tls};

/// The command line or the configuration is wrong (`EX_USAGE`).
pub(crate) const EXIT_SETUP: u8 = 64;
pub(crate) const EXIT_FAILURE: u8 = 1;

/// Why the process cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Each line is one mistake.
    #[error("the configuration is not valid")]
    Setup(Vec<String>),
    #[error(transparent)]
    Run(#[from] anyhow::Error),
}

impl Failure {
    pub(crate) fn setup(mistake: impl Into<String>) -> Self {
        Self::Setup(vec![mistake.into()])
    }
}

pub(crate) fn main() -> ExitCode {
    let mut line = match CommandLine::parse(std::env::args_os()) {
        Ok(line) => line,
        Err(error) => {
            // Where there is no terminal to print to, the exit code has to do.
            error.print().unwrap_or_default();
            return if error.use_stderr() { ExitCode::from(EXIT_SETUP) } else { ExitCode::SUCCESS };
        }
    };
    line.flags.environment = Environment::read();
    if let Task::Check { files } = line.task {
        return check::run(&line, files);
    }
    logging::start(&line.flags);
    match run(&line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Setup(mistakes)) => {
            for mistake in mistakes {
                tracing::error!("{mistake}");
            }
            ExitCode::from(EXIT_SETUP)
        }
        Err(Failure::Run(error)) => {
            tracing::error!("{error:#}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

fn run(line: &CommandLine) -> Result<(), Failure> {
    let flags = &line.flags;
    for flag in &line.ignored {
        tracing::warn!(flag, "flag has no effect in this version");
    }
    for warning in flags.warnings() {
        tracing::warn!("{warning}");
    }
    let source = source(flags)?;
    let assembled = read(&source, flags).map_err(|diagnostics| Failure::Setup(mistakes(&diagnostics)))?;
    warn_of(&assembled.warnings);
    let signals = StopSignals::install().context("installing signal handlers")?;
    let runtime = Runtime::new().context("starting the runtime")?;
    let outcome = serve_on(&runtime, flags, &source, assembled, signals);
    // What still runs, or is stuck, must not hold up the way out.
    runtime.shutdown_background();
    outcome
}

fn serve_on(
    runtime: &Runtime,
    flags: &Flags,
    source: &Source,
    assembled: Assembled,
    signals: StopSignals,
) -> Result<(), Failure> {
    let _entered = runtime.enter();
    let (tasks, fallen) = RuntimeTasks::new(Handle::current());
    let parts = build(flags, source, assembled, Tasks::new(tasks))?;
    runtime.block_on(serve::serve(parts, signals, fallen))?;
    Ok(())
}

/// Makes everything that serves, fills the pool, and follows the configuration.
fn build(flags: &Flags, source: &Source, assembled: Assembled, tasks: Tasks) -> Result<Parts, Failure> {
    let secured = |port, settings: Option<TlsSettings<'_>>| {
        let made = settings.map(|settings| Tls::new(port, settings)).transpose();
        made.map_err(|error| Failure::setup(format!("{error:#}")))
    };
    let tls = secured(&tls::EXT_PROC, flags.tls())?;
    let metrics_tls = secured(&tls::METRICS, flags.metrics_tls())?;
    let registry = Registry::new();
    let standing = Arc::new(Standing::start(flags, &registry, &assembled, &tasks)?);
    let service = standing.service(&registry, &assembled)?;
    let Assembled { settings, effective, warnings, as_previous, .. } = assembled;
    let followed = followed_file(flags, &settings);
    let warnings = warnings.iter().map(ToString::to_string).collect();
    let shown = Shown { sha256: sha256(source.text()), warnings, effective: effective.clone() };
    let in_force = InForce::register(&registry, source.name(), followed.is_some(), shown);
    let in_force = in_force.context("registering metrics")?;
    if let Some(file) = followed {
        let reloading = Reloading {
            flags: flags.clone(),
            name: source.name().to_owned(),
            previous: as_previous,
            effective,
            standing: Arc::clone(&standing),
            service: service.clone(),
            in_force: in_force.clone(),
            is_followed: true,
            refusal: None,
        };
        reload::start(reloading, file, source, &tasks)?;
    }
    let max_reply = flags.grpc_max_send_msg_size.and_then(|size| size.0).unwrap_or(usize::MAX);
    let (admission, view) = (standing.admission.clone(), standing.view.clone());
    let gate = gate(flags, standing.followed.as_ref())?;
    let followed = standing.followed.clone();
    let flags = flags.clone();
    Ok(Parts {
        flags,
        service,
        max_reply,
        tls,
        metrics_tls,
        registry,
        admission,
        view,
        gate,
        followed,
        in_force,
        tasks,
    })
}

/// Who may read the metrics port; none: everybody.
fn gate(flags: &Flags, followed: Option<&Followed>) -> anyhow::Result<Option<Gate>> {
    match (flags.metrics_endpoint_auth, followed) {
        (Some(false), _) | (None, None) => Ok(None),
        (Some(true), None) => {
            let what = "--metrics-endpoint-auth: without a pool in Kubernetes there is no API server to ask, and \
                        everybody may read the metrics port";
            tracing::warn!("{what}");
            Ok(None)
        }
        (Some(true) | None, Some(followed)) => Gate::new(followed.reviewer.clone()).map(Some),
    }
}

/// The file whose changes are to be followed. A pipe, as of a shell's `<(...)`, can be read once only.
fn followed_file(flags: &Flags, settings: &Settings) -> Option<FollowedFile> {
    let ConfigSource::File(path) = flags.config_source() else { return None };
    let is_file = std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file());
    let file = || FollowedFile::new(path, "configuration file", Source::MAX_BYTES);
    (settings.reload.enabled && is_file).then(file)
}

/// The text of the configuration.
pub(crate) fn source(flags: &Flags) -> Result<Source, Failure> {
    Ok(match flags.config_source() {
        ConfigSource::File(path) => {
            // Not all of a device or a pipe without end, which `load` refuses as too long.
            let text = File::open(&path).and_then(|file| read_at_most(file, Source::MAX_BYTES));
            let text = text.map_err(|error| Failure::setup(format!("--config-file {}: {error}", path.display())))?;
            Source::new(&path.display().to_string(), text)
        }
        ConfigSource::Text(text) => Source::new("--config-text", text),
        ConfigSource::BuiltIn => Source::built_in(),
    })
}

/// What `source` describes, or what is wrong with it.
pub(crate) fn read(source: &Source, flags: &Flags) -> Result<Assembled, Diagnostics> {
    sluice_config::load(source, BUILTIN, &options(flags))
}

/// The same for a process that runs on `previous`.
pub(crate) fn read_again(source: &Source, flags: &Flags, previous: &Previous) -> Result<Assembled, Diagnostics> {
    sluice_config::reload(source, BUILTIN, &options(flags), previous)
}

fn options(flags: &Flags) -> Options {
    Options { allow_experimental_plugins: flags.allow_experimental_plugins, scrape_interval: flags.scrape_interval() }
}

/// The errors, each on one line. Warnings are logged.
fn mistakes(diagnostics: &Diagnostics) -> Vec<String> {
    for warning in diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Warning) {
        tracing::warn!("{warning}");
    }
    let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
    errors.map(ToString::to_string).collect()
}

pub(crate) fn warn_of(warnings: &[Diagnostic]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}
