//! Plugins that do nothing but have every role, and ways to look at what a configuration leads to.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_config::{Assembled, BuildContext, BuildError, Options, Plugin, PluginType, Roles, Source, Stability, load};
use sluice_core::{Endpoint, OutputEstimate, Request, Time, TokenEstimate};
use sluice_data::{Discovery, EngineMappings, FileDiscovery, MetricsPath, MetricsSource, Transport};
use sluice_flow::policy::{
    BandView, Fairness, FairnessPolicy, OrderKey, OrderingFacts, OrderingPolicy, Saturation, SaturationDetector,
    UsageLimit, UsageLimitPolicy,
};
use sluice_payload::Parser;
use sluice_schedule::{Candidates, Filter, Next, Picker, ProfileHandler, ProfileResult, Rng, Scorer};
use smallvec::SmallVec;

pub(crate) const REGISTRY: &[PluginType] = &[
    PluginType::of::<TestFilter>(),
    PluginType::of::<TestScorer>(),
    PluginType::of::<AlphaScorer>(),
    PluginType::of::<MaxScorePicker>(),
    PluginType::of::<TestPicker>(),
    PluginType::of::<SingleProfileHandler>(),
    PluginType::of::<TestHandler>(),
    PluginType::of::<TestDiscovery>(),
    PluginType::of::<FirstCome>(),
    PluginType::of::<Deadline>(),
    PluginType::of::<RoundRobin>(),
    PluginType::of::<GlobalStrict>(),
    PluginType::of::<Limit>(),
    PluginType::of::<Detector>(),
    PluginType::of::<DefaultDetector>(),
    PluginType::of::<Tokens>(),
    PluginType::of::<MetricsSourcePlugin>(),
    PluginType::of::<OtherSource>(),
    PluginType::of::<Extractor>(),
    PluginType::of::<Reader>(),
    PluginType::of::<OpenAiParser>(),
    PluginType::of::<AnthropicParser>(),
    PluginType::of::<PassthroughParser>(),
];

