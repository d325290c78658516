use std::sync::atomic::{AtomicU64, Ordering};

use sluice_core::{Clock, Time};

use super::*;

#[derive(Debug, Default)]
struct ByHand(AtomicU64);

impl Clock for ByHand {
    fn now(&self) -> Time {
        Time::from_secs(self.0.load(Ordering::Relaxed))
    }
}

struct World {
    registry: Registry,
    clock: Arc<ByHand>,
    metrics: Metrics,
}

fn world(max_tenants: usize, legacy_names: bool) -> World {
    let (registry, clock) = (Registry::new(), Arc::new(ByHand::default()));
    let tenants = TenantLabels::new(max_tenants, clock.clone());
    let metrics = Metrics::register(&registry, "p", tenants, legacy_names).unwrap();
    World { registry, clock, metrics }
}

fn name(model: &str) -> Name {
    Name { name: Some(model.into()), is_own: false }
}

impl Labels {
    /// Of requests for `model`, which endpoints get under the same name.
    fn of_model(self, model: &str) -> Self {
        Self { model: name(model), target: name(model), ..self }
    }
}

impl World {
    fn labels(&self, tenant: &str) -> Labels {
        let labels = self.metrics.labels(&Identity { priority: Priority(-1), tenant: tenant.into() });
        labels.of_model("m")
    }

