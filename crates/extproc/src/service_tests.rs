use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpBody, HttpHeaders, processing_request, processing_response};
use futures_util::stream::BoxStream;
use prometheus::Registry;
use sluice_core::{Endpoint, EndpointId, EndpointUid, Request, SystemClock, TokenEstimate};
use sluice_data::{EndpointSpec, EndpointTable};
use sluice_router::{Gatekeeper, Identities, RouterParts, TenantLabels};
use sluice_schedule::{Candidates, Filter, Next, Picker, Profile, ProfileHandler, ProfileResult, Scheduler};
use tokio::sync::{mpsc, oneshot};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};

use super::*;

#[derive(Debug)]
struct First;

impl ProfileHandler for First {
    fn check(&self, _profile_names: &[&str]) -> Result<(), String> {
        Ok(())
    }

    fn next(&self, _request: &Request, results: &[Option<ProfileResult>]) -> Next {
        if results[0].is_some() { Next::Finish { primary: 0 } } else { Next::Run(0) }
    }
}

impl Picker for First {
    fn pick(
        &self,
        _request: &Request,
        _candidates: &[&Arc<Endpoint>],
        _scores: &[f32],
        _rng: &mut sluice_schedule::Rng,
        picked: &mut smallvec::SmallVec<[usize; 4]>,
    ) {
        picked.push(0);
    }
}

/// Panics on the model `panic`.
#[derive(Debug)]
struct Touchy;

impl Filter for Touchy {
    fn filter(&self, request: &Request, _candidates: &mut Candidates<'_>) {
        assert_ne!(request.model.as_deref(), Some("panic"), "on purpose");
    }
}

/// A picker on a loopback port, for as long as it lives.
struct Picking {
    service: Service,
    endpoint: Arc<Endpoint>,
    registry: Registry,
    client: ExternalProcessorClient<Channel>,
    _stop: oneshot::Sender<()>,
}

impl Picking {
    #[expect(clippy::disallowed_methods, reason = "the runtime of the test ends its tasks")]
    async fn start() -> Self {
        let table = Arc::new(EndpointTable::default());
        table.replace([EndpointSpec {
            id: EndpointId::new("default", "a"),
            uid: EndpointUid("1".into()),
            address: "10.0.0.1:80".parse().unwrap(),
            labels: BTreeMap::new(),
        }]);
        let endpoint = Arc::clone(&table.snapshot().endpoints()[0]);
        let profile =
            Profile { name: "main".into(), filters: vec![Arc::new(Touchy)], scorers: vec![], picker: Arc::new(First) };
        let scheduler = Scheduler::new(Arc::new(First), vec![profile]).unwrap();
        let router = Arc::new(router(table, scheduler));
        let registry = Registry::new();
        let clock = Arc::new(SystemClock::start());
        let tenants = TenantLabels::new(10, clock.clone());
        let metrics = Metrics::register(&registry, "p", tenants, false).unwrap();
        let settings = ServiceSettings {
            max_request_body: 1 << 20,
            refusal_style: RefusalStyle::Api,
            retry_after: true,
            vouched_namespace: "sluice".into(),
            id_seed: 1,
        };
        let service = Service::new(router, clock, metrics, settings);

        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = incoming.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::builder().add_service(service.clone().into_server(4_096));
        tokio::spawn(server.serve_with_incoming_shutdown(incoming, async { drop(stopped.await) }));
        let client = ExternalProcessorClient::connect(format!("http://{address}")).await.unwrap();
        Self { service, endpoint, registry, client, _stop: stop }
    }

    /// Opens a stream and sends a chat for `model`; the stream stays open while the sender lives.
    async fn chat(&mut self, model: &str) -> Result<(mpsc::Sender<ProcessingRequest>, Replies), Status> {
        let (sender, receiver) = mpsc::channel(8);
        sender.send(request_headers()).await.unwrap();
        sender.send(request_body(format!(r#"{{"model":"{model}"}}"#).into_bytes())).await.unwrap();
        let messages: BoxStream<'static, _> =
            Box::pin(stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) }));
        let replies = self.client.process(messages).await?.into_inner();
        Ok((sender, replies))
    }

    /// Waits until nothing is in flight and no stream is open.
    async fn idle(&self) {
        for _ in 0..500 {
            if self.endpoint.load().requests() == 0 && self.service.open_streams() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} in flight, {} streams", self.endpoint.load().requests(), self.service.open_streams());
    }

    fn errors(&self, code: &str) -> f64 {
        let families = self.registry.gather();
        let errors = families.iter().filter(|family| family.name() == "llm_d_epp_request_error_total");
        errors
            .flat_map(prometheus::proto::MetricFamily::get_metric)
            .filter(|metric| metric.get_label().iter().any(|label| label.value() == code))
            .map(|metric| metric.get_counter().get_value())
            .sum()
    }
}

type Replies = Streaming<ProcessingResponse>;

