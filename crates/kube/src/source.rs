use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::core::v1 as core;
use kube::client::ClientBuilder;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher;
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;
use serde_json::Value;
use sluice_core::Clock;
use tokio::sync::watch;

use crate::collection::{Event, Key};
use crate::crd::{GROUP, InferenceObjectiveSpec, OLDER_GROUP, POOL_GROUP};
use crate::election::{Candidate, Timings};
use crate::index::{Change, Index, PoolId, Topic};
use crate::objective::Objective;
use crate::pace::Pacing;
use crate::pod::{Pod, PodObject};
use crate::pool::{Pool, TargetPorts};
use crate::review::Reviewer;
use crate::rewrite::Rewrite;
use crate::status::{Observed, Reporter, Verdict, reporters};
use crate::token::{Authorizing, TokenError, TokenFile};
use crate::watch::{IfOdd, Watched, events};

/// What makes a pod a member of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// The InferencePool of the pool's name.
    Pool,
    /// A label selector in the form the API server takes, and the ports of each pod.
    Selector { selector: String, ports: TargetPorts },
}

/// Servers are asked to end a watch on which so many seconds have passed; the next one goes on from there.
const WATCH_SECONDS: u32 = 60;

/// A connection on which nothing has come for so long is dead: a watch would have ended before that.
const LONGEST_SILENCE: Duration = Duration::from_secs(63);

