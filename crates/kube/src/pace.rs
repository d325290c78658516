//! Watches that end as soon as they have begun are asked for again at longer and longer intervals.
//!
//! The watcher opens the next watch itself and without a pause, whatever the one before was good for, so it is held back
//! on its way to the server.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Uri};
use kube::client::Body;
use sluice_core::{Clock as _, SystemClock, Time};
use tower::{Layer, Service};

/// A watch that has lived for so long was worth it.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// The intervals between the beginnings of short watches double from the one to the other.
const FIRST_INTERVAL: Duration = Duration::from_millis(100);
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);

/// Puts [`Paced`] around a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing;

impl<S> Layer<S> for Pacing {
    type Service = Paced<S>;

    fn layer(&self, inner: S) -> Paced<S> {
        Paced { inner, clock: SystemClock::start(), paces: Arc::default() }
    }
}

/// Holds watches back and lets everything else through.
#[derive(Debug)]
pub(crate) struct Paced<S> {
    inner: S,
    clock: SystemClock,
    paces: Arc<Mutex<Paces>>,
}

impl<S> Service<Request<Body>> for Paced<S>
where
    S: Service<Request<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let what = is_watch(request.uri()).then(|| what(request.uri()));
        let (clock, paces) = (self.clock, Arc::clone(&self.paces));
        // Nothing is sent before it is polled.
        let answer = self.inner.call(request);
        Box::pin(async move {
            if let Some(what) = what {
                let locked = || paces.lock().unwrap_or_else(PoisonError::into_inner);
                let next = locked().next(&what, clock.now());
                let wait = next.begun.saturating_since(clock.now());
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                // Only now: whoever is dropped while they wait have asked for nothing.
                locked().begin(what, Pace { begun: clock.now(), ..next });
            }
            answer.await
        })
    }
}

fn is_watch(uri: &Uri) -> bool {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    parameters.any(|parameter| ["watch=true", "watch=1"].contains(&parameter))
}

/// What a watch is of: its path and which of the objects there, without the version from which it goes on.
fn what(uri: &Uri) -> String {
    let parameters = uri.query().unwrap_or_default().split('&');
    let selectors = parameters.filter(|parameter| {
        let name = parameter.split('=').next().unwrap_or_default();
        ["labelSelector", "fieldSelector"].contains(&name)
    });
    [uri.path()].into_iter().chain(selectors).collect::<Vec<_>>().join("&")
}

/// The latest watch of each thing, as [`what`] has it, for as long as the next one may have to wait.
#[derive(Debug, Default)]
struct Paces(BTreeMap<String, Pace>);

#[derive(Clone, Copy, Debug)]
struct Pace {
    begun: Time,
    /// How many watches in a row have been short.
    short: u32,
}

impl Paces {
    /// The watch before has ended; tells when the next one may begin.
    fn next(&self, what: &str, now: Time) -> Pace {
        match self.0.get(what) {
            Some(&Pace { begun, short }) if is_recent(begun, now) => {
                let interval = FIRST_INTERVAL.saturating_mul(1 << short.min(16)).min(LONGEST_INTERVAL);
                Pace { begun: now.max(begun.saturating_add(interval)), short: short.saturating_add(1) }
            }
            _ => Pace { begun: now, short: 0 },
        }
    }

    /// A watch is sent.
    fn begin(&mut self, what: String, pace: Pace) {
        self.0.retain(|_, before| is_recent(before.begun, pace.begun));
        self.0.insert(what, pace);
    }
}

