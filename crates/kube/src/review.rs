//! Who a bearer token is of, and whether its owner may do something: the API server decides both.

use http::Request;
use http_body_util::{BodyExt as _, Limited};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::causes::causes;

const TOKEN_REVIEWS: Target = Target {
    path: "/apis/authentication.k8s.io/v1/tokenreviews",
    api: "authentication.k8s.io/v1",
    kind: "TokenReview",
};
const ACCESS_REVIEWS: Target = Target {
    path: "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    api: "authorization.k8s.io/v1",
    kind: "SubjectAccessReview",
};
/// Of an answer, which holds the token as well.
const MAX_ANSWER: usize = 1 << 20;

/// What the API server says of the bearer of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    Allowed,
    /// The token is nobody's, or not valid here or now.
    Unknown,
    /// It is that of `user`, who may not.
    Denied {
        user: String,
    },
}

/// Why there is no answer. No text of it holds the token.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    #[error("asking for a {kind}: {}", causes(error))]
    Unreachable { kind: &'static str, error: kube::Error },
    #[error("asking for a {kind}: the API server answers {status}{}", hint(*.status))]
    Refused { kind: &'static str, status: u16 },
    #[error("asking for a {kind}: the answer cannot be read")]
    Unreadable { kind: &'static str },
}

fn hint(status: u16) -> &'static str {
    if status == 403 { ": the service account has to be allowed to create them, in a ClusterRole" } else { "" }
}

/// Asks the API server about tokens.
///
/// It speaks to the server below `kube::Api`, which logs answers that it cannot read, tokens and all.
#[derive(Clone)]
pub struct Reviewer {
    client: Client,
}

impl std::fmt::Debug for Reviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviewer").finish_non_exhaustive()
    }
}

impl Reviewer {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Whether the bearer of `token` may do `verb` with `path`, which is no resource of the API.
    pub async fn review(&self, token: &str, verb: &str, path: &str) -> Result<Access, ReviewError> {
        let status: TokenStatus = self.ask(&TOKEN_REVIEWS, json!({"token": token})).await?;
        let Some(user) = status.user.filter(|_| status.authenticated) else { return Ok(Access::Unknown) };
        let attributes = json!({"verb": verb, "path": path});
        let User { username, uid, groups, extra } = user;
        let spec = json!({
            "user": username, "uid": uid, "groups": groups, "extra": extra, "nonResourceAttributes": attributes,
        });
        let status: AccessStatus = self.ask(&ACCESS_REVIEWS, spec).await?;
        Ok(if status.allowed && !status.denied { Access::Allowed } else { Access::Denied { user: username } })
    }

    async fn ask<T: Default + for<'de> Deserialize<'de>>(
        &self,
        target: &Target,
        spec: Value,
    ) -> Result<T, ReviewError> {
        let Target { path, api, kind } = *target;
        let body = json!({"apiVersion": api, "kind": kind, "spec": spec}).to_string();
        let request = Request::post(path).header(http::header::CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(body.into_bytes())).map_err(|_| ReviewError::Unreadable { kind })?;
        let response = self.client.send(request).await.map_err(|error| ReviewError::Unreachable { kind, error })?;
        if !response.status().is_success() {
            return Err(ReviewError::Refused { kind, status: response.status().as_u16() });
        }
        // Their own words could quote the answer.
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|_| ReviewError::Unreadable { kind })?.to_bytes();
        let answer: Answer<T> = serde_json::from_slice(&body).map_err(|_| ReviewError::Unreadable { kind })?;
        Ok(answer.status)
    }
}

struct Target {
    path: &'static str,
    api: &'static str,
    kind: &'static str,
}

#[derive(Deserialize)]
struct Answer<T> {
    status: T,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    user: Option<User>,
}

/// Everything that rights may be granted by.
#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: serde_json::Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    /// Counts before `allowed`.
    denied: bool,
}
