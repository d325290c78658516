//! From the command line to a process that serves, and its way out.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use prometheus::Registry;
use rand::TryRng as _;
use sluice_config::settings::{
    self, DrainQueued, HeaderOnly, MessageTimeout, RefusalBody, TrustSource, UnknownObjective,
};
use sluice_config::{Assembled, Diagnostics, FlowControl, Options, Settings, Severity, Source};
use sluice_core::{Priority, SystemClock, Tasks};
use sluice_data::EndpointTable;
use sluice_extproc::{Bodies, Metrics, MidStream, RefusalStyle, Service, ServiceSettings};
use sluice_flow::policy::{BookingLimit, EndpointFacts, SaturationDetector};
use sluice_flow::{Config, EndpointKey, Signal, Stages};
use sluice_plugins::BUILTIN;
use sluice_router::admission::Admission;
use sluice_router::{
    FlowCollector, FlowDurations, Gatekeeper, Identities, IdentityRules, Router, RouterParts, SheddingGate,
    TenantLabels,
};
use tokio::runtime::{Handle, Runtime};

use crate::flags::{CommandLine, ConfigSource, Flags, Task};
use crate::pool_view::PoolView;
use crate::scraping::{self, Connections};
use crate::serve::{self, Parts};
use crate::signals::StopSignals;
use crate::tasks::RuntimeTasks;
use crate::tls::Tls;
use crate::{check, descriptors, logging, memory};

/// The command line or the configuration is wrong (`EX_USAGE`).
pub(crate) const EXIT_SETUP: u8 = 64;
pub(crate) const EXIT_FAILURE: u8 = 1;

pub(crate) const NO_ENDPOINTS: &str = "no source of endpoints: name a file-discovery plugin in dataLayer.discovery.pluginRef (endpoints from Kubernetes are \
     not available in this version)";

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
    let line = match CommandLine::parse(std::env::args_os()) {
        Ok(line) => line,
        Err(error) => {
            // Where there is no terminal to print to, the exit code has to do.
            error.print().unwrap_or_default();
            return if error.use_stderr() { ExitCode::from(EXIT_SETUP) } else { ExitCode::SUCCESS };
        }
    };
    if line.task == Task::Check {
        return check::run(&line);
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
    let assembled = load(flags)?;
    for warning in &assembled.warnings {
        tracing::warn!("{warning}");
    }
    let signals = StopSignals::install().context("installing signal handlers")?;
    let runtime = Runtime::new().context("starting the runtime")?;
    let outcome = serve_on(&runtime, flags, assembled, signals);
    // What still runs, or is stuck, must not hold up the way out.
    runtime.shutdown_background();
    outcome
}

fn serve_on(runtime: &Runtime, flags: &Flags, assembled: Assembled, signals: StopSignals) -> Result<(), Failure> {
    let _entered = runtime.enter();
    let (tasks, fallen) = RuntimeTasks::new(Handle::current());
    let parts = build(flags, assembled, Tasks::new(tasks))?;
    runtime.block_on(serve::serve(parts, signals, fallen))?;
    Ok(())
}

