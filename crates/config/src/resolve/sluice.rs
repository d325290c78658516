use std::collections::BTreeSet;
use std::time::Duration;

use sluice_core::{MAX_MODEL_NAME, nearest};
use sluice_flow::GlobalLimits;

use super::flow_control::{MANY_BANDS, global_limits, too_many_bands};
use super::{Resolver, filled};
use crate::diagnostics::Remark;
use crate::document::{Document, Located, NodeId};
use crate::quantity::ByteSize;
use crate::raw::{RawFlowControl, RawModelRewrite, RawObjective, RawSluice};
use crate::settings::{
    DryRun, Eviction, Limits, ModelRewrite, Objective, Queue, RewriteTarget, Settings, Trust, TrustSource, WhenFull,
};
use crate::timeout::Timeout;

impl Resolver<'_, '_> {
    /// The section `sluice`, with the checks that need more than one field. `flow_control` is there if its
    /// feature gate is on.
    pub(super) fn settings(&mut self, raw: RawSluice, flow_control: Option<&RawFlowControl>) -> Settings {
        let RawSluice {
            objectives,
            model_rewrites,
            default_objective,
            unknown_objective,
            trust,
            header_only,
            bodies,
            message_timeout,
            dry_run,
            queue,
            eviction,
            refusals,
            limits,
            reload,
            drain,
            metrics,
        } = raw;
        let sizes = [
            ("maxRequestHeaders", limits.max_request_headers, "write a size such as 64Ki"),
            ("maxRequestBody", limits.max_request_body, "write a size such as 64Mi"),
        ];
        for (key, _, hint) in sizes.into_iter().filter(|(_, size, _)| *size == ByteSize(0)) {
            if let Some(node) = self.document.descend(Document::ROOT, &["sluice", "limits", key]) {
                self.error(node, Remark::new("a limit of 0 would refuse every request").hint(hint));
            }
        }
        self.check_body_limits(&limits, flow_control);
        if let Some(flow_control) = flow_control {
            self.check_queue(&queue, flow_control);
            self.check_eviction(&eviction, &dry_run, flow_control);
        }
        self.check_trust(&trust);
        let objectives = self.objectives(objectives);
        if let Some(flow_control) = flow_control {
            self.check_victims(&objectives, flow_control);
        }
        let default_objective = self.default_objective(default_objective.as_ref(), &objectives);
        Settings {
            objectives,
            model_rewrites: model_rewrites.into_iter().map(|rewrite| self.model_rewrite(rewrite)).collect(),
            default_objective,
            unknown_objective,
            trust,
            header_only,
            bodies,
            message_timeout,
            dry_run: dry_run.into_iter().map(|part| part.value).collect(),
            queue,
            eviction,
            refusals,
            limits,
            reload,
            drain,
            metrics,
        }
    }

    fn check_eviction(&mut self, eviction: &Eviction, dry_run: &[Located<DryRun>], flow_control: &RawFlowControl) {
        // The word to a client and the pause before the cut take more than half of this.
        const SHORTEST: Timeout = Timeout(Duration::from_millis(100));
        if eviction.confirmation_timeout < SHORTEST
            && let Some(node) = self.document.descend(Document::ROOT, &["sluice", "eviction", "confirmationTimeout"])
        {
            let remark =
                Remark::new("less than 100ms would take one victim after the other before the first could end");
            self.error(node, remark.hint("write a time such as 1s"));
        }
        let enabled = flow_control.enable_eviction.as_ref();
        if enabled.is_some_and(|enabled| enabled.value) || self.diagnostics.has_errors_in("flowControl") {
            return;
        }
        let message = "has no effect without flowControl.enableEviction: true";
        for part in dry_run.iter().filter(|part| part.value == DryRun::Eviction) {
            self.warn(part.node, Remark::new(message));
        }
        if let Some(node) = self.document.descend(Document::ROOT, &["sluice", "eviction"])
            && self.document.entries(node).next().is_some()
            && !self.diagnostics.has_errors_in("sluice.eviction")
        {
            self.diagnostics.warn(self.document.key_place(node), Remark::new(message));
        }
    }

    /// Only work of negative priority makes room.
    fn check_victims(&mut self, objectives: &[Objective], flow_control: &RawFlowControl) {
        // Elsewhere a pool in Kubernetes brings objectives of its own.
        let configured_only = self.document.descend(Document::ROOT, &["dataLayer", "discovery"]).is_some();
        if let Some(&Located { value: true, node }) = flow_control.enable_eviction.as_ref()
            && configured_only
            && !self.diagnostics.has_errors_in("sluice.objectives")
            && objectives.iter().all(|objective| objective.priority >= 0)
        {
            let remark =
                Remark::new("has no effect: no objective has a negative priority, and only such requests are evicted");
            self.warn(node, remark.hint("give the objective of the work that may be cut off a priority below 0"));
        }
    }

    fn check_queue(&mut self, queue: &Queue, flow_control: &RawFlowControl) {
        if queue.when_full == WhenFull::Displace
            && global_limits(flow_control) == GlobalLimits::default()
            && !self.diagnostics.has_errors_in("flowControl")
            && let Some(node) = self.document.descend(Document::ROOT, &["sluice", "queue", "whenFull"])
        {
            let remark = Remark::new("has no effect: requests are displaced for the sake of global limits only");
            let remark = remark.hint("set flowControl.maxRequests or flowControl.maxBytes");
            self.diagnostics.warn(self.document.key_place(node), remark);
        }
    }

