//! The parts of the process that stay whatever configuration is in force.

use std::sync::Arc;

use anyhow::Context as _;
use prometheus::Registry;
use rand::TryRng as _;
use sluice_config::{Assembled, FlowControl};
use sluice_core::{SystemClock, Tasks};
use sluice_data::{EndpointTable, Scraper};
use sluice_extproc::{Metrics, Service};
use sluice_flow::Signal;
use sluice_router::admission::Admission;
use sluice_router::{
    FlowCollector, FlowDurations, FlowPlugins, Gatekeeper, Identities, Router, RouterParts, SharedScheduler,
    SheddingGate, TenantLabels,
};

use crate::flags::Flags;
use crate::kubernetes::{Election, Followed, Target};
use crate::leadership::Candidature;
use crate::objectives::{ConfiguredBands, ObjectivesInForce};
use crate::pool_view::PoolView;
use crate::rewrites::RewritesInForce;
use crate::run::Failure;
use crate::scraping::{self, Connections};
use crate::{descriptors, kubernetes, plugin_states, terms};

/// The pool, the engine with everything that waits and runs, and what counts it.
///
/// ```text
/// Assembled ──start──> Standing ──service──> Service
/// Assembled ─────────────┴──reconfigure────────┘     a later one: the engine goes on, and so do open streams
/// ```
#[derive(Debug)]
pub(crate) struct Standing {
    flags: Flags,
    clock: Arc<SystemClock>,
    table: Arc<EndpointTable>,
    tenants: TenantLabels,
    objectives: ObjectivesInForce,
    rewrites: RewritesInForce,
    scheduler: SharedScheduler,
    /// The pool as Kubernetes has it; none where its endpoints come from elsewhere.
    pub(crate) followed: Option<Followed>,
    pub(crate) admission: Option<Admission>,
    pub(crate) view: Option<PoolView>,
    durations: Option<FlowDurations>,
    scraper: Scraper,
}

impl Standing {
    /// Fills the pool, which is `target` unless the configuration has it elsewhere, and starts the engine, if there is one.
    pub(crate) fn start(
        flags: &Flags,
        registry: &Registry,
        assembled: &Assembled,
        target: Option<Target>,
        tasks: &Tasks,
    ) -> Result<Self, Failure> {
        let clock = Arc::new(SystemClock::start());
        let tenants = TenantLabels::new(terms::max_tenants(&assembled.settings), clock.clone());
        let table = Arc::new(EndpointTable::default());
        if let Some(discovery) = assembled.discovery.clone() {
            discovery.start(&table, tasks).map_err(|error| Failure::setup(error.to_string()))?;
        }
        let flow_control = assembled.flow_control.clone();
        check_descriptors(flow_control.as_ref());
        let bands = ConfiguredBands::of(flow_control.as_ref());
        let admission = flow_control.map(|flow_control| start_admission(flow_control, clock.clone(), &table, tasks));
        let scraper = scraping::connect(&Connections {
            flags,
            table: &table,
            clock: &clock,
            registry,
            admission: admission.as_ref(),
            seed: seed()?,
            legacy_names: assembled.settings.metrics.legacy_names,
            tasks,
        })?;
        let configured = terms::objectives(&assembled.settings);
        let objectives = ObjectivesInForce::new(configured, bands, admission.clone());
        let mut standing = Self {
            flags: flags.clone(),
            clock,
            table,
            tenants,
            objectives,
            rewrites: RewritesInForce::new(terms::model_rewrites(&assembled.settings)),
            scheduler: SharedScheduler::new(assembled.scheduler.clone()),
            followed: None,
            admission,
            view: None,
            durations: None,
            scraper,
        };
        standing.measure(registry, assembled).context("registering metrics")?;
        standing.scrape(assembled).map_err(Failure::setup)?;
        let election = standing.election(registry, assembled)?;
        let follow = |target| standing.follow_kubernetes(target, election, tasks);
        standing.followed = target.map(follow).transpose()?;
        Ok(standing)
    }

    /// None where every picker serves.
    fn election(&self, registry: &Registry, assembled: &Assembled) -> anyhow::Result<Option<Election>> {
        let populate_standbys = assembled.populate_standbys;
        if !self.flags.ha_enable_leader_election || assembled.discovery.is_some() {
            return Ok(None);
        }
        let candidature = Candidature::register(&self.flags, self.clock.clone(), self.admission.clone(), registry)?;
        Ok(Some(Election { candidature, populate_standbys }))
    }

    fn follow_kubernetes(
        &self,
        target: Target,
        election: Option<Election>,
        tasks: &Tasks,
    ) -> Result<Followed, Failure> {
        let (objectives, rewrites) = (self.objectives.clone(), self.rewrites.clone());
        let followed = kubernetes::start(target, Arc::clone(&self.table), objectives, rewrites, election, tasks);
        followed.map_err(|error| Failure::setup(format!("no access to a Kubernetes API server: {error:#}")))
    }

