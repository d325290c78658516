//! The pool as Kubernetes has it: which one, and how everything learns of its changes.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use aws_lc_rs::digest;
use sluice_core::{Criticality, Tasks};
use sluice_data::EndpointTable;
use sluice_flow::SOFT_BAND_LIMIT;
use sluice_kube::{
    Bands, Index, Kubernetes, Membership, Objectives, PoolId, Reviewer, Rewrite, Rewrites, TargetPorts, Topic, Verdict,
    check_name, check_namespace, check_selector,
};
use sluice_router::{RewriteRule, RewriteTarget};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::flags::Flags;
use crate::leadership::{Candidature, Leadership};
use crate::objectives::{ConfiguredBands, ObjectivesInForce};
use crate::rewrites::RewritesInForce;

/// As many ports as an InferencePool may have.
const MOST_PORTS: usize = 8;

/// What the command line says of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// None: that of the kubeconfig or of the service account.
    pub(crate) namespace: Option<String>,
    pub(crate) group: String,
    pub(crate) membership: Membership,
    /// What those are called who elect a leader among them: all pickers of the pool, and no others.
    pub(crate) fleet: String,
}

impl Target {
    /// Where the configuration names no other source of endpoints. An error is every mistake.
    pub(crate) fn of(flags: &Flags) -> Result<Self, Vec<String>> {
        let membership = membership(flags);
        let names = mistakes_in_names(flags);
        match membership {
            Ok(membership) if names.is_empty() => Ok(Self {
                name: flags.pool_name().to_owned(),
                namespace: flags.pool_namespace.clone().or_else(|| flags.environment.namespace.clone()),
                group: flags.pool_group.clone(),
                fleet: fleet(flags, &membership),
                membership,
            }),
            membership => Err(membership.err().into_iter().chain(names).collect()),
        }
    }
}

/// The name of the pool or of the workload. Where neither is known, everybody who chooses pods would be called alike: what
/// they choose tells them apart.
fn fleet(flags: &Flags, membership: &Membership) -> String {
    let name = flags.pool_name();
    match membership {
        Membership::Selector { selector, .. } if flags.environment.workload().is_none() => {
            let ports = flags.endpoint_target_ports.iter().flat_map(|ports| &ports.0);
            let chosen = ports.fold(selector.clone(), |chosen, port| format!("{chosen} {port}"));
            let digest = digest::digest(&digest::SHA256, chosen.as_bytes());
            digest.as_ref().iter().take(8).fold(format!("{name}-"), |name, byte| format!("{name}{byte:02x}"))
        }
        Membership::Selector { .. } | Membership::Pool => name.to_owned(),
    }
}

/// Those that no API server would take.
fn mistakes_in_names(flags: &Flags) -> Vec<String> {
    let pool = flags.names_pool().then(|| ("--pool-name", check_name(flags.pool_name())));
    let namespace = match (&flags.pool_namespace, &flags.environment.namespace) {
        (Some(namespace), _) => Some(("--pool-namespace", check_namespace(namespace))),
        (None, Some(namespace)) => Some(("NAMESPACE in the environment", check_namespace(namespace))),
        (None, None) => None,
    };
    let group = Some(("--pool-group", check_name(&flags.pool_group)));
    let selector = flags.endpoint_selector.as_deref();
    let selector = selector.map(|selector| ("--endpoint-selector", check_selector(selector)));
    let checked = [pool, namespace, group, selector].into_iter().flatten();
    checked.filter_map(|(what, checked)| Some(format!("{what}: {}", checked.err()?))).collect()
}

fn membership(flags: &Flags) -> Result<Membership, String> {
    match (flags.names_pool(), &flags.endpoint_selector) {
        (true, None) => Ok(Membership::Pool),
        (false, Some(selector)) => {
            let given = flags.endpoint_target_ports.iter().flat_map(|ports| &ports.0);
            let ports = TargetPorts::new(given.copied());
            if !(1..=MOST_PORTS).contains(&ports.count()) {
                return Err(format!("--endpoint-selector needs 1 to {MOST_PORTS} ports in --endpoint-target-ports"));
            }
            Ok(Membership::Selector { selector: selector.clone(), ports })
        }
        (true, Some(_)) => Err("--pool-name and --endpoint-selector exclude each other".to_owned()),
        (false, None) => {
            Err("no source of endpoints: name an InferencePool in --pool-name, pods in --endpoint-selector \
                              and --endpoint-target-ports, or a file-discovery plugin in \
                              dataLayer.discovery.pluginRef"
                .to_owned())
        }
    }
}

