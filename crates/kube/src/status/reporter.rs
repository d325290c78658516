use std::fmt;
use std::time::Duration;

use futures_util::future::OptionFuture;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::json;
use sluice_core::{Clock as _, SystemClock, Time};
use tokio::sync::watch;

use super::ledger::Ledger;
use super::pauses::Pauses;
use super::verdict::{Subject, SubjectKind, Verdict, field_manager};
use crate::causes::causes;
use crate::crd::Condition;
use crate::index::PoolId;

/// Of many changes at once the API server is told little by little.
const BETWEEN_WRITES: Duration = Duration::from_millis(200);

/// Writes verdicts into the status of their objects while this process leads.
pub struct Reporter {
    client: Client,
    namespace: String,
    field_manager: String,
    verdicts: watch::Receiver<Vec<Verdict>>,
    leads: watch::Receiver<bool>,
    ledger: Ledger,
    pauses: Pauses,
    clock: SystemClock,
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// What became of a write.
enum Outcome {
    Done,
    /// The object is gone.
    Moot,
    /// The object is none that the server takes this for.
    NotTaken(kube::Error),
    /// The server takes none of this kind.
    Unwelcome(kube::Error),
    Failed(kube::Error),
}

impl Reporter {
    pub(crate) fn new(
        client: Client,
        PoolId { namespace, name, group: _ }: &PoolId,
        verdicts: watch::Receiver<Vec<Verdict>>,
        leads: watch::Receiver<bool>,
    ) -> Self {
        Self {
            client,
            namespace: namespace.clone(),
            field_manager: field_manager(name),
            verdicts,
            leads,
            ledger: Ledger::default(),
            pauses: Pauses::default(),
            clock: SystemClock::start(),
        }
    }

    /// Does so until nobody has verdicts any more.
    pub async fn run(mut self) {
        loop {
            if !*self.leads.borrow_and_update() {
                // Another leader may have said other things meanwhile.
                self.ledger.forget();
                self.pauses.end();
                if self.leads.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let now = self.clock.now();
            let verdicts = self.due(now);
            let Some((verdict, conditions)) = self.ledger.next(&verdicts, now, Timestamp::now()) else {
                if !self.news(now).await {
                    return;
                }
                continue;
            };
            let outcome = self.write(verdict, &conditions).await;
            self.heed(verdict, outcome);
            tokio::time::sleep(BETWEEN_WRITES).await;
        }
    }

    fn heed(&mut self, verdict: &Verdict, outcome: Outcome) {
        let (subject, now) = (&verdict.subject, self.clock.now());
        match outcome {
            Outcome::Done | Outcome::Moot => {
                self.ledger.tell(verdict, now);
                self.pauses.succeed(subject);
            }
            Outcome::NotTaken(error) => {
                if self.ledger.tell(verdict, now) {
                    let name = &subject.key.name;
                    tracing::warn!(name, error = causes(&error), "the status is not taken, and tried again rarely");
                }
                self.pauses.succeed(subject);
            }
            Outcome::Unwelcome(error) => {
                if self.pauses.refuse(subject, now) {
                    let Subject { kind, group, key: _ } = subject;
                    tracing::debug!(
                        ?kind,
                        group,
                        error = causes(&error),
                        "nothing is written into the status of this kind"
                    );
                }
            }
            Outcome::Failed(error) => {
                let (wait, name) = (self.pauses.fail(subject, now), &subject.key.name);
                tracing::warn!(
                    name,
                    error = causes(&error),
                    ?wait,
                    "the status could not be written, another attempt follows"
                );
            }
        }
    }

    /// What is not to wait.
    fn due(&mut self, now: Time) -> Vec<Verdict> {
        let verdicts = self.verdicts.borrow_and_update();
        self.pauses.retain(&verdicts);
        verdicts.iter().filter(|verdict| self.pauses.allow(&verdict.subject, now)).cloned().collect()
    }

    /// Waits until there may be something to do; false if there never will be.
    async fn news(&mut self, now: Time) -> bool {
        let Self { verdicts, leads, pauses, ledger, .. } = self;
        let end = pauses.next_end(now).into_iter().chain(ledger.due()).min();
        let pause = end.map(|end| tokio::time::sleep(end.saturating_since(now)));
        tokio::select! {
            changed = verdicts.changed() => changed.is_ok(),
            // Whoever can lead no longer change their mind leads to the end.
            Ok(()) = leads.changed() => true,
            Some(()) = OptionFuture::from(pause) => true,
        }
    }

    async fn write(&self, verdict: &Verdict, conditions: &[Condition]) -> Outcome {
        let Subject { kind, group, key } = &verdict.subject;
        let kind = match kind {
            SubjectKind::Objective => "InferenceObjective",
            SubjectKind::Rewrite => "InferenceModelRewrite",
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1alpha2", kind));
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let mut patch = json!({
            "apiVersion": resource.api_version,
            "kind": kind,
            // With the uid: another object of this name is not meant.
            "metadata": {"name": key.name, "uid": key.uid},
        });
        if verdict.wanted.is_some() {
            // Left out, it is what was applied before that is taken back.
            patch["status"] = json!({"conditions": conditions});
        }
        let parameters = PatchParams::apply(&self.field_manager).force();
        match api.patch_status(&key.name, &parameters, &Patch::Apply(patch)).await {
            Ok(_) => Outcome::Done,
            Err(error) => match code(&error) {
                Some(404) => Outcome::Moot,
                // What it does not take of this object it may take of another.
                Some(400 | 422) => Outcome::NotTaken(error),
                Some(403 | 405 | 415) => Outcome::Unwelcome(error),
                _ => Outcome::Failed(error),
            },
        }
    }
}

fn code(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}
