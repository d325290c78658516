use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_data::{EngineConfig, EngineMappings};

/// Says which metrics of an endpoint mean what, by the engine that runs there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreMetricsExtractor;

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct CoreMetricsExtractorParams {
    engine_label_key: String,
    default_engine: String,
    engine_configs: Vec<EngineConfig>,
}

impl Default for CoreMetricsExtractorParams {
    fn default() -> Self {
        Self {
            engine_label_key: EngineMappings::DEFAULT_LABEL_KEY.to_owned(),
            default_engine: EngineMappings::DEFAULT_ENGINE.to_owned(),
            engine_configs: Vec::new(),
        }
    }
}

impl Plugin for CoreMetricsExtractor {
    const TYPE: &'static str = "core-metrics-extractor";
    const STABILITY: Stability = Stability::Beta;
    type Params = CoreMetricsExtractorParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let CoreMetricsExtractorParams { engine_label_key, default_engine, engine_configs } = params;
        let or_default = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
        let label_key = or_default(engine_label_key, EngineMappings::DEFAULT_LABEL_KEY);
        let default_engine = or_default(default_engine, EngineMappings::DEFAULT_ENGINE);
        match EngineMappings::new(&default_engine, &label_key, &engine_configs) {
            Ok(engines) => {
                warn_of_engines_without_load(&engine_configs, cx);
                Ok(Roles::metrics_extractor(engines))
            }
            Err(errors) => {
                for error in errors {
                    cx.refuse(&error.parameter(), error.to_string());
                }
                Ok(Roles::default())
            }
        }
    }
}

fn warn_of_engines_without_load(configs: &[EngineConfig], cx: &mut BuildContext<'_>) {
    for (index, config) in configs.iter().enumerate().filter(|(_, config)| !config.tells_load()) {
        let message = format!(
            "{:?} has neither queuedRequestsSpec nor kvUsageSpec: a utilization-detector takes its \
             endpoints for full at all times",
            config.name
        );
        cx.warn(&format!("engineConfigs[{index}]"), message);
    }
}