/// There is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("neither a kubeconfig nor a service account: {0}")]
    Config(#[from] kube::config::InferConfigError),
    #[error("{0}")]
    Client(#[from] kube::Error),
    #[error("{0}")]
    Token(#[from] TokenError),
}

/// An API server that can be asked.
#[derive(Clone)]
pub struct Kubernetes {
    client: Client,
    namespace: String,
}

impl std::fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubernetes").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Kubernetes {
    /// The server of `$KUBECONFIG`, of `~/.kube/config`, or of the cluster that the process runs in. It is not asked yet.
    pub async fn find() -> Result<Self, AccessError> {
        Self::at(Config::infer().await?)
    }

    /// The server that `config` tells of.
    pub fn at(mut config: Config) -> Result<Self, AccessError> {
        config.read_timeout = Some(longest_silence(config.read_timeout));
        // Whoever asks has an own way to repeat: the client's waits for minutes, and for as long as the server says.
        config.default_retry = false;
        let namespace = config.default_namespace.clone();
        let token = Authorizing(TokenFile::take(&mut config.auth_info)?);
        let client = ClientBuilder::try_from(config)?.with_layer(&token).with_layer(&Pacing).build();
        Ok(Self { client, namespace })
    }

    /// The namespace of the kubeconfig's context or of the service account; `default` where neither names one.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Somebody who takes part in the election of a leader by the Lease `lease`. No other process may ever have had the
    /// same `identity`.
    pub fn candidate(
        &self,
        namespace: &str,
        lease: String,
        identity: String,
        timings: Timings,
        clock: Arc<dyn Clock>,
    ) -> Candidate {
        Candidate::new(self.client.clone(), namespace, lease, identity, timings, clock)
    }

    /// Asks the server about the bearers of tokens.
    pub fn reviewer(&self) -> Reviewer {
        Reviewer::new(self.client.clone())
    }

    /// Tells `changed` the state of everything after each change of it, with what has changed, and of what `again` tells,
    /// with [`Topic::Configuration`], without an end. While the server is away the state stays as it was.
    pub async fn follow<T: Send + Sync>(
        self,
        id: PoolId,
        membership: Membership,
        mut again: watch::Receiver<T>,
        mut changed: impl FnMut(&Index, Topic) + Send,
    ) {
        let mut index = index(&id, membership.clone());
        let mut others = self.watches(&id, &membership);
        let mut selector = None;
        let mut pods: BoxStream<'static, Change> = stream::pending().boxed();
        loop {
            let wanted = index.selector();
            if selector != wanted {
                pods = wanted.as_ref().map_or_else(|| stream::pending().boxed(), |wanted| self.pods(&id, wanted));
                selector = wanted;
            }
            let change = tokio::select! {
                // A pool that has changed decides which pods are of interest.
                biased;
                Some(change) = others.next() => change,
                Some(change) = pods.next() => change,
                Ok(()) = again.changed() => {
                    changed(&index, Topic::Configuration);
                    continue;
                }
                else => return,
            };
            let topic = change.topic();
            if index.apply(change) {
                changed(&index, topic);
            }
        }
    }

    /// Writes verdicts into the status of objects for the pool `id`, while `leads` says that this process does.
    pub fn reporter(
        &self,
        id: &PoolId,
        verdicts: watch::Receiver<Vec<Verdict>>,
        leads: watch::Receiver<bool>,
    ) -> Reporter {
        Reporter::new(self.client.clone(), id, verdicts, leads)
    }

    /// Of everything but pods.
    fn watches(&self, id: &PoolId, membership: &Membership) -> BoxStream<'static, Change> {
        match membership {
            Membership::Pool => stream::select_all([
                self.pool(id),
                self.objectives(id, GROUP).map(Change::Objective).boxed(),
                self.objectives(id, OLDER_GROUP).map(Change::OlderObjective).boxed(),
                self.rewrites(id, GROUP).map(Change::Rewrite).boxed(),
                self.rewrites(id, OLDER_GROUP).map(Change::OlderRewrite).boxed(),
            ])
            .boxed(),
            // A stream that has ended would end the whole.
            Membership::Selector { .. } => stream::pending().boxed(),
        }
    }

    fn pool(&self, id: &PoolId) -> BoxStream<'static, Change> {
        let kind = kind(POOL_GROUP, "v1", "InferencePool");
        let pool = Watched {
            api: Api::namespaced_with(self.client.clone(), &id.namespace, &kind),
            selection: selection().fields(&format!("metadata.name={}", id.name)),
            name: "InferencePool",
            optional: false,
            // Without it nothing would be served: a mistake in it is no reason to stop.
            if_odd: IfOdd::Stays,
            read: |key, object: DynamicObject| {
                Ok(Pool::new(key, object.metadata.deletion_timestamp.is_some(), spec(object)?))
            },
        };
        events(pool).map(Change::Pool).boxed()
    }

    fn pods(&self, id: &PoolId, selector: &str) -> BoxStream<'static, Change> {
        let kind = ApiResource::erase::<core::Pod>(&());
        let pods = Watched {
            api: Api::namespaced_with(self.client.clone(), &id.namespace, &kind),
            selection: selection().labels(selector),
            name: "Pod",
            optional: false,
            if_odd: IfOdd::IsNone,
            read: |key, object: PodObject| Pod::new(key, object.metadata, object.status.unwrap_or_default()),
        };
        events(pods).map(Change::Pod).boxed()
    }

    fn objectives(&self, id: &PoolId, group: &'static str) -> BoxStream<'static, Event<Objective>> {
        let kind = kind(group, "v1alpha2", "InferenceObjective");
        let objectives = Watched {
            api: Api::namespaced_with(self.client.clone(), &id.namespace, &kind),
            selection: selection(),
            name: if group == GROUP { "InferenceObjective" } else { "InferenceObjective of the older group" },
            optional: true,
            if_odd: IfOdd::IsNone,
            read: |key: Key, mut object: DynamicObject| {
                let observed = observed(&mut object);
                let has_spec = object.data.get("spec").is_some_and(|spec| !spec.is_null());
                let spec = if has_spec { spec(object)? } else { InferenceObjectiveSpec::EMPTY };
                Ok(Objective::new(key, spec, observed))
            },
        };
        events(objectives).boxed()
    }

    fn rewrites(&self, id: &PoolId, group: &'static str) -> BoxStream<'static, Event<Rewrite>> {
        let kind = kind(group, "v1alpha2", "InferenceModelRewrite");
        let rewrites = Watched {
            api: Api::namespaced_with(self.client.clone(), &id.namespace, &kind),
            selection: selection(),
            name: if group == GROUP { "InferenceModelRewrite" } else { "InferenceModelRewrite of the older group" },
            optional: true,
            if_odd: IfOdd::IsNone,
            read: |key: Key, mut object: DynamicObject| {
                let observed = observed(&mut object);
                let created = object.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
                Ok(Rewrite::new(key, created, spec(object)?, observed))
            },
        };
        events(rewrites).boxed()
    }
}

/// What a configuration gives, unless it is more than is needed.
fn longest_silence(given: Option<Duration>) -> Duration {
    given.map_or(LONGEST_SILENCE, |given| given.min(LONGEST_SILENCE))
}

fn index(id: &PoolId, membership: Membership) -> Index {
    match membership {
        Membership::Pool => Index::of_pool(id.clone()),
        Membership::Selector { selector, ports } => Index::of_selected(id.clone(), selector, ports),
    }
}

/// Everything there is.
fn selection() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

fn kind(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// Conditions that cannot be read count as none: they are written anew.
fn observed(object: &mut DynamicObject) -> Observed {
    let conditions = object.data.get_mut("status").and_then(|status| status.get_mut("conditions")).map(Value::take);
    let conditions = conditions.and_then(|conditions| serde_json::from_value(conditions).ok()).unwrap_or_default();
    let managers = object.metadata.managed_fields.iter().flatten();
    let of_status = managers.filter(|entry| entry.subresource.as_deref() == Some("status"));
    let reporters = reporters(of_status.filter_map(|entry| entry.manager.as_deref()));
    Observed { generation: object.metadata.generation, conditions, reporters }
}

fn spec<T: DeserializeOwned>(mut object: DynamicObject) -> Result<T, String> {
    let spec = object.data.get_mut("spec").map(Value::take).unwrap_or_default();
    serde_path_to_error::deserialize(spec).map_err(|error| format!("spec: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_server_is_given_up_soon_after_the_longest_watch_would_have_ended() {
        let watch = Duration::from_secs(selection().timeout.unwrap().into());
        let silence = longest_silence(None);
        assert_eq!((watch, silence), (Duration::from_secs(60), Duration::from_secs(63)));
        assert_eq!(longest_silence(Some(2 * silence)), silence);
        assert_eq!(longest_silence(Some(watch)), watch);
    }
}
