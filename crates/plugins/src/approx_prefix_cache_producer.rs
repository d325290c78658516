use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Produced, Roles, Stability};

/// Stands where a configuration names it, so that the configuration can be used: it does nothing, as whoever needs it says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApproxPrefixCacheProducer;

#[derive(Debug, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ApproxPrefixCacheProducerParams {
    /// Block size and capacity come from the endpoints' metrics.
    auto_tune: bool,
    /// Tokens per block; above 0 where they are not taken from metrics.
    block_size_tokens: i64,
    /// Deprecated: the same.
    block_size: Option<i64>,
    /// So much of a prompt is looked at; not negative.
    max_prefix_tokens_to_match: i64,
    /// The same in blocks, where the limit in tokens is 0.
    max_prefix_blocks_to_match: i64,
    /// Blocks remembered per endpoint.
    lru_capacity_per_server: i64,
}

const DEFAULT_BLOCK_SIZE: i64 = 16;

impl Default for ApproxPrefixCacheProducerParams {
    fn default() -> Self {
        Self {
            auto_tune: true,
            block_size_tokens: DEFAULT_BLOCK_SIZE,
            block_size: None,
            max_prefix_tokens_to_match: 131_072,
            max_prefix_blocks_to_match: 2048,
            lru_capacity_per_server: 31_250,
        }
    }
}

impl Plugin for ApproxPrefixCacheProducer {
    const TYPE: &'static str = "approx-prefix-cache-producer";
    const STABILITY: Stability = Stability::Beta;
    type Params = ApproxPrefixCacheProducerParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let ApproxPrefixCacheProducerParams {
            auto_tune,
            block_size_tokens,
            block_size,
            max_prefix_tokens_to_match: tokens,
            max_prefix_blocks_to_match: blocks,
            lru_capacity_per_server: _,
        } = params;
        let (parameter, size) = match block_size {
            Some(size) if block_size_tokens == DEFAULT_BLOCK_SIZE => ("blockSize", size),
            _ => ("blockSizeTokens", block_size_tokens),
        };
        if !auto_tune && size <= 0 {
            return Err(BuildError::new(
                parameter,
                format!("{size} is not above 0, which it has to be without autoTune"),
            ));
        }
        for (parameter, value) in [("maxPrefixTokensToMatch", tokens), ("maxPrefixBlocksToMatch", blocks)] {
            if value < 0 {
                return Err(BuildError::new(parameter, format!("{value} is negative; 0 stands for no limit")));
            }
        }
        if block_size.is_some() {
            cx.warn("blockSize", "deprecated: use blockSizeTokens");
        }
        Ok(Roles::producer(Produced::PrefixMatches))
    }
}
