use proptest::prelude::*;

use super::*;
use crate::collection::Key;
use crate::crd::{PoolRef, RewriteRule};

const POOL_GROUP: &str = "inference.networking.k8s.io";

fn id() -> PoolId {
    PoolId { namespace: "ns".into(), name: "chat".into(), group: POOL_GROUP.into() }
}

fn key(name: &str, uid: &str) -> Key {
    Key { name: name.into(), uid: uid.into() }
}

fn pool(ports: &[u16]) -> Pool {
    Pool {
        key: key("chat", "pool"),
        labels: BTreeMap::from([("app".into(), "vllm".into())]),
        ports: TargetPorts::new(ports.iter().copied()),
        terminating: false,
    }
}

/// A ready pod without labels.
fn pod(name: &str, uid: &str, ip: &str) -> Pod {
    Pod {
        key: key(name, uid),
        created: 0,
        ip: Some(ip.parse().unwrap()),
        routable: true,
        labels: BTreeMap::new(),
        active_ports: None,
    }
}

fn objective(name: &str, priority: i32) -> Objective {
    let pool = PoolRef { group: POOL_GROUP.into(), kind: "InferencePool".into(), name: "chat".into() };
    Objective { key: key(name, "uid"), pool, priority: Priority(priority), observed: Observed::default() }
}

fn rewrite(name: &str, created: i64) -> Rewrite {
    let pool = objective(name, 0).pool;
    let rules = vec![RewriteRule { matches: vec![], targets: vec![] }];
    Rewrite { key: key(name, "uid"), created, pool, rules, left_out: 0, observed: Observed::default() }
}

fn names(index: &Index) -> Vec<String> {
    index.rewrites().in_order.iter().map(|rewrite| rewrite.key.name.clone()).collect()
}

fn list<T>(index: &mut Index, change: fn(Event<T>) -> Change, objects: impl IntoIterator<Item = T>) {
    index.apply(change(Event::Begin));
    for object in objects {
        index.apply(change(Event::Listed(object)));
    }
    index.apply(change(Event::Complete));
}

/// With a pool of these ports, and pods.
fn index(ports: &[u16], pods: impl IntoIterator<Item = Pod>) -> Index {
    let mut index = Index::of_pool(id());
    list(&mut index, Change::Pool, [pool(ports)]);
    list(&mut index, Change::Pod, pods);
    index
}

/// Each endpoint as `name uid address`.
fn shown(index: &Index) -> Vec<String> {
    let mut shown: Vec<String> = index
        .endpoints()
        .iter()
        .map(|EndpointSpec { id, uid, address, labels: _ }| format!("{} {} {address}", id.name, uid.0))
        .collect();
    shown.sort();
    shown
}

fn priorities(index: &Index) -> Vec<(String, i32)> {
    index.objectives().priorities.into_iter().map(|(name, priority)| (name, priority.0)).collect()
}

#[test]
fn each_port_of_each_routable_pod_is_an_endpoint() {
    let waiting = Pod { routable: false, ..pod("b", "2", "10.0.0.2") };
    let without_address = Pod { ip: None, ..pod("c", "3", "10.0.0.3") };
    let index = index(&[8000, 8001], [pod("a", "1", "10.0.0.1"), waiting, without_address]);
    assert_eq!(shown(&index), ["a-rank-0 1 10.0.0.1:8000", "a-rank-1 1 10.0.0.1:8001"]);
    assert_eq!(index.endpoints()[0].id.to_string(), "ns/a-rank-0");
}

#[test]
fn a_pod_that_terminates_or_is_no_longer_ready_leaves() {
    let mut index = index(&[8000], [pod("a", "1", "10.0.0.1"), pod("b", "2", "10.0.0.2")]);
    assert!(index.apply(Change::Pod(Event::Applied(Pod { routable: false, ..pod("a", "1", "10.0.0.1") }))));
    assert_eq!(shown(&index), ["b-rank-0 2 10.0.0.2:8000"]);
    assert!(index.apply(Change::Pod(Event::Deleted(key("b", "2")))));
    assert_eq!(shown(&index), [""; 0]);
}

