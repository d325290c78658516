use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use sluice_core::{Endpoint, EndpointId, EndpointUid};

/// What discovery says of one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSpec {
    pub id: EndpointId,
    pub uid: EndpointUid,
    pub address: SocketAddr,
    pub labels: BTreeMap<String, String>,
}

/// The endpoints of the pool at one moment, in a stable order. Never changes once made.
#[derive(Debug, Default)]
pub struct Snapshot {
    endpoints: Vec<Arc<Endpoint>>,
}

impl Snapshot {
    pub fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }

    fn is_same(&self, other: &Self) -> bool {
        self.endpoints.len() == other.endpoints.len()
            && self.endpoints.iter().zip(&other.endpoints).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

/// The present endpoints. One writer, discovery; any number of readers, who never wait and never see half a
/// change.
#[derive(Default)]
pub struct EndpointTable {
    current: ArcSwap<Snapshot>,
    /// Held while the table changes, so that listeners see the changes in order.
    writer: Mutex<Writer>,
}

#[derive(Default)]
struct Writer {
    listeners: Vec<Listener>,
    /// Lives that have left the pool with requests in flight. One that comes back goes on where it was: the server has
    /// been running all the while.
    departed: BTreeMap<Life, Arc<Endpoint>>,
}

/// What tells one life of an endpoint from every other. The id comes last: the server may go on under another one.
type Life = (EndpointUid, SocketAddr, EndpointId);

/// Called with every new snapshot.
type Listener = Box<dyn Fn(&Arc<Snapshot>) + Send + Sync>;

impl fmt::Debug for EndpointTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointTable").field("current", &self.current).finish_non_exhaustive()
    }
}

impl EndpointTable {
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Calls `listener` with the present snapshot, and from then on with every one that differs from the one before, before
    /// the change returns. It must be quick and must not change the table.
    pub fn listen(&self, listener: impl Fn(&Arc<Snapshot>) + Send + Sync + 'static) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        listener(&self.snapshot());
        writer.listeners.push(Box::new(listener));
    }

    /// Makes `specs` the whole pool. An endpoint with the id, uid and address it had keeps its life, and with it
    /// what is in flight, also after an absence. So does one that has another id and takes the place of a life with its uid
    /// and address: a port of a pod that changes its rank is the same server. Any other starts a new life. Of specs with
    /// the same id the last counts.
    pub fn replace(&self, specs: impl IntoIterator<Item = EndpointSpec>) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.snapshot();
        let mut known = std::mem::take(&mut writer.departed);
        known.extend(before.endpoints.iter().map(|endpoint| {
            let life = (endpoint.uid.clone(), endpoint.address, endpoint.id.clone());
            (life, Arc::clone(endpoint))
        }));
        let wanted: BTreeMap<EndpointId, EndpointSpec> =
            specs.into_iter().map(|spec| (spec.id.clone(), spec)).collect();
        // Whoever keeps their id come first: nobody else may go on with their life.
        let lives: Vec<_> = wanted
            .into_values()
            .map(|spec| (known.remove(&(spec.uid.clone(), spec.address, spec.id.clone())), spec))
            .collect();
        let endpoints = lives
            .into_iter()
            .map(|(old, spec)| match old.or_else(|| renamed(&mut known, &spec)) {
                Some(old) if old.labels == spec.labels => old,
                Some(old) => Arc::new(old.relabelled(spec.labels)),
                None => Arc::new(Endpoint::new(spec.id, spec.uid, spec.address, spec.labels)),
            })
            .collect();
        let after = Arc::new(Snapshot { endpoints });
        let changed = !after.is_same(&before);
        if changed {
            warn_of_unusable_limits(&before, &after);
            self.current.store(Arc::clone(&after));
        }
        known.retain(|_, endpoint| endpoint.load().requests() > 0);
        writer.departed = known;
        if changed {
            for listener in &writer.listeners {
                listener(&after);
            }
        }
    }
}

/// Takes a life that has only the id not in common with `spec`.
fn renamed(known: &mut BTreeMap<Life, Arc<Endpoint>>, spec: &EndpointSpec) -> Option<Arc<Endpoint>> {
    let first = (spec.uid.clone(), spec.address, EndpointId::new("", ""));
    let (life, _) = known.range(first..).next()?;
    if (&life.0, life.1) != (&spec.uid, spec.address) {
        return None;
    }
    let life = life.clone();
    Some(Arc::new(known.remove(&life)?.renamed(spec.id.clone())))
}

