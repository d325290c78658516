//! Who a token is of, and what its owner may do, as a test has scripted it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};

use super::http::refusal;
use super::store::Store;
use super::{ApiServer, Resource};

pub(super) const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
pub(super) const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// A group of everybody whom the server knows.
const AUTHENTICATED: &str = "system:authenticated";

/// What reviews are answered with.
#[derive(Debug, Default)]
pub(crate) struct Reviews(Mutex<Script>);

#[derive(Debug, Default)]
struct Script {
    users: BTreeMap<String, String>,
    /// User, verb and path.
    allowed: BTreeSet<(String, String, String)>,
    failure: Option<u16>,
    delay: Duration,
    counts: ReviewCounts,
}

/// How many reviews of each kind have been asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReviewCounts {
    pub tokens: u32,
    pub access: u32,
}

impl Reviews {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApiServer {
    /// `token` is one of `user`.
    pub fn set_user(&self, token: &str, user: &str) {
        self.store.reviews.script().users.insert(token.to_owned(), user.to_owned());
    }

    /// Nobody has `token` any more.
    pub fn revoke_token(&self, token: &str) {
        self.store.reviews.script().users.remove(token);
    }

    /// Lets `user` do `verb` with `path`, which is no resource.
    pub fn allow(&self, user: &str, verb: &str, path: &str) {
        self.store.reviews.script().allowed.insert((user.to_owned(), verb.to_owned(), path.to_owned()));
    }

    /// Answers reviews with a status and no verdict; or no longer so.
    pub fn fail_reviews(&self, status: Option<u16>) {
        self.store.reviews.script().failure = status;
    }

    /// How long each review takes.
    pub fn delay_reviews(&self, delay: Duration) {
        self.store.reviews.script().delay = delay;
    }

    pub fn review_counts(&self) -> ReviewCounts {
        self.store.reviews.script().counts
    }
}

/// `POST` of a TokenReview.
pub(super) async fn token(state: State<Arc<Store>>, review: axum::Json<Value>) -> Response {
    answer(state, review, Resource::TOKEN_REVIEW, |script, spec| {
        script.counts.tokens += 1;
        match spec["token"].as_str().and_then(|token| script.users.get(token)) {
            Some(user) => json!({
                "authenticated": true,
                "user": {
                    "username": user,
                    "uid": format!("uid-of-{user}"),
                    "groups": [AUTHENTICATED],
                    "extra": {"authentication.kubernetes.io/credential-id": ["JTI=1"]},
                },
            }),
            None => json!({"user": {}, "error": "[invalid bearer token]"}),
        }
    })
    .await
}

/// `POST` of a SubjectAccessReview. Rights are the user's only where all that is known of the user is told.
pub(super) async fn access(state: State<Arc<Store>>, review: axum::Json<Value>) -> Response {
    answer(state, review, Resource::SUBJECT_ACCESS_REVIEW, |script, spec| {
        script.counts.access += 1;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let attributes = &spec["nonResourceAttributes"];
        let user = text(&spec["user"]);
        let is_whole = spec["groups"] == json!([AUTHENTICATED])
            && spec["uid"] == format!("uid-of-{user}")
            && spec["extra"].is_object();
        let asked = (user, text(&attributes["verb"]), text(&attributes["path"]));
        json!({"allowed": is_whole && script.allowed.contains(&asked)})
    })
    .await
}

/// Sends the review back with its status, as the real one does, the token included.
async fn answer(
    State(store): State<Arc<Store>>,
    axum::Json(mut review): axum::Json<Value>,
    resource: Resource,
    judge: impl FnOnce(&mut Script, &Value) -> Value,
) -> Response {
    if let Some(status) = store.ask("create", resource) {
        return refusal(status);
    }
    let (status, failure, delay) = {
        let mut script = store.reviews.script();
        (judge(&mut script, &review["spec"]), script.failure, script.delay)
    };
    tokio::time::sleep(delay).await;
    if let Some(failure) = failure {
        return refusal(failure);
    }
    review["status"] = status;
    (StatusCode::CREATED, axum::Json(review)).into_response()
}
