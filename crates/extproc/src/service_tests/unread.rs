//! Proxies that do not take what the picker says.

use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use futures_util::stream;
use sluice_core::Time;
use sluice_router::Gatekeeper;
use tokio::sync::{mpsc, oneshot};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};

use super::rig::{
    Picking, Proxy, one_at_a_time, request_body, request_headers, response_chunk, response_end, response_headers,
    settings,
};

const MINUTE: Duration = Duration::from_secs(60);

fn chat() -> Vec<ProcessingRequest> {
    vec![request_headers(), request_body(r#"{"model":"m"}"#)]
}

/// One whose body comes back in more than fits into 64 KiB.
fn long_chat() -> Vec<ProcessingRequest> {
    let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(150_000));
    vec![request_headers(), request_body(&body)]
}

/// A connection to a picker on which each stream takes so many bytes until somebody reads them.
#[derive(Debug)]
struct Narrow {
    client: ExternalProcessorClient<Channel>,
    _stop: oneshot::Sender<()>,
}

impl Narrow {
    #[expect(clippy::disallowed_methods, reason = "the runtime of the test ends its tasks")]
    async fn connect(picking: &Picking, window: u32) -> Self {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = incoming.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::builder().add_service(picking.service.clone().into_server(usize::MAX));
        tokio::spawn(server.serve_with_incoming_shutdown(incoming, async { drop(stopped.await) }));
        let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
        let channel = endpoint.initial_stream_window_size(window).connect().await.unwrap();
        Self { client: ExternalProcessorClient::new(channel), _stop: stop }
    }

    /// Opens a stream with `messages`.
    async fn open(&self, messages: Vec<ProcessingRequest>) -> Proxy {
        let (sender, mut receiver) = mpsc::channel(messages.len().max(8));
        for message in messages {
            sender.send(message).await.unwrap();
        }
        let messages = stream::poll_fn(move |context| receiver.poll_recv(context));
        let replies = self.client.clone().process(messages).await.unwrap().into_inner();
        Proxy { sender, replies }
    }
}

fn now(picking: &Picking) -> Time {
    picking.service.0.clock.now()
}

/// Looks twice, with a little less than a minute between, and once more when the minute is over.
fn given_up(picking: &Picking) -> usize {
    let unread = &picking.service.0.unread;
    let first = now(picking);
    assert_eq!(unread.give_up(first), 0);
    assert_eq!(unread.give_up(first.saturating_add(MINUTE - Duration::from_millis(1))), 0);
    unread.give_up(first.saturating_add(MINUTE))
}

async fn booked(picking: &Picking, requests: u64) {
    for _ in 0..5_000 {
        if picking.in_flight().iter().sum::<u64>() == requests {
            // The reply stands before the window by then.
            tokio::time::sleep(Duration::from_millis(50)).await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{:?} in flight, not {requests}", picking.in_flight());
}

#[tokio::test]
async fn a_proxy_that_takes_no_reply_loses_what_its_request_holds_after_a_minute() {
    for (half_closed, window, messages) in [(false, 0, chat()), (true, 0, chat()), (true, 65_535, long_chat())] {
        let picking = Picking::start().await;
        let narrow = Narrow::connect(&picking, window).await;
        let mut deaf = narrow.open(messages).await;
        booked(&picking, 1).await;
        if half_closed {
            drop(std::mem::replace(&mut deaf.sender, mpsc::channel(1).0));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(picking.in_flight(), [1, 0], "nobody hears what it says");
        assert_eq!(given_up(&picking), 1);
        picking.idle().await;
        let cause = if half_closed { "client-disconnect" } else { "error" };
        let ended = picking.count("llm_d_epp_request_ended_total", cause);
        assert!((ended - 1.0).abs() < f64::EPSILON, "{cause}: {ended}");
        drop(deaf);
    }
}

#[tokio::test]
async fn many_deaf_streams_on_a_connection_cost_the_others_on_it_nothing() {
    let picking = Picking::start().await;
    let proxy = Narrow::connect(&picking, 65_535).await;
    let mut heard = proxy.open(chat()).await;
    assert!(matches!(heard.answer().await, Answer::RequestHeaders(_)));
    assert!(matches!(heard.answer().await, Answer::RequestBody(_)));
    let mut deaf = Vec::new();
    for _ in 0..40 {
        deaf.push(proxy.open(long_chat()).await);
    }
    booked(&picking, 41).await;
    assert_eq!(given_up(&picking), 40);
    booked(&picking, 1).await;

    heard.send(response_headers(&[])).await;
    assert!(matches!(heard.answer().await, Answer::ResponseHeaders(_)));
    heard.send(response_chunk("more")).await;
    assert!(matches!(heard.answer().await, Answer::ResponseBody(_)));
    heard.send(response_end()).await;
    assert!(matches!(heard.answer().await, Answer::ResponseBody(_)));
    drop(heard);
    picking.idle().await;
    assert!(deaf.pop().unwrap().replies.message().await.is_ok(), "what was on its way when it was given up");
    for mut stream in deaf {
        let mut last = stream.replies.message().await;
        while matches!(last, Ok(Some(_))) {
            last = stream.replies.message().await;
        }
        assert!(last.is_err(), "a stream that was given up never ends with OK");
    }
}

#[tokio::test]
async fn the_place_of_a_deaf_proxys_request_goes_to_the_next() {
    let picking = Picking::start_with(settings(), |table| Gatekeeper::FlowControl(one_at_a_time(table))).await;
    let narrow = Narrow::connect(&picking, 0).await;
    let deaf = [narrow.open(chat()).await, narrow.open(chat()).await];
    booked(&picking, 2).await;
    let waiting = picking.open_waiting(chat()).await;
    assert_eq!(given_up(&picking), 2);
    let mut next = waiting.await.unwrap().unwrap();
    assert!(matches!(next.answer().await, Answer::RequestHeaders(_)));
    drop((deaf, next));
    picking.idle().await;
}

#[tokio::test]
async fn a_proxy_that_listens_may_wait_for_its_model_server_as_long_as_it_likes() {
    let picking = Picking::start().await;
    let mut proxy = picking.chat("m").await.unwrap();
    assert!(matches!(proxy.answer().await, Answer::RequestHeaders(_)));
    assert!(matches!(proxy.answer().await, Answer::RequestBody(_)));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(given_up(&picking), 0);
    assert_eq!(picking.in_flight(), [1, 0]);
    drop(proxy);
    picking.idle().await;
}
