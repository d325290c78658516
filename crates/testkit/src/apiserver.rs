use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use self::reviews::ReviewCounts;
pub use self::rights::granted;
use self::service_account::ServiceAccount;
use self::store::Store;
use crate::server_thread::ServerThread;
use crate::{eventually, guardian};

mod conditions;
mod http;
mod leases;
mod reviews;
mod rights;
mod selector;
mod service_account;
mod store;

/// Within which an address is free again.
const RETURN_LIMIT: Duration = Duration::from_secs(20);
/// The namespace that kubeconfigs of an [`ApiServer`] name.
const NAMESPACE: &str = "test";

/// A kind of object, as paths name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
}

impl Resource {
    pub const POD: Self = Self { group: "", version: "v1", plural: "pods", kind: "Pod" };
    pub const POOL: Self =
        Self { group: "inference.networking.k8s.io", version: "v1", plural: "inferencepools", kind: "InferencePool" };
    pub const OBJECTIVE: Self =
        Self { group: "llm-d.ai", version: "v1alpha2", plural: "inferenceobjectives", kind: "InferenceObjective" };
    /// Of the group that objectives had before.
    pub const OLDER_OBJECTIVE: Self = Self { group: "inference.networking.x-k8s.io", ..Self::OBJECTIVE };

    pub const REWRITE: Self =
        Self { plural: "inferencemodelrewrites", kind: "InferenceModelRewrite", ..Self::OBJECTIVE };
    /// Of the group that rewrites had before.
    pub const OLDER_REWRITE: Self = Self { group: Self::OLDER_OBJECTIVE.group, ..Self::REWRITE };

    pub const LEASE: Self = Self { group: "coordination.k8s.io", version: "v1", plural: "leases", kind: "Lease" };
    pub const TOKEN_REVIEW: Self =
        Self { group: "authentication.k8s.io", version: "v1", plural: "tokenreviews", kind: "TokenReview" };
    pub const SUBJECT_ACCESS_REVIEW: Self = Self {
        group: "authorization.k8s.io",
        version: "v1",
        plural: "subjectaccessreviews",
        kind: "SubjectAccessReview",
    };

    /// Objects of other kinds are in a namespace.
    fn is_cluster_wide(self) -> bool {
        [Self::TOKEN_REVIEW, Self::SUBJECT_ACCESS_REVIEW].contains(&self)
    }

    fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// A Kubernetes API server, as far as a picker asks one: lists and watches of namespaced objects, with resource
/// versions, pages, bookmarks, selectors, histories that are too short, kinds that are not installed or not allowed, leases that
/// are made, read and replaced, reviews of tokens and of access, and connections that break. It lets everybody do what
/// the manifests grant the picker, and answers 403 to everything else. Everything is in memory, and spoken in plain HTTP
/// unless it [knows a service account](Self::start_for_pods).
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    store: Arc<Store>,
    /// None where it speaks plain HTTP to everybody.
    account: Option<ServiceAccount>,
    /// None while it is away.
    server: Option<ServerThread>,
    dir: TempDir,
}

impl ApiServer {
    /// For those who have a kubeconfig.
    pub fn start() -> Result<Self> {
        let this = Self::start_knowing(None)?;
        std::fs::write(this.kubeconfig(), this.kubeconfig_text()).context("writing a kubeconfig")?;
        Ok(this)
    }

    /// For pods: speaks TLS with a certificate of an authority of its own, and answers 401 to everybody without the token
    /// of its only service account.
    pub fn start_for_pods() -> Result<Self> {
        Self::start_knowing(Some(ServiceAccount::create(NAMESPACE)?))
    }

    fn start_knowing(account: Option<ServiceAccount>) -> Result<Self> {
        let store = Arc::new(Store::new(granted()?));
        let unbound = (Ipv4Addr::LOCALHOST, 0).into();
        let dir = guardian::temporary_dir("kubeconfig-")?;
        let mut this = Self { address: unbound, store, account, server: None, dir };
        let server = this.serve()?;
        this.address = server.address();
        this.server = Some(server);
        Ok(this)
    }

