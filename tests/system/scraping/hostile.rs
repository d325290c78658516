//! Endpoints whose pages of metrics are made to do harm, beside two that are well.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use sluice_core::{Clock as _, SystemClock, Time};
use sluice_testkit::{CountingUpstream, EnvoyConfig, PickerConfig, Stack, Template, eventually, flow_config};

use self::server::{Hostile, Page};
use crate::support::{CHAT, LIMIT, chat, picker, post};

mod server;

/// How long the picker has to bear with them: longer than the longest pause of an endpoint that fails.
const TRIAL: Duration = Duration::from_secs(7);
const INTERVAL: Duration = Duration::from_millis(50);

/// Several times what it takes, and less than a largest page for each of them and a picker.
const MOST_MEMORY: u64 = 256 << 20;

/// Lines of the log for each of them: one that its metrics cannot be read, and a few that it has another reason.
const MOST_LINES: usize = 6;

fn answered(head: &str, body: impl Into<Vec<u8>>) -> Page {
    Page::Once([head.as_bytes(), b"\r\n\r\n", &body.into()].concat())
}

fn of_length(length: usize, headers: &str, body: impl Into<Vec<u8>>) -> Page {
    answered(&format!("HTTP/1.1 200 OK\r\ncontent-length: {length}{headers}"), body)
}

fn plain(body: impl Into<Vec<u8>>) -> Page {
    let body = body.into();
    of_length(body.len(), "", body)
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(plain).unwrap();
    packed.finish().unwrap()
}

