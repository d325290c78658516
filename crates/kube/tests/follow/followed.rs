//! A follower, and the server that it hears.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::Config;
use serde_json::json;
use sluice_kube::{Bands, Index, Kubernetes, Membership, Topic};
use sluice_testkit::apiserver::pod;
use sluice_testkit::{ApiServer, Resource};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::chat;

/// Longer than anything takes on a busy machine, attempts that are repeated included.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// What is known: endpoints as `name address`, priorities, and whether that is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) endpoints: Vec<String>,
    pub(crate) priorities: BTreeMap<String, i32>,
    /// Names of rewrites, the one that counts first coming first.
    pub(crate) rewrites: Vec<String>,
    pub(crate) complete: bool,
}

impl Known {
    fn of(index: &Index) -> Self {
        let endpoints = index.endpoints();
        let mut endpoints: Vec<_> = endpoints.iter().map(|spec| format!("{} {}", spec.id.name, spec.address)).collect();
        endpoints.sort();
        let priorities = index.objectives().priorities.into_iter();
        let priorities = priorities.map(|(name, priority)| (name, priority.0)).collect();
        let rewrites = index.rewrites().in_order.into_iter().map(|rewrite| rewrite.key.name).collect();
        Self { endpoints, priorities, rewrites, complete: index.is_complete() }
    }
}

pub(crate) struct Followed {
    pub(crate) server: ApiServer,
    pub(crate) known: watch::Receiver<Known>,
    /// What each change was about.
    pub(crate) topics: Arc<Mutex<Vec<Topic>>>,
    _follower: JoinSet<()>,
}

impl Followed {
    /// A server with the pool `chat` of `app=vllm` on port 8000 and one pod.
    pub(crate) fn of_pool() -> Result<Self> {
        let server = chat::server()?;
        server.apply(Resource::POD, pod("a", "10.0.0.1", &json!({"app": "vllm"})));
        Self::start(server, Membership::Pool)
    }

    pub(crate) fn start(server: ApiServer, membership: Membership) -> Result<Self> {
        let config = chat::config(&server)?;
        Self::start_with(config, server, membership)
    }

    pub(crate) fn start_with(config: Config, server: ApiServer, membership: Membership) -> Result<Self> {
        let kubernetes = Kubernetes::at(config)?;
        let (sender, known) = watch::channel(Known::default());
        let (verdicts, heard) = watch::channel(Vec::new());
        let topics = Arc::<Mutex<Vec<Topic>>>::default();
        let recorder = Arc::clone(&topics);
        let mut follower = JoinSet::new();
        follower.spawn(kubernetes.reporter(&chat::id(), heard, watch::channel(true).1).run());
        let configured = watch::channel(BTreeSet::new()).1;
        follower.spawn(kubernetes.follow(chat::id(), membership, configured.clone(), move |index, topic| {
            recorder.lock().unwrap_or_else(PoisonError::into_inner).push(topic);
            verdicts.send_replace(index.verdicts(Bands { configured: &configured.borrow(), most: 64 }));
            drop(sender.send_replace(Known::of(index)));
        }));
        Ok(Self { server, known, topics, _follower: follower })
    }

    pub(crate) async fn wait(&self, what: impl FnMut(&Known) -> bool) -> Result<Known> {
        let mut known = self.known.clone();
        let waited = tokio::time::timeout(LIMIT, known.wait_for(what)).await;
        let Ok(known) = waited else { bail!("waited in vain, what is known is {:?}", self.known.borrow()) };
        Ok(known.context("the follower has ended")?.clone())
    }

    pub(crate) async fn wait_for_endpoints(&self, expected: &[&str]) -> Result<()> {
        self.wait(|known| known.endpoints == expected).await.map(drop)
    }

    pub(crate) async fn wait_for_priority(&self, name: &str, priority: i32) -> Result<()> {
        self.wait(|known| known.priorities.get(name) == Some(&priority)).await.map(drop)
    }
}
