//! With simulated model servers, whose text can be checked token by token.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use model_server_sim::text::expected_text;
use model_server_sim::{Server, Settings};
use sluice_core::{Clock, SystemClock, Time};
use sluice_testkit::Protocol;
use sluice_testkit::batch::{Backoff, BatchClient, Final, Item};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::proxy::CuttingProxy;

const SEED: u64 = 4;

/// A server that is stopped by dropping it.
struct Simulated {
    address: SocketAddr,
    server: Server,
    _serving: JoinSet<()>,
}

impl Simulated {
    async fn start(max_num_seqs: u32, step: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let settings = Settings {
            models: vec!["m".into()],
            seed: SEED,
            max_num_seqs: NonZeroU32::new(max_num_seqs).unwrap(),
            time_per_output_token: step,
            mean_output_tokens: NonZeroU32::new(30).unwrap(),
            prefill_rate: NonZeroU32::MAX,
            ..Settings::default()
        };
        let server = Server::new(settings).unwrap();
        let mut serving = JoinSet::new();
        serving.spawn({
            let server = server.clone();
            async move { match server.serve(listener).await.unwrap() {} }
        });
        Self { address, server, _serving: serving }
    }
}

fn client(address: SocketAddr, clock: SystemClock) -> BatchClient {
    BatchClient {
        backoff: Backoff { first: Duration::from_micros(100), longest: Duration::from_millis(1) },
        max_fruitless: NonZeroU32::new(1_000).unwrap(),
        ..BatchClient::new(&format!("http://{address}/v1/completions"), "m", clock)
    }
}

fn items(count: u32, max_tokens: impl Fn(u32) -> u32) -> Vec<Item> {
    let item = |number| Item {
        id: format!("item-{number}"),
        prompt: format!("tell me about number {number}"),
        max_tokens: NonZeroU32::new(max_tokens(number)).unwrap(),
        deadline: Time::MAX,
    };
    (0..count).map(item).collect()
}

#[track_caller]
fn assert_complete(done: &Final) {
    assert_eq!(done.tokens, done.item.max_tokens.get(), "{done:?}");
    assert_eq!(done.text, expected_text(SEED, &done.item.prompt, done.tokens), "{done:?}");
}

#[tokio::test]
async fn a_list_is_done_in_its_order_with_one_attempt_each() {
    for protocol in Protocol::ALL {
        let simulated = Simulated::start(8, Duration::from_micros(100)).await;
        let client = BatchClient { protocol, ..client(simulated.address, SystemClock::start()) };
        let items = items(40, |number| 1 + number);
        let ends = client.run(items.clone()).await.unwrap();
        assert_eq!(ends.len(), items.len());
        for (end, item) in ends.into_iter().zip(items) {
            let done = end.unwrap();
            assert_eq!(done.item, item);
            assert_complete(&done);
            assert_eq!(done.cost.attempts, 1);
        }
    }
}

#[tokio::test]
async fn a_text_may_end_by_itself() {
    let simulated = Simulated::start(8, Duration::from_micros(100)).await;
    let client = BatchClient { ignore_eos: false, ..client(simulated.address, SystemClock::start()) };
    let mut short = 0;
    for end in client.run(items(20, |_| 1_000)).await.unwrap() {
        let done = end.unwrap();
        assert_eq!(done.text, expected_text(SEED, &done.item.prompt, done.tokens));
        assert_eq!(done.cost.attempts, 1);
        short += u32::from(done.tokens < 1_000);
    }
    assert_eq!(short, 20);
}

#[tokio::test]
async fn no_more_items_run_at_once_than_allowed() {
    let simulated = Simulated::start(8, Duration::from_millis(2)).await;
    let allowed = BatchClient { concurrency: NonZeroUsize::new(2), ..client(simulated.address, SystemClock::start()) };
    let mut most = 0;
    let watch = async {
        loop {
            let stats = simulated.server.stats();
            most = most.max(stats.running + stats.waiting);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        ends = allowed.run(items(10, |_| 10)) => assert_eq!(ends.unwrap().len(), 10),
        () = watch => {}
    }
    assert_eq!(most, 2);
}

#[tokio::test]
async fn late_work_is_done_and_known_to_be_late() {
    let simulated = Simulated::start(8, Duration::from_millis(1)).await;
    let clock = SystemClock::start();
    let mut items = items(2, |_| 50);
    items[1].deadline = clock.now().saturating_add(Duration::from_millis(5));
    let ends = client(simulated.address, clock).run(items).await.unwrap();
    let met: Vec<_> = ends.into_iter().map(|end| end.unwrap().met_deadline()).collect();
    assert_eq!(met, [true, false]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_cut_connections_lose_and_double_no_token() {
    let simulated = Simulated::start(64, Duration::from_micros(50)).await;
    // An answer's head and up to 16 events of 230 bytes.
    let proxy = CuttingProxy::start(simulated.address, 4_000, 1).await;
    let client = BatchClient { concurrency: NonZeroUsize::new(64), ..client(proxy.address(), SystemClock::start()) };
    let mut resumed = 0;
    while proxy.cuts() < 2_000 {
        let ends = client.run(items(500, |number| 1 + number % 60)).await.unwrap();
        assert_eq!(ends.len(), 500);
        for end in ends {
            let done = end.unwrap();
            assert_complete(&done);
            assert_eq!(done.cost.attempts, done.cost.cuts + 1, "{done:?}");
            resumed += u32::from(done.cost.wasted_tokens > 0);
        }
    }
    assert!(resumed > 400, "{resumed} items went on after a cut");
}