#[test]
fn ports_come_and_go_and_keep_their_ranks() {
    let mut index = index(&[8000, 8001], [pod("a", "1", "10.0.0.1")]);
    index.apply(Change::Pool(Event::Applied(pool(&[8000, 8001, 8002]))));
    assert_eq!(shown(&index).len(), 3);
    index.apply(Change::Pool(Event::Applied(pool(&[8000]))));
    assert_eq!(shown(&index), ["a-rank-0 1 10.0.0.1:8000"]);
    index.apply(Change::Pool(Event::Applied(pool(&[8000, 8001]))));
    assert_eq!(shown(&index), ["a-rank-0 1 10.0.0.1:8000", "a-rank-1 1 10.0.0.1:8001"]);
}

#[test]
fn new_ports_of_other_pods_count_when_those_are_listed() {
    let of = |app: &str, ports: &[u16]| Pool { labels: BTreeMap::from([("app".into(), app.into())]), ..pool(ports) };
    let change =
        |index: &mut Index, app: &str, ports: &[u16]| index.apply(Change::Pool(Event::Applied(of(app, ports))));
    let mut index = index(&[8000], [pod("a", "1", "10.0.0.1")]);
    change(&mut index, "other", &[9000]);
    change(&mut index, "another", &[9001]);
    assert_eq!(shown(&index), ["a-rank-0 1 10.0.0.1:8000"], "nobody has said that it serves on another port");
    index.apply(Change::Pod(Event::Begin));
    index.apply(Change::Pod(Event::Listed(pod("b", "2", "10.0.0.2"))));
    assert_eq!(shown(&index), ["a-rank-0 1 10.0.0.1:8000"], "the list is not complete");
    assert!(index.apply(Change::Pod(Event::Complete)));
    assert_eq!(shown(&index), ["b-rank-0 2 10.0.0.2:9001"]);

    change(&mut index, "another", &[9002]);
    assert_eq!(shown(&index), ["b-rank-0 2 10.0.0.2:9002"], "of ports alone a change counts at once");
    change(&mut index, "more", &[9003]);
    list(&mut index, Change::Pod, [pod("b", "2", "10.0.0.2")]);
    assert_eq!(shown(&index), ["b-rank-0 2 10.0.0.2:9003"], "the same pods may be chosen by other labels");
    change(&mut index, "detour", &[9004]);
    change(&mut index, "more", &[9005]);
    assert_eq!(shown(&index), ["b-rank-0 2 10.0.0.2:9005"], "they are the pods of that selector");
    change(&mut index, "detour", &[9006]);
    index.apply(Change::Pool(Event::Deleted(key("chat", "pool"))));
    change(&mut index, "detour", &[9007]);
    assert_eq!(shown(&index), [""; 0], "of a pool that is made anew none are known");
}

#[test]
fn a_port_that_is_named_twice_is_one_endpoint() {
    assert_eq!(shown(&index(&[8000, 8001, 8000], [pod("a", "1", "10.0.0.1")])).len(), 2);
}

#[test]
fn a_pod_serves_on_the_ports_it_says() {
    let some = |ports: &[u16]| Pod { active_ports: Some(ports.iter().copied().collect()), ..pod("a", "1", "10.0.0.1") };
    let mut index = index(&[8000, 8001], [some(&[8001, 9999])]);
    assert_eq!(shown(&index), ["a-rank-1 1 10.0.0.1:8001"]);
    index.apply(Change::Pod(Event::Applied(some(&[]))));
    assert_eq!(shown(&index), [""; 0]);
}

#[test]
fn an_address_belongs_to_the_later_pod() {
    let later = Pod { created: 60, ..pod("a", "1", "10.0.0.5") };
    for pods in [[later.clone(), pod("b", "2", "10.0.0.5")], [pod("b", "2", "10.0.0.5"), later.clone()]] {
        assert_eq!(shown(&index(&[8000], pods)), ["a-rank-0 1 10.0.0.5:8000"]);
    }
    let failed = Pod { routable: false, ..later };
    assert_eq!(shown(&index(&[8000], [failed, pod("b", "2", "10.0.0.5")])), ["b-rank-0 2 10.0.0.5:8000"]);
}

#[test]
fn pods_that_share_an_address_on_other_ports_are_all_there() {
    let on = |name: &str, port: u16| Pod { active_ports: Some([port].into()), ..pod(name, name, "10.0.0.5") };
    let index = index(&[8000, 8001], [on("a", 8000), on("b", 8001)]);
    assert_eq!(shown(&index), ["a-rank-0 a 10.0.0.5:8000", "b-rank-1 b 10.0.0.5:8001"]);
}

