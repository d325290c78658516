use std::collections::{BTreeMap, BTreeSet};

use super::{EngineConfig, EngineMapping, builtin};

/// The engines of a configuration and the label that tells which of them an endpoint runs.
#[derive(Clone, Debug)]
pub struct EngineMappings {
    label_key: Box<str>,
    by_name: BTreeMap<Box<str>, EngineMapping>,
    default: EngineMapping,
}

/// What is wrong with the engines of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineConfigError {
    #[error("the name of an engine is empty")]
    NoName { index: usize },
    #[error("\"default\" is not a name for an engine; say which one is it with defaultEngine")]
    ReservedName { index: usize },
    #[error("another engine is called {name:?}")]
    NameTwice { index: usize, name: String },
    #[error("the key is empty")]
    NoKey { engine: usize, index: usize },
    #[error("another metric of the engine has the key {key:?}")]
    KeyTwice { engine: usize, index: usize, key: String },
    #[error("there is no engine {name:?}; the engines are {known}")]
    UnknownDefault { name: String, known: String },
}

impl EngineConfigError {
    /// The parameter of the plugin that is wrong, such as `engineConfigs[1].name`.
    pub fn parameter(&self) -> String {
        match self {
            Self::UnknownDefault { .. } => "defaultEngine".to_owned(),
            Self::NoName { index } | Self::ReservedName { index } | Self::NameTwice { index, .. } => {
                format!("engineConfigs[{index}].name")
            }
            Self::NoKey { engine, index } | Self::KeyTwice { engine, index, .. } => {
                format!("engineConfigs[{engine}].customMetrics[{index}].attributeKey")
            }
        }
    }
}

impl EngineMappings {
    /// The label of an endpoint that names its engine, unless a configuration says otherwise.
    pub const DEFAULT_LABEL_KEY: &str = "llm-d.ai/engine-type";
    /// The label that goes for endpoints without the other.
    pub const LEGACY_LABEL_KEY: &str = "inference.networking.k8s.io/engine-type";
    /// The engine of endpoints without such a label, unless a configuration says otherwise.
    pub const DEFAULT_ENGINE: &str = "vllm";

    /// The built-in engines and those of `configs`, which replace built-in ones of the same name as a whole. Fails with
    /// all that is wrong.
    pub fn new(
        default_engine: &str,
        label_key: &str,
        configs: &[EngineConfig],
    ) -> Result<Self, Vec<EngineConfigError>> {
        let mut errors = Vec::new();
        let mut names = BTreeSet::new();
        for (index, config) in configs.iter().enumerate() {
            errors.extend(name_error(index, &config.name, &mut names));
            errors.extend(key_errors(index, config));
        }
        let by_name = engines_by_name(configs);
        match by_name.get(default_engine) {
            Some(default) if errors.is_empty() => {
                Ok(Self { label_key: label_key.into(), default: default.clone(), by_name })
            }
            Some(_) => Err(errors),
            None => {
                let known = by_name.keys().map(|name| &**name).filter(|name| !matches!(*name, "" | "default"));
                let known = known.collect::<Vec<_>>().join(", ");
                errors.push(EngineConfigError::UnknownDefault { name: default_engine.to_owned(), known });
                Err(errors)
            }
        }
    }

    /// These engines after `former` ones of the same pages. One that is read as it was goes on with what is remembered of it;
    /// nothing is known of another one, whatever its name.
    pub(crate) fn after(&self, former: &Self) -> Self {
        self.marked(|name, engine| {
            let same = former.by_name.get(name).filter(|former| former.reads_like(engine));
            same.cloned().unwrap_or_else(|| engine.read_anew())
        })
    }

    /// These engines for other pages: nothing is known of any of them.
    pub(crate) fn read_anew(&self) -> Self {
        self.marked(|_name, engine| engine.read_anew())
    }

    fn marked(&self, mark: impl Fn(&str, &EngineMapping) -> EngineMapping) -> Self {
        let by_name: BTreeMap<Box<str>, _> =
            self.by_name.iter().map(|(name, engine)| (name.clone(), mark(name, engine))).collect();
        let default = by_name.get(&**self.default.name()).unwrap_or(&self.default).clone();
        Self { label_key: self.label_key.clone(), by_name, default }
    }

    /// How the pages of an endpoint with these labels are read. One that names no engine, or one that is not known, is
    /// taken for the default engine.
    pub fn for_labels(&self, labels: &BTreeMap<String, String>) -> &EngineMapping {
        let label = labels.get(&*self.label_key).or_else(|| labels.get(Self::LEGACY_LABEL_KEY));
        label.and_then(|engine| self.by_name.get(engine.as_str())).unwrap_or(&self.default)
    }
}

impl Default for EngineMappings {
    /// The built-in engines under the usual label.
    fn default() -> Self {
        let default = EngineMapping::new(&builtin::vllm());
        Self { label_key: Self::DEFAULT_LABEL_KEY.into(), by_name: engines_by_name(&[]), default }
    }
}

/// The built-in engines and these, of which the last of a name counts.
fn engines_by_name(configs: &[EngineConfig]) -> BTreeMap<Box<str>, EngineMapping> {
    let engines = builtin::engines();
    let engines = engines.iter().chain(configs);
    engines.map(|config| (config.name.as_str().into(), EngineMapping::new(config))).collect()
}

fn name_error<'a>(index: usize, name: &'a str, names: &mut BTreeSet<&'a str>) -> Option<EngineConfigError> {
    match name {
        "" => Some(EngineConfigError::NoName { index }),
        "default" => Some(EngineConfigError::ReservedName { index }),
        _ if names.insert(name) => None,
        _ => Some(EngineConfigError::NameTwice { index, name: name.to_owned() }),
    }
}

fn key_errors(engine: usize, config: &EngineConfig) -> impl Iterator<Item = EngineConfigError> {
    let mut keys = BTreeSet::new();
    config.custom_metrics.iter().enumerate().filter_map(move |(index, custom)| {
        let key = custom.attribute_key.as_str();
        match key {
            "" => Some(EngineConfigError::NoKey { engine, index }),
            _ if keys.insert(key) => None,
            _ => Some(EngineConfigError::KeyTwice { engine, index, key: key.to_owned() }),
        }
    })
}
