//! Which endpoints are asked, when, and what becomes of what they say.

use std::collections::BTreeMap;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus::{Registry, TextEncoder};
use sluice_core::{Clock as _, Endpoint, SystemClock, Tasks, Time};
use tracing::Level;

use super::super::driver::{scan_in_parts, shortened};
use super::server::{Answer, Server, TestTasks, eventually, spec, vllm_page, with_headers};
use crate::exposition::{EngineMappings, ScanState};
use crate::log_lines::Lines;
use crate::{
    EndpointSpec, EndpointTable, EngineConfig, HttpsOptions, MetricsPath, MetricsSource, ScrapeContext, ScrapeMetrics,
    Scraper, Scraping, Transport, Verify,
};

/// A scraper and what it works on.
struct Rig {
    table: Arc<EndpointTable>,
    scraper: Scraper,
    registry: Registry,
    /// Names of endpoints, in the order in which they were scraped.
    seen: Arc<Mutex<Vec<String>>>,
    tasks_started: Arc<AtomicUsize>,
    /// They end with the rig.
    _tasks: Tasks,
}

fn scraping(interval: Duration) -> Scraping {
    let source = MetricsSource { transport: Transport::Http, path: MetricsPath::default(), port: None, interval: None };
    Scraping { source, engines: Arc::new(EngineMappings::default()), interval }
}

const INTERVAL: Duration = Duration::from_millis(50);
const NEVER: Duration = Duration::from_secs(3_600);

impl Rig {
    fn idle() -> Self {
        let (table, registry) = (Arc::new(EndpointTable::default()), Registry::new());
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let observed = Arc::clone(&seen);
        let tasks = TestTasks::default();
        let tasks_started = tasks.started();
        let tasks = Tasks::new(tasks);
        let scraper = Scraper::new(ScrapeContext {
            table: Arc::clone(&table),
            clock: Arc::new(SystemClock::start()),
            seed: 7,
            metrics: ScrapeMetrics::register(&registry, true).unwrap(),
            observer: Box::new(move |endpoint| observed.lock().unwrap().push(endpoint.id.name.to_string())),
            tasks: tasks.clone(),
        });
        Self { table, scraper, registry, seen, tasks_started, _tasks: tasks }
    }

    fn start(interval: Duration, pool: impl IntoIterator<Item = EndpointSpec>) -> Self {
        let rig = Self::idle();
        rig.table.replace(pool);
        rig.scraper.set(Some(scraping(interval))).unwrap();
        rig
    }

    fn endpoint(&self, name: &str) -> Arc<Endpoint> {
        let snapshot = self.table.snapshot();
        Arc::clone(snapshot.endpoints().iter().find(|endpoint| &*endpoint.id.name == name).unwrap())
    }

    /// Waits until the endpoint has been scraped with success so many times more.
    async fn scraped(&self, name: &str, times: usize) {
        let count = || self.seen.lock().unwrap().iter().filter(|seen| **seen == name).count();
        let enough = count() + times;
        eventually("further scrapes", || count() >= enough).await;
    }

    fn waiting(&self, name: &str) -> Option<u64> {
        self.endpoint(name).scraped().and_then(|scraped| scraped.waiting)
    }

    fn counter(&self, line: &str) -> u64 {
        let page = TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        let value = page.lines().find_map(|text| text.strip_prefix(line)).unwrap_or_else(|| panic!("{line}: {page}"));
        value.trim().parse().unwrap()
    }
}

/// So long that an endpoint that is scraped is scraped that often: told by one that is.
async fn time_for_scrapes(times: usize) {
    let server = Server::start(Answer::vllm(0, 0)).await;
    Rig::start(INTERVAL, [spec("metronome", server.address)]).scraped("metronome", times).await;
}

#[tokio::test]
async fn an_endpoint_is_scraped_when_it_appears_and_then_again_and_again() {
    let server = Server::start(Answer::vllm(3, 8)).await;
    let rig = Rig::start(INTERVAL, [spec("a", server.address)]);
    eventually("a first scrape", || rig.waiting("a") == Some(3)).await;
    assert_eq!(rig.endpoint("a").scraped().unwrap().running, Some(8));
    server.answer(Answer::vllm(4, 8));
    eventually("a second scrape", || rig.waiting("a") == Some(4)).await;
    assert_eq!(server.connections(), (1, 1));
    assert!(rig.seen.lock().unwrap().len() >= 2);

    let late = Server::start(Answer::vllm(1, 1)).await;
    rig.table.replace([spec("a", server.address), spec("b", late.address)]);
    eventually("a scrape of the new endpoint", || rig.waiting("b") == Some(1)).await;
}