#[test]
fn a_pod_that_is_made_anew_under_its_name_is_another_life() {
    let mut index = index(&[8000], [pod("a", "1", "10.0.0.1")]);
    index.apply(Change::Pod(Event::Applied(pod("a", "2", "10.0.0.1"))));
    assert!(!index.apply(Change::Pod(Event::Deleted(key("a", "1")))), "the removal of the first one comes late");
    assert_eq!(shown(&index), ["a-rank-0 2 10.0.0.1:8000"]);
}

#[test]
fn addresses_of_version_6_are_endpoints_too() {
    assert_eq!(shown(&index(&[8000], [pod("a", "1", "fd00::5")])), ["a-rank-0 1 [fd00::5]:8000"]);
}

#[test]
fn labels_are_those_of_the_pod() {
    let labels = BTreeMap::from([("llm-d.ai/role".to_owned(), "decode".to_owned())]);
    let index = index(&[8000], [Pod { labels: labels.clone(), ..pod("a", "1", "10.0.0.1") }]);
    assert_eq!(index.endpoints()[0].labels, labels);
}

#[test]
fn without_its_pool_there_are_no_endpoints_and_a_new_pool_waits_for_a_new_list() {
    let mut index = index(&[8000], [pod("a", "1", "10.0.0.1")]);
    let terminating = Pool { terminating: true, ..pool(&[8000]) };
    let endings = [Event::Deleted(key("chat", "pool")), Event::Applied(terminating), Event::Unavailable];
    for gone in endings {
        assert!(index.apply(Change::Pool(gone.clone())), "{gone:?}");
        assert_eq!((shown(&index).len(), index.selector()), (0, None), "{gone:?}");
        assert!(!index.is_complete(), "{gone:?}");
        index.apply(Change::Pool(Event::Applied(pool(&[9000]))));
        assert_eq!((shown(&index).len(), index.selector().as_deref()), (0, Some("app=vllm")), "{gone:?}");
        list(&mut index, Change::Pod, [pod("a", "1", "10.0.0.1")]);
        assert_eq!(shown(&index), ["a-rank-0 1 10.0.0.1:9000"], "{gone:?}");
    }
}

#[test]
fn a_pool_of_another_name_is_not_the_pool() {
    let mut index = Index::of_pool(id());
    list(&mut index, Change::Pool, [Pool { key: key("other", "1"), ..pool(&[8000]) }]);
    assert_eq!(index.selector(), None);
}

#[test]
fn a_list_is_not_seen_before_it_is_complete() {
    let mut index = index(&[8000], [pod("a", "1", "10.0.0.1"), pod("b", "2", "10.0.0.2")]);
    let before = shown(&index);
    for event in [Event::Begin, Event::Listed(pod("c", "3", "10.0.0.3")), Event::Begin] {
        assert!(!index.apply(Change::Pod(event)));
        assert_eq!(shown(&index), before);
    }
    index.apply(Change::Pod(Event::Listed(pod("b", "2", "10.0.0.2"))));
    assert!(index.apply(Change::Pod(Event::Complete)));
    assert_eq!(shown(&index), ["b-rank-0 2 10.0.0.2:8000"]);
}

#[test]
fn what_changes_nothing_is_not_told() {
    let mut index = index(&[8000], [pod("a", "1", "10.0.0.1")]);
    assert!(!index.apply(Change::Pod(Event::Applied(pod("a", "1", "10.0.0.1")))));
    assert!(!index.apply(Change::Pod(Event::Deleted(key("b", "2")))));
    for event in [Event::Begin, Event::Listed(pod("a", "1", "10.0.0.1")), Event::Complete] {
        assert!(!index.apply(Change::Pod(event)));
    }
}

#[test]
fn it_is_complete_once_everything_has_been_listed_be_it_empty() {
    let mut index = Index::of_pool(id());
    list(&mut index, Change::Pod, []);
    list(&mut index, Change::Objective, []);
    list(&mut index, Change::OlderObjective, []);
    list(&mut index, Change::Rewrite, []);
    list(&mut index, Change::OlderRewrite, []);
    list(&mut index, Change::Pool, []);
    assert!(!index.is_complete(), "there is no pool");
    list(&mut index, Change::Pool, [pool(&[8000])]);
    list(&mut index, Change::Pod, []);
    assert!(index.is_complete());

    let mut without_objectives = Index::of_pool(id());
    list(&mut without_objectives, Change::Pool, [pool(&[8000])]);
    list(&mut without_objectives, Change::Pod, []);
    let unavailable = [
        Change::Objective(Event::Unavailable),
        Change::OlderObjective(Event::Unavailable),
        Change::Rewrite(Event::Unavailable),
        Change::OlderRewrite(Event::Unavailable),
    ];
    for change in unavailable {
        assert!(!without_objectives.is_complete());
        assert!(without_objectives.apply(change), "it may be complete by that");
    }
    assert!(without_objectives.is_complete());
}

