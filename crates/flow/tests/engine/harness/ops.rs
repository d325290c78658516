//! Random configurations and operations, each decoded from one number so that lists shrink well.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::Priority;
use sluice_flow::policy::{FairnessPolicy, OrderingPolicy, UsageLimitPolicy};
use sluice_flow::{
    BandConfig, Budgets, Config, DryRun, EvictionConfig, GlobalLimits, OTHER_TENANT, VictimOrder, WhenFull,
};
use sluice_plugins::flow::{
    ConcurrencyDetector, ConcurrencyMode, Curve, Domain, Edf, Fcfs, GlobalStrict, PriorityHoldback, RoundRobin,
    SloDeadline, StaticUsageLimit, Weighted, Weights,
};

/// The priorities that requests come with.
pub(crate) const PRIORITIES: [i32; 6] = [10, 3, 0, -1, -5, -9];

/// Tenants are `t0`, `t1`, …
pub(crate) const TENANTS: u8 = 9;

/// `Progress` says how many bytes of the response the client has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Submit { tenant: u8, band: u8, bytes: u8, tokens: u8, ttl: u8, ttft: u8, hint: u8, stages: u8 },
    RefuseByHeaders { band: u8, bytes: u8 },
    Cancel { nth: u8 },
    Start { nth: u8, pick: u8, prefill: u8 },
    Park { nth: u8, hint: u8 },
    FirstChunk { nth: u8, release_tokens: bool },
    Rebook { nth: u8, pick: u8 },
    Release { nth: u8, cause: u8 },
    Progress { nth: u8, bytes: u8 },
    Wait { millis: u16, tell: bool },
    Pool { mask: u8, fresh: u8, limits: u8, roles: u8 },
    Desired { mask: u8 },
    Reload { variant: u8 },
    Drain,
    Shutdown,
}

impl Op {
    /// Of `words`, as the configuration `setup` wants them: some runs are calm.
    pub(crate) fn decode_all(setup: u64, words: impl IntoIterator<Item = u64>) -> Vec<Self> {
        let [.., last] = setup.to_le_bytes();
        let decode = if last >= 192 { Self::decode_calm } else { Self::decode };
        words.into_iter().map(decode).collect()
    }

    /// Mostly requests of three tenants that come, start and end, so that all of them have something to send for long.
    fn decode_calm(word: u64) -> Self {
        let [kind, a, b, c, ..] = word.to_le_bytes();
        match kind {
            0..=125 => Self::Submit {
                tenant: 1 + a % 3,
                band: 2,
                bytes: 0,
                tokens: 8 + c % 8,
                ttl: 100,
                ttft: 255,
                hint: 1,
                stages: 2,
            },
            126..=187 => Self::Start { nth: a, pick: b, prefill: 1 },
            188..=249 => Self::Release { nth: a, cause: 0 },
            _ => Self::decode(word.rotate_right(8)),
        }
    }

    /// Spreads the bits of `word` over the kinds of operations.
    fn decode(word: u64) -> Self {
        let [kind, a, b, c, d, e, f, g] = word.to_le_bytes();
        match kind {
            0..=89 => {
                // Most requests are plain; small fields make collisions of every kind.
                Self::Submit {
                    tenant: a % TENANTS,
                    band: b,
                    bytes: c % 8,
                    tokens: d % 16,
                    ttl: e,
                    ttft: f,
                    hint: g,
                    stages: g / 32,
                }
            }
            90..=104 => Self::Cancel { nth: a },
            105..=164 => Self::Start { nth: a, pick: b, prefill: c },
            165..=184 => Self::Park { nth: a, hint: b },
            185..=187 => Self::FirstChunk { nth: a, release_tokens: b % 2 == 0 },
            188 | 189 => Self::Rebook { nth: a, pick: b },
            190..=225 => Self::Release { nth: a, cause: b },
            226..=230 => Self::Progress { nth: a, bytes: b % 4 },
            231 | 232 => Self::RefuseByHeaders { band: a, bytes: b % 8 },
            233..=244 => Self::Wait { millis: u16::from(a) * u16::from(b % 8), tell: c % 4 != 0 },
            245..=249 => Self::Pool { mask: a, fresh: b & c, limits: d, roles: e },
            250..=252 => Self::Desired { mask: a },
            253 | 254 => Self::Reload { variant: a },
            255 if a < 8 => Self::Shutdown,
            255 if a < 24 => Self::Drain,
            255 => Self::Wait { millis: u16::from(b) * 16, tell: true },
        }
    }
}

