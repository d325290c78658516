//! Parsers: what of a request's body is read. What they do is in `sluice_payload`; here they have names.

use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_payload::Parser;

use crate::ignored_params::IgnoredParams;

macro_rules! parser {
    ($(#[$doc:meta])* $name:ident, $plugin_type:literal, $parser:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name;

        impl Plugin for $name {
            const TYPE: &'static str = $plugin_type;
            const STABILITY: Stability = Stability::Beta;
            type Params = IgnoredParams;

            fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
                params.warn(cx);
                Ok(Roles::parser($parser))
            }
        }
    };
}

parser!(
    /// Reads OpenAI's APIs.
    OpenAiParser,
    "openai-parser",
    Parser::OpenAi
);
parser!(
    /// Reads Anthropic's API.
    AnthropicParser,
    "anthropic-parser",
    Parser::Anthropic
);
parser!(
    /// Reads vLLM's API of tokens.
    VllmHttpParser,
    "vllmhttp-parser",
    Parser::VllmHttp
);
parser!(
    /// Takes every request that no other parser claims, and reads nothing of it.
    PassthroughParser,
    "passthrough-parser",
    Parser::Passthrough
);
