//! How long flow control itself takes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, HistogramVec, Registry};
use sluice_core::{Clock, Priority};
use sluice_flow::Outcome;

use crate::admission::{Admission, Admit, Permit, Rejection};
use crate::per_tenant::PerTenant;
use crate::{Identity, TenantLabels, Twin};

/// Seconds.
const BUCKETS: [f64; 10] = [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1];

/// At most this many sets of label values; the tenants of later ones are counted as `other`.
const MAX_SETS: usize = 2_000;

/// What is said of a request that was let into its queue, or passed it: nothing has ended it yet.
const ACCEPTED: &str = "NotYetFinalized";

/// Histograms of the engine's work. Clones share them.
#[derive(Clone, Debug)]
pub struct FlowDurations {
    clock: Arc<dyn Clock>,
    tenants: TenantLabels,
    enqueue: Arc<Enqueue>,
}

#[derive(Debug)]
struct Enqueue {
    family: HistogramVec,
    series: PerTenant<(Priority, &'static str), Histogram>,
}

impl FlowDurations {
    /// Begins to measure `admission`. `legacy_names` also emits the series under their deprecated names.
    pub fn register(
        registry: &Registry,
        admission: &Admission,
        tenants: TenantLabels,
        clock: Arc<dyn Clock>,
        legacy_names: bool,
    ) -> Result<Self, prometheus::Error> {
        let options = |name, help| HistogramOpts::new(name, help).buckets(BUCKETS.to_vec());
        let passes = Histogram::with_opts(options(
            "llm_d_epp_flow_control_dispatch_cycle_duration_seconds",
            "time in which the engine took in one event and granted all that it made possible",
        ))?;
        let older = legacy_names.then_some("inference_extension_flow_control_dispatch_cycle_duration_seconds");
        registry.register(Box::new(Twin::new(passes.clone(), older)))?;
        let help = "time in which a request was refused, or let into its queue or past it";
        let family = HistogramVec::new(
            options("llm_d_epp_flow_control_request_enqueue_duration_seconds", help),
            &["fairness_id", "priority", "outcome"],
        )?;
        let older = legacy_names.then_some("inference_extension_flow_control_request_enqueue_duration_seconds");
        registry.register(Box::new(Twin::new(family.clone(), older)))?;
        admission.observe_passes(passes);
        let enqueue = Arc::new(Enqueue { family, series: PerTenant::at_most(MAX_SETS) });
        let listener = Arc::clone(&enqueue);
        tenants.on_forget(move |tenant| listener.forget(tenant));
        Ok(Self { clock, tenants, enqueue })
    }

    /// Asks for admission and waits for it, and observes how long asking took.
    pub(crate) async fn admit(&self, identity: &Identity, ask: impl FnOnce() -> Admit) -> Result<Permit, Rejection> {
        let asked = self.clock.now();
        let mut admitted = ask();
        let took = self.clock.now().saturating_since(asked);
        // A refusal is there at once; whatever comes later was in a queue before.
        let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut admitted).poll(cx))).await;
        match first {
            Poll::Ready(verdict) => {
                self.observe(identity, verdict.as_ref().err().map(|refusal| refusal.outcome), took);
                verdict
            }
            Poll::Pending => {
                self.observe(identity, None, took);
                admitted.await
            }
        }
    }

    /// Refuses a request if `ask` does, and observes how long that took.
    pub(crate) fn refuse(&self, identity: &Identity, ask: impl FnOnce() -> Option<Rejection>) -> Option<Rejection> {
        let asked = self.clock.now();
        let refusal = ask()?;
        self.observe(identity, Some(refusal.outcome), self.clock.now().saturating_since(asked));
        Some(refusal)
    }

    fn observe(&self, identity: &Identity, refusal: Option<Outcome>, took: Duration) {
        let Identity { tenant, priority } = identity;
        let label = if refusal.is_none() { self.tenants.admit(tenant) } else { self.tenants.known(tenant) };
        let outcome = refusal.map_or(ACCEPTED, Outcome::as_str);
        self.enqueue.find(label.as_str(), *priority, outcome).observe(took.as_secs_f64());
    }
}

impl Enqueue {
    fn find(&self, tenant: &str, priority: Priority, outcome: &'static str) -> Histogram {
        self.series.find(
            tenant,
            (priority, outcome),
            |key| key,
            |tenant, _| self.family.with_label_values(&[tenant, &priority.to_string(), outcome]),
        )
    }

    fn forget(&self, tenant: &str) {
        for (priority, outcome) in self.series.forget(tenant).into_keys() {
            // What was made is there to be removed.
            self.family.remove_label_values(&[tenant, &priority.to_string(), outcome]).unwrap_or_default();
        }
    }
}