/// Whether a watch that ends now has been a short one.
fn is_recent(begun: Time, now: Time) -> bool {
    now.saturating_since(begun) < SHORT_LIFE
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    /// Sends the next watch as soon as it may be sent; returns how long it has waited.
    fn send(paces: &mut Paces, what: &str, now: Time) -> Duration {
        let next = paces.next(what, now);
        paces.begin(what.to_owned(), next);
        next.begun.saturating_since(now)
    }

    #[test]
    fn watches_that_end_at_once_come_at_longer_and_longer_intervals() {
        let (mut paces, mut now) = (Paces::default(), Time::from_secs(7));
        for millis in [0, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            let wait = send(&mut paces, "/pods", now);
            assert_eq!(wait, Duration::from_millis(millis));
            now = now.saturating_add(wait);
        }
        assert_eq!(send(&mut paces, "/pools", now), Duration::ZERO, "each kind has its own pace");
        let later = now.saturating_add(SHORT_LIFE);
        assert_eq!(send(&mut paces, "/pods", later), Duration::ZERO, "it has lived for long enough");
        assert_eq!(paces.0.len(), 1, "what holds nobody back is forgotten");
        assert_eq!(send(&mut paces, "/pods", later), FIRST_INTERVAL);
    }

    #[test]
    fn whoever_has_waited_by_themselves_does_not_wait_again() {
        let (mut paces, mut now) = (Paces::default(), Time::from_secs(7));
        for millis in [100, 200, 400, 800, 1_600, 3_200, 5_000] {
            assert_eq!(send(&mut paces, "/pods", now), Duration::ZERO);
            now = now.saturating_add(Duration::from_millis(millis));
        }
    }

    #[test]
    fn watches_that_were_never_sent_hold_nobody_back() {
        let (mut paces, now) = (Paces::default(), Time::from_secs(7));
        assert_eq!(send(&mut paces, "/pods", now), Duration::ZERO);
        for _ in 0..20 {
            // Dropped while it waits.
            assert_eq!(paces.next("/pods", now).begun.saturating_since(now), FIRST_INTERVAL);
        }
    }

    #[tokio::test]
    async fn a_watch_that_is_dropped_while_it_waits_is_not_sent_and_does_not_count() {
        let mut paced = Pacing.layer(Counted::default());
        let sent = Arc::clone(&paced.inner.0);
        let mut watch = || paced.call(Request::get("/pods?watch=true&labelSelector=a").body(Body::empty()).unwrap());
        for _ in 0..3 {
            watch().await.unwrap();
        }
        for _ in 0..20 {
            drop(tokio::time::timeout(Duration::from_millis(1), watch()).await);
        }
        // Had they counted, this one would wait for more than a minute.
        tokio::time::timeout(LONGEST_INTERVAL, watch()).await.expect("few have been short").unwrap();
        assert_eq!(sent.load(Relaxed), 4);
    }

    /// Counts what is sent.
    #[derive(Default)]
    struct Counted(Arc<AtomicU32>);

    impl Service<Request<Body>> for Counted {
        type Response = ();
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<(), Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            let sent = Arc::clone(&self.0);
            Box::pin(async move {
                sent.fetch_add(1, Relaxed);
                Ok(())
            })
        }
    }

    #[test]
    fn a_watch_is_known_by_what_it_is_of_and_not_by_where_it_goes_on() {
        let of = |uri: &'static str| what(&Uri::from_static(uri));
        let pods = of("/pods?watch=true&labelSelector=a%3Db&resourceVersion=7");
        assert_eq!(pods, of("/pods?watch=true&resourceVersion=8&labelSelector=a%3Db"));
        for other in ["/pods?watch=true&labelSelector=a%3Dc&resourceVersion=7", "/pods?watch=true", "/pools?watch=true"]
        {
            assert_ne!(pods, of(other), "{other}");
        }
    }

    #[test]
    fn watches_are_told_from_lists() {
        for (uri, expected) in [
            ("/api/v1/namespaces/n/pods?watch=true&timeoutSeconds=60", true),
            ("/api/v1/namespaces/n/pods?&watch=1", true),
            ("/api/v1/namespaces/n/pods?labelSelector=watch%3Dtrue", false),
            ("/api/v1/namespaces/n/pods", false),
        ] {
            assert_eq!(is_watch(&Uri::from_static(uri)), expected, "{uri}");
        }
    }
}
