use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use sluice_config::{Options, Source, load};
use sluice_core::{Api, Endpoint, EndpointId, EndpointUid, Headers, Request, RequestId, Scraped, Time};
use sluice_plugins::BUILTIN;
use sluice_schedule::{Candidates, Rng};

fn request() -> Request {
    Request {
        id: RequestId("r".into()),
        received: Time::ZERO,
        api: Api::OpenAiChat,
        headers: Headers::new(),
        model: None,
        target_model: None,
        rewritten_by: None,
        stream: false,
        max_output_tokens: None,
        body_bytes: 0,
    }
}

fn endpoint(name: &str) -> Arc<Endpoint> {
    let address = "127.0.0.1:1".parse().unwrap();
    Arc::new(Endpoint::new(EndpointId::new("default", name), EndpointUid(name.into()), address, BTreeMap::new()))
}

/// A burst that finds every endpoint idle must not herd onto one of them.
#[test]
fn a_burst_spreads_over_equal_endpoints() {
    let scheduler = load(&Source::built_in(), BUILTIN, &Options::default()).unwrap().scheduler;
    let endpoints: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"].map(endpoint).into();
    for seed in 0..20 {
        let mut rng = Rng::seed_from_u64(seed);
        for _ in 0..80 {
            let decision = scheduler.schedule(&request(), &Candidates::new(&endpoints), &mut rng).unwrap();
            assert!(decision.targets[0].load().try_book(u64::MAX));
        }
        let load: Vec<u64> = endpoints.iter().map(|endpoint| endpoint.load().requests()).collect();
        // Each gets its tenth request before any gets its eleventh.
        assert_eq!(load, [10; 8]);
        for endpoint in &endpoints {
            (0..10).for_each(|_| endpoint.load().release());
        }
    }
}

/// Model servers bring their gauges up to date with a delay of seconds. Requests must not all go to the one that looked
/// the emptiest last.
#[test]
fn gauges_that_stand_still_do_not_gather_requests() {
    let scorers = ["queue-scorer", "running-requests-size-scorer", "kv-cache-utilization-scorer"];
    let picker = |picker: &str, used: &[&str]| {
        let plugins: String =
            used.iter().chain([&picker]).map(|plugin_type| format!("  - type: {plugin_type}\n")).collect();
        load(&Source::new("c.yaml", format!("plugins:\n{plugins}")), BUILTIN, &Options::default()).unwrap().scheduler
    };
    for used in [&scorers[..1], &scorers[1..2], &scorers[..]] {
        for scheduler in [picker("max-score-picker", used), picker("weighted-random-picker", used)] {
            let endpoints: Vec<_> = ["a", "b", "c", "d"].map(endpoint).into();
            let mut rng = Rng::seed_from_u64(1);
            for request_number in 0..100 {
                for endpoint in &endpoints {
                    let began = Time::from_millis(50 * request_number);
                    let (waiting, running, kv_usage) = (Some(0), Some(0), Some(0.0));
                    endpoint.set_scraped(Scraped { waiting, running, kv_usage, ..Scraped::at(began) });
                }
                let decision = scheduler.schedule(&request(), &Candidates::new(&endpoints), &mut rng).unwrap();
                assert!(decision.targets[0].load().try_book(u64::MAX));
            }
            let load: Vec<u64> = endpoints.iter().map(|endpoint| endpoint.load().requests()).collect();
            assert!(load.iter().all(|requests| (20..=30).contains(requests)), "{used:?}: {load:?}");
        }
    }
}
