//! From the command line to a process that serves, and its way out.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use prometheus::Registry;
use rand::TryRng as _;
use sluice_config::settings::{RefusalBody, TrustSource, UnknownObjective};
use sluice_config::{Assembled, Options, Settings, Severity, Source};
use sluice_core::{Priority, SystemClock, Tasks, TokenEstimate};
use sluice_data::{Discovery, EndpointTable};
use sluice_extproc::{Metrics, RefusalStyle, Service, ServiceSettings};
use sluice_plugins::BUILTIN;
use sluice_router::{Gatekeeper, Identities, IdentityRules, Router, RouterParts};
use tokio::runtime::{Handle, Runtime};

use crate::flags::{CommandLine, ConfigSource, Flags};
use crate::serve::{self, Parts};
use crate::signals::StopSignals;
use crate::tasks::RuntimeTasks;
use crate::{logging, tls};

/// The command line or the configuration is wrong (`EX_USAGE`).
const EXIT_SETUP: u8 = 64;
const EXIT_FAILURE: u8 = 1;

/// Why the process cannot go on.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Each line is one mistake.
    #[error("the configuration is not valid")]
    Setup(Vec<String>),
    #[error(transparent)]
    Run(#[from] anyhow::Error),
}

pub(crate) fn main() -> ExitCode {
    let line = match CommandLine::parse(std::env::args_os()) {
        Ok(line) => line,
        Err(error) => {
            // Where there is no terminal to print to, the exit code has to do.
            error.print().unwrap_or_default();
            return if error.use_stderr() { ExitCode::from(EXIT_SETUP) } else { ExitCode::SUCCESS };
        }
    };
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
    let Assembled { scheduler, discovery, settings, warnings } = load(flags)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let Some(discovery) = discovery else {
        let what = "no source of endpoints: name a file-discovery plugin in dataLayer.discovery.pluginRef \
                    (endpoints from Kubernetes are not available in this version)";
        return Err(Failure::Setup(vec![what.to_owned()]));
    };

    let runtime = Runtime::new().context("starting the runtime")?;
    let _entered = runtime.enter();
    let signals = StopSignals::install().context("installing signal handlers")?;
    let (tasks, fallen) = RuntimeTasks::new(Handle::current());
    let tasks = Tasks::new(tasks);

    let table = Arc::new(EndpointTable::default());
    start_discovery(discovery, &table, &tasks)?;
    let registry = Registry::new();
    let metrics = Metrics::register(&registry, settings.metrics.legacy_names).context("registering metrics")?;
    let identities = identities(&settings);
    let router = Router::new(RouterParts {
        table,
        scheduler,
        identities,
        gatekeeper: Gatekeeper::Open,
        estimate: TokenEstimate::default(),
        seed: seed()?,
        heed_subset: !flags.disable_endpoint_subset_filter,
    });
    let max_request_body = settings.limits.max_request_body.0;
    let refusal_style = match settings.refusals.body {
        RefusalBody::Api => RefusalStyle::Api,
        RefusalBody::Text => RefusalStyle::Text,
    };
    let vouched_namespace = settings.trust.metadata_namespace.clone();
    let service_settings = ServiceSettings { max_request_body, refusal_style, vouched_namespace, id_seed: seed()? };
    let service = Service::new(Arc::new(router), Arc::new(SystemClock::start()), metrics, service_settings);

    let tls = flags.secure_serving.then(|| tls::server_config(flags.certificate_directory()));
    let tls = tls.transpose().map_err(|error| Failure::Setup(vec![format!("{error:#}")]))?;
    let max_message = max_message(flags, max_request_body);
    let parts = Parts { flags: flags.clone(), service, max_message, tls, registry, tasks };
    runtime.block_on(serve::serve(parts, signals, fallen))?;
    Ok(())
}

fn load(flags: &Flags) -> Result<Assembled, Failure> {
    let source = match flags.config_source() {
        ConfigSource::File(path) => {
            let text = std::fs::read(&path)
                .map_err(|error| Failure::Setup(vec![format!("--config-file {}: {error}", path.display())]))?;
            Source::new(&path.display().to_string(), text)
        }
        ConfigSource::Text(text) => Source::new("--config-text", text),
        ConfigSource::BuiltIn => Source::built_in(),
    };
    let options = Options { allow_experimental_plugins: flags.allow_experimental_plugins };
    sluice_config::load(&source, BUILTIN, &options).map_err(|diagnostics| {
        for warning in diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Warning) {
            tracing::warn!("{warning}");
        }
        let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        Failure::Setup(errors.map(ToString::to_string).collect())
    })
}

fn identities(settings: &Settings) -> Identities {
    let rules = IdentityRules {
        only_vouched: settings.trust.source == TrustSource::Metadata,
        default_objective: settings.default_objective.clone(),
        refuse_unknown: settings.unknown_objective == UnknownObjective::Reject,
        tenant_headers: Vec::new(),
    };
    let objectives = settings.objectives.iter();
    let objectives = objectives.map(|objective| (objective.name.clone(), Priority(objective.priority))).collect();
    Identities::new(rules, objectives)
}

fn start_discovery(discovery: Discovery, table: &Arc<EndpointTable>, tasks: &Tasks) -> Result<(), Failure> {
    discovery.start(table, tasks).map_err(|error| Failure::Setup(vec![error.to_string()]))
}

/// The largest message that the gRPC server takes: by default room for the largest body in one piece.
fn max_message(flags: &Flags, max_request_body: u64) -> usize {
    let given = flags.grpc_max_recv_msg_size.and_then(|size| size.0);
    given.unwrap_or_else(|| usize::try_from(max_request_body.saturating_add(1 << 20)).unwrap_or(usize::MAX))
}

fn seed() -> anyhow::Result<u64> {
    rand::rngs::SysRng.try_next_u64().context("reading random numbers from the system")
}