#[test]
fn a_selector_stands_in_for_a_pool() {
    let mut index = Index::of_selected(id(), "app in (a,b)".into(), TargetPorts::new([8000, 8001]));
    assert_eq!(index.selector().as_deref(), Some("app in (a,b)"));
    assert!(!index.is_complete());
    list(&mut index, Change::Pod, [pod("a", "1", "10.0.0.1")]);
    assert!(index.is_complete());
    assert_eq!(shown(&index).len(), 2);
}

#[test]
fn objectives_of_this_pool_give_priorities() {
    let mut index = Index::of_pool(id());
    let mut foreign = objective("foreign", 5);
    foreign.pool.name = "images".into();
    let mut mistaken = objective("mistaken", 6);
    mistaken.pool.group = "inference.networking.x-k8s.io".into();
    list(&mut index, Change::Objective, [objective("high", 100), objective("low", -1), foreign, mistaken]);
    assert_eq!(priorities(&index), [("high".into(), 100), ("low".into(), -1)]);
    assert_eq!(index.objectives().of_other_group, BTreeSet::from(["mistaken".into()]));

    assert!(index.apply(Change::Objective(Event::Applied(objective("low", i32::MIN)))));
    index.apply(Change::Objective(Event::Deleted(key("high", "uid"))));
    assert_eq!(priorities(&index), [("low".into(), i32::MIN)]);
    let mut moved = objective("low", 3);
    moved.pool.name = "images".into();
    index.apply(Change::Objective(Event::Applied(moved)));
    assert_eq!(priorities(&index), []);
}

#[test]
fn the_present_group_wins_by_name_and_the_older_one_fills_the_gaps() {
    let mut index = Index::of_pool(id());
    list(&mut index, Change::Objective, [objective("both", 1)]);
    list(&mut index, Change::OlderObjective, [objective("both", 2), objective("older", 3)]);
    assert_eq!(priorities(&index), [("both".into(), 1), ("older".into(), 3)]);
    assert_eq!(index.objectives().defined_twice, BTreeSet::from(["both".into()]));
    index.apply(Change::Objective(Event::Deleted(key("both", "uid"))));
    assert_eq!(priorities(&index), [("both".into(), 2), ("older".into(), 3)]);

    let mut of_another_pool = objective("older", 9);
    of_another_pool.pool.name = "images".into();
    index.apply(Change::Objective(Event::Applied(of_another_pool)));
    assert_eq!(priorities(&index)[1], ("older".into(), 3));
}

#[test]
fn objectives_outlive_their_pool() {
    let mut index = index(&[8000], []);
    list(&mut index, Change::Objective, [objective("high", 100)]);
    index.apply(Change::Pool(Event::Deleted(key("chat", "pool"))));
    index.apply(Change::Pool(Event::Applied(pool(&[8000]))));
    assert_eq!(priorities(&index), [("high".into(), 100)]);
}

#[test]
fn the_rules_of_the_oldest_rewrite_count_first_and_of_the_same_second_by_name() {
    let mut index = Index::of_pool(id());
    let mut foreign = rewrite("foreign", 0);
    foreign.pool.name = "images".into();
    let mut mistaken = rewrite("mistaken", 0);
    mistaken.pool.group = "inference.networking.x-k8s.io".into();
    let listed = [rewrite("d", 5), rewrite("b", 9), rewrite("a", 9), foreign, mistaken];
    list(&mut index, Change::Rewrite, listed);
    list(&mut index, Change::OlderRewrite, [rewrite("c", 7), rewrite("d", 1)]);
    assert_eq!(names(&index), ["d", "c", "a", "b"]);
    assert_eq!(index.rewrites().in_order[0].created, 5, "llm-d.ai wins by name");
    assert_eq!(index.rewrites().defined_twice, BTreeSet::from(["d".into()]));
    assert_eq!(index.rewrites().of_other_group, BTreeSet::from(["mistaken".into()]));

    assert!(index.apply(Change::Rewrite(Event::Deleted(key("d", "uid")))));
    assert_eq!(names(&index), ["d", "c", "a", "b"], "the older group has one of that name");
    assert!(index.apply(Change::Rewrite(Event::Applied(rewrite("e", 0)))));
    assert_eq!(names(&index), ["e", "d", "c", "a", "b"]);
}