/// What others want of the API server.
#[derive(Clone, Debug)]
pub(crate) struct Followed {
    /// Whether there is a pool and everything about it has been heard.
    pub(crate) known: watch::Receiver<bool>,
    pub(crate) reviewer: Reviewer,
    /// None where every picker serves.
    pub(crate) leadership: Option<Leadership>,
}

/// How pickers of one pool agree which one serves.
pub(crate) struct Election {
    pub(crate) candidature: Candidature,
    /// Those that do not lead follow the pool, too.
    pub(crate) populate_standbys: bool,
}

/// Follows the pool.
pub(crate) fn start(
    target: Target,
    table: Arc<EndpointTable>,
    objectives: ObjectivesInForce,
    rewrites: RewritesInForce,
    election: Option<Election>,
    tasks: &Tasks,
) -> anyhow::Result<Followed> {
    let Target { name, namespace, group, membership, fleet } = target;
    let kubernetes = Handle::current().block_on(Kubernetes::find())?;
    let namespace = namespace.unwrap_or_else(|| kubernetes.namespace().to_owned());
    tracing::info!(namespace, pool = name, ?membership, "following the pool in Kubernetes");
    let (known, is_known) = watch::channel(false);
    let (verdicts, heard) = watch::channel(Vec::new());
    let configured = objectives.configured_bands();
    let id = PoolId { namespace, name, group };
    let mut follower = Follower {
        id: id.clone(),
        table,
        objectives,
        rewrites,
        known,
        lacks_pool: false,
        in_force: None,
        rewrites_in_force: None,
        configured: configured.clone(),
        verdicts,
        told: BTreeSet::new(),
    };
    let reviewer = kubernetes.reviewer();
    let (leadership, begin) = match election {
        Some(Election { candidature, populate_standbys }) => {
            let leadership = Leadership::seek(&kubernetes, &id.namespace, &fleet, candidature, tasks)?;
            let begin = (!populate_standbys).then(|| leadership.leads());
            (Some(leadership), begin)
        }
        None => (None, None),
    };
    // Where nobody is elected, all say the same.
    let leads = leadership.as_ref().map_or_else(|| watch::channel(true).1, Leadership::leads);
    let reporter = kubernetes.reporter(&id, heard, leads);
    tasks.spawn("status", Criticality::Expendable, reporter.run());
    let body = kubernetes.follow(id, membership, configured, move |index, topic| follower.take_over(index, topic));
    tasks.spawn("kubernetes", Criticality::Critical, async move {
        if let Some(mut leads) = begin {
            // Without a sender the process is about to end.
            drop(leads.wait_for(|leads| *leads).await);
        }
        // Also when it leads no more: what waits and runs here needs the pool.
        body.await;
    });
    Ok(Followed { known: is_known, reviewer, leadership })
}