/// Makes everything that serves, and fills the pool.
fn build(flags: &Flags, assembled: Assembled, tasks: Tasks) -> Result<Parts, Failure> {
    let Assembled {
        scheduler,
        discovery,
        scraping,
        flow_control,
        legacy_detector,
        token_estimate,
        load_producer,
        tenant_headers,
        settings,
        effective,
        warnings: _,
        as_previous: _,
    } = assembled;
    let Some(discovery) = discovery else {
        return Err(Failure::setup(NO_ENDPOINTS));
    };
    let tls = flags.tls().map(Tls::new).transpose().map_err(|error| Failure::setup(format!("{error:#}")))?;
    check_descriptors(flow_control.as_ref());
    let needs_response_body = flow_control.as_ref().is_some_and(heeds_real_cost);
    let detector = flow_control.as_ref().map(|flow_control| &flow_control.config.detector).or(legacy_detector.as_ref());
    let bounds_tokens = detector.is_some_and(|detector| bounds_tokens(&**detector));

    let clock = Arc::new(SystemClock::start());
    let registry = Registry::new();
    let legacy_names = settings.metrics.legacy_names;
    let max_tenants = usize::try_from(settings.metrics.max_tenants).unwrap_or(usize::MAX);
    let tenants = TenantLabels::new(max_tenants, clock.clone());
    let metrics = Metrics::register(&registry, flags.pool_name(), tenants.clone(), legacy_names)
        .context("registering metrics")?;
    let table = Arc::new(EndpointTable::default());
    discovery.start(&table, &tasks).map_err(|error| Failure::setup(error.to_string()))?;

    let evicts = flow_control.as_ref().is_some_and(|flow_control| evicts(&flow_control.config));
    let admission = flow_control.map(|flow_control| start_admission(flow_control, clock.clone(), &table, &tasks));
    let view = admission.clone().map(|admission| PoolView::new(admission, &table));
    if let Some(view) = &view {
        let (state, pool) = (Arc::new(view.clone()), flags.pool_name());
        let collector = FlowCollector::new(state, tenants.clone(), pool, &load_producer, legacy_names);
        registry.register(Box::new(collector)).context("registering metrics")?;
    }
    let scraper = scraping::connect(&Connections {
        flags,
        table: &table,
        clock: &clock,
        registry: &registry,
        admission: admission.as_ref(),
        seed: seed()?,
        legacy_names,
        tasks: &tasks,
    })?;
    scraper.set(scraping).map_err(|error| Failure::setup(format!("metrics-data-source: {error}")))?;
    let gatekeeper = match (&admission, legacy_detector) {
        (Some(admission), _) => Gatekeeper::FlowControl(admission.clone()),
        (None, Some(detector)) => Gatekeeper::Shedding(SheddingGate::new(detector, clock.clone())),
        (None, None) => Gatekeeper::Open,
    };
    let mut router = Router::new(RouterParts {
        table,
        scheduler,
        identities: identities(&settings, tenant_headers),
        gatekeeper,
        estimate: token_estimate,
        admit_header_only: settings.header_only == HeaderOnly::Admit,
        seed: seed()?,
        heed_subset: !flags.disable_endpoint_subset_filter,
    });
    if let Some(admission) = &admission {
        let durations = FlowDurations::register(&registry, admission, tenants, clock.clone(), legacy_names);
        router = router.measured(durations.context("registering metrics")?);
    }
    let max_request_body = settings.limits.max_request_body.0;
    let refusal_style = match settings.refusals.body {
        RefusalBody::Api => RefusalStyle::Api,
        RefusalBody::Text => RefusalStyle::Text,
    };
    let vouched_namespace = settings.trust.metadata_namespace;
    let bodies = match settings.bodies {
        settings::Bodies::Auto => Bodies::Auto,
        settings::Bodies::Full => Bodies::Full,
        settings::Bodies::Headers => Bodies::Headers,
    };
    let mid_stream = match settings.eviction.mid_stream {
        settings::MidStream::EventThenReset => MidStream::EventThenReset,
        settings::MidStream::Reset => MidStream::Reset,
        settings::MidStream::EventThenEnd => MidStream::EventThenEnd,
    };
    let service_settings = ServiceSettings {
        max_request_headers: settings.limits.max_request_headers.0,
        max_request_body,
        body_progress_timeout: settings.limits.body_progress_timeout.0,
        body_memory: memory::body_memory(settings.limits.body_memory.0),
        refusal_style,
        retry_after: settings.refusals.retry_after,
        bodies,
        // The client's bound on generated tokens stands in the body, and so does the model that is to be replaced.
        needs_request_body: token_estimate.output.is_some() || !settings.model_rewrites.is_empty(),
        needs_response_body,
        bounds_tokens,
        extend_message_timeout: settings.message_timeout == MessageTimeout::Extend,
        hand_over: settings.drain.queued == DrainQueued::HandOver,
        eviction: evicts.then_some(mid_stream),
        vouched_namespace,
        max_message: max_message(flags, max_request_body),
    };
    let service = Service::new(Arc::new(router), clock, metrics, service_settings, seed()?);
    let max_reply = flags.grpc_max_send_msg_size.and_then(|size| size.0).unwrap_or(usize::MAX);
    Ok(Parts { flags: flags.clone(), service, max_reply, tls, registry, admission, view, effective, tasks })
}