fn request_headers() -> ProcessingRequest {
    let line = |key: &str, value: &str| HeaderValue {
        key: key.into(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    let headers = vec![line(":method", "POST"), line(":path", "/v1/chat/completions")];
    let part = HttpHeaders { headers: Some(HeaderMap { headers }), ..HttpHeaders::default() };
    message(processing_request::Request::RequestHeaders(part))
}

fn request_body(body: Vec<u8>) -> ProcessingRequest {
    message(processing_request::Request::RequestBody(HttpBody { body, end_of_stream: true, ..HttpBody::default() }))
}

fn response_headers() -> ProcessingRequest {
    message(processing_request::Request::ResponseHeaders(HttpHeaders::default()))
}

fn message(request: processing_request::Request) -> ProcessingRequest {
    ProcessingRequest { request: Some(request), ..ProcessingRequest::default() }
}

#[tokio::test]
async fn a_request_is_booked_until_its_response_ends() {
    let mut picking = Picking::start().await;
    let (sender, mut replies) = picking.chat("m").await.unwrap();
    let first = replies.message().await.unwrap().unwrap();
    assert!(matches!(first.response, Some(processing_response::Response::RequestHeaders(_))));
    let second = replies.message().await.unwrap().unwrap();
    assert!(matches!(second.response, Some(processing_response::Response::RequestBody(_))));
    assert_eq!(picking.endpoint.load().requests(), 1);

    sender.send(response_headers()).await.unwrap();
    sender
        .send(message(processing_request::Request::ResponseBody(HttpBody {
            end_of_stream: true,
            ..HttpBody::default()
        })))
        .await
        .unwrap();
    assert!(replies.message().await.unwrap().is_some());
    assert!(replies.message().await.unwrap().is_some());
    assert_eq!(picking.endpoint.load().requests(), 0, "released with the last chunk, not with the stream");
    drop(sender);
    assert!(replies.message().await.unwrap().is_none(), "a finished request ends cleanly");
    picking.idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_endpoint() {
    let mut picking = Picking::start().await;
    for with_response in [false, true] {
        let (sender, mut replies) = picking.chat("m").await.unwrap();
        assert!(replies.message().await.unwrap().is_some());
        assert_eq!(picking.endpoint.load().requests(), 1);
        if with_response {
            sender.send(response_headers()).await.unwrap();
            assert!(replies.message().await.unwrap().is_some());
        }
        drop((sender, replies));
        picking.idle().await;
    }
}

#[tokio::test]
async fn a_half_close_in_the_middle_never_ends_with_ok() {
    let mut picking = Picking::start().await;
    let (sender, mut replies) = picking.chat("m").await.unwrap();
    drop(sender);
    let mut last = replies.message().await;
    while matches!(last, Ok(Some(_))) {
        last = replies.message().await;
    }
    assert_eq!(last.unwrap_err().code(), tonic::Code::Unavailable);
    picking.idle().await;
}

#[tokio::test]
async fn a_panic_ends_its_own_stream_with_an_error() {
    let mut picking = Picking::start().await;
    let (_sender, mut good) = picking.chat("m").await.unwrap();
    let status = picking.chat("panic").await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Internal);
    assert!(good.message().await.unwrap().is_some(), "its neighbour on the connection goes on");
    drop(good);
    drop(_sender);
    picking.idle().await;
    assert!((picking.errors("Unknown") - 1.0).abs() < f64::EPSILON);
}

#[tokio::test]
async fn a_message_over_the_limit_is_an_error_not_an_end() {
    let mut picking = Picking::start().await;
    let status = picking.chat(&"m".repeat(5_000)).await.unwrap_err();
    assert_ne!(status.code(), tonic::Code::Ok);
    picking.idle().await;
}

#[tokio::test]
async fn a_refused_request_ends_cleanly_after_the_refusal() {
    let mut picking = Picking::start().await;
    let (_sender, mut replies) = picking.chat("").await.unwrap();
    let reply = replies.message().await.unwrap().unwrap();
    let Some(processing_response::Response::ImmediateResponse(reply)) = reply.response else { panic!("{reply:?}") };
    assert_eq!(reply.status.unwrap().code, 400);
    assert!(replies.message().await.unwrap().is_none());
    picking.idle().await;
    assert!((picking.errors("BadRequest") - 1.0).abs() < f64::EPSILON);
}

#[test]
fn made_ids_are_uuids_and_differ() {
    let scheduler = Scheduler::new(Arc::new(First), vec![test_profile()]).unwrap();
    let service = Service::new(
        Arc::new(router(Arc::default(), scheduler)),
        Arc::new(SystemClock::start()),
        Metrics::register(&Registry::new(), "p", TenantLabels::new(10, Arc::new(SystemClock::start())), false).unwrap(),
        ServiceSettings {
            max_request_body: 1,
            refusal_style: RefusalStyle::Api,
            retry_after: true,
            vouched_namespace: "sluice".into(),
            id_seed: 7,
        },
    );
    let (first, second) = (service.0.fresh_id(), service.0.fresh_id());
    assert_ne!(first, second);
    for id in [first, second] {
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert_eq!(id.as_bytes()[14], b'4', "{id}");
        assert!(matches!(id.as_bytes()[19], b'8'..=b'b'), "{id}");
    }
}

fn test_profile() -> Profile {
    Profile { name: "main".into(), filters: vec![], scorers: vec![], picker: Arc::new(First) }
}

fn router(table: Arc<EndpointTable>, scheduler: Scheduler) -> Router {
    Router::new(RouterParts {
        table,
        scheduler,
        identities: Identities::default(),
        gatekeeper: Gatekeeper::Open,
        estimate: TokenEstimate::default(),
        admit_header_only: false,
        seed: 1,
        heed_subset: true,
    })
}

#[test]
fn a_grpc_timeout_has_at_most_eight_digits_and_a_unit() {
    for (text, timeout) in [
        ("1H", Some(Duration::from_secs(3_600))),
        ("2M", Some(Duration::from_secs(120))),
        ("99999999S", Some(Duration::from_secs(99_999_999))),
        ("250m", Some(Duration::from_millis(250))),
        ("3u", Some(Duration::from_micros(3))),
        ("4n", Some(Duration::from_nanos(4))),
        ("", None),
        ("m", None),
        ("5", None),
        ("123456789S", None),
        ("+5S", None),
        ("5x", None),
    ] {
        assert_eq!(grpc_timeout(text.as_bytes()), timeout, "{text:?}");
    }
}
