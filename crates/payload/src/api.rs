use sluice_core::Api;

/// Which API a request path belongs to. The query and one trailing slash are ignored; the longest known suffix
/// that starts at a segment wins, so a prefix such as `/openai/v1` may stand before it.
pub fn api_of_path(path: &str) -> Api {
    let path = path.split_once('?').map_or(path, |(path, _query)| path);
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut segments = path.rsplit('/');
    match (segments.next(), segments.next()) {
        (Some("completions"), Some("chat")) => Api::OpenAiChat,
        (Some("completions"), _) => Api::OpenAiCompletions,
        _ => Api::Passthrough,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suffix_tells_the_api() {
        for (path, api) in [
            ("/v1/chat/completions", Api::OpenAiChat),
            ("/v1/chat/completions/", Api::OpenAiChat),
            ("/v1/chat/completions?trace=1", Api::OpenAiChat),
            ("/team-a/v1/completions", Api::OpenAiCompletions),
            ("completions", Api::OpenAiCompletions),
            ("/v1/foocompletions", Api::Passthrough),
            ("/v1/foochat/completions", Api::OpenAiCompletions),
            ("/v1/completions/123", Api::Passthrough),
            ("/v1/models", Api::Passthrough),
            ("/", Api::Passthrough),
            ("", Api::Passthrough),
        ] {
            assert_eq!(api_of_path(path), api, "{path}");
        }
    }
}