    /// Lines of the page that name `tenant`.
    fn series_of(&self, tenant: &str) -> Vec<String> {
        let page = prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        let label = format!(r#"fairness_id="{tenant}""#);
        page.lines().filter(|line| line.contains(&label)).map(str::to_owned).collect()
    }
}

#[test]
fn running_falls_back_when_the_guard_goes() {
    let world = world(10, true);
    let running = world.metrics.placed(&mut world.labels("alice"));
    let gauge = world.metrics.families.running.with_label_values(&["m", "m", "alice", "-1"]);
    assert_eq!(gauge.get(), 1);
    drop(running);
    assert_eq!(gauge.get(), 0);
    assert_eq!(world.metrics.families.requests.with_label_values(&["m", "m", "alice", "-1"]).get(), 1);
}

#[test]
fn a_request_without_a_model_does_not_count_as_running() {
    let world = world(10, true);
    let _running =
        world.metrics.placed(&mut Labels { model: Name::default(), target: Name::default(), ..world.labels("alice") });
    assert_eq!(world.metrics.families.requests.with_label_values(&["", "", "alice", "-1"]).get(), 1);
    assert!(!world.registry.gather().iter().any(|family| family.name().contains("running")));
}

#[test]
fn old_names_are_a_choice() {
    for (legacy, expected) in [(true, 6), (false, 4)] {
        let world = world(10, legacy);
        world.metrics.failed(&Labels::default(), "BadRequest");
        world.metrics.queued(&mut Labels::default(), Outcome::Dispatched, Duration::ZERO);
        let names: Vec<String> = world.registry.gather().iter().map(|family| family.name().to_owned()).collect();
        assert_eq!(names.len(), expected, "{names:?}");
    }
}

#[test]
fn what_fails_takes_no_place() {
    let models = ModelNames::at_most(10);
    let model = name("m");
    assert_eq!(&*models.known(&model), "other");
    models.admit(&model);
    assert_eq!(&*models.known(&model), "m");
    assert_eq!(&*models.known(&Name::default()), "");
}

#[test]
fn model_names_are_bounded() {
    let models = ModelNames::at_most(10);
    let admit = |model: &str| models.admit(&name(model)).to_string();
    for index in 0..10 {
        assert_eq!(admit(&index.to_string()), index.to_string());
    }
    assert_eq!(admit("one more"), "other");
    assert_eq!(admit("7"), "7");
    assert_eq!(&*ModelNames::at_most(10).admit(&name(&"x".repeat(MAX_LENGTH + 1))), "other");
}

#[test]
fn a_name_that_the_operator_has_chosen_takes_no_place_and_always_counts() {
    let models = ModelNames::at_most(1);
    let own = |model: &str| Name { is_own: true, ..name(model) };
    assert_eq!((&*models.known(&own("a")), &*models.admit(&own("a"))), ("a", "a"));
    assert_eq!(&*models.admit(&name("m")), "m");
    assert_eq!((&*models.admit(&name("n")), &*models.admit(&own("b"))), ("other", "b"));
}

#[test]
fn both_names_of_a_model_are_told_and_the_rule_that_made_them_differ() {
    let world = world(10, true);
    let mut labels = Labels { target: name("t"), rewritten_by: Some("rule".into()), ..world.labels("alice") };
    drop(world.metrics.placed(&mut labels));
    world.metrics.failed(&labels, "ModelServerError");
    let page = prometheus::TextEncoder::new().encode_to_string(&world.registry.gather()).unwrap();
    for line in [
        r#"llm_d_epp_request_total{fairness_id="alice",model_name="m",priority="-1",target_model_name="t"} 1"#,
        r#"inference_objective_request_total{model_name="m",priority="-1",target_model_name="t"} 1"#,
        r#"inference_objective_request_error_total{error_code="ModelServerError",model_name="m",target_model_name="t"} 1"#,
        r#"llm_d_epp_model_rewrite_decisions_total{model_name="m",model_rewrite_name="rule",target_model="t"} 1"#,
        r#"inference_extension_model_rewrite_decisions_total{model_name="m",model_rewrite_name="rule",target_model="t"} 1"#,
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    world.metrics.families.forget("alice");
    assert_eq!(world.series_of("alice"), [""; 0]);
}

#[test]
fn a_refused_request_takes_no_label_value_of_a_tenant() {
    let world = world(2, false);
    for index in 0..100 {
        let mut labels = world.labels(&format!("made-up-{index}"));
        world.metrics.queued(&mut labels, Outcome::RejectedCapacity, Duration::ZERO);
        world.metrics.failed(&labels, "ResourceExhausted");
    }
    assert_eq!(world.series_of("made-up-7"), [""; 0]);
    assert!(!world.series_of("other").is_empty());

    let mut waited = world.labels("alice");
    world.metrics.queued(&mut waited, Outcome::EvictedTtl, Duration::from_secs(1));
    world.metrics.failed(&waited, "ResourceExhausted");
    assert!(world.series_of("alice").iter().any(|line| line.contains("EvictedTTL")));
    assert!(world.series_of("alice").iter().any(|line| line.contains("ResourceExhausted")));
}

#[test]
fn a_tenant_that_gave_its_value_to_another_leaves_no_series() {
    let world = world(1, true);
    let mut alice = world.labels("alice");
    let running = world.metrics.placed(&mut alice);
    world.metrics.queued(&mut alice, Outcome::Dispatched, Duration::ZERO);
    world.metrics.failed(&alice, "ModelServerError");
    drop((running, alice));
    world.clock.0.store(1_000, Ordering::Relaxed);

    drop(world.metrics.placed(&mut world.labels("bob")));
    assert_eq!(world.series_of("alice"), [""; 0]);
    assert!(!world.series_of("bob").is_empty());
    let Families { placed, queued, failed, .. } = &*world.metrics.families;
    assert!(
        placed.forget("alice").is_empty() && queued.forget("alice").is_empty() && failed.forget("alice").is_empty()
    );
}

/// `length` is that of each tenant's and model's name.
fn page_after_many_pairs(length: usize) -> String {
    let world = world(1_000, true);
    for index in 0..20_000 {
        // Coprime to each other: no pair comes twice.
        let (tenant, model) = (format!("{:t>length$}", index % 997), format!("{:m>length$}", index % 991));
        let mut labels = world.labels(&tenant).of_model(&model);
        drop(world.metrics.placed(&mut labels));
        world.metrics.queued(&mut labels, Outcome::Dispatched, Duration::ZERO);
        world.metrics.failed(&labels, "ModelServerError");
    }
    prometheus::TextEncoder::new().encode_to_string(&world.registry.gather()).unwrap()
}

#[test]
fn combinations_of_tenants_and_models_are_bounded() {
    let page = page_after_many_pairs(10);
    let lines = |name: &str| page.lines().filter(|line| line.starts_with(name)).count();
    let count = |name: &str| -> u64 {
        let values = page.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
        values.map(|value| value.parse::<u64>().unwrap()).sum()
    };
    // The first models until half of the bound is taken, and then one more series for each tenant.
    for name in ["llm_d_epp_request_total", "llm_d_epp_request_running", "llm_d_epp_request_error_total"] {
        assert_eq!(lines(&format!("{name}{{")), MAX_SETS / 2 + 997, "{name}");
    }
    let queue = "llm_d_epp_flow_control_request_queue_duration_seconds_count{";
    assert_eq!(lines(queue), MAX_QUEUE_SETS / 2 + 997);
    assert_eq!((count("llm_d_epp_request_total{"), count(queue)), (20_000, 20_000), "nothing is lost");
    assert!(page.len() < 24 << 20, "{} bytes", page.len());
}

#[test]
fn the_longest_label_values_leave_the_page_bounded() {
    let page = page_after_many_pairs(MAX_LENGTH);
    assert!(page.len() < 64 << 20, "{} bytes", page.len());
}

#[test]
fn many_priorities_do_not_raise_the_bound() {
    let world = world(1_000, false);
    for index in 0..20_000 {
        let tenant: Arc<str> = format!("t{}", index % 997).into();
        let identity = Identity { priority: Priority(index % 10), tenant };
        let mut labels = world.metrics.labels(&identity).of_model("m");
        world.metrics.queued(&mut labels, Outcome::Dispatched, Duration::ZERO);
    }
    let families = world.registry.gather();
    let queue = families.iter().find(|family| family.name().contains("queue_duration")).unwrap();
    // Of each priority one more, of the tenants that have none of their own.
    assert_eq!(queue.get_metric().len(), MAX_QUEUE_SETS + 10);
}

#[test]
fn a_request_that_was_running_when_the_bound_was_reached_falls_back_where_it_rose() {
    let world = world(1_000, true);
    let early = world.metrics.placed(&mut world.labels("early"));
    for index in 0..=MAX_SETS {
        let tenant = format!("t{}", index % 900);
        let mut labels = world.labels(&tenant).of_model(&format!("m{}", index % 899));
        drop(world.metrics.placed(&mut labels));
    }
    drop(early);
    let page = prometheus::TextEncoder::new().encode_to_string(&world.registry.gather()).unwrap();
    let mut running = page.lines().filter(|line| line.starts_with("llm_d_epp_request_running{"));
    assert!(running.all(|line| line.ends_with(" 0")));
}
