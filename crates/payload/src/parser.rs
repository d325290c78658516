use sluice_core::Api;

/// Reads requests of some APIs, told by how their paths end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parser {
    OpenAi,
    Anthropic,
    VllmHttp,
    /// Takes whatever no other claims, and reads none of it.
    Passthrough,
}

impl Parser {
    /// The ends of paths that it claims, in whole segments; none for the one that takes the rest.
    const fn claims(self) -> &'static [(&'static str, Api)] {
        match self {
            Self::OpenAi => &[
                ("chat/completions", Api::OpenAiChat),
                ("chat/completions/render", Api::OpenAiChat),
                ("completions", Api::OpenAiCompletions),
                ("completions/render", Api::OpenAiCompletions),
                ("responses", Api::OpenAiResponses),
                ("conversations", Api::OpenAiConversations),
                ("embeddings", Api::OpenAiOther),
                ("images/generations", Api::OpenAiOther),
            ],
            Self::Anthropic => &[("messages", Api::AnthropicMessages), ("messages/count_tokens", Api::Passthrough)],
            Self::VllmHttp => &[("inference/v1/generate", Api::VllmGenerate)],
            Self::Passthrough => &[],
        }
    }

    /// It leaves nothing to those behind it.
    pub const fn takes_the_rest(self) -> bool {
        self.claims().is_empty()
    }
}

/// The parsers there are, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsers([Option<Parser>; 4]);

impl Default for Parsers {
    fn default() -> Self {
        Self::ALL
    }
}

impl Parsers {
    pub const ALL: Self =
        Self([Some(Parser::OpenAi), Some(Parser::Anthropic), Some(Parser::VllmHttp), Some(Parser::Passthrough)]);
    pub const NONE: Self = Self([None; 4]);

    /// Adds `parser` behind the others. False, and nothing is added, if it is there or one before it takes the rest: it
    /// would never be asked.
    pub fn add(&mut self, parser: Parser) -> bool {
        let would_be_asked = self.iter().all(|earlier| earlier != parser && !earlier.takes_the_rest());
        // There is a place for each.
        if would_be_asked && let Some(free) = self.0.iter_mut().find(|place| place.is_none()) {
            *free = Some(parser);
        }
        would_be_asked
    }

    pub fn iter(&self) -> impl Iterator<Item = Parser> {
        self.0.into_iter().flatten()
    }

    /// The API of a request; none if no parser takes it. The query, spaces around the path and one trailing slash are
    /// ignored. The longest claim that the path ends with at a segment wins, so a prefix such as `/openai/v1` may stand
    /// before it.
    pub fn api_of(&self, path: &str) -> Option<Api> {
        let path = path.split_once('?').map_or(path, |(path, _query)| path).trim();
        let path = path.strip_suffix('/').unwrap_or(path);
        let claims = self.iter().flat_map(|parser| parser.claims());
        // No claim is made twice.
        let longest = claims.filter(|(claim, _)| ends_with(path, claim)).max_by_key(|(claim, _)| claim.len());
        let rest = self.iter().any(Parser::takes_the_rest).then_some(Api::Passthrough);
        longest.map(|(_, api)| *api).or(rest)
    }
}

fn ends_with(path: &str, claim: &str) -> bool {
    path.strip_suffix(claim).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsers(list: &[Parser]) -> Parsers {
        let mut parsers = Parsers::NONE;
        assert!(list.iter().all(|&parser| parsers.add(parser)));
        parsers
    }

    #[test]
    fn the_suffix_tells_the_api() {
        for (path, api) in [
            ("/v1/chat/completions", Api::OpenAiChat),
            ("/v1/chat/completions/", Api::OpenAiChat),
            ("/v1/chat/completions?trace=1", Api::OpenAiChat),
            (" /v1/chat/completions ", Api::OpenAiChat),
            ("/v1/chat/completions/render", Api::OpenAiChat),
            ("/team-a/v1/completions", Api::OpenAiCompletions),
            ("/v1/completions/render", Api::OpenAiCompletions),
            ("completions", Api::OpenAiCompletions),
            ("/v1/responses", Api::OpenAiResponses),
            ("/v1/conversations", Api::OpenAiConversations),
            ("/v1/embeddings", Api::OpenAiOther),
            ("/v1/images/generations", Api::OpenAiOther),
            ("/v1/messages", Api::AnthropicMessages),
            ("/v1/messages/count_tokens", Api::Passthrough),
            ("/inference/v1/generate", Api::VllmGenerate),
            ("/v1/foocompletions", Api::Passthrough),
            ("/v1/foochat/completions", Api::OpenAiCompletions),
            ("/v1/completions/123", Api::Passthrough),
            ("/v1/completions//", Api::Passthrough),
            ("/v1/Completions", Api::Passthrough),
            ("/regenerate", Api::Passthrough),
            ("/v1/generate", Api::Passthrough),
            ("/v1/models", Api::Passthrough),
            ("/?completions", Api::Passthrough),
            ("/", Api::Passthrough),
            ("", Api::Passthrough),
        ] {
            assert_eq!(Parsers::ALL.api_of(path), Some(api), "{path}");
        }
    }

    #[test]
    fn what_no_parser_claims_is_nobodys() {
        let anthropic = parsers(&[Parser::Anthropic]);
        assert_eq!(anthropic.api_of("/v1/messages"), Some(Api::AnthropicMessages));
        assert_eq!(anthropic.api_of("/v1/messages/count_tokens"), Some(Api::Passthrough));
        for path in ["/v1/chat/completions", "/v1/models", ""] {
            assert_eq!(anthropic.api_of(path), None, "{path}");
        }
        let opaque = parsers(&[Parser::Passthrough]);
        assert_eq!(opaque.api_of("/v1/chat/completions"), Some(Api::Passthrough));
        assert_eq!(Parsers::NONE.api_of("/v1/completions"), None);
    }

    #[test]
    fn a_parser_that_would_never_be_asked_is_not_added() {
        let mut parsers = parsers(&[Parser::VllmHttp]);
        assert!(!parsers.add(Parser::VllmHttp));
        assert!(parsers.add(Parser::Passthrough));
        for parser in [Parser::OpenAi, Parser::Passthrough] {
            assert!(!parsers.add(parser), "{parser:?}");
        }
        assert!(parsers.iter().eq([Parser::VllmHttp, Parser::Passthrough]));
    }

    #[test]
    fn no_claim_is_made_by_two() {
        let mut claims: Vec<&str> = Parsers::ALL.iter().flat_map(Parser::claims).map(|(claim, _)| *claim).collect();
        let all = claims.len();
        claims.sort_unstable();
        claims.dedup();
        assert_eq!(claims.len(), all);
    }
}
