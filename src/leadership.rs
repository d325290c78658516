//! Which of several pickers of a pool serves: the one that leads. Others are alive and not ready, so that traffic goes to
//! one, which knows of all that is in flight.

use std::future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use prometheus::{IntGauge, Registry};
use rand::TryRng as _;
use sluice_core::{Clock, Criticality, Tasks};
use sluice_flow::Signal;
use sluice_kube::{Kubernetes, Timings};
use sluice_router::admission::Admission;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::flags::Flags;

/// How long the end of the process may be held up by giving the lead up. It takes two requests.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);

/// This picker's part in the election. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    leads: watch::Receiver<bool>,
    leave: CancellationToken,
    left: CancellationToken,
}

/// What a candidate goes by.
pub(crate) struct Candidature {
    pub(crate) clock: Arc<dyn Clock>,
    /// The machine or pod, as a part of what this picker is called in the lease.
    pub(crate) host: String,
    /// Shows whether this picker leads.
    pub(crate) gauge: IntGauge,
    /// Where what the one before has left behind counts.
    pub(crate) admission: Option<Admission>,
    /// After which what endpoints say of themselves is too old.
    pub(crate) stale: Duration,
}

impl Candidature {
    pub(crate) fn register(
        flags: &Flags,
        clock: Arc<dyn Clock>,
        admission: Option<Admission>,
        registry: &Registry,
    ) -> anyhow::Result<Self> {
        let gauge = IntGauge::new("llm_d_epp_leader", "1 while this picker leads, which others of its pool wait for")?;
        registry.register(Box::new(gauge.clone())).context("registering metrics")?;
        Ok(Self { clock, host: flags.environment.host(), gauge, admission, stale: flags.metrics_staleness_threshold })
    }
}

impl Leadership {
    /// Takes part in the election among the pickers of `fleet` until told to [leave](Self::leave).
    pub(crate) fn seek(
        kubernetes: &Kubernetes,
        namespace: &str,
        fleet: &str,
        candidature: Candidature,
        tasks: &Tasks,
    ) -> anyhow::Result<Self> {
        let Candidature { clock, host, gauge, admission, stale } = candidature;
        let (lease, identity) = (lease(namespace, fleet), identity(&host)?);
        let candidate = kubernetes.candidate(namespace, lease, identity, Timings::default(), clock);
        let (changed, leads) = watch::channel(false);
        let this = Self { leads, leave: CancellationToken::new(), left: CancellationToken::new() };
        let (leave, left, news) = (this.leave.clone(), this.left.clone(), changed.clone());
        let changed = move |leads| {
            if let Some(admission) = admission.as_ref().filter(|_| leads) {
                // Before anybody learns that requests may come.
                admission.observe(Signal::Inherit { stale });
            }
            gauge.set(i64::from(leads));
            changed.send_replace(leads);
        };
        tasks.spawn("leader election", Criticality::Critical, async move {
            candidate.run(changed, leave.cancelled()).await;
            left.cancel();
            // The end of a task or of its news is taken for a failure.
            future::pending::<()>().await;
            drop(news);
        });
        Ok(this)
    }

    /// Whether this picker leads.
    pub(crate) fn leads(&self) -> watch::Receiver<bool> {
        self.leads.clone()
    }

    /// Lets another picker lead, from now on.
    pub(crate) fn leave(&self) {
        self.leave.cancel();
    }

    /// Until another one may, or it took too long.
    pub(crate) async fn left(&self) {
        if tokio::time::timeout(LEAVE_LIMIT, self.left.cancelled()).await.is_err() {
            tracing::warn!("the lease could not be given up: another picker leads when it has expired");
        }
    }
}

/// As llm-d-router's EPP calls it, so that pickers of both kinds wait for each other.
fn lease(namespace: &str, fleet: &str) -> String {
    format!("epp-{namespace}-{fleet}.llm-d.ai")
}

/// What no other process is called, be it on a host of the same name.
fn identity(host: &str) -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    rand::rngs::SysRng.try_fill_bytes(&mut bytes).context("reading random numbers from the system")?;
    Ok(format!("{host}_{:032x}", u128::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_is_called_by_the_pool_and_a_picker_like_no_other() {
        assert_eq!(lease("lab", "chat"), "epp-lab-chat.llm-d.ai");
        assert_ne!(identity("host").unwrap(), identity("host").unwrap());
        assert_eq!(identity("host").unwrap().len(), "host_".len() + 32);
    }
}