/// What each of them serves.
fn pages() -> BTreeMap<&'static str, Page> {
    const OK: &str = "HTTP/1.1 200 OK";
    const WAITING: &str = "vllm:num_requests_waiting";
    let endless = |head: &[u8], again: &[u8]| Page::Endless(head.to_vec(), again.to_vec());
    let bomb = gzip(&vec![b'\n'; 64 << 20]);
    let labels: String = (0..10_000).map(|number| format!("l{number}=\"x\",")).collect();
    let series: String = (0..100_000).map(|number| format!("{WAITING}{{n=\"{number}\"}} 1\n")).collect();
    let mut random = vec![0; 256 << 10];
    StdRng::seed_from_u64(7).fill_bytes(&mut random);
    let header = format!("{OK}\r\nx: {}", "y".repeat(100 << 10));
    [
        ("an endless body", endless(b"HTTP/1.1 200 OK\r\n\r\n", &b"a 1\n".repeat(4 << 10))),
        ("an endless line", endless(b"HTTP/1.1 200 OK\r\n\r\nvllm:num_requests_waiting", &[b'x'; 16 << 10])),
        ("a long page", plain(vec![b'#'; 9 << 20])),
        ("one line", plain(vec![b'x'; 8 << 20])),
        ("empty lines", plain(vec![b'\n'; 8 << 20])),
        ("a bomb", of_length(bomb.len(), "\r\ncontent-encoding: gzip", bomb)),
        ("HTTP/1.0 without an end", Page::Silence(b"HTTP/1.0 200 OK\r\n\r\nvllm:num_requests_waiting 0\n".to_vec())),
        ("endless hints", endless(b"", &b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100))),
        ("endless headers", endless(b"HTTP/1.1 200 OK\r\n", &b"x: y\r\n".repeat(100))),
        ("a large header", answered(&header, "")),
        ("a redirect to itself", answered("HTTP/1.1 302 Found\r\nlocation: /metrics\r\ncontent-length: 0", "")),
        ("half a chunk", Page::Silence(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffff\r\na 1\n".to_vec())),
        ("a chunk of any size", answered(&format!("{OK}\r\ntransfer-encoding: chunked"), "ffffffffffffffff\r\na 1\n")),
        ("too short a length", of_length(10, "", "vllm:num_requests_waiting 0\n".repeat(100))),
        ("too long a length", Page::Close(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\na 1\n".to_vec())),
        ("TLS", Page::Once(b"\x15\x03\x01\x00\x02\x02\x46".to_vec())),
        ("zeros", plain(vec![0; 1 << 20])),
        ("many labels", plain(format!("{WAITING}{{{labels}}} 0\n"))),
        ("many series", plain(series)),
        ("random bytes", plain(random.clone())),
        ("random bytes for an answer", Page::Close(random)),
        ("nothing", Page::Silence(Vec::new())),
        ("the end", Page::Close(Vec::new())),
    ]
    .into()
}

/// Requests go to endpoints that have said lately that they have room.
fn config() -> Value {
    let mut config = flow_config(1_000);
    let detector = json!({"type": "utilization-detector", "parameters": {"metricsStalenessThreshold": "2s"}});
    config["plugins"].as_array_mut().unwrap().push(detector);
    config["schedulingProfiles"][0]["plugins"] =
        json!([{"pluginRef": "utilization-detector"}, {"pluginRef": "active-request-scorer"}]);
    config
}

/// What `/debug/flow` says is wrong with endpoints, by their names.
async fn faults(stack: &Stack) -> BTreeMap<String, String> {
    let page = stack.picker.flow().await.unwrap();
    let text = |endpoint: &Value, field: &str| endpoint[field].as_str().map(str::to_owned);
    let endpoints = page["endpoints"].as_array().unwrap().iter();
    endpoints.filter_map(|endpoint| Some((text(endpoint, "name")?, text(endpoint, "scrapeFault")?))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_that_serve_anything_at_all_hold_up_nobody() {
    let well = [CountingUpstream::start().unwrap(), CountingUpstream::start().unwrap()];
    well.iter().for_each(|server| server.release(10_000));
    let mut hostile = BTreeMap::new();
    for (name, page) in pages() {
        hostile.insert(name, Hostile::start(page).await);
    }
    let addresses: Vec<_> =
        well.iter().map(CountingUpstream::address).chain(hostile.values().map(|server| server.address)).collect();
    let envoy = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
    let custom = |endpoints: &Path| PickerConfig::custom(&config(), endpoints);
    let stack = Stack::start_configured(picker(), &[], custom, envoy, &addresses).await.unwrap();
    let ready = async || stack.picker.metrics().await.unwrap().sum("llm_d_epp_ready_endpoints", &[]).unwrap();
    let are_ready = async || Ok((ready().await >= 2.0).then_some(()));
    eventually(LIMIT, "those that are well are scraped", are_ready).await.unwrap();

    let client = reqwest::Client::new();
    let scrapes = || well.each_ref().map(CountingUpstream::scrapes);
    let (clock, before, mut requests) = (SystemClock::start(), scrapes(), 0);
    let passed = || clock.now().saturating_since(Time::ZERO);
    while passed() < TRIAL {
        let response = post(&client, &stack.envoy.url(CHAT), &chat("hello", 1, false)).send().await.unwrap();
        assert_eq!(response.status(), 200);
        requests += 1;
        assert!(ready().await >= 2.0, "one that is well has not been scraped for two seconds");
        tokio::time::sleep(INTERVAL).await;
    }
    let (passed, scrapes) = (passed(), [0, 1].map(|at| scrapes()[at] - before[at]));
    let memory = 1_024 * stack.picker.process().peak_resident_kilobytes().unwrap();
    let lines = stack.picker.process().output().lines();
    eprintln!("{scrapes:?} scrapes in {passed:?}, {requests} requests, {memory} bytes, {} lines", lines.len());

    // On time would be one for each interval; the machine may be busy.
    let least = passed.as_millis() / INTERVAL.as_millis() / 10;
    assert!(scrapes.iter().all(|&scrapes| scrapes as u128 >= least), "{scrapes:?} scrapes, not {least}");
    assert!(memory <= MOST_MEMORY, "{memory}");
    assert_eq!(well.iter().map(|server| server.visits().len()).sum::<usize>(), requests);
    let faults = faults(&stack).await;
    for (number, (name, server)) in hostile.iter().enumerate() {
        assert_eq!(server.strays(), 0, "{name}: requests have gone there");
        assert!(server.scrapes() > 0, "{name}: nobody has looked");
        let fault = faults.get(&format!("default/server-{}", well.len() + number));
        eprintln!("{name}: {fault:?}");
        assert!(fault.is_some_and(|fault| fault.len() < 1_000), "{name}: {fault:?}");
    }
    assert!(lines.len() <= 50 + MOST_LINES * hostile.len(), "{lines:#?}");
}
