//! What the API server is asked about tokens, and what is made of its answers.

use std::collections::BTreeSet;

use sluice_kube::{Access, Config, Kubernetes, Reviewer};
use sluice_testkit::apiserver::ReviewCounts;
use sluice_testkit::{ApiServer, Resource};

fn reviewer(server: &ApiServer) -> anyhow::Result<Reviewer> {
    Ok(Kubernetes::at(Config::new(server.url().parse()?))?.reviewer())
}

#[tokio::test]
async fn a_token_is_reviewed_first_and_then_what_its_owner_may_do() {
    let server = ApiServer::start().unwrap();
    server.set_user("good", "prometheus");
    server.allow("prometheus", "get", "/metrics");
    let reviewer = reviewer(&server).unwrap();
    assert_eq!(reviewer.review("good", "get", "/metrics").await.unwrap(), Access::Allowed);
    assert_eq!(server.review_counts(), ReviewCounts { tokens: 1, access: 1 });
    let denied = Access::Denied { user: "prometheus".into() };
    assert_eq!(reviewer.review("good", "get", "/debug/flow").await.unwrap(), denied);
    assert_eq!(reviewer.review("good", "post", "/metrics").await.unwrap(), denied);
    assert_eq!(reviewer.review("bad", "get", "/metrics").await.unwrap(), Access::Unknown);
    assert_eq!(server.review_counts(), ReviewCounts { tokens: 4, access: 3 }, "what nobody may is not asked");
    let expected = ["create authentication.k8s.io/tokenreviews", "create authorization.k8s.io/subjectaccessreviews"];
    assert_eq!(server.requests(), BTreeSet::from(expected.map(|right| format!("{right} cluster-wide"))));
}

#[tokio::test]
async fn without_an_answer_the_error_says_why_and_does_not_hold_the_token() {
    let mut server = ApiServer::start().unwrap();
    server.set_user("secret", "prometheus");
    server.allow("prometheus", "get", "/metrics");
    let reviewer = reviewer(&server).unwrap();
    let mistake = async || format!("{:?}", reviewer.review("secret", "get", "/metrics").await.unwrap_err());
    let error = async || reviewer.review("secret", "get", "/metrics").await.unwrap_err().to_string();
    for (kind, name) in
        [(Resource::TOKEN_REVIEW, "TokenReview"), (Resource::SUBJECT_ACCESS_REVIEW, "SubjectAccessReview")]
    {
        server.set_allowed(kind, false);
        let error = error().await;
        assert!(error.contains(name) && error.contains("403") && error.contains("ClusterRole"), "{error}");
        server.set_allowed(kind, true);
    }
    server.fail_reviews(Some(500));
    assert!(error().await.contains("500"));
    assert!(!mistake().await.contains("secret"));
    server.fail_reviews(None);
    server.go_away();
    assert!(error().await.contains("TokenReview"));
    assert!(!mistake().await.contains("secret"));
    server.come_back().await.unwrap();
    assert_eq!(reviewer.review("secret", "get", "/metrics").await.unwrap(), Access::Allowed);
}