/// Hands over what is known of the pool.
struct Follower {
    id: PoolId,
    table: Arc<EndpointTable>,
    objectives: ObjectivesInForce,
    rewrites: RewritesInForce,
    known: watch::Sender<bool>,
    lacks_pool: bool,
    in_force: Option<Objectives>,
    rewrites_in_force: Option<Rewrites>,
    configured: watch::Receiver<ConfiguredBands>,
    verdicts: watch::Sender<Vec<Verdict>>,
    /// What the log has said of objectives and rewrites.
    told: BTreeSet<(&'static str, String)>,
}

impl Follower {
    /// Asks for nothing that does not follow from `topic`: with many rules a pod would cost more than all its requests.
    fn take_over(&mut self, index: &Index, topic: Topic) {
        if topic == Topic::Objectives || self.in_force.is_none() {
            self.take_over_objectives(index.objectives());
        }
        if topic == Topic::Rewrites || self.rewrites_in_force.is_none() {
            self.take_over_rewrites(index.rewrites());
        }
        if topic != Topic::Pods {
            self.take_over_verdicts(index);
        }
        if matches!(topic, Topic::Pool | Topic::Pods) {
            self.table.replace(index.endpoints());
        }
        // Last, so that who is told finds everything in force.
        let complete = index.is_complete();
        if self.known.send_replace(complete) != complete && complete {
            self.tell_of_pool();
        }
        let lacks_pool = index.lacks_pool();
        if std::mem::replace(&mut self.lacks_pool, lacks_pool) != lacks_pool && lacks_pool {
            let PoolId { namespace, name, group } = &self.id;
            tracing::warn!(namespace, name, group, "there is no such InferencePool: not ready until there is");
        }
    }

    fn take_over_objectives(&mut self, objectives: Objectives) {
        if self.in_force.as_ref() == Some(&objectives) {
            return;
        }
        let Objectives { priorities, defined_twice, of_other_group } = &objectives;
        self.tell("the objective is defined in both API groups, llm-d.ai counts", defined_twice);
        self.tell("the objective names the pool by another API group than --pool-group", of_other_group);
        self.objectives.follow_kubernetes(priorities.clone());
        self.in_force = Some(objectives);
    }

    fn take_over_rewrites(&mut self, rewrites: Rewrites) {
        if self.rewrites_in_force.as_ref() == Some(&rewrites) {
            return;
        }
        let Rewrites { in_order, defined_twice, of_other_group, with_rules_left_out } = &rewrites;
        self.tell("the rewrite is defined in both API groups, llm-d.ai counts", defined_twice);
        self.tell("the rewrite names the pool by another API group than --pool-group", of_other_group);
        self.tell(
            "rules of the rewrite are left out: targets without a name, or with too long a one",
            with_rules_left_out,
        );
        self.rewrites.follow_kubernetes(in_order.iter().flat_map(rules).collect());
        self.rewrites_in_force = Some(rewrites);
    }

    fn take_over_verdicts(&self, index: &Index) {
        self.verdicts.send_if_modified(|present| {
            let configured = self.configured.borrow().priorities();
            let verdicts = index.verdicts(Bands { configured: &configured, most: SOFT_BAND_LIMIT });
            let changed = *present != verdicts;
            *present = verdicts;
            changed
        });
    }

    /// Says it of each name once, until it is no longer so.
    fn tell(&mut self, what: &'static str, names: &BTreeSet<String>) {
        self.told.retain(|(said, name)| *said != what || names.contains(name));
        for name in names {
            if self.told.insert((what, name.clone())) {
                tracing::warn!(name, "{what}");
            }
        }
    }