/// Requests are charged what they really cost, which their responses tell.
fn heeds_real_cost(FlowControl { config, desired: _ }: &FlowControl) -> bool {
    let bands = config.bands.values().chain([&config.template]).chain(&config.negative_template);
    bands.into_iter().any(|band| band.fairness.heeds_real_cost())
}

/// Whether what endpoints have in flight is bounded in tokens.
fn bounds_tokens(detector: &dyn SaturationDetector) -> bool {
    let endpoint =
        EndpointFacts { key: EndpointKey(0), partitions: Stages::DECODE.partitions(), max_concurrency: None };
    detector.new_state().booking_limit(&endpoint).tokens < BookingLimit::UNLIMITED.tokens
}

/// Whether requests in flight may have to make room in earnest.
const fn evicts(config: &Config) -> bool {
    config.eviction.is_some() && !config.dry_run.eviction
}

/// Raises the limit of file descriptors, and says so if that is not enough for what may wait.
fn check_descriptors(flow_control: Option<&FlowControl>) {
    let waiting = flow_control.map_or(0, |FlowControl { config, desired }| descriptors::most_waiting(config, desired));
    let needed = descriptors::needed(waiting);
    if let Some(limit) = descriptors::raise_limit().filter(|limit| *limit < needed) {
        let what = "too few file descriptors for the requests that may wait: raise the limit (ulimit -n)";
        tracing::warn!(limit, needed, waiting, "{what}");
    }
}

/// The engine knows the pool, and hears of every change of it, before the first request comes.
fn start_admission(
    flow_control: FlowControl,
    clock: Arc<SystemClock>,
    table: &EndpointTable,
    tasks: &Tasks,
) -> Admission {
    let FlowControl { config, desired } = flow_control;
    let admission = Admission::start(config, clock, tasks);
    admission.observe(Signal::Desired(desired));
    let listener = admission.clone();
    table.listen(move |snapshot| listener.set_pool(snapshot.endpoints()));
    admission
}

/// The text of the configuration.
pub(crate) fn source(flags: &Flags) -> Result<Source, Failure> {
    Ok(match flags.config_source() {
        ConfigSource::File(path) => {
            let text = std::fs::read(&path)
                .map_err(|error| Failure::setup(format!("--config-file {}: {error}", path.display())))?;
            Source::new(&path.display().to_string(), text)
        }
        ConfigSource::Text(text) => Source::new("--config-text", text),
        ConfigSource::BuiltIn => Source::built_in(),
    })
}

/// What `source` describes, or what is wrong with it.
pub(crate) fn read(source: &Source, flags: &Flags) -> Result<Assembled, Diagnostics> {
    let options = Options {
        allow_experimental_plugins: flags.allow_experimental_plugins,
        scrape_interval: flags.scrape_interval(),
    };
    sluice_config::load(source, BUILTIN, &options)
}

fn load(flags: &Flags) -> Result<Assembled, Failure> {
    read(&source(flags)?, flags).map_err(|diagnostics| {
        for warning in diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Warning) {
            tracing::warn!("{warning}");
        }
        let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        Failure::Setup(errors.map(ToString::to_string).collect())
    })
}

fn identities(settings: &Settings, tenant_headers: Vec<String>) -> Identities {
    let rules = IdentityRules {
        only_vouched: settings.trust.source == TrustSource::Metadata,
        default_objective: settings.default_objective.clone(),
        refuse_unknown: settings.unknown_objective == UnknownObjective::Reject,
        tenant_headers,
    };
    let objectives = settings.objectives.iter();
    let objectives = objectives.map(|objective| (objective.name.clone(), Priority(objective.priority))).collect();
    Identities::new(rules, objectives)
}

/// The largest message that the gRPC server takes: by default room for the largest body in one piece.
fn max_message(flags: &Flags, max_request_body: u64) -> usize {
    let given = flags.grpc_max_recv_msg_size.and_then(|size| size.0);
    given.unwrap_or_else(|| usize::try_from(max_request_body.saturating_add(1 << 20)).unwrap_or(usize::MAX))
}

fn seed() -> anyhow::Result<u64> {
    rand::rngs::SysRng.try_next_u64().context("reading random numbers from the system")
}
