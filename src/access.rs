//! Who may read the metrics port: those whom the API server lets do what they ask for. This module asks it, once for all
//! who wait for the same answer, and goes by an answer for as long as [`Verdicts`] remember it.
//!
//! ```text
//! request ──token──> Verdicts ──fresh──────────────────────────────> the page, 401, or 403
//!                        └─none─> joins the review that is under way,
//!                                 or begins it ──> API server ──answer──┘
//!                                      │               └──no answer──> 503
//!                                      └──no place in time───────────> 503
//! ```
//!
//! Whoever was let in lately has places of their own at the API server: tokens that nobody knows, however many, hold them
//! up neither while an answer is fresh nor when it has to be asked for again.

mod verdicts;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::Context as _;
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sluice_core::{Clock as _, SystemClock};
use sluice_kube::{Access, Reviewer};
use tokio::sync::{OnceCell, Semaphore};

use self::verdicts::{Question, Verdicts};

/// Tokens are a few hundred bytes, or a few thousand where they name many groups.
const LONGEST_TOKEN: usize = 16 << 10;
/// So many questions about strangers are with the API server at once, whoever asks,
const MOST_REVIEWS: usize = 8;
/// and so many about those who were let in lately.
const MOST_REVIEWS_OF_KNOWN: usize = 4;
/// Longer than that nobody waits for one of these places.
const PLACE_TIMEOUT: Duration = Duration::from_secs(1);
/// Half of what scrapers wait for a page.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Lets through who may. Clones are the same gate.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Inner>);

struct Inner {
    reviewer: Reviewer,
    clock: SystemClock,
    /// Of this process alone: what is remembered of a token says nothing to anybody else.
    key: hmac::Key,
    places: Semaphore,
    places_of_known: Semaphore,
    state: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    verdicts: Verdicts,
    reviews: BTreeMap<Question, Weak<Review>>,
    /// Why there is no answer at present, as it was logged.
    trouble: Option<String>,
}

/// A question that is with the API server; in the end its answer, if there is one.
type Review = OnceCell<Result<Access, NoAnswer>>;

/// Why it is not known who may.
#[derive(Clone, Copy, Debug)]
enum NoAnswer {
    /// The API server does not say.
    Silent,
    /// Too many others are asked about.
    Crowded,
}

impl Gate {
    pub(crate) fn new(reviewer: Reviewer) -> anyhow::Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.ok().context("reading random numbers from the system")?;
        Ok(Self(Arc::new(Inner {
            reviewer,
            clock: SystemClock::start(),
            key,
            places: Semaphore::new(MOST_REVIEWS),
            places_of_known: Semaphore::new(MOST_REVIEWS_OF_KNOWN),
            state: Mutex::default(),
        })))
    }

    /// To be put before pages. The verb is the method in small letters, as Kubernetes has it.
    pub(crate) async fn check(State(gate): State<Self>, request: Request, next: Next) -> Response {
        let verb = request.method().as_str().to_ascii_lowercase();
        let path = request.uri().path().to_owned();
        let Some(token) = bearer(request.headers()) else { return unauthorized() };
        match gate.access(token, &verb, &path).await {
            Ok(Access::Allowed) => next.run(request).await,
            Ok(Access::Unknown) => unauthorized(),
            Ok(Access::Denied { user }) => {
                (StatusCode::FORBIDDEN, format!("{user} may not {verb} {path}\n")).into_response()
            }
            Err(NoAnswer::Crowded) => {
                let body = "too many tokens are shown that are not known: try again\n";
                (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], body).into_response()
            }
            Err(NoAnswer::Silent) => {
                let body = "cannot ask the API server whether this token may: the picker's log says why\n";
                (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
            }
        }
    }

    /// What the API server says now, or said not long ago.
    async fn access(&self, token: &str, verb: &str, path: &str) -> Result<Access, NoAnswer> {
        let question = self.question(token, verb, path);
        let review = {
            let mut known = self.known();
            if let Some(access) = known.verdicts.fresh(&question, self.0.clock.now()) {
                return Ok(access.clone());
            }
            known.join(&question)
        };
        // Should the one who asks go away, another of those who joined begins again.
        review.get_or_init(|| self.review(question, token, verb, path)).await.clone()
    }

    async fn review(&self, question: Question, token: &str, verb: &str, path: &str) -> Result<Access, NoAnswer> {
        let Inner { reviewer, clock, places, places_of_known, .. } = &*self.0;
        let places = if self.known().verdicts.was_allowed(&question, clock.now()) { places_of_known } else { places };
        let Ok(_place) = tokio::time::timeout(PLACE_TIMEOUT, places.acquire()).await else {
            return Err(NoAnswer::Crowded);
        };
        let asked = clock.now();
        let review = reviewer.review(token, verb, path);
        let outcome = match tokio::time::timeout(REVIEW_TIMEOUT, review).await {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(_elapsed) => Err("the API server does not answer in time".to_owned()),
        };
        let mut known = self.known();
        match outcome {
            Ok(access) => {
                if known.trouble.take().is_some() {
                    tracing::info!("the API server reviews tokens again");
                }
                known.verdicts.learn(question, access.clone(), asked);
                Ok(access)
            }
            Err(error) => {
                if known.trouble.as_ref() != Some(&error) {
                    tracing::error!(error, "cannot tell who may read the metrics port: nobody may meanwhile");
                    known.trouble = Some(error);
                }
                Err(NoAnswer::Silent)
            }
        }
    }

    fn question(&self, token: &str, verb: &str, path: &str) -> Question {
        let mut context = hmac::Context::with_key(&self.0.key);
        for part in [verb, path, token] {
            context.update(part.as_bytes());
            // No part has one, as parts of the head of a request.
            context.update(b"\0");
        }
        Question::new(context.sign().as_ref())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn join(&mut self, question: &Question) -> Arc<Review> {
        if let Some(review) = self.reviews.get(question).and_then(Weak::upgrade) {
            return review;
        }
        // As many as have connections, at most.
        self.reviews.retain(|_, review| review.strong_count() > 0);
        let review = Arc::default();
        self.reviews.insert(question.clone(), Arc::downgrade(&review));
        review
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("Bearer") && (1..=LONGEST_TOKEN).contains(&token.len())).then_some(token)
}

fn unauthorized() -> Response {
    let body = "a bearer token is needed that the API server knows\n";
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], body).into_response()
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
