use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use crate::Scraped;

/// The name of an endpoint: it outlives restarts of what runs behind it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl EndpointId {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Tells two lives of the same [`EndpointId`] apart: a pod's UID, or the address of an endpoint from a
/// file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointUid(pub Arc<str>);

/// One life of a model server: immutable facts, the load this process has put on it, and what the server last said of
/// itself.
#[derive(Debug)]
pub struct Endpoint {
    pub id: EndpointId,
    pub uid: EndpointUid,
    /// Where requests go.
    pub address: SocketAddr,
    pub labels: BTreeMap<String, String>,
    load: Arc<EndpointLoad>,
    scraped: Arc<ArcSwapOption<Scraped>>,
    scrape_fault: Arc<ArcSwapOption<String>>,
}

impl Endpoint {
    /// A new life, with nothing in flight.
    pub fn new(id: EndpointId, uid: EndpointUid, address: SocketAddr, labels: BTreeMap<String, String>) -> Self {
        Self { id, uid, address, labels, load: Arc::default(), scraped: Arc::default(), scrape_fault: Arc::default() }
    }

    /// The same life with other labels: load and scraped state are shared, not copied.
    #[must_use]
    pub fn relabelled(&self, labels: BTreeMap<String, String>) -> Self {
        Self {
            id: self.id.clone(),
            uid: self.uid.clone(),
            address: self.address,
            labels,
            load: Arc::clone(&self.load),
            scraped: Arc::clone(&self.scraped),
            scrape_fault: Arc::clone(&self.scrape_fault),
        }
    }

    /// The same life under another id, with the same sharing.
    #[must_use]
    pub fn renamed(&self, id: EndpointId) -> Self {
        Self { id, ..self.relabelled(self.labels.clone()) }
    }

    /// The label that gives an endpoint its own limit on requests in flight: for hardware that differs within a pool.
    pub const MAX_CONCURRENCY: &str = "llm-d.ai/max-concurrency";

    /// What the label [`Endpoint::MAX_CONCURRENCY`] says: a whole number from 1 to [`Endpoint::MAX_LIMIT`]. None if it says
    /// anything else.
    pub fn max_concurrency(&self) -> Option<u64> {
        let limit: u64 = self.labels.get(Self::MAX_CONCURRENCY)?.trim().parse().ok()?;
        (1..=Self::MAX_LIMIT).contains(&limit).then_some(limit)
    }

    /// The largest limit on requests or tokens of one endpoint: sums over a million endpoints stay far from overflow.
    pub const MAX_LIMIT: u64 = 1 << 40;

    /// A number that no other life of any endpoint has in this process.
    pub fn serial(&self) -> u64 {
        self.load.serial
    }

    /// The counters of this life. They outlive the endpoint's place in the pool, so that a late release
    /// never touches a successor.
    pub const fn load(&self) -> &Arc<EndpointLoad> {
        &self.load
    }

    /// What the last successful scrape brought; none before the first one. Who acts on it looks at its age.
    pub fn scraped(&self) -> Option<Arc<Scraped>> {
        self.scraped.load_full()
    }

    /// What `read` makes of the last successful scrape, without a share in it: for what is done for every endpoint and
    /// request.
    pub fn with_scraped<R>(&self, read: impl FnOnce(Option<&Scraped>) -> R) -> R {
        read(self.scraped.load().as_deref())
    }

    pub fn set_scraped(&self, scraped: Scraped) {
        self.scraped.store(Some(Arc::new(scraped)));
    }

    /// What the last scrape lacked, or why there was nothing to read, for people; none if all was well.
    pub fn scrape_fault(&self) -> Option<Arc<String>> {
        self.scrape_fault.load_full()
    }

    pub fn set_scrape_fault(&self, fault: Option<String>) {
        self.scrape_fault.store(fault.map(Arc::new));
    }
}

/// What this process has in flight on one endpoint.
#[derive(Debug)]
pub struct EndpointLoad {
    serial: u64,
    requests: AtomicU64,
    tokens: AtomicU64,
    request_limit: AtomicU64,
    token_limit: AtomicU64,
}

impl Default for EndpointLoad {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            requests: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            request_limit: AtomicU64::new(u64::MAX),
            token_limit: AtomicU64::new(u64::MAX),
        }
    }
}

