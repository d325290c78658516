//! What to compare with: an external processor that does nothing but send back what it is sent, written the way most
//! are: one task and one bounded channel per stream.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeadersResponse, HttpBody, ProcessingRequest, ProcessingResponse,
    StreamedBodyResponse, TrailersResponse,
};
use futures_util::{StreamExt as _, stream};
use sluice_testkit::Process;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Status, Streaming};

/// The argument with which this program is the echo.
pub(crate) const FLAG: &str = "--echo";
const ANNOUNCEMENT: &str = "echo listens on ";

/// Starts this program as the echo.
pub(crate) async fn start() -> Result<(Process, SocketAddr)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(FLAG);
    let process = Process::spawn("echo", &command)?;
    let address = |line: &str| line.strip_prefix(ANNOUNCEMENT)?.parse().ok();
    let address = process.find_in_output(Duration::from_secs(20), address).await?;
    Ok((process, address))
}

/// Is the echo, until the process is killed.
#[expect(clippy::print_stdout, reason = "the program that started this one waits for it")]
pub(crate) async fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{ANNOUNCEMENT}{}", listener.local_addr()?);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let mut server = Server::builder().initial_connection_window_size(64 << 20).initial_stream_window_size(1 << 20);
    Ok(server.add_service(ExternalProcessorServer::new(Echo)).serve_with_incoming(incoming).await?)
}

#[derive(Debug)]
struct Echo;

type Replies = stream::BoxStream<'static, Result<ProcessingResponse, Status>>;

#[tonic::async_trait]
impl ExternalProcessor for Echo {
    type ProcessStream = Replies;

    #[expect(clippy::disallowed_methods, reason = "it is the usual way that is measured")]
    async fn process(
        &self,
        request: tonic::Request<Streaming<ProcessingRequest>>,
    ) -> Result<tonic::Response<Replies>, Status> {
        let mut messages = request.into_inner();
        let (sender, receiver) = mpsc::channel(16);
        tokio::spawn(async move {
            while let Ok(Some(message)) = messages.message().await {
                let reply = ProcessingResponse { response: message.request.map(echo), ..Default::default() };
                if sender.send(Ok(reply)).await.is_err() {
                    break;
                }
            }
        });
        let replies = stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
        Ok(tonic::Response::new(replies.boxed()))
    }
}

fn echo(request: Request) -> Response {
    match request {
        Request::RequestHeaders(_) => Response::RequestHeaders(HeadersResponse::default()),
        Request::ResponseHeaders(_) => Response::ResponseHeaders(HeadersResponse::default()),
        Request::RequestBody(body) => Response::RequestBody(same(body)),
        Request::ResponseBody(body) => Response::ResponseBody(same(body)),
        Request::RequestTrailers(_) => Response::RequestTrailers(TrailersResponse::default()),
        Request::ResponseTrailers(_) => Response::ResponseTrailers(TrailersResponse::default()),
    }
}

fn same(body: HttpBody) -> BodyResponse {
    let HttpBody { body, end_of_stream, .. } = body;
    let piece = StreamedBodyResponse { body, end_of_stream, ..StreamedBodyResponse::default() };
    let mutation = BodyMutation { mutation: Some(Mutation::StreamedResponse(piece)) };
    BodyResponse { response: Some(CommonResponse { body_mutation: Some(mutation), ..CommonResponse::default() }) }
}
