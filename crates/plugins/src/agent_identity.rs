use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};

/// Takes the session headers of coding agents for the tenant of a request that has no fairness id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgentIdentity;

/// What agents are known to send.
const HEADERS: [&str; 4] = ["x-claude-code-session-id", "x-session-affinity", "session-id", "session_id"];

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AgentIdentityParams {
    /// Looked at before the known ones.
    additional_session_headers: Vec<String>,
}

impl Plugin for AgentIdentity {
    const TYPE: &'static str = "agent-identity";
    const STABILITY: Stability = Stability::Alpha;
    type Params = AgentIdentityParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let AgentIdentityParams { additional_session_headers } = params;
        for (index, name) in additional_session_headers.iter().enumerate().filter(|(_, name)| !is_header_name(name)) {
            let parameter = format!("additionalSessionHeaders[{index}]");
            cx.refuse(&parameter, format!("{name:?} is not the name of a header"));
        }
        let additional = additional_session_headers.into_iter().map(|name| name.to_ascii_lowercase());
        Ok(Roles::tenant_headers(additional.chain(HEADERS.map(str::to_owned)).collect()))
    }
}

fn is_header_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_names_are_tokens() {
        assert!(is_header_name("X-Agent_1"));
        for bad in ["", "a b", "a:b", "\u{e9}", "a\n"] {
            assert!(!is_header_name(bad), "{bad:?}");
        }
    }
}