    fn measure(&mut self, registry: &Registry, assembled: &Assembled) -> Result<(), prometheus::Error> {
        let Some(admission) = &self.admission else { return Ok(()) };
        let legacy_names = assembled.settings.metrics.legacy_names;
        let view = PoolView::new(admission.clone(), &self.table, flow_plugins(assembled));
        let (state, pool) = (Arc::new(view.clone()), self.flags.pool_name());
        registry.register(Box::new(FlowCollector::new(state, self.tenants.clone(), pool, legacy_names)))?;
        self.view = Some(view);
        let (tenants, clock) = (self.tenants.clone(), self.clock.clone());
        self.durations = Some(FlowDurations::register(registry, admission, tenants, clock, legacy_names)?);
        Ok(())
    }

    /// Reads from endpoints what `assembled` asks for. An error leaves everything as it was.
    fn scrape(&self, assembled: &Assembled) -> Result<(), String> {
        let set = self.scraper.set(assembled.scraping.clone());
        set.map_err(|error| format!("metrics-data-source: {error}"))
    }

    /// The service that runs on `assembled` until it is [reconfigured](Self::reconfigure).
    pub(crate) fn service(&self, registry: &Registry, assembled: &Assembled) -> anyhow::Result<Service> {
        let legacy_names = assembled.settings.metrics.legacy_names;
        let metrics = Metrics::register(registry, self.flags.pool_name(), self.tenants.clone(), legacy_names)
            .context("registering metrics")?;
        let settings = terms::service_settings(assembled, &self.flags);
        Ok(Service::new(self.router(assembled)?, self.clock.clone(), metrics, settings, seed()?))
    }

    /// Puts `assembled` in force, which was made to follow what is in force now. After an error nothing has changed.
    pub(crate) fn reconfigure(&self, service: &Service, assembled: &Assembled) -> anyhow::Result<()> {
        let router = self.router(assembled)?;
        self.scrape(assembled).map_err(anyhow::Error::msg)?;
        check_descriptors(assembled.flow_control.as_ref());
        self.tenants.set_max(terms::max_tenants(&assembled.settings));
        if let Some(view) = &self.view {
            view.set_plugins(flow_plugins(assembled));
        }
        let configured = terms::objectives(&assembled.settings);
        let bands = ConfiguredBands::of(assembled.flow_control.as_ref());
        let admit = || {
            self.objectives.reconfigure(configured, bands, |desired| {
                // Before the first stream that comes after, so that the engine knows its band.
                if let (Some(admission), Some(flow_control)) = (&self.admission, &assembled.flow_control) {
                    let config = Box::new(flow_control.config.clone());
                    admission.observe(Signal::Reload { config, desired: Some(desired) });
                }
            });
        };
        self.scheduler.replace(assembled.scheduler.clone(), admit);
        self.rewrites.reconfigure(terms::model_rewrites(&assembled.settings));
        service.reconfigure(router, terms::service_settings(assembled, &self.flags));
        Ok(())
    }

    fn router(&self, assembled: &Assembled) -> anyhow::Result<Arc<Router>> {
        let Assembled { legacy_detector, token_estimate, tenant_headers, settings, .. } = assembled;
        let gatekeeper = match (&self.admission, legacy_detector) {
            (Some(admission), _) => Gatekeeper::FlowControl(admission.clone()),
            (None, Some(detector)) => Gatekeeper::Shedding(SheddingGate::new(Arc::clone(detector), self.clock.clone())),
            (None, None) => Gatekeeper::Open,
        };
        let router = Router::new(RouterParts {
            table: Arc::clone(&self.table),
            scheduler: self.scheduler.clone(),
            identities: Identities::sharing(terms::identity_rules(settings, tenant_headers), self.objectives.shared()),
            rewrites: self.rewrites.shared(),
            gatekeeper,
            estimate: *token_estimate,
            admit_header_only: terms::admit_header_only(settings),
            seed: seed()?,
            heed_subset: !self.flags.disable_endpoint_subset_filter,
        });
        Ok(Arc::new(match &self.durations {
            Some(durations) => router.measured(durations.clone()),
            None => router,
        }))
    }
}

fn flow_plugins(assembled: &Assembled) -> FlowPlugins {
    let detector = plugin_states::detector(&assembled.effective).unwrap_or_default();
    FlowPlugins { producer: assembled.load_producer.clone(), detector: detector.to_owned() }
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

fn seed() -> anyhow::Result<u64> {
    rand::rngs::SysRng.try_next_u64().context("reading random numbers from the system")
}