#[tokio::test]
async fn without_anything_to_scrape_there_is_no_task_and_no_connection() {
    let server = Server::start(Answer::vllm(0, 0)).await;
    let rig = Rig::idle();
    rig.table.replace([spec("a", server.address)]);
    rig.scraper.set(None).unwrap();
    rig.scraper.scrape_now().request(rig.endpoint("a").serial());
    assert_eq!(rig.tasks_started.load(Ordering::Relaxed), 0, "nobody is there to connect");
    assert!(!rig.scraper.scrape_now().is_scraping());

    rig.scraper.set(Some(scraping(INTERVAL))).unwrap();
    eventually("a scrape", || rig.waiting("a").is_some()).await;
    rig.scraper.set(None).unwrap();
    eventually("the connection closes", || server.connections().1 == 0).await;
    let requests = server.requests().len();
    time_for_scrapes(4).await;
    assert_eq!(server.requests().len(), requests);
    assert_eq!(rig.waiting("a"), Some(0), "what was said stays");
}

#[tokio::test]
async fn what_is_scraped_goes_on_if_it_is_set_again_and_begins_anew_if_it_changes() {
    let server = Server::start(Answer::vllm(1, 1)).await;
    let rig = Rig::idle();
    rig.table.replace([spec("a", server.address)]);
    let same = scraping(INTERVAL);
    rig.scraper.set(Some(same.clone())).unwrap();
    eventually("a scrape", || rig.waiting("a") == Some(1)).await;
    rig.scraper.set(Some(same.clone())).unwrap();
    server.answer(Answer::vllm(2, 1));
    eventually("a further scrape", || rig.waiting("a") == Some(2)).await;
    assert_eq!(server.connections(), (1, 1));

    let source = MetricsSource { path: MetricsPath::parse("/elsewhere").unwrap(), ..same.source.clone() };
    rig.scraper.set(Some(Scraping { source, ..same })).unwrap();
    eventually("the other page", || server.requests().last().unwrap().starts_with("GET /elsewhere ")).await;
    eventually("one connection", || server.connections().1 == 1).await;
    assert_eq!(rig.tasks_started.load(Ordering::Relaxed), 1);
}

/// Its pages are about half the truth once they no longer name the queue that they have named.
#[tokio::test]
async fn what_is_remembered_of_pages_stays_for_as_long_as_they_are_read_in_the_same_way() {
    const RUNNING: &str = "vllm:num_requests_running 8\nvllm:other 3\n";
    let engines = |running: &str| {
        let own = format!(
            r#"{{"name":"own","queuedRequestsSpec":"vllm:num_requests_waiting","runningRequestsSpec":"{running}"}}"#
        );
        let own: EngineConfig = serde_json::from_str(&own).unwrap();
        Arc::new(EngineMappings::new("own", "engine", &[own]).unwrap())
    };
    let server = Server::start(Answer::vllm(5, 8)).await;
    let rig = Rig::start(INTERVAL, [spec("a", server.address)]);
    let said = || rig.endpoint("a").scraped().unwrap();
    let set = |interval, engines: &Arc<EngineMappings>| {
        rig.scraper.set(Some(Scraping { engines: Arc::clone(engines), ..scraping(interval) })).unwrap();
    };
    set(INTERVAL, &engines("vllm:num_requests_running"));
    let is_own = || said().engine.as_deref() == Some("own");
    eventually("the queue", || rig.waiting("a") == Some(5) && is_own()).await;
    server.answer(Answer::page(RUNNING));
    eventually("no queue", || said().lost_queue).await;
    let before = said();
    set(INTERVAL * 2, &engines("vllm:num_requests_running"));
    eventually("another page", || said().began > before.began).await;
    assert!(said().lost_queue);
    assert!(Arc::ptr_eq(said().engine.as_ref().unwrap(), before.engine.as_ref().unwrap()));
    set(INTERVAL * 2, &engines("vllm:other"));
    eventually("other metrics", || !Arc::ptr_eq(said().engine.as_ref().unwrap(), before.engine.as_ref().unwrap()))
        .await;
    assert!(!said().lost_queue);
}