    /// Warns of limits under which a body of the size that is allowed never fits.
    fn check_body_limits(&mut self, limits: &Limits, flow_control: Option<&RawFlowControl>) {
        let largest = limits.max_request_body;
        let warn = |resolver: &mut Self, owner: NodeId, key: &str, limit: Option<ByteSize>| {
            let Some(limit) = limit.filter(|limit| limit.0 > 0 && *limit < largest) else { return };
            let Some(node) = resolver.document.child(owner, key) else { return };
            let remark = Remark::new(format!("a body of more than {} bytes never fits, and is refused", limit.0));
            let hint = format!("sluice.limits.maxRequestBody allows {} bytes: lower that, or raise this", largest.0);
            resolver.warn(node, remark.hint(hint));
        };
        if let Some(owner) = self.document.descend(Document::ROOT, &["sluice", "limits"]) {
            warn(self, owner, "bodyMemory", Some(limits.body_memory));
        }
        let Some(flow_control) = flow_control else { return };
        if let Some(owner) = self.document.descend(Document::ROOT, &["flowControl"]) {
            warn(self, owner, "maxBytes", flow_control.max_bytes);
        }
        let templates = [&flow_control.default_priority_band, &flow_control.default_negative_priority_band];
        let bands = flow_control.priority_bands.iter().chain(templates.into_iter().flatten());
        for band in bands.filter(|band| !band.value.shed) {
            warn(self, band.node, "maxBytes", band.value.max_bytes);
        }
    }

    fn objectives(&mut self, raw: Vec<Located<RawObjective>>) -> Vec<Objective> {
        let mut objectives: Vec<Objective> = Vec::new();
        let mut names = BTreeSet::new();
        for Located { value: RawObjective { name, priority }, node } in raw {
            let Some(name) = self.required(name.as_ref(), node, "name") else { continue };
            if name.value.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
                let remark = Remark::new(format!("the name {:?} has a space or a control character in it", name.value));
                self.error(name.node, remark.hint("requests name their objective in a header: use letters and digits"));
            }
            if !names.insert(name.value.clone()) {
                self.error(name.node, Remark::new(format!("there is an objective {:?} already", name.value)));
            }
            objectives.push(Objective { name: name.value.clone(), priority });
        }
        let priorities: BTreeSet<i32> = objectives.iter().map(|objective| objective.priority).collect();
        if priorities.len() > MANY_BANDS
            && let Some(node) = self.document.descend(Document::ROOT, &["sluice", "objectives"])
        {
            self.warn(node, too_many_bands(priorities.len()));
        }
        objectives
    }

    fn default_objective(&mut self, name: Option<&Located<String>>, objectives: &[Objective]) -> Option<String> {
        let name = filled(name)?;
        let mut names = objectives.iter().map(|objective| objective.name.as_str());
        // One that could not be read may be the one.
        if !names.clone().any(|known| known == name.value) && !self.diagnostics.has_errors_in("sluice.objectives") {
            let remark = Remark::new(format!("there is no objective {:?}", name.value));
            let remark = match nearest(&name.value, &mut names) {
                Some(suggestion) => remark.suggest(suggestion),
                None => remark.hint("define it under sluice.objectives"),
            };
            self.error(name.node, remark);
        }
        Some(name.value.clone())
    }

    fn check_trust(&mut self, trust: &Trust) {
        let Trust { source, metadata_namespace } = trust;
        let Some(node) = self.document.descend(Document::ROOT, &["sluice", "trust", "metadataNamespace"]) else {
            return;
        };
        match source {
            TrustSource::Metadata if metadata_namespace.is_empty() => {
                self.error(node, Remark::new("the namespace has no name"));
            }
            TrustSource::Metadata => {}
            TrustSource::Headers => {
                let message = "has no effect: only with source metadata is any metadata read";
                self.diagnostics.warn(self.document.key_place(node), Remark::new(message));
            }
        }
    }

    fn model_rewrite(&mut self, rule: Located<RawModelRewrite>) -> ModelRewrite {
        let RawModelRewrite { matches, targets } = rule.value;
        self.check_targets(rule.node, &targets);
        let mut models = Vec::new();
        for pattern in matches {
            let Some(model) = pattern.value.model else {
                if self.document.child(pattern.node, "model").is_none() {
                    self.missing(pattern.node, "model");
                }
                continue;
            };
            if let Some(value) = self.required(model.value.value.as_ref(), model.node, "value") {
                self.check_model_name(value.node, &value.value);
                models.push(value.value.clone());
            }
        }
        ModelRewrite { models, targets: targets.into_iter().map(|target| target.value).collect() }
    }

    /// Notes targets that are no names of models. Warns of a rule that has no targets, and of targets that get nothing
    /// beside others.
    fn check_targets(&mut self, rule: NodeId, targets: &[Located<RewriteTarget>]) {
        if targets.is_empty() && !self.diagnostics.has_errors_in("sluice.modelRewrites") {
            self.warn(rule, Remark::new("has no targets: the requests that it is for are refused"));
        }
        for target in targets {
            let Some(node) = self.document.child(target.node, "modelRewrite") else { continue };
            if target.value.model_rewrite.is_empty() {
                self.error(node, Remark::new("the name of the model is empty"));
            }
            self.check_model_name(node, &target.value.model_rewrite);
        }
        let is_weighted = |target: &&Located<RewriteTarget>| target.value.weight.is_some();
        if !targets.iter().any(|target| is_weighted(&target)) {
            return;
        }
        for target in targets.iter().filter(|target| !is_weighted(target)) {
            let remark = Remark::new("gets no requests: it has no weight, and other targets of the rule have one");
            self.warn(target.node, remark.hint("give it a weight, or take those of the others away"));
        }
    }

    fn check_model_name(&mut self, node: NodeId, name: &str) {
        if name.len() > MAX_MODEL_NAME {
            let length = name.len();
            let remark = format!("the name of a model has at most {MAX_MODEL_NAME} bytes, and this one has {length}");
            self.error(node, Remark::new(remark));
        }
    }
}