    fn serve(&self) -> Result<ServerThread> {
        let router = http::router(Arc::clone(&self.store));
        match &self.account {
            None => ServerThread::start_at(self.address, router, None),
            Some(account) => ServerThread::start_at(self.address, account.guard(router), Some(account.acceptor()?)),
        }
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        let scheme = if self.account.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The directory with the files that a pod has of its service account: token, certificate of the authority, namespace.
    pub fn service_account(&self) -> Result<&Path> {
        Ok(self.account()?.files())
    }

    /// Replaces the token in the file, and takes no other when this returns.
    pub async fn rotate_token(&self, token: &str) -> Result<()> {
        self.account()?.rotate_token(token).await
    }

    /// Shows a certificate of an authority that nobody knows; or no longer so.
    pub fn set_impostor(&self, impostor: bool) -> Result<()> {
        self.account()?.set_impostor(impostor);
        Ok(())
    }

    /// How many handshakes have begun.
    pub fn handshakes(&self) -> Result<usize> {
        Ok(self.account()?.handshakes())
    }

    fn account(&self) -> Result<&ServiceAccount> {
        self.account.as_ref().context("this server knows no service account")
    }

    /// A file for `$KUBECONFIG`, which names the namespace `test`.
    pub fn kubeconfig(&self) -> PathBuf {
        Path::new(self.dir.path()).join("config")
    }

    fn kubeconfig_text(&self) -> String {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url()}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": NAMESPACE}}],
            "users": [{"name": "test", "user": {}}],
        })
        .to_string()
    }

    /// Makes an object, or replaces the one of its name, which keeps its uid. What the server fills in need not be there.
    pub fn apply(&self, resource: Resource, object: Value) {
        self.store.apply(resource, object);
    }

    /// Removes an object, if it is there.
    pub fn delete(&self, resource: Resource, name: &str) {
        self.store.delete(resource, name);
    }

    /// The object as it is now.
    pub fn object(&self, resource: Resource, name: &str) -> Option<Value> {
        self.store.object(resource, name)
    }

    /// Writes of leases are done and not answered; or no longer so.
    pub fn set_mute(&self, mute: bool) {
        self.store.set_mute(mute);
    }

    /// Watches from before now are answered with 410.
    pub fn forget_history(&self) {
        self.store.forget_history();
    }

    /// Ends every watch, as servers do from time to time.
    pub fn end_watches(&self) {
        self.store.end_watches();
    }

    /// Cuts every connection and takes no other.
    pub fn go_away(&mut self) {
        self.server = None;
    }

    /// Is there again, under the same address and with the same objects.
    pub async fn come_back(&mut self) -> Result<()> {
        // A process that starts just now may hold the old listener for a moment, until it runs its own program.
        let start = async || Ok(self.serve().ok());
        self.server = Some(eventually(RETURN_LIMIT, "the address is free", start).await?);
        Ok(())
    }

    /// Answers 404 for a kind, as if its definition were not installed; or no longer so.
    pub fn set_installed(&self, resource: Resource, installed: bool) {
        self.store.set_refusal(resource, (!installed).then_some(404));
    }

    /// Answers 403 for a kind; or no longer so.
    pub fn set_allowed(&self, resource: Resource, allowed: bool) {
        self.store.set_refusal(resource, (!allowed).then_some(403));
    }

    /// Answers so to whoever lists or watches a kind; or no longer so.
    pub fn set_refusal(&self, resource: Resource, status: Option<u16>) {
        self.store.set_refusal(resource, status);
    }

    /// Answers so to whoever writes the status of a kind; or no longer so.
    pub fn set_status_refusal(&self, resource: Resource, status: Option<u16>) {
        self.store.set_status_refusal(resource, status);
    }

    /// Answers so to whoever watches a kind, which may be listed all the same; or no longer so.
    pub fn set_watch_refusal(&self, resource: Resource, status: Option<u16>) {
        self.store.set_watch_refusal(resource, status);
    }

    /// Gives lists in pages of at most so many objects; or as large as their readers want them.
    pub fn set_page(&self, page: Option<usize>) {
        self.store.set_page(page);
    }

    /// Takes connections and says nothing, neither to who lists nor to who watches, be it for long; or speaks again to
    /// those who ask from now on.
    pub fn set_silent(&self, silent: bool) {
        self.store.set_silent(silent);
    }

    /// Ends every watch as soon as it has begun; or no longer so.
    pub fn set_short_watches(&self, short: bool) {
        self.store.set_short_watches(short);
    }

    /// Gives an object conditions as `manager`, who applies them with force.
    pub fn apply_conditions(&self, resource: Resource, name: &str, manager: &str, conditions: &Value) -> Result<()> {
        let patch = json!({"status": {"conditions": conditions}});
        let applied = self.store.apply_conditions(resource, name, manager, &patch);
        applied.map(drop).map_err(|status| anyhow::anyhow!("the server answers {status}"))
    }

    /// Gives an object these conditions in place of those it has, as somebody who edits its status.
    pub fn edit_conditions(&self, resource: Resource, name: &str, conditions: &Value) {
        self.store.edit_conditions(resource, name, conditions.as_array().map_or(&[], Vec::as_slice));
    }

    /// How many times somebody has tried to write the status of an object.
    pub fn status_writes(&self) -> usize {
        self.store.status_writes()
    }

    /// How long each list takes.
    pub fn set_delay(&self, delay: Duration) {
        self.store.set_delay(delay);
    }

    /// What has been asked for, each as `verb group/plural`, with `cluster-wide` after kinds that are in no namespace.
    pub fn requests(&self) -> BTreeSet<String> {
        self.store.requests().into_keys().collect()
    }

    /// How many times so much has been asked for, in the words of [`requests`](Self::requests).
    pub fn request_count(&self, request: &str) -> usize {
        self.store.requests().get(request).copied().unwrap_or_default()
    }
}

/// A ready pod at `ip`.
pub fn pod(name: &str, ip: &str, labels: &Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": "node"},
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// An InferencePool of the pods with these labels.
pub fn pool(name: &str, labels: &Value, ports: &[u16]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|port| json!({"number": port})).collect();
    json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "targetPorts": ports}})
}

/// An InferenceModelRewrite for requests to `pool`, with one rule: `model` becomes one of the targets, each with its
/// weight.
pub fn rewrite(name: &str, pool: &str, model: &str, targets: &[(&str, u32)]) -> Value {
    let targets: Vec<Value> =
        targets.iter().map(|(model, weight)| json!({"modelRewrite": model, "weight": weight})).collect();
    let rules = json!([{"matches": [{"model": {"value": model}}], "targets": targets}]);
    json!({"metadata": {"name": name}, "spec": {"poolRef": {"name": pool}, "rules": rules}})
}

/// An InferenceObjective for requests to `pool`.
pub fn objective(name: &str, pool: &str, priority: i32) -> Value {
    json!({"metadata": {"name": name}, "spec": {"poolRef": {"name": pool}, "priority": priority}})
}