#[tokio::test]
async fn what_was_said_last_stays_when_the_endpoint_fails() {
    let server = Server::start(Answer::vllm(3, 8)).await;
    let rig = Rig::start(INTERVAL, [spec("a", server.address)]);
    eventually("a first scrape", || rig.waiting("a") == Some(3)).await;
    server.answer(Answer::Close(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_vec()));
    let errors = "llm_d_epp_datalayer_poll_errors_total{source_type=\"metrics-data-source\"}";
    eventually("an error", || rig.counter(errors) >= 1).await;
    let before = rig.endpoint("a").scraped().unwrap();
    eventually("more errors", || rig.counter(errors) >= 3).await;
    assert_eq!(rig.endpoint("a").scraped().unwrap(), before);
    let deprecated = "llm_d_inference_scheduler_datalayer_poll_errors_total{source_type=\"metrics-data-source\"}";
    assert!(rig.counter(deprecated) >= 3);

    server.answer(Answer::vllm(5, 8));
    eventually("it is back", || rig.waiting("a") == Some(5)).await;
}

#[tokio::test]
async fn an_endpoint_that_fails_is_asked_less_and_less_and_holds_up_no_other() {
    let (good, hung) = (Server::start(Answer::vllm(1, 1)).await, Server::start(Answer::Nothing).await);
    let broken = Server::start(Answer::Close(Vec::new())).await;
    let pool = [spec("good", good.address), spec("hung", hung.address), spec("broken", broken.address)];
    let clock = SystemClock::start();
    let _rig = Rig::start(INTERVAL, pool);
    let (good, hung, broken) = (|| good.requests().len(), || hung.requests().len(), || broken.requests().len());
    // Were one waited for before the next is asked, the good one would be asked once for each time that the hung one is.
    eventually("the good one is asked while another one hangs", || good() >= 6).await;
    let passed = clock.now().saturating_since(Time::ZERO);
    assert!(hung() as u64 <= 1 + passed.as_secs(), "it takes the whole deadline to find out: {} in {passed:?}", hung());

    eventually("the broken one is asked", || broken() >= 5).await;
    // After 50, 100, 200 and 400 ms, each a tenth and half a tick shorter at most. A busy machine takes longer.
    let passed = clock.now().saturating_since(Time::ZERO);
    assert!(passed >= Duration::from_millis(750 * 9 / 10 - 10), "five times in {passed:?}");
}

