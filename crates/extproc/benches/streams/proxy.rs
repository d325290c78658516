//! Streams to the picker as a proxy opens them: several on one connection.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{BodyResponse, ProcessingRequest, ProcessingResponse};
use futures_util::stream;
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::messages::{self, Body};

/// Connections to a picker.
#[derive(Clone, Debug)]
pub(crate) struct Connections(Vec<ExternalProcessorClient<Channel>>);

impl Connections {
    pub(crate) async fn open(picker: SocketAddr, count: usize) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{picker}"))?
            .tcp_nodelay(true)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(16 << 20);
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(ExternalProcessorClient::new(endpoint.connect().await?));
        }
        Ok(Self(connections))
    }

    /// The connection of the stream with this number.
    pub(crate) fn of(&self, stream: usize) -> ExternalProcessorClient<Channel> {
        self.0[stream % self.0.len()].clone()
    }
}

/// A request that the picker has let go: its response is under way.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) sender: mpsc::UnboundedSender<ProcessingRequest>,
    replies: Streaming<ProcessingResponse>,
}

impl Open {
    /// Sends a request (headers first, then the pieces of its body) and the headers of its response, and takes the
    /// replies.
    pub(crate) async fn request(
        mut connection: ExternalProcessorClient<Channel>,
        request: &[ProcessingRequest],
    ) -> Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        for message in request {
            sender.send(message.clone())?;
        }
        let messages = stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
        let replies = connection.process(messages).await?.into_inner();
        let mut open = Self { sender, replies };
        let Response::RequestHeaders(_) = open.reply().await? else { bail!("the headers are not answered first") };
        if request.len() > 1 {
            while !open.body_ended().await? {}
        }
        open.sender.send(messages::response_headers())?;
        let Response::ResponseHeaders(_) = open.reply().await? else { bail!("no answer to response headers") };
        Ok(open)
    }

    async fn reply(&mut self) -> Result<Response> {
        let reply = self.replies.message().await?.context("the picker has ended the stream")?;
        match reply.response.context("a reply without content")? {
            Response::ImmediateResponse(refusal) => bail!("refused: {}", String::from_utf8_lossy(&refusal.body)),
            reply => Ok(reply),
        }
    }

    /// Takes a piece of a body, and tells whether it is the last.
    pub(crate) async fn body_ended(&mut self) -> Result<bool> {
        let (Response::RequestBody(piece) | Response::ResponseBody(piece)) = self.reply().await? else {
            bail!("no piece of a body");
        };
        let BodyResponse { response } = piece;
        match response.and_then(|response| response.body_mutation?.mutation) {
            Some(Mutation::StreamedResponse(piece)) => Ok(piece.end_of_stream),
            other => bail!("not a streamed piece of a body: {other:?}"),
        }
    }

    /// Ends the stream as a proxy does that has nothing more to say.
    pub(crate) async fn finish(self) -> Result<()> {
        let Self { sender, mut replies } = self;
        drop(sender);
        match replies.message().await? {
            None => Ok(()),
            Some(reply) => bail!("a reply to nothing: {reply:?}"),
        }
    }
}

/// One request after the other, each with an empty response.
pub(crate) async fn requests(
    connection: ExternalProcessorClient<Channel>,
    request: Body,
    body_bytes: usize,
    count: u32,
) -> Result<()> {
    let messages = messages::request(request, Body::Hidden, body_bytes);
    for _ in 0..count {
        Open::request(connection.clone(), &messages).await?.finish().await?;
    }
    Ok(())
}
