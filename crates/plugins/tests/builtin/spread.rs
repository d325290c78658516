use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use sluice_config::{Options, Source, load};
use sluice_core::{Api, Endpoint, EndpointId, EndpointUid, Headers, Request, RequestId, Time};
use sluice_plugins::BUILTIN;
use sluice_schedule::{Candidates, Rng};

fn request() -> Request {
    Request {
        id: RequestId("r".into()),
        received: Time::ZERO,
        api: Api::OpenAiChat,
        headers: Headers::new(),
        model: None,
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