#[tokio::test]
async fn a_request_out_of_turn_is_served_at_once() {
    let server = Server::start(Answer::vllm(1, 1)).await;
    let rig = Rig::start(NEVER, [spec("a", server.address)]);
    eventually("a first scrape", || rig.waiting("a") == Some(1)).await;
    // The first interval is cut at random, but of an hour some is left.
    for waiting in 2..10 {
        server.answer(Answer::vllm(waiting, 1));
        rig.scraper.scrape_now().request(rig.endpoint("a").serial());
        eventually("a scrape", || rig.waiting("a") == Some(waiting)).await;
    }
    assert_eq!(server.requests().len(), 9);
    let (before, clock) = (server.requests().len(), SystemClock::start());
    for _ in 0..200 {
        rig.scraper.scrape_now().request(rig.endpoint("a").serial());
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    let (asked, millis) = (server.requests().len() - before, clock.now().as_nanos() / 1_000_000);
    assert!(asked >= 2 && asked as u64 <= millis / 5 + 2, "{asked} scrapes in {millis} ms");
    rig.scraper.scrape_now().request(u64::MAX);
}

#[tokio::test]
async fn an_endpoint_that_leaves_is_not_asked_again_not_even_in_mid_scrape() {
    let (calm, hung) = (Server::start(Answer::vllm(1, 1)).await, Server::start(Answer::Nothing).await);
    let rig = Rig::start(INTERVAL, [spec("calm", calm.address), spec("hung", hung.address)]);
    eventually("both are asked", || rig.waiting("calm").is_some() && !hung.requests().is_empty()).await;
    rig.table.replace([]);
    eventually("both connections close", || calm.connections().1 == 0 && hung.connections().1 == 0).await;
    let asked = || [&calm, &hung].map(|server| server.requests().len());
    let before = asked();
    time_for_scrapes(4).await;
    assert_eq!(asked(), before);
}

#[tokio::test]
async fn endpoints_that_come_and_go_all_the_time_are_all_scraped_in_the_end() {
    let mut servers = Vec::new();
    for waiting in 0..8 {
        servers.push(Server::start(Answer::vllm(waiting, 1)).await);
    }
    let pool = |mask: u32| -> Vec<EndpointSpec> {
        let present = servers.iter().enumerate().filter(|(index, _)| mask & (1 << index) != 0);
        present.map(|(index, server)| spec(&index.to_string(), server.address)).collect()
    };
    let rig = Rig::start(INTERVAL, pool(0));
    for round in 0..200_u32 {
        rig.table.replace(pool(round.wrapping_mul(0x9E37_79B9) >> 24));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    rig.table.replace(pool(0xFF));
    for waiting in 0..8 {
        eventually("every endpoint is scraped", || rig.waiting(&waiting.to_string()) == Some(waiting)).await;
    }
    for server in &servers {
        eventually("one connection is left to each", || server.connections().1 == 1).await;
    }
}

#[tokio::test]
async fn labels_say_which_engine_answers_and_may_change() {
    let server = Server::start(Answer::page("sglang:num_queue_reqs 6\nvllm:num_requests_waiting 7\n")).await;
    let rig = Rig::start(INTERVAL, [spec("a", server.address)]);
    eventually("a scrape", || rig.waiting("a") == Some(7)).await;
    let labels = BTreeMap::from([("llm-d.ai/engine-type".to_owned(), "sglang".to_owned())]);
    rig.table.replace([EndpointSpec { labels, ..spec("a", server.address) }]);
    eventually("a scrape of the other engine", || rig.waiting("a") == Some(6)).await;
    assert_eq!(server.connections().0, 1);
}

#[tokio::test]
async fn a_page_without_any_metric_of_the_engine_is_a_failure() {
    let server = Server::start(Answer::page("<html>Welcome!</html>\n")).await;
    let rig = Rig::start(INTERVAL, [spec("a", server.address)]);
    let errors = "llm_d_epp_datalayer_extract_errors_total\
                  {extractor_type=\"core-metrics-extractor\",source_type=\"metrics-data-source\"}";
    eventually("an error", || rig.counter(errors) >= 2).await;
    assert_eq!(rig.endpoint("a").scraped(), None);
    assert_eq!(rig.counter("llm_d_epp_datalayer_poll_errors_total{source_type=\"metrics-data-source\"}"), 0);
    assert_eq!(*rig.seen.lock().unwrap(), [""; 0]);
}

/// An engine of which a configuration tells the names.
fn engine(specs: &str) -> Arc<EngineMappings> {
    let config = serde_json::from_str(&format!("{{\"name\": \"own\", {specs}}}")).unwrap();
    Arc::new(EngineMappings::new("own", "engine", &[config]).unwrap())
}

/// What is logged of an endpoint with a page of vLLM by the time that it has been scraped four times, and what is said to
/// be wrong with it in the end.
fn told_of_vllm_read_as(engines: Arc<EngineMappings>) -> (Vec<(Level, String)>, String) {
    let lines = Lines::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    lines.hear(|| {
        runtime.block_on(async {
            let server = Server::start(Answer::vllm(1, 2)).await;
            let rig = Rig::idle();
            rig.table.replace([spec("a", server.address)]);
            rig.scraper.set(Some(Scraping { engines, ..scraping(INTERVAL) })).unwrap();
            rig.scraped("a", 4).await;
            let told = lines.take().into_iter().filter(|(level, _)| *level <= Level::INFO).collect();
            let fault = rig.endpoint("a").scrape_fault().unwrap();
            rig.scraper.set(None).unwrap();
            eventually("what is not read is not at fault", || rig.endpoint("a").scrape_fault().is_none()).await;
            (told, String::clone(&fault))
        })
    })
}

#[test]
fn an_endpoint_that_does_not_tell_how_full_it_is_is_told_with_what_was_looked_for() {
    let specs = r#""queuedRequestsSpec": "own:queue", "kvUsageSpec": "own:kv",
                   "runningRequestsSpec": "vllm:num_requests_running""#;
    let (told, fault) = told_of_vllm_read_as(engine(specs));
    let [(Level::WARN, line)] = told.as_slice() else { panic!("{told:?}") };
    assert!(line.contains("stale") && line.contains("kvUsage: own:kv, waiting: own:queue"), "{line}");
    assert_eq!(fault, "the page does not tell how full it is, without kvUsage: own:kv, waiting: own:queue");
}

#[test]
fn an_endpoint_of_which_nothing_is_asked_that_tells_how_full_it_is_is_told_without_alarm() {
    let (told, fault) = told_of_vllm_read_as(engine(r#""runningRequestsSpec": "vllm:num_requests_running""#));
    let [(Level::INFO, line)] = told.as_slice() else { panic!("{told:?}") };
    assert!(line.contains("nothing in the endpoint's page tells how full it is"), "{line}");
    assert_eq!(fault, "the engine own has neither queuedRequestsSpec nor kvUsageSpec: nothing tells how full it is");
}

#[tokio::test]
async fn values_that_make_no_sense_are_counted() {
    let server = Server::start(Answer::page("vllm:num_requests_waiting NaN\nvllm:num_requests_running 2\n")).await;
    let rig = Rig::start(NEVER, [spec("a", server.address)]);
    eventually("a scrape", || rig.endpoint("a").scraped().is_some()).await;
    assert_eq!(rig.waiting("a"), None);
    assert_eq!(rig.counter("llm_d_epp_datalayer_ignored_values_total"), 1);
    assert_eq!(rig.counter("llm_d_epp_datalayer_scrape_duration_seconds_count"), 1);
}

#[tokio::test]
async fn what_a_slow_endpoint_says_is_given_the_time_that_its_pages_take() {
    let page = with_headers("200 OK", &[], vllm_page(1, 1).as_bytes());
    let slow = Server::start(Answer::Late(page, Duration::from_millis(250))).await;
    let quick = Server::start(Answer::vllm(1, 1)).await;
    let rig = Rig::start(INTERVAL, [spec("slow", slow.address), spec("quick", quick.address)]);
    let said = |name: &str| rig.endpoint(name).scraped();
    eventually("both have said something", || said("slow").is_some() && said("quick").is_some()).await;
    assert!(said("slow").unwrap().lenience >= Duration::from_millis(750));
    assert!(said("quick").unwrap().lenience < said("slow").unwrap().lenience);
}

/// Nobody follows files that are not read any more.
#[tokio::test]
async fn files_that_are_no_good_are_not_complained_of_once_nothing_reads_them() {
    let directory = tempfile::tempdir().unwrap();
    let authorities = directory.path().join("ca.pem");
    std::fs::write(&authorities, rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem()).unwrap();
    let rig = Rig::start(INTERVAL, []);
    let mut secured = scraping(INTERVAL);
    secured.source.transport =
        Transport::Https(HttpsOptions { verify: Verify::Authorities(authorities.clone()), client: None });
    rig.scraper.set(Some(secured)).unwrap();
    std::fs::write(&authorities, "broken").unwrap();
    let failing = || rig.counter("llm_d_epp_scrape_certificate_reload_failing");
    eventually("the file is found broken", || failing() == 1).await;
    rig.scraper.set(Some(scraping(INTERVAL))).unwrap();
    eventually("that is over", || failing() == 0).await;
}

#[tokio::test]
async fn a_huge_page_leaves_time_for_others() {
    let page = "\n".repeat(8 << 20);
    let (mappings, mut state, mut turns) = (EngineMappings::default(), ScanState::default(), 0);
    let engine = mappings.for_labels(&BTreeMap::new());
    let mut scan = pin!(scan_in_parts(engine, page.as_bytes(), Time::ZERO, &mut state));
    poll_fn(|cx| {
        turns += 1;
        scan.as_mut().poll(cx)
    })
    .await;
    assert_eq!(turns, 128);
}

#[test]
fn what_an_endpoint_makes_others_say_is_short() {
    assert_eq!(shortened("é".repeat(128)), "é".repeat(128));
    assert_eq!(shortened(format!("a{}", "é".repeat(20_000))), format!("a{}…", "é".repeat(127)));
}

/// Lines of an endpoint that fails and comes back, one for each change.
#[test]
fn a_failure_and_a_recovery_are_told_once_each() {
    let lines = Lines::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let told = lines.hear(|| {
        runtime.block_on(async {
            let server = Server::start(Answer::vllm(1, 1)).await;
            let rig = Rig::start(INTERVAL, [spec("a", server.address)]);
            eventually("a first scrape", || rig.waiting("a") == Some(1)).await;
            server.answer(Answer::Close(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n".to_vec()));
            let errors = "llm_d_epp_datalayer_poll_errors_total{source_type=\"metrics-data-source\"}";
            eventually("four errors", || rig.counter(errors) >= 4).await;
            assert_eq!(*rig.endpoint("a").scrape_fault().unwrap(), "status 503");
            server.answer(Answer::page("vllm:num_requests_waiting 2\n"));
            eventually("it is back", || rig.waiting("a") == Some(2)).await;
            rig.scraped("a", 3).await;
            server.answer(Answer::vllm(3, 1));
            eventually("it is whole again", || rig.waiting("a") == Some(3)).await;
            assert_eq!(rig.endpoint("a").scrape_fault(), None);
        });
        lines.take()
    });
    let told: Vec<_> = told.into_iter().filter(|(level, _)| *level <= Level::INFO).collect();
    let [failing, incomplete, whole] = told.as_slice() else { panic!("{told:#?}") };
    assert!(
        failing.0 == Level::WARN && failing.1.contains("default/a") && failing.1.contains("status 503"),
        "{failing:?}"
    );
    assert!(
        incomplete.0 == Level::WARN && incomplete.1.contains("running: vllm:num_requests_running"),
        "{incomplete:?}"
    );
    assert!(whole.0 == Level::INFO && whole.1.contains("again"), "{whole:?}");
}
