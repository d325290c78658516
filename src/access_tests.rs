use axum::Router;
use axum::body::Body;
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use http_body_util::BodyExt as _;
use sluice_kube::{Config, Kubernetes};
use sluice_testkit::ApiServer;
use sluice_testkit::apiserver::ReviewCounts;
use tower::ServiceExt as _;

use super::*;

/// Pages behind a gate, and the server that it asks.
struct Guarded {
    server: ApiServer,
    pages: Router,
}

fn reviewer(server: &ApiServer) -> Reviewer {
    Kubernetes::at(Config::new(server.url().parse().unwrap())).unwrap().reviewer()
}

impl Guarded {
    /// The token `good` may read `/metrics`.
    fn start() -> Self {
        let server = ApiServer::start().unwrap();
        server.set_user("good", "prometheus");
        server.allow("prometheus", "get", "/metrics");
        let gate = Gate::new(reviewer(&server)).unwrap();
        let pages = Router::new().route("/metrics", get(|| async { "page" })).route("/debug/flow", get(|| async {}));
        Self { server, pages: pages.route_layer(from_fn_with_state(gate, Gate::check)) }
    }

    async fn ask(&self, method: Method, path: &str, authorization: Option<&str>) -> Response {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        self.pages.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    async fn status(&self, path: &str, token: &str) -> StatusCode {
        self.ask(Method::GET, path, Some(&format!("Bearer {token}"))).await.status()
    }

    async fn metrics(&self, token: &str) -> StatusCode {
        self.status("/metrics", token).await
    }
}

async fn text(response: Response) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn who_shows_no_token_is_sent_away_without_a_question_to_the_api_server() {
    let guarded = Guarded::start();
    let long = format!("Bearer {}", "x".repeat(LONGEST_TOKEN + 1));
    for authorization in [None, Some("good"), Some("Basic good"), Some("Bearer"), Some("Bearer "), Some(&*long)] {
        let response = guarded.ask(Method::GET, "/metrics", authorization).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{authorization:?}");
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
        assert!(!text(response).await.contains("page"));
    }
    assert_eq!(guarded.server.review_counts(), ReviewCounts::default());
}

#[tokio::test]
async fn a_page_is_for_those_who_may_read_that_page() {
    let guarded = Guarded::start();
    for scheme in ["Bearer", "bearer"] {
        let response = guarded.ask(Method::GET, "/metrics?a=b", Some(&format!("{scheme} good"))).await;
        assert_eq!((response.status(), text(response).await), (StatusCode::OK, "page".to_owned()));
    }
    assert_eq!(guarded.metrics("bad").await, StatusCode::UNAUTHORIZED);
    let denied = guarded.ask(Method::GET, "/debug/flow", Some("Bearer good")).await;
    assert_eq!(denied.status(), StatusCode::FORBIDDEN);
    assert_eq!(text(denied).await, "prometheus may not get /debug/flow\n");
    let post = guarded.ask(Method::POST, "/metrics", Some("Bearer good")).await;
    assert_eq!(post.status(), StatusCode::FORBIDDEN);
    guarded.server.allow("prometheus", "get", "/debug/flow");
    guarded.server.set_user("other", "prometheus");
    assert_eq!(guarded.status("/debug/flow", "other").await, StatusCode::OK);
}

#[tokio::test]
async fn an_answer_is_asked_for_once_be_it_yes_or_no() {
    let guarded = Guarded::start();
    for _ in 0..5 {
        assert_eq!(guarded.metrics("good").await, StatusCode::OK);
        assert_eq!(guarded.metrics("bad").await, StatusCode::UNAUTHORIZED);
        assert_eq!(guarded.status("/debug/flow", "good").await, StatusCode::FORBIDDEN);
    }
    assert_eq!(guarded.server.review_counts(), ReviewCounts { tokens: 3, access: 2 });
}

#[tokio::test]
async fn a_storm_of_scrapes_asks_once_also_when_the_first_of_them_goes_away() {
    let guarded = Guarded::start();
    guarded.server.delay_reviews(Duration::from_millis(200));
    let first = tokio::time::timeout(Duration::from_millis(50), guarded.metrics("good"));
    let (first, statuses) = tokio::join!(first, async {
        // They join what the first one has begun.
        tokio::time::sleep(Duration::from_millis(20)).await;
        futures_util::future::join_all((0..64).map(|_| guarded.metrics("good"))).await
    });
    assert!(first.is_err(), "it has left");
    assert!(statuses.iter().all(|status| *status == StatusCode::OK), "{statuses:?}");
    // That of the first one, and one for all others.
    let ReviewCounts { tokens, access } = guarded.server.review_counts();
    assert!(tokens <= 2 && access == 1, "{tokens} {access}");
}

#[tokio::test]
async fn without_the_api_server_only_a_fresh_answer_opens_and_afterwards_it_is_asked_again() {
    let mut guarded = Guarded::start();
    assert_eq!(guarded.metrics("good").await, StatusCode::OK);
    guarded.server.set_user("later", "prometheus");
    guarded.server.go_away();
    assert_eq!(guarded.metrics("good").await, StatusCode::OK);
    let closed = guarded.ask(Method::GET, "/metrics", Some("Bearer later")).await;
    assert_eq!(closed.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(text(closed).await.contains("API server"));
    guarded.server.come_back().await.unwrap();
    assert_eq!(guarded.metrics("later").await, StatusCode::OK);
    guarded.server.set_user("third", "prometheus");
    guarded.server.fail_reviews(Some(500));
    assert_eq!(guarded.metrics("third").await, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn an_api_server_that_hangs_does_not_hold_a_scraper_for_ever() {
    let guarded = Guarded::start();
    guarded.server.delay_reviews(Duration::from_secs(60));
    let waited = tokio::time::timeout(2 * REVIEW_TIMEOUT, guarded.metrics("good")).await;
    assert_eq!(waited, Ok(StatusCode::SERVICE_UNAVAILABLE));
}

#[tokio::test]
async fn a_flood_of_unknown_tokens_holds_up_nobody_who_was_let_in_and_nobody_else_for_long() {
    let guarded = Guarded::start();
    guarded.server.set_user("fresh", "prometheus");
    guarded.server.set_user("new", "prometheus");
    assert_eq!(guarded.metrics("good").await, StatusCode::OK);
    tokio::time::sleep(verdicts::FRESH_FOR).await;
    assert_eq!(guarded.metrics("fresh").await, StatusCode::OK);

    // Each of two reviews of a good token takes so long.
    let each = Duration::from_millis(1_800);
    guarded.server.delay_reviews(each);
    let timed = async |token: &'static str| {
        let begin = SystemClock::start();
        // The flood is there before.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let response = guarded.ask(Method::GET, "/metrics", Some(&format!("Bearer {token}"))).await;
        (response, begin.now().saturating_since(sluice_core::Time::ZERO))
    };
    let bad: Vec<_> = (0..40).map(|number| format!("bad {number}")).collect();
    let flood = futures_util::future::join_all(bad.iter().map(|token| guarded.metrics(token)));
    let (statuses, fresh, good, new) = tokio::join!(flood, timed("fresh"), timed("good"), timed("new"));
    assert_eq!(fresh.0.status(), StatusCode::OK);
    assert!(fresh.1 < each, "an answer that is known needs no review: {:?}", fresh.1);
    assert_eq!(good.0.status(), StatusCode::OK);
    assert_eq!(new.0.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(new.0.headers()[header::RETRY_AFTER], "1");
    assert!(new.1 < PLACE_TIMEOUT + each, "{:?}", new.1);
    let reviewed = statuses.iter().filter(|status| **status == StatusCode::UNAUTHORIZED).count();
    assert_eq!(reviewed, MOST_REVIEWS, "{statuses:?}");
    assert_eq!(guarded.metrics("new").await, StatusCode::OK, "afterwards there is room");
}

#[tokio::test]
async fn what_is_remembered_of_a_token_is_not_the_token() {
    let guarded = Guarded::start();
    let [gate, other] = [(); 2].map(|()| Gate::new(reviewer(&guarded.server)).unwrap());
    assert!(gate.question("a", "get", "/b") == gate.question("a", "get", "/b"));
    assert!(gate.question("a", "get", "/b") != other.question("a", "get", "/b"), "each process has its own digest");
    assert!(gate.question("a", "get", "/b") != gate.question("b", "get", "/b"));
    assert!(gate.question("a", "get", "/b") != gate.question("a", "get", "/c"));
    assert!(gate.question("a", "get", "/b") != gate.question("a", "head", "/b"));
}