impl EndpointLoad {
    /// Requests in flight.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Counts one more request unless `limit` are in flight already; tells whether it did. Two callers can
    /// never both take the last place.
    pub fn try_book(&self, limit: u64) -> bool {
        self.requests
            .try_update(Ordering::AcqRel, Ordering::Relaxed, |requests| (requests < limit).then(|| requests + 1))
            .is_ok()
    }

    /// Tokens that the requests in flight are charged.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Counts `tokens` more.
    pub fn add_tokens(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Counts `tokens` less, which were added before.
    pub fn sub_tokens(&self, tokens: u64) {
        let before = self.tokens.fetch_sub(tokens, Ordering::Relaxed);
        debug_assert!(before >= tokens, "took off more tokens than were put on");
    }

    /// Says from which load on the endpoint is full.
    pub fn set_limits(&self, requests: u64, tokens: u64) {
        self.request_limit.store(requests, Ordering::Relaxed);
        self.token_limit.store(tokens, Ordering::Relaxed);
    }

    /// Whether one more request may start here. A moment later the answer may be another: whoever books asks again.
    pub fn has_room(&self) -> bool {
        self.requests() < self.request_limit.load(Ordering::Relaxed)
            && self.tokens() < self.token_limit.load(Ordering::Relaxed)
    }

    /// Counts one request less. Pairs with one successful [`EndpointLoad::try_book`].
    pub fn release(&self) {
        let before = self.requests.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "released more requests than were booked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Time;

    fn endpoint() -> Endpoint {
        Endpoint::new(
            EndpointId::new("default", "a"),
            EndpointUid("1".into()),
            "127.0.0.1:8000".parse().unwrap(),
            BTreeMap::new(),
        )
    }

    #[test]
    fn the_last_place_is_taken_once() {
        let load = EndpointLoad::default();
        let booked: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..100).filter(|_| load.try_book(50)).count() as u64)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(booked, 50);
        assert_eq!(load.requests(), 50);
    }

    #[test]
    fn new_labels_keep_the_load() {
        let first = endpoint();
        assert!(first.load().try_book(1));
        let relabelled = first.relabelled(BTreeMap::from([("role".into(), "decode".into())]));
        assert_eq!(relabelled.load().requests(), 1);
        first.load().release();
        assert_eq!(relabelled.load().requests(), 0);
        assert_eq!(relabelled.serial(), first.serial());
        first.set_scraped(Scraped { waiting: Some(3), ..Scraped::at(Time::ZERO) });
        assert_eq!(relabelled.scraped().unwrap().waiting, Some(3));
        relabelled.set_scrape_fault(Some("no page".to_owned()));
        assert_eq!(*first.scrape_fault().unwrap(), "no page");
        assert_ne!(endpoint().serial(), first.serial(), "another life, although it has the same name");
    }

    #[test]
    fn an_own_limit_is_a_whole_number_from_one_up() {
        let labelled = |value: &str| {
            let labels = BTreeMap::from([("llm-d.ai/max-concurrency".to_owned(), value.to_owned())]);
            endpoint().relabelled(labels).max_concurrency()
        };
        assert_eq!(labelled("7"), Some(7));
        assert_eq!(labelled(" 7 "), Some(7));
        assert_eq!(labelled("1099511627776"), Some(Endpoint::MAX_LIMIT));
        for bad in ["", "0", "-1", "1.5", "many", "1099511627777", "99999999999999999999999"] {
            assert_eq!(labelled(bad), None, "{bad:?}");
        }
        assert_eq!(endpoint().max_concurrency(), None);
    }

    #[test]
    fn room_ends_at_either_limit() {
        let load = EndpointLoad::default();
        load.add_tokens(1 << 40);
        assert!(load.has_room(), "without limits");
        load.set_limits(2, (1 << 40) + 5);
        assert!(load.try_book(u64::MAX) && load.has_room());
        load.add_tokens(5);
        assert!(!load.has_room());
        load.sub_tokens(5);
        assert!(load.try_book(u64::MAX) && !load.has_room());
        load.release();
        assert!(load.has_room());
    }

    #[test]
    fn prints_namespace_and_name() {
        assert_eq!(endpoint().id.to_string(), "default/a");
    }
}