/// The numbers that `seed` stands for.
#[derive(Clone, Debug)]
pub(crate) struct Words(u64);

impl Words {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl Iterator for Words {
    type Item = u64;

    /// SplitMix64.
    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(word ^ (word >> 31))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turns {
    RoundRobin,
    Strict,
    /// The oracle follows the engine's choice among the flows; the shares are checked by their bound.
    Weighted,
}

/// What oracle and checker know of the policies of a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policies {
    pub(crate) detector: ConcurrencyDetector,
    pub(crate) turns: Turns,
    pub(crate) max_in_flight: Option<u64>,
}

/// A configuration and its variants for reloads.
#[derive(Debug)]
pub(crate) struct Setup {
    word: u64,
    detectors: [Arc<ConcurrencyDetector>; 2],
    fairness: [(Turns, Option<u64>, Arc<dyn FairnessPolicy>); 2],
    orderings: [Arc<dyn OrderingPolicy>; 3],
    usage_limits: [Arc<dyn UsageLimitPolicy>; 4],
}

impl Setup {
    pub(crate) fn decode(word: u64) -> Self {
        let [mode, headroom, turns, cap, ..] = word.to_le_bytes();
        let modes = [ConcurrencyMode::Requests, ConcurrencyMode::Requests, ConcurrencyMode::Tokens];
        let mode_of = |number: u8| modes.get(usize::from(number % 4)).copied().unwrap_or(ConcurrencyMode::Hybrid);
        let detector = ConcurrencyDetector {
            mode: mode_of(mode),
            max_concurrency: 4,
            max_token_concurrency: 32,
            headroom: f64::from(headroom % 3) * 0.25,
            cap_endpoint_tokens: headroom / 3 % 2 == 1,
        };
        let other = ConcurrencyDetector {
            mode: mode_of(headroom / 4),
            max_concurrency: 2,
            max_token_concurrency: 20,
            headroom: 0.5,
            cap_endpoint_tokens: headroom / 16 % 2 == 1,
        };
        let turns = match turns % 5 {
            0..=2 => [Turns::RoundRobin, Turns::Weighted],
            3 => [Turns::Strict, Turns::RoundRobin],
            _ => [Turns::Weighted, Turns::RoundRobin],
        };
        let fairness = turns.map(|turns| {
            let max_in_flight = (turns == Turns::Weighted && cap % 2 == 0).then_some(3);
            (turns, max_in_flight, Self::fairness(turns, max_in_flight))
        });
        let explicit = [(3, 0.9), (0, 0.75), (-5, 0.5)].map(|(priority, ceiling)| (Priority(priority), ceiling));
        let linear = |domain| Curve::Linear { domain, min_ceiling: 0.3 };
        Self {
            word,
            detectors: [detector, other].map(Arc::new),
            fairness,
            orderings: [Arc::new(Fcfs), Arc::new(Edf), Arc::new(SloDeadline)],
            usage_limits: [
                Arc::new(StaticUsageLimit::default()),
                Arc::new(PriorityHoldback::new(1.0, Curve::Explicit(explicit.to_vec())).expect("they fall")),
                Arc::new(PriorityHoldback::new(0.95, linear(Domain::Rank)).expect("it falls")),
                Arc::new(PriorityHoldback::new(1.0, linear(Domain::Value)).expect("it falls")),
            ],
        }
    }

    fn fairness(turns: Turns, max_in_flight: Option<u64>) -> Arc<dyn FairnessPolicy> {
        match turns {
            Turns::RoundRobin => Arc::new(RoundRobin),
            Turns::Strict => Arc::new(GlobalStrict),
            Turns::Weighted => {
                let exact = [("t1".to_owned(), Self::weight(1))];
                let prefixes = [("t2".to_owned(), Self::weight(2))];
                let weights = Weights::new(Self::weight(0), exact, prefixes).expect("the weights are good");
                Arc::new(Weighted::new(weights, max_in_flight))
            }
        }
    }