/// Says, once for each endpoint and value, which limits of their own are not what they were meant to be.
fn warn_of_unusable_limits(before: &Snapshot, after: &Snapshot) {
    let label = |endpoint: &Endpoint| endpoint.labels.get(Endpoint::MAX_CONCURRENCY).cloned();
    for endpoint in after.endpoints.iter().filter(|endpoint| endpoint.max_concurrency().is_none()) {
        let Some(value) = label(endpoint) else { continue };
        let old = before.endpoints.binary_search_by(|old| old.id.cmp(&endpoint.id));
        if old.is_ok_and(|at| label(&before.endpoints[at]).as_ref() == Some(&value)) {
            continue;
        }
        tracing::warn!(
            endpoint = %endpoint.id,
            value,
            "label {} is not a whole number from 1 to {}, the endpoint has the limit of the pool",
            Endpoint::MAX_CONCURRENCY,
            Endpoint::MAX_LIMIT,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_lines::Lines;

    fn spec(name: &str, uid: &str, port: u16) -> EndpointSpec {
        EndpointSpec {
            id: EndpointId::new("default", name),
            uid: EndpointUid(uid.into()),
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            labels: BTreeMap::new(),
        }
    }

    fn named(table: &EndpointTable, name: &str) -> Arc<Endpoint> {
        let snapshot = table.snapshot();
        Arc::clone(snapshot.endpoints().iter().find(|endpoint| &*endpoint.id.name == name).unwrap())
    }

    #[test]
    fn the_same_life_keeps_its_load_and_a_new_one_starts_at_zero() {
        let table = EndpointTable::default();
        table.replace([spec("a", "1", 1), spec("b", "1", 2), spec("c", "1", 3)]);
        for name in ["a", "b", "c"] {
            assert!(named(&table, name).load().try_book(10));
        }

        let labels = BTreeMap::from([("role".to_owned(), "decode".to_owned())]);
        let relabelled = EndpointSpec { labels: labels.clone(), ..spec("a", "1", 1) };
        table.replace([relabelled, spec("b", "2", 2), spec("c", "1", 4)]);
        assert_eq!(named(&table, "a").load().requests(), 1);
        assert_eq!(named(&table, "a").labels, labels);
        assert_eq!(named(&table, "b").load().requests(), 0, "another uid is another life");
        assert_eq!(named(&table, "c").load().requests(), 0, "another address is another life");
    }

    #[test]
    fn a_server_that_gets_another_id_keeps_its_load_unless_somebody_else_goes_on_with_it() {
        let table = EndpointTable::default();
        // Ports 1 and 2 of one pod, of which the first is given up.
        table.replace([spec("a-rank-0", "1", 1), spec("a-rank-1", "1", 2)]);
        let (first, second) = (named(&table, "a-rank-0"), named(&table, "a-rank-1"));
        assert!(second.load().try_book(10));
        table.replace([spec("a-rank-0", "1", 2)]);
        let kept = named(&table, "a-rank-0");
        assert_eq!((kept.serial(), kept.load().requests()), (second.serial(), 1));
        assert_eq!(kept.address.port(), 2);
        table.replace([spec("a-rank-0", "1", 1), spec("a-rank-1", "1", 2)]);
        assert_eq!(named(&table, "a-rank-1").serial(), second.serial());
        assert_ne!(named(&table, "a-rank-0").serial(), first.serial(), "nothing was in flight there");

        table.replace([spec("a-rank-0", "2", 1), spec("a-rank-1", "1", 3)]);
        assert!(table.snapshot().endpoints().iter().all(|endpoint| endpoint.load().requests() == 0));
        table.replace([spec("b", "1", 2), spec("a-rank-1", "1", 2)]);
        assert_eq!(named(&table, "a-rank-1").serial(), second.serial());
        assert_ne!(named(&table, "b").serial(), second.serial(), "two at once are two lives");
    }

    #[test]
    fn a_life_that_comes_back_brings_what_is_in_flight() {
        let table = EndpointTable::default();
        table.replace([spec("a", "1", 1), spec("b", "1", 2)]);
        let (busy, idle) = (named(&table, "a"), named(&table, "b"));
        assert!(busy.load().try_book(10));
        table.replace([]);
        table.replace([spec("c", "1", 3)]);
        table.replace([spec("a", "1", 1), spec("b", "1", 2)]);
        assert_eq!(named(&table, "a").serial(), busy.serial());
        assert_eq!(named(&table, "a").load().requests(), 1);
        assert_ne!(named(&table, "b").serial(), idle.serial(), "nothing was in flight: nothing is remembered");

        table.replace([spec("a", "2", 1)]);
        assert_ne!(named(&table, "a").serial(), busy.serial(), "another uid is another life");
        table.replace([spec("a", "2", 1), spec("d", "1", 4)]);
        table.replace([spec("a", "1", 1)]);
        assert_eq!(named(&table, "a").serial(), busy.serial());
    }

    #[test]
    fn a_late_release_does_not_touch_the_successor() {
        let table = EndpointTable::default();
        table.replace([spec("a", "1", 1)]);
        let first = named(&table, "a");
        assert!(first.load().try_book(10));
        table.replace([spec("a", "2", 1)]);
        assert!(named(&table, "a").load().try_book(10));
        first.load().release();
        assert_eq!(named(&table, "a").load().requests(), 1);
    }

    #[test]
    fn readers_keep_the_snapshot_they_took() {
        let table = EndpointTable::default();
        table.replace([spec("a", "1", 1)]);
        let old = table.snapshot();
        table.replace([]);
        assert_eq!(old.endpoints().len(), 1);
        assert!(table.snapshot().endpoints().is_empty());
    }

    #[test]
    fn listeners_see_the_present_and_every_change_and_nothing_else() {
        let table = EndpointTable::default();
        table.replace([spec("a", "1", 1)]);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        table.listen(move |snapshot| sink.lock().unwrap().push(snapshot.endpoints().len()));
        table.replace([]);
        table.replace([]);
        table.replace([spec("a", "1", 1), spec("b", "1", 2)]);
        table.replace([spec("b", "1", 2), spec("a", "1", 1)]);
        assert_eq!(*seen.lock().unwrap(), [1, 0, 2]);
        table.replace([spec("a", "1", 1), spec("b", "2", 2)]);
        assert_eq!(*seen.lock().unwrap(), [1, 0, 2, 2]);
    }

    #[test]
    fn of_a_repeated_id_the_last_counts_and_the_order_is_stable() {
        let table = EndpointTable::default();
        table.replace([spec("b", "1", 1), spec("a", "1", 2), spec("b", "1", 3)]);
        let ports: Vec<u16> = table.snapshot().endpoints().iter().map(|endpoint| endpoint.address.port()).collect();
        assert_eq!(ports, [2, 3]);
    }

    #[test]
    fn a_limit_that_cannot_be_used_is_told_once_for_each_endpoint_and_value() {
        let limited = |name: &str, limit: &str| {
            let labels = BTreeMap::from([(Endpoint::MAX_CONCURRENCY.to_owned(), limit.to_owned())]);
            EndpointSpec { labels, ..spec(name, "1", 1) }
        };
        let (table, lines) = (EndpointTable::default(), Lines::default());
        let warnings = |specs: Vec<EndpointSpec>| {
            lines.hear(|| table.replace(specs));
            lines.take().into_iter().map(|(_, line)| line).collect::<Vec<_>>()
        };
        let told = warnings(vec![limited("a", "many"), limited("b", "0"), limited("c", "7"), spec("d", "1", 1)]);
        assert_eq!(told.len(), 2, "{told:?}");
        for (line, (name, value)) in told.iter().zip([("default/a", "many"), ("default/b", "0")]) {
            assert!(line.contains(name) && line.contains(value), "{line}");
        }
        assert_eq!(warnings(vec![limited("a", "many"), limited("b", "0")]), [""; 0]);
        assert_eq!(warnings(vec![limited("a", "-1"), limited("b", "0")]).len(), 1);
    }

    #[test]
    fn whoever_listens_hears_the_last_word_of_concurrent_writers() {
        let table = EndpointTable::default();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&heard);
        let ids = |snapshot: &Snapshot| -> Vec<EndpointId> {
            snapshot.endpoints().iter().map(|endpoint| endpoint.id.clone()).collect()
        };
        table.listen(move |snapshot| *listener.lock().unwrap() = ids(snapshot));
        for _ in 0..250 {
            std::thread::scope(|scope| {
                for name in ["a", "b", "c"] {
                    let table = &table;
                    scope.spawn(move || {
                        table.replace([]);
                        table.replace([spec(name, "1", 1)]);
                    });
                }
            });
            assert_eq!(*heard.lock().unwrap(), ids(&table.snapshot()));
            assert_eq!(heard.lock().unwrap().len(), 1, "an addition is not lost to a removal");
        }
    }
}
