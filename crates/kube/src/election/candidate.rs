//! An election in use: the requests, the waits, and what is said about it.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use sluice_core::Clock;

use super::Timings;
use super::machine::{Election, Step};
use crate::causes::causes;

/// Takes part in the election of a leader by a Lease.
pub struct Candidate {
    api: Api<Lease>,
    lease: String,
    identity: String,
    clock: Arc<dyn Clock>,
    election: Election,
    /// Longer than that no answer is waited for.
    patience: Duration,
    told: Told,
}

/// What the log has said last.
#[derive(Debug, Default)]
struct Told {
    leads: bool,
    holder: Option<String>,
    waits_for_deleted: bool,
    trouble: Option<String>,
}

impl Candidate {
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        lease: String,
        identity: String,
        timings: Timings,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            election: Election::new(lease.clone(), identity.clone(), timings),
            lease,
            identity,
            clock,
            patience: timings.patience(),
            told: Told::default(),
        }
    }

    /// Tells `changed` each time this process begins or ceases to lead, which may be many times. Once `leave` is over it
    /// does not lead any more, gives up the lease if it has it, and returns.
    ///
    /// Whoever drops the future has `changed` told nothing more, and the others wait until the lease expires.
    pub async fn run(mut self, mut changed: impl FnMut(bool) + Send, leave: impl Future<Output = ()> + Send) {
        let mut leave = pin!(leave);
        let mut leaving = false;
        loop {
            let now = self.clock.now();
            self.tell(self.election.leads(now), leaving, &mut changed);
            match self.election.step(now, Timestamp::now()) {
                Step::Wait(until) => {
                    let wait = tokio::time::sleep(until.saturating_since(now));
                    tokio::select! {
                        // Others wait for us to leave.
                        biased;
                        () = &mut leave, if !leaving => {
                            leaving = true;
                            self.election.leave(self.clock.now());
                        }
                        () = wait => {}
                    }
                }
                Step::Read => self.read().await,
                Step::Write(lease) => self.write(&lease).await,
                Step::Leave => return,
            }
        }
    }

    async fn read(&mut self) {
        let answer = self.in_time(self.api.get_opt(&self.lease)).await;
        let now = self.clock.now();
        match answer {
            Ok(lease) => {
                self.tell_of_trouble(None);
                self.election.read(now, lease);
            }
            Err(trouble) => {
                self.tell_of_trouble(Some(trouble.to_string()));
                self.election.failed(now);
            }
        }
    }

    async fn write(&mut self, lease: &Lease) {
        let parameters = PostParams::default();
        let makes = lease.metadata.resource_version.is_none();
        let answer = if makes {
            self.in_time(self.api.create(&parameters, lease)).await
        } else {
            self.in_time(self.api.replace(&self.lease, &parameters, lease)).await
        };
        let now = self.clock.now();
        match answer {
            Ok(lease) => {
                self.tell_of_trouble(None);
                self.election.written(now, lease);
            }
            Err(Trouble::Server(kube::Error::Api(status))) if status.code == 409 || (status.code == 404 && !makes) => {
                self.election.outdated(now);
            }
            Err(trouble) => {
                self.tell_of_trouble(Some(trouble.to_string()));
                self.election.failed(now);
            }
        }
    }

    /// An answer that comes after a leader's deadline would be of no use.
    async fn in_time<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, Trouble> {
        let now = self.clock.now();
        let rest = self.election.leads_until(now).map(|end| end.saturating_since(now));
        let limit = rest.map_or(self.patience, |rest| rest.min(self.patience));
        match tokio::time::timeout(limit, request).await {
            Ok(answer) => answer.map_err(Trouble::Server),
            Err(_elapsed) => Err(Trouble::Silent),
        }
    }

    fn tell(&mut self, leads: bool, leaving: bool, changed: &mut impl FnMut(bool)) {
        let holder = self.election.holder();
        if self.told.leads != leads {
            self.told.leads = leads;
            let (lease, identity) = (&self.lease, &self.identity);
            if leads {
                tracing::info!(lease, identity, "this picker leads");
            } else if leaving {
                tracing::info!(lease, identity, "this picker lets another one lead");
            } else {
                tracing::warn!(lease, identity, holder, "this picker leads no more");
            }
            changed(leads);
        }
        let waits_for_deleted = self.election.waits_for_deleted() && !leads;
        if std::mem::replace(&mut self.told.waits_for_deleted, waits_for_deleted) != waits_for_deleted
            && waits_for_deleted
        {
            tracing::warn!(lease = self.lease, "the lease was deleted: its holder has time to make it anew");
        }
        if self.told.holder.as_deref() != holder {
            self.told.holder = holder.map(str::to_owned);
            if let Some(holder) = holder.filter(|holder| *holder != self.identity) {
                tracing::info!(lease = self.lease, holder, "another picker leads");
            }
        }
    }

    fn tell_of_trouble(&mut self, trouble: Option<String>) {
        if self.told.trouble == trouble {
            return;
        }
        let lease = &self.lease;
        match &trouble {
            Some(error) => tracing::error!(lease, error, "the lease can be neither read nor written: trying again"),
            None => tracing::info!(lease, "the lease can be read and written again"),
        }
        self.told.trouble = trouble;
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("lease", &self.lease)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{}", causes(.0))]
    Server(kube::Error),
    #[error("the API server did not answer in time")]
    Silent,
}