    fn tell_of_pool(&self) {
        let endpoints = self.table.snapshot().endpoints().len();
        let objectives = self.in_force.as_ref().map_or(0, |objectives| objectives.priorities.len());
        tracing::info!(endpoints, objectives, "the pool is known");
    }
}

/// As requests go by them. An object may have a weight that the server would not have let in: it counts as none.
fn rules(rewrite: &Rewrite) -> impl Iterator<Item = RewriteRule> {
    let target = |target: &sluice_kube::RewriteTarget| RewriteTarget {
        model: target.model_rewrite.clone(),
        weight: target.weight.and_then(|weight| u32::try_from(weight).ok()).and_then(NonZeroU32::new),
    };
    rewrite.rules.iter().map(move |rule| RewriteRule {
        origin: rewrite.key.name.as_str().into(),
        models: rule.matches.iter().map(|matched| matched.model.value.clone()).collect(),
        targets: rule.targets.iter().map(target).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::flags::CommandLine;

    fn target(line: &[&str], environment: Environment) -> Result<Target, Vec<String>> {
        let mut flags = CommandLine::parse([&["epp"], line].concat()).unwrap().flags;
        flags.environment = environment;
        Target::of(&flags)
    }

    fn mistake(line: &[&str]) -> String {
        target(line, Environment::default()).unwrap_err().join("\n")
    }

    #[test]
    fn a_pool_is_named_by_its_flags_and_its_namespace_by_the_first_who_knows_one() {
        let environment = || Environment { namespace: Some("around".into()), pod_name: Some("picker-0".into()) };
        let named = target(&["--pool-name", "chat", "--pool-namespace", "lab", "--pool-group", "g"], environment());
        let expected = Target {
            name: "chat".into(),
            namespace: Some("lab".into()),
            group: "g".into(),
            membership: Membership::Pool,
            fleet: "chat".into(),
        };
        assert_eq!(named, Ok(expected));
        let around = target(&["--pool-name", "chat"], environment()).unwrap();
        assert_eq!(around.namespace.as_deref(), Some("around"));
        assert_eq!(around.group, "inference.networking.k8s.io");
        assert_eq!(target(&["--pool-name", "chat"], Environment::default()).unwrap().namespace, None);
    }

    #[test]
    fn pods_are_chosen_by_a_selector_with_ports_and_the_pool_is_called_by_the_workload() {
        let line = ["--endpoint-selector", "app in (a,b)", "--endpoint-target-ports", "8001,8000, 8001"];
        let environment = Environment { pod_name: Some("picker-0".into()), ..Environment::default() };
        let target = target(&line, environment).unwrap();
        let ports = TargetPorts::new([8001, 8000]);
        assert_eq!(target.membership, Membership::Selector { selector: "app in (a,b)".into(), ports });
        assert_eq!((&*target.name, &*target.fleet), ("picker", "picker"));
    }

    #[test]
    fn pickers_that_choose_the_same_are_one_fleet_and_others_are_another_one() {
        let fleet = |selector, ports, environment| {
            let line = ["--endpoint-selector", selector, "--endpoint-target-ports", ports];
            target(&line, environment).unwrap().fleet
        };
        let nameless = || Environment { namespace: Some("lab".into()), pod_name: None };
        let one = fleet("app=a", "8000", nameless());
        assert!(one.starts_with("epp-") && one.len() == 20, "{one}");
        assert_eq!(one, fleet("app=a", "8000", nameless()));
        assert_ne!(one, fleet("app=b", "8000", nameless()));
        assert_ne!(one, fleet("app=a", "8001", nameless()));
        let of_workload = |pod: &str| Environment { namespace: None, pod_name: Some(pod.into()) };
        assert_eq!(fleet("app=a", "8000", of_workload("picker-7d4b9c6f5-x2k8z")), "picker");
        assert_eq!(fleet("app=b", "8000", of_workload("picker-5c6f7d8b9-q4r2t")), "picker", "in a rolling update");
    }

    #[test]
    fn what_is_missing_or_too_much_is_named() {
        for flag in ["--pool-name", "--endpoint-selector", "dataLayer.discovery.pluginRef"] {
            assert!(mistake(&[]).contains(flag), "{flag}");
        }
        let ports = ["--endpoint-target-ports", "1,2,3,4,5,6,7,8"];
        assert!(mistake(&[&["--pool-name", "a", "--endpoint-selector", "b"], &ports[..]].concat()).contains("exclude"));
        assert!(mistake(&["--endpoint-selector", "b"]).contains("--endpoint-target-ports"));
        let all = mistake(&["--pool-name=A/B", "--pool-namespace=a.b", "--pool-group=a/b", "--endpoint-selector=!!"]);
        let expected =
            ["exclude", "--pool-name: \"A/B\"", "--pool-namespace: ", "--pool-group: ", "--endpoint-selector: "];
        let lines: Vec<&str> = all.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{all}");
        assert!(lines.iter().zip(expected).all(|(line, expected)| line.contains(expected)), "{all}");
        let around = Environment { namespace: Some("A".to_owned()), ..Environment::default() };
        assert!(target(&["--pool-name=a"], around).unwrap_err()[0].starts_with("NAMESPACE in the environment: \"A\""));
        let too_many = ["--endpoint-selector", "b", "--endpoint-target-ports", "1,2,3,4,5,6,7,8,9"];
        assert!(mistake(&too_many).contains("1 to 8"));
    }
}