    /// The policies of [`Setup::config`] with the same `variant`: most variants keep those of the first.
    pub(crate) fn policies(&self, variant: u8) -> Policies {
        let (turns, max_in_flight, _) = self.fairness[usize::from(variant / 64 % 2)];
        Policies { detector: *self.detectors[usize::from(variant / 128)], turns, max_in_flight }
    }

    /// Most runs are short of requests that wait, so that every list is short.
    pub(crate) fn most_waiting(&self) -> usize {
        let [mode, ..] = self.word.to_le_bytes();
        if mode >= 192 { 40 } else { 12 }
    }

    /// Of the tenant `t<number>`, where turns are weighted.
    pub(crate) const fn weight(tenant: u8) -> f64 {
        match tenant {
            1 => 4.0,
            2 => 0.5,
            _ => 1.0,
        }
    }

    pub(crate) fn config(&self, variant: u8) -> Config {
        let [mode, _, _, _, a, b, c, d] = self.word.to_le_bytes();
        let vary = |byte: u8, by: u8| usize::from(byte.wrapping_add(variant.wrapping_mul(by)));
        let secs = |number: usize| Duration::from_millis([0, 300, 1000, 4000][number % 4]);
        let band = |number: usize| BandConfig {
            max_requests: [3, 6, 5000][number % 3],
            max_bytes: [20, 1_000_000][number % 2],
            request_ttl: [None, None, Some(secs(number / 3))][number % 3],
            no_endpoint_request_ttl: [None, Some(secs(number / 5))][number % 2],
            shed: false,
            ordering: Arc::clone(&self.orderings[number / 2 % 3]),
            fairness: Arc::clone(&self.fairness[usize::from(variant / 64 % 2)].2),
        };
        let mut bands = BTreeMap::new();
        bands.insert(Priority(10), band(vary(a, 3)));
        bands.insert(Priority(-1), BandConfig { shed: vary(b, 5) % 8 == 0, ..band(vary(b, 7)) });
        let template = band(vary(c, 1));
        let eviction = EvictionConfig {
            victim_order: [VictimOrder::Newest, VictimOrder::MostSlack, VictimOrder::Cheapest][vary(d, 0) % 3],
            max_in_flight_revocations: [None, Some(2)][vary(d, 1) / 2 % 2],
            confirmation_timeout: Duration::from_millis(500),
        };
        let mut config = Config::new(
            template,
            Arc::clone(&self.usage_limits[usize::from(a / 4 + variant / 64) % 4]),
            Arc::clone(&self.detectors[usize::from(variant / 128)]) as _,
        );
        config.bands = bands;
        config.negative_template = (vary(b, 9) / 64 % 2 == 1).then(|| band(vary(d, 11)));
        config.global = GlobalLimits {
            requests: [None, Some(9)][vary(b, 3) / 2 % 2],
            bytes: [None, None, Some(40)][vary(c, 5) / 2 % 3],
        };
        config.budgets = Budgets { saturation: secs(vary(a, 1)), no_endpoint: secs(vary(c, 1)) };
        config.when_full = [WhenFull::Reject, WhenFull::Displace][vary(d, 1) / 4 % 2];
        config.max_flows_per_band = [3, 1000][vary(b, 0) / 4 % 2];
        config.eviction = [Some(eviction), None][usize::from(vary(d, 1) / 16 % 4 == 0)];
        config.dry_run = DryRun { ceilings: vary(mode / 4, 1) % 8 == 7, eviction: vary(b / 8, 1) % 8 == 7 };
        assert_ne!(OTHER_TENANT, "t0", "tenants of the tests have other names");
        config
    }
}

/// The configuration of the band, as the rules say: its own, or that of its template.
pub(crate) fn band_of(config: &Config, priority: i32) -> &BandConfig {
    let negative = config.negative_template.as_ref().filter(|_| priority < 0);
    config.bands.get(&Priority(priority)).or(negative).unwrap_or(&config.template)
}