/// Something that happens to the server or to the connection to it.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A pod is made, or changed: `(name, state)`.
    Put(u8, u8),
    Remove(u8),
    /// Removed and made anew.
    Renew(u8),
    /// The watch is lost, maybe in the middle of a list of so many pods.
    Lose(u8),
    Relist,
    RemovePool,
    PutPool(u8),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_u8, 0..4_u8).prop_map(|(name, state)| Step::Put(name, state)),
        2 => (0..4_u8).prop_map(Step::Remove),
        2 => (0..4_u8).prop_map(Step::Renew),
        1 => (0..4_u8).prop_map(Step::Lose),
        2 => Just(Step::Relist),
        1 => Just(Step::RemovePool),
        1 => (1..3_u8).prop_map(Step::PutPool),
    ]
}

/// The server, and what the index has heard of it.
struct World {
    pods: BTreeMap<u8, Pod>,
    pool: Option<Pool>,
    made: u32,
    heard: bool,
    index: Index,
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Put(name, state) => {
                let uid = self.pods.get(&name).map(|pod| pod.key.uid.clone());
                self.put(name, state, uid);
            }
            Step::Remove(name) => self.remove(name),
            Step::Renew(name) => {
                self.remove(name);
                self.put(name, 0, None);
            }
            Step::Lose(so_many) => {
                self.heard = false;
                self.index.apply(Change::Pod(Event::Begin));
                for pod in self.pods.values().take(so_many.into()) {
                    self.index.apply(Change::Pod(Event::Listed(pod.clone())));
                }
            }
            Step::Relist => self.relist(),
            Step::RemovePool => {
                if let Some(pool) = self.pool.take() {
                    self.index.apply(Change::Pool(Event::Deleted(pool.key)));
                    self.heard = false;
                }
            }
            Step::PutPool(ports) => {
                let anew = self.pool.is_none();
                let changed = pool(&(8000..8000 + u16::from(ports)).collect::<Vec<_>>());
                self.pool = Some(changed.clone());
                self.index.apply(Change::Pool(Event::Applied(changed)));
                if anew {
                    self.relist();
                }
            }
        }
    }

    fn put(&mut self, name: u8, state: u8, uid: Option<String>) {
        self.made += 1;
        let uid = uid.unwrap_or_else(|| self.made.to_string());
        // Two of the names share an address.
        let ip = format!("10.0.0.{}", name / 2);
        let routable = state != 3;
        let pod = Pod { routable, created: self.made.into(), ..pod(&format!("pod-{name}"), &uid, &ip) };
        self.pods.insert(name, pod.clone());
        self.tell(Event::Applied(pod));
    }

    fn remove(&mut self, name: u8) {
        if let Some(pod) = self.pods.remove(&name) {
            self.tell(Event::Deleted(pod.key));
        }
    }

    fn tell(&mut self, event: Event<Pod>) {
        if self.heard {
            self.index.apply(Change::Pod(event));
        }
    }

    /// Without a pool nobody asks for pods.
    fn relist(&mut self) {
        if self.pool.is_some() {
            list(&mut self.index, Change::Pod, self.pods.values().cloned());
            self.heard = true;
        }
    }

    /// As an index has it that was told of the present only.
    fn truth(&self) -> Vec<String> {
        let mut fresh = Index::of_pool(id());
        list(&mut fresh, Change::Pool, self.pool.clone());
        list(&mut fresh, Change::Pod, self.pods.values().cloned());
        shown(&fresh)
    }
}

proptest! {
    #[test]
    fn whatever_happens_it_ends_in_the_state_of_the_last_list(steps in proptest::collection::vec(steps(), 0..40)) {
        let index = index(&[8000], []);
        let mut world = World { pods: BTreeMap::new(), pool: Some(pool(&[8000])), made: 0, heard: true, index };
        for step in steps {
            world.step(step);
            if world.heard || world.pool.is_none() {
                let truth = if world.pool.is_some() { world.truth() } else { Vec::new() };
                prop_assert_eq!(shown(&world.index), truth);
            }
        }
        world.step(Step::PutPool(2));
        world.relist();
        prop_assert_eq!(shown(&world.index), world.truth());
    }
}
