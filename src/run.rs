//! From the command line to a process that serves, and its way out.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use prometheus::Registry;
use sluice_config::{Assembled, Settings, Source};
use sluice_core::Tasks;
use sluice_follow::FollowedFile;
use tokio::runtime::{Handle, Runtime};

use crate::access::Gate;
use crate::environment::Environment;
use crate::flags::{CommandLine, ConfigSource, Flags, Task};
use crate::in_force::{InForce, Shown, sha256};
use crate::kubernetes::Followed;
use crate::reload::Reloading;
use crate::serve::{self, Parts};
use crate::setup::{self, Configured, Finding, Setup};
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
    let Setup { findings, configured } = Setup::read(line);
    log_warnings(&findings);
    let mut mistakes = setup::mistakes(&findings);
    if let Some(Configured { assembled, .. }) = &configured {
        // Their warnings are left to whoever reads them for good.
        mistakes.extend(setup::mistakes(&setup::findings_in_files(&line.flags, assembled)));
    }
    let Some(configured) = configured.filter(|_| mistakes.is_empty()) else { return Err(Failure::Setup(mistakes)) };
    let signals = StopSignals::install().context("installing signal handlers")?;
    let runtime = Runtime::new().context("starting the runtime")?;
    let outcome = serve_on(&runtime, &line.flags, configured, signals);
    // What still runs, or is stuck, must not hold up the way out.
    runtime.shutdown_background();
    outcome
}

fn serve_on(runtime: &Runtime, flags: &Flags, configured: Configured, signals: StopSignals) -> Result<(), Failure> {
    let _entered = runtime.enter();
    let (tasks, fallen) = RuntimeTasks::new(Handle::current());
    let parts = build(flags, configured, Tasks::new(tasks))?;
    runtime.block_on(serve::serve(parts, signals, fallen))?;
    Ok(())
}

/// Makes everything that serves, fills the pool, and follows the configuration.
fn build(flags: &Flags, configured: Configured, tasks: Tasks) -> Result<Parts, Failure> {
    let Configured { source, assembled, target } = configured;
    let secured = |port, settings: Option<TlsSettings<'_>>| {
        let made = settings.map(|settings| Tls::new(port, settings)).transpose();
        made.map_err(|error| Failure::setup(format!("{error:#}")))
    };
    let tls = secured(&tls::EXT_PROC, flags.tls())?;
    let metrics_tls = secured(&tls::METRICS, flags.metrics_tls())?;
    let registry = Registry::new();
    let standing = Arc::new(Standing::start(flags, &registry, &assembled, target, &tasks)?);
    let service = standing.service(&registry, &assembled)?;
    let warnings = setup::warnings(flags, &assembled).into_iter().map(|warning| warning.message).collect();
    let Assembled { settings, effective, as_previous, .. } = assembled;
    let followed = followed_file(flags, &settings);
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
        reload::start(reloading, file, &source, &tasks)?;
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
        (Some(false), _) | (_, None) => Ok(None),
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

/// The warnings among them.
pub(crate) fn log_warnings(findings: &[Finding]) {
    for Finding { message, .. } in findings.iter().filter(|finding| !finding.is_mistake()) {
        tracing::warn!("{message}");
    }
}