/// The configuration in `text`, which must be valid.
pub(crate) fn accept(text: &str) -> Assembled {
    load(&Source::new("c.yaml", text), REGISTRY, &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// Everything that is said about the configuration in `text`, ending in `ok` if it can be used.
pub(crate) fn diagnose(text: &str) -> String {
    diagnose_bytes(text.as_bytes())
}

pub(crate) fn diagnose_bytes(text: &[u8]) -> String {
    match load(&Source::new("c.yaml", text), REGISTRY, &Options::default()) {
        Ok(assembled) => {
            let mut said: Vec<String> = assembled.warnings.iter().map(ToString::to_string).collect();
            said.push("ok".to_owned());
            said.join("\n")
        }
        Err(diagnostics) => {
            assert!(diagnostics.errors() > 0, "refused without an error: {diagnostics}");
            diagnostics.to_string()
        }
    }
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TestParams {
    max_num_of_endpoints: u16,
    labels: Vec<String>,
    limit: LimitParams,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct LimitParams {
    value: f64,
    strict: bool,
}

#[derive(Debug)]
pub(crate) struct TestFilter;

impl Plugin for TestFilter {
    const TYPE: &'static str = "test-filter";
    const STABILITY: Stability = Stability::Beta;
    type Params = TestParams;

    fn build(params: TestParams, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let TestParams { max_num_of_endpoints, labels, limit } = params;
        if max_num_of_endpoints == 13 {
            return Err(BuildError::new("maxNumOfEndpoints", "13 is an unlucky number"));
        }
        if limit.strict && labels.is_empty() {
            cx.warn("labels", "strict without labels");
        }
        if limit.value > 1.0 {
            cx.warn("limit", format!("{} is more than 1", limit.value));
        }
        Ok(Roles::filter(Self))
    }
}

impl Filter for TestFilter {
    fn filter(&self, _request: &Request, _candidates: &mut Candidates<'_>) {}
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NoParams {}

macro_rules! scorer {
    ($name:ident, $plugin_type:literal, $stability:ident) => {
        #[derive(Debug)]
        pub(crate) struct $name;

        impl Plugin for $name {
            const TYPE: &'static str = $plugin_type;
            const STABILITY: Stability = Stability::$stability;
            type Params = NoParams;

            fn build(_params: NoParams, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
                Ok(Roles::scorer(Self))
            }
        }

        impl Scorer for $name {
            fn score(&self, _request: &Request, _candidates: &[&Arc<Endpoint>], _scores: &mut [f32]) {}
        }
    };
}

scorer!(TestScorer, "test-scorer", Beta);
scorer!(AlphaScorer, "alpha-scorer", Alpha);

macro_rules! picker {
    ($name:ident, $plugin_type:literal) => {
        #[derive(Debug)]
        pub(crate) struct $name;

        impl Plugin for $name {
            const TYPE: &'static str = $plugin_type;
            const STABILITY: Stability = Stability::Beta;
            type Params = NoParams;

            fn build(_params: NoParams, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
                Ok(Roles::picker(Self))
            }
        }

        impl Picker for $name {
            fn pick(
                &self,
                _request: &Request,
                _candidates: &[&Arc<Endpoint>],
                _scores: &[f32],
                _rng: &mut Rng,
                picked: &mut SmallVec<[usize; 4]>,
            ) {
                picked.push(0);
            }
        }
    };
}

picker!(MaxScorePicker, "max-score-picker");
picker!(TestPicker, "test-picker");

macro_rules! handler {
    ($name:ident, $plugin_type:literal, $max_profiles:expr) => {
        #[derive(Debug)]
        pub(crate) struct $name;

        impl Plugin for $name {
            const TYPE: &'static str = $plugin_type;
            const STABILITY: Stability = Stability::Beta;
            type Params = NoParams;

            fn build(_params: NoParams, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
                Ok(Roles::profile_handler(Self))
            }
        }

        impl ProfileHandler for $name {
            fn check(&self, profile_names: &[&str]) -> Result<(), String> {
                if profile_names.len() > $max_profiles {
                    return Err(format!("{} are too many", profile_names.len()));
                }
                Ok(())
            }

            fn next(&self, _request: &Request, results: &[Option<ProfileResult>]) -> Next {
                if results[0].is_some() { Next::Finish { primary: 0 } } else { Next::Run(0) }
            }
        }
    };
}

handler!(SingleProfileHandler, "single-profile-handler", 1);
handler!(TestHandler, "test-handler", 2);

#[derive(Debug)]
pub(crate) struct TestDiscovery;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestDiscoveryParams {
    path: String,
    #[serde(default)]
    watch: bool,
}

impl Plugin for TestDiscovery {
    const TYPE: &'static str = "test-discovery";
    const STABILITY: Stability = Stability::Beta;
    type Params = TestDiscoveryParams;

    fn build(params: TestDiscoveryParams, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let TestDiscoveryParams { path, watch } = params;
        Ok(Roles::discovery(Discovery::File(FileDiscovery { path: path.into(), watch })))
    }
}

macro_rules! ordering {
    ($name:ident, $plugin_type:literal) => {
        #[derive(Debug)]
        pub(crate) struct $name;

        impl Plugin for $name {
            const TYPE: &'static str = $plugin_type;
            const STABILITY: Stability = Stability::Beta;
            type Params = NoParams;

            fn build(_params: NoParams, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
                Ok(Roles::ordering(Self))
            }
        }

        impl OrderingPolicy for $name {
            fn key(&self, _facts: &OrderingFacts) -> OrderKey {
                OrderKey(0)
            }
        }
    };
}

ordering!(FirstCome, "fcfs-ordering-policy");
ordering!(Deadline, "edf-ordering-policy");

macro_rules! fairness {
    ($name:ident, $plugin_type:literal) => {
        #[derive(Debug)]
        pub(crate) struct $name;

        impl Plugin for $name {
            const TYPE: &'static str = $plugin_type;
            const STABILITY: Stability = Stability::Beta;
            type Params = NoParams;

            fn build(_params: NoParams, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
                Ok(Roles::fairness(Self))
            }
        }

        impl FairnessPolicy for $name {
            fn new_band(&self) -> Box<dyn Fairness> {
                panic!("no configuration starts an engine")
            }
        }
    };
}

fairness!(RoundRobin, "round-robin-fairness-policy");
fairness!(GlobalStrict, "global-strict-fairness-policy");

/// A plugin of flow control that can be told apart by a number.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Number {
    number: u64,
}

#[derive(Debug)]
pub(crate) struct Limit(u64);

impl Plugin for Limit {
    const TYPE: &'static str = "static-usage-limit-policy";
    const STABILITY: Stability = Stability::Beta;
    type Params = Number;

    fn build(params: Number, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::usage_limit(Self(params.number)))
    }
}

impl UsageLimitPolicy for Limit {
    fn new_state(&self) -> Box<dyn UsageLimit> {
        Box::new(Floor(i32::try_from(self.0).unwrap_or(i32::MAX)))
    }
}

/// Holds back what is below the negated number.
#[derive(Debug)]
struct Floor(i32);

impl UsageLimit for Floor {
    fn ceilings(&mut self, _: Time, bands: &[BandView], _: f64, ceilings: &mut [f64]) {
        for (band, ceiling) in bands.iter().zip(ceilings) {
            *ceiling = if self.0 > 0 && band.priority.0 < -self.0 { 0.0 } else { 1.0 };
        }
    }
}

#[derive(Debug)]
#[expect(dead_code, reason = "shown by tests")]
pub(crate) struct Detector(u64);

impl Plugin for Detector {
    const TYPE: &'static str = "concurrency-detector";
    const STABILITY: Stability = Stability::Beta;
    type Params = Number;

    fn build(params: Number, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::detector(Self(params.number)))
    }
}

impl SaturationDetector for Detector {
    fn new_state(&self) -> Box<dyn Saturation> {
        panic!("no configuration starts an engine")
    }
}

#[derive(Debug)]
pub(crate) struct DefaultDetector;

impl Plugin for DefaultDetector {
    const TYPE: &'static str = "utilization-detector";
    const STABILITY: Stability = Stability::Beta;
    type Params = Number;

    fn build(_params: Number, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::detector(Self).reading_scraped())
    }
}

impl SaturationDetector for DefaultDetector {
    fn new_state(&self) -> Box<dyn Saturation> {
        panic!("no configuration starts an engine")
    }
}

#[derive(Debug)]
pub(crate) struct Tokens;

impl Plugin for Tokens {
    const TYPE: &'static str = "inflight-load-producer";
    const STABILITY: Stability = Stability::Beta;
    type Params = Number;

    fn build(params: Number, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let output = OutputEstimate { ratio: 1.0, max: Some(params.number) };
        Ok(Roles::token_estimate(TokenEstimate { output: Some(output) }))
    }
}

/// Milliseconds; 0 is what the process does by default.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Interval {
    interval: u64,
}

macro_rules! source {
    ($name:ident, $plugin_type:literal) => {
        #[derive(Debug)]
        pub(crate) struct $name;

        impl Plugin for $name {
            const TYPE: &'static str = $plugin_type;
            const STABILITY: Stability = Stability::Beta;
            type Params = Interval;

            fn build(params: Interval, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
                let interval = Some(Duration::from_millis(params.interval)).filter(|interval| !interval.is_zero());
                let path = MetricsPath::default();
                Ok(Roles::metrics_source(MetricsSource { transport: Transport::Http, path, port: None, interval }))
            }
        }
    };
}

source!(MetricsSourcePlugin, "metrics-data-source");
source!(OtherSource, "test-source");

#[derive(Debug)]
pub(crate) struct Extractor;

impl Plugin for Extractor {
    const TYPE: &'static str = "core-metrics-extractor";
    const STABILITY: Stability = Stability::Beta;
    type Params = NoParams;

    fn build(_params: NoParams, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::metrics_extractor(EngineMappings::default()))
    }
}

/// A scorer that acts on scraped metrics, and says how often they are read.
#[derive(Debug)]
pub(crate) struct Reader;

impl Plugin for Reader {
    const TYPE: &'static str = "test-reader";
    const STABILITY: Stability = Stability::Beta;
    type Params = NoParams;

    fn build(_params: NoParams, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        if cx.scrape_interval() > Duration::from_millis(50) {
            cx.warn("staleness", format!("scraped every {:?}", cx.scrape_interval()));
        }
        Ok(Roles::scorer(TestScorer).reading_scraped())
    }
}

macro_rules! parser {
    ($name:ident, $plugin_type:literal, $parser:ident) => {
        #[derive(Debug)]
        pub(crate) struct $name;

        impl Plugin for $name {
            const TYPE: &'static str = $plugin_type;
            const STABILITY: Stability = Stability::Beta;
            type Params = NoParams;

            fn build(_params: NoParams, _cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
                Ok(Roles::parser(Parser::$parser))
            }
        }
    };
}

parser!(OpenAiParser, "openai-parser", OpenAi);
parser!(AnthropicParser, "anthropic-parser", Anthropic);
parser!(PassthroughParser, "passthrough-parser", Passthrough);
