use std::time::Duration;

use bytes::Bytes;

use crate::message::BodyModes;
use crate::reject::ImmediateReply;

/// Larger pieces of a body than this are cut: gateways want less than 64 KiB in one message.
const PIECE: usize = 62_000;

/// Headers between clients and the gateway, which the model server does not get. The last four steer a
/// disaggregated server: a client must not set them.
pub(crate) const GATEWAY_HEADERS: [&str; 22] = [
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-llm-d-inference-ttl",
    "x-llm-d-model-name-rewrite",
    "x-gateway-model-name-rewrite",
    "x-llm-d-slo-ttft-ms",
    "x-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms",
    "x-slo-tpot-ms",
    "x-llm-d-video-fps",
    "x-llm-d-video-duration-seconds",
    "x-llm-d-video-resolution",
    "x-llm-d-request-dropped-reason",
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint-served",
    "x-gateway-destination-endpoint-scores",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
    "x-data-parallel-host-port",
];

/// One message to the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Answers request headers without a decision: it comes with the body.
    ContinueRequest,
    RequestHeaders(RequestMutation),
    /// Answers request bodies in full duplex.
    RequestBody(Piece),
    /// Answers one message of a request body: the body goes on as it is.
    RequestBodyAsIs,
    /// The same, with the decision that the headers were not answered with, and maybe another body in its place.
    RequestBodyPlaced(RequestMutation, Option<Bytes>),
    RequestTrailers,
    ResponseHeaders {
        /// Other body modes than before, from here on.
        ask: Option<BodyModes>,
        /// The client is not told how long the body is: that may change.
        drop_length: bool,
    },
    /// Answers response bodies in full duplex.
    ResponseBody(Piece),
    /// Answers one message of a response body: the body goes on as it is.
    ResponseBodyAsIs,
    /// The same, but these bytes go on in its place.
    ResponseBodyReplaced(Bytes),
    ResponseTrailers,
    /// Asks for other body modes than the configured ones. Answers nothing.
    Modes(BodyModes),
    /// Asks to wait so long, to the second, for the answer that is due. Answers nothing.
    Wait(Duration),
    /// Ends the request in place of the model server.
    Immediate(ImmediateReply),
}

/// What changes about a request's headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestMutation {
    /// Where the request goes.
    pub(crate) destination: String,
    /// The id that was made for a request that had none.
    pub(crate) new_request_id: Option<String>,
    /// Names the picker as the parent in the trace that the client began.
    pub(crate) traceparent: Option<String>,
    /// The length of the body where it is not the one that the client announced.
    pub(crate) content_length: Option<u64>,
    /// Names of headers meant for the gateway, not for the model server.
    pub(crate) remove: Vec<&'static str>,
}

/// A piece of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) bytes: Bytes,
    pub(crate) end_of_stream: bool,
}

/// Cuts `body` into pieces, the last of which carries `end_of_stream`. An empty body is one empty piece.
pub(crate) fn pieces(mut body: Bytes, end_of_stream: bool) -> impl Iterator<Item = Piece> {
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let bytes = body.split_to(body.len().min(PIECE));
        done = body.is_empty();
        Some(Piece { bytes, end_of_stream: end_of_stream && done })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_at_most_62000_bytes_and_the_last_one_ends() {
        for (length, sizes) in [
            (0, vec![0]),
            (1, vec![1]),
            (62_000, vec![62_000]),
            (62_001, vec![62_000, 1]),
            (124_000, vec![62_000, 62_000]),
            (124_001, vec![62_000, 62_000, 1]),
        ] {
            let body: Bytes = (0..length).map(|index: usize| index.to_le_bytes()[0]).collect();
            let cut: Vec<Piece> = pieces(body.clone(), true).collect();
            assert_eq!(cut.iter().map(|piece| piece.bytes.len()).collect::<Vec<_>>(), sizes);
            assert_eq!(cut.iter().filter(|piece| piece.end_of_stream).count(), 1);
            assert!(cut.last().is_some_and(|piece| piece.end_of_stream));
            assert_eq!(cut.iter().flat_map(|piece| piece.bytes.clone()).collect::<Bytes>(), body);
            assert!(pieces(body, false).all(|piece| !piece.end_of_stream));
        }
    }
}
