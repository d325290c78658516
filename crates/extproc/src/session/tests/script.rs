//! Drives a session the way a proxy would, and notes what comes out in short words.

use std::net::SocketAddr;

use bytes::Bytes;
use sluice_core::{Headers, Time};
use sluice_router::Intent;

use crate::action::{Action, Close, Ending, Notice, Outcome, Responder};
use crate::message::{BodyMode, BodyModes, Inbound, InboundEnd, Message, Origin, Standing};
use crate::reject::{ImmediateReply, Refusal};
use crate::reply::{Reply, RequestMutation};
use crate::session::{Session, SessionSettings, StreamFacts};

pub(super) const CHAT: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
pub(super) const DUPLEX: BodyModes = modes(BodyMode::FullDuplex, BodyMode::FullDuplex);
pub(super) const BYPASS: BodyModes = modes(BodyMode::FullDuplex, BodyMode::None);

pub(super) const fn modes(request: BodyMode, response: BodyMode) -> BodyModes {
    BodyModes { request, response }
}

/// ```text
/// rh rb rb* rt sh sb sb* st   answers; * ends the body
/// rh? rb! rb. sb. sb!         headers without a decision, body with it, body kept by the proxy, or replaced there
/// modes sh+modes wait 429     asked for modes, for patience, refused
/// ```
pub(super) struct Script {
    pub(super) session: Session,
    pub(super) now: Time,
    pub(super) modes: Option<BodyModes>,
    /// What the next message's headers rule out.
    pub(super) refusal: Option<Refusal>,
    /// The most that its queue would take.
    pub(super) largest: Option<u64>,
    /// The request may be cut off.
    pub(super) revocable: bool,
    /// What came out and was not asked for yet.
    pub(super) log: Vec<String>,
    pub(super) intents: Vec<Intent>,
    pub(super) request_body: Vec<u8>,
    pub(super) response_body: Vec<u8>,
    /// Announced response bytes.
    pub(super) sent: u64,
    /// A response that is not seen has begun.
    pub(super) begun_unseen: bool,
    /// Bytes of the request that are held.
    pub(super) held: u64,
    pub(super) endings: Vec<Ending>,
    pub(super) immediate: Option<ImmediateReply>,
    pub(super) mutation: Option<RequestMutation>,
    pub(super) asked: Option<BodyModes>,
    pub(super) patience: Option<std::time::Duration>,
    pub(super) served: Option<SocketAddr>,
    pub(super) passed_by: Option<(InboundEnd, std::time::Duration)>,
    pub(super) gave_up: Option<std::time::Duration>,
    /// When the wait of a request ends that asked for an endpoint.
    pub(super) wait_ends: Option<Time>,
    pub(super) notices: Vec<Notice>,
    /// The client is not told how long the response is.
    pub(super) length_dropped: bool,
}

impl Script {
    pub(super) fn new() -> Self {
        Self::started(SessionSettings::TEST, StreamFacts::default(), Some(DUPLEX))
    }

    pub(super) fn with_modes(modes: Option<BodyModes>) -> Self {
        Self::started(SessionSettings::TEST, StreamFacts::default(), modes)
    }

    pub(super) fn with_settings(settings: SessionSettings, modes: BodyModes) -> Self {
        Self::started(settings, StreamFacts::default(), Some(modes))
    }

    pub(super) fn started(settings: SessionSettings, facts: StreamFacts, modes: Option<BodyModes>) -> Self {
        Self {
            session: Session::new(settings, facts, std::sync::Arc::default()),
            now: Time::ZERO,
            modes,
            refusal: None,
            largest: None,
            revocable: false,
            log: Vec::new(),
            intents: Vec::new(),
            request_body: Vec::new(),
            response_body: Vec::new(),
            sent: 0,
            begun_unseen: false,
            held: 0,
            endings: Vec::new(),
            immediate: None,
            mutation: None,
            asked: None,
            patience: None,
            served: None,
            passed_by: None,
            gave_up: None,
            wait_ends: None,
            notices: Vec::new(),
            length_dropped: false,
        }
    }

    pub(super) fn message(&mut self, message: Message) -> &mut Self {
        let mut actions = Vec::new();
        let inbound = Inbound {
            modes: self.modes.take(),
            subset: None,
            vouched: None,
            standing: Standing { refusal: self.refusal.take(), largest: self.largest, revocable: self.revocable },
            message,
        };
        self.session.on_message(self.now, inbound, &mut || 7, &mut actions);
        self.note(actions)
    }

    pub(super) fn headers(&mut self, lines: &[(&str, &str)], end_of_stream: bool) -> &mut Self {
        self.message(Message::RequestHeaders { headers: headers(lines), end_of_stream })
    }

    pub(super) fn post(&mut self, path: &str) -> &mut Self {
        self.headers(&[(":method", "POST"), (":path", path), ("x-request-id", "abc")], false)
    }

    pub(super) fn get(&mut self) -> &mut Self {
        self.headers(&[(":method", "GET"), (":path", "/v1/models"), ("x-request-id", "abc")], true)
    }

    pub(super) fn body(&mut self, chunk: &str, end_of_stream: bool) -> &mut Self {
        self.message(Message::RequestBody { chunk: Bytes::copy_from_slice(chunk.as_bytes()), end_of_stream })
    }

    pub(super) fn trailers(&mut self) -> &mut Self {
        self.message(Message::RequestTrailers)
    }

    pub(super) fn chat(&mut self) -> &mut Self {
        self.post("/v1/chat/completions").body(CHAT, true)
    }

    pub(super) fn placed(&mut self) -> &mut Self {
        let mut actions = Vec::new();
        self.session.on_routed(self.now, Ok("10.0.0.1:80".into()), &mut actions);
        self.note(actions)
    }

    pub(super) fn rejected(&mut self, refusal: impl Into<Refusal>) -> &mut Self {
        let mut actions = Vec::new();
        self.session.on_routed(self.now, Err(refusal.into()), &mut actions);
        self.note(actions)
    }

    /// Turned away for a reason from outside.
    pub(super) fn refused(&mut self, refusal: &Refusal) -> &mut Self {
        let mut actions = Vec::new();
        self.session.on_refused(refusal, &mut actions);
        self.note(actions)
    }

    /// Has to make room, and is told to come back after 1.5 seconds.
    pub(super) fn revoked(&mut self) -> &mut Self {
        let mut actions = Vec::new();
        self.session.on_revoked(self.now, std::time::Duration::from_millis(1_500), &mut actions);
        self.note(actions)
    }

    /// Lets `millis` pass, calling the session whenever it wants to be called.
    pub(super) fn wait(&mut self, millis: u64) -> &mut Self {
        let end = self.now.saturating_add(std::time::Duration::from_millis(millis));
        while let Some(due) = self.session.next_wakeup().filter(|due| *due <= end) {
            assert!(due >= self.now, "woken for the past");
            self.now = due;
            let mut actions = Vec::new();
            let wait_ends = self.wait_ends;
            self.session.on_time(due, &mut || 7, &|| wait_ends, &mut actions);
            assert!(self.session.next_wakeup().is_none_or(|next| next > due), "it would be called for ever");
            self.note(actions);
        }
        self.now = end;
        self
    }

    pub(super) fn response(&mut self, lines: &[(&str, &str)], end_of_stream: bool) -> &mut Self {
        self.response_from(lines, end_of_stream, Origin::default())
    }

    pub(super) fn response_from(&mut self, lines: &[(&str, &str)], end_of_stream: bool, origin: Origin) -> &mut Self {
        self.message(Message::ResponseHeaders { headers: headers(lines), end_of_stream, origin })
    }

    /// A response that the proxy made up.
    pub(super) fn proxy_answers(&mut self, status: &str, details: &str) -> &mut Self {
        let origin = Origin { details: Some(details.to_owned()), ..Origin::default() };
        self.response_from(&[(":status", status)], false, origin)
    }

    pub(super) fn ok_response(&mut self) -> &mut Self {
        self.response(&[(":status", "200"), ("content-type", "text/event-stream")], false)
    }

    pub(super) fn chunk(&mut self, chunk: &str, end_of_stream: bool) -> &mut Self {
        self.message(Message::ResponseBody { chunk: Bytes::copy_from_slice(chunk.as_bytes()), end_of_stream })
    }

    pub(super) fn ends(&mut self, end: InboundEnd) -> &mut Self {
        let mut actions = Vec::new();
        self.session.on_inbound_end(self.now, end, &mut actions);
        self.note(actions)
    }

    fn note(&mut self, actions: Vec<Action>) -> &mut Self {
        for action in actions {
            let word = match action {
                Action::Route(intent) => {
                    self.intents.push(intent);
                    "route".to_owned()
                }
                Action::StopRouting => "stop".to_owned(),
                Action::Reply(reply) => self.note_reply(reply),
                Action::Holding(bytes) => {
                    self.held = bytes;
                    continue;
                }
                Action::Served(address) => {
                    self.served = Some(address);
                    continue;
                }
                Action::Sending(bytes) => {
                    self.sent += bytes;
                    continue;
                }
                Action::BegunUnseen => {
                    self.begun_unseen = true;
                    continue;
                }
                Action::PassedBy { end, after } => {
                    self.passed_by = Some((end, after));
                    continue;
                }
                Action::GaveUp { after } => {
                    self.gave_up = Some(after);
                    continue;
                }
                Action::Notice(notice) => {
                    self.notices.push(notice);
                    continue;
                }
                Action::End(ending) => {
                    let word = match ending.outcome {
                        Outcome::Refused(code) => format!("end:{}", code.as_str()),
                        Outcome::HandedOver => "end:handed-over".to_owned(),
                        Outcome::Unaccounted { .. } => "end:unaccounted".to_owned(),
                        Outcome::Unseen { .. } => "end:unseen".to_owned(),
                        Outcome::Terminated { cause, responder: Responder::ModelServer, .. } => format!("end:{cause}"),
                        Outcome::Terminated { cause, responder: Responder::Proxy, .. } => format!("end:{cause}:proxy"),
                    };
                    self.endings.push(ending);
                    word
                }
                Action::Close(Close::Finished) => "close".to_owned(),
                Action::Close(Close::Failed(_)) => "fail".to_owned(),
            };
            self.log.push(word);
        }
        self
    }

    fn note_reply(&mut self, reply: Reply) -> String {
        let word = match reply {
            Reply::ContinueRequest => "rh?",
            Reply::RequestHeaders(mutation) => {
                self.mutation = Some(mutation);
                "rh"
            }
            Reply::RequestBody(piece) => {
                self.request_body.extend_from_slice(&piece.bytes);
                if piece.end_of_stream { "rb*" } else { "rb" }
            }
            Reply::RequestBodyAsIs => "rb.",
            Reply::RequestBodyPlaced(mutation, body) => {
                self.mutation = Some(mutation);
                self.request_body.extend(body.unwrap_or_default());
                "rb!"
            }
            Reply::RequestTrailers => "rt",
            Reply::ResponseHeaders { ask, drop_length } => {
                self.length_dropped = drop_length;
                self.asked = ask.or(self.asked);
                if ask.is_some() { "sh+modes" } else { "sh" }
            }
            Reply::ResponseBody(piece) => {
                self.response_body.extend_from_slice(&piece.bytes);
                if piece.end_of_stream { "sb*" } else { "sb" }
            }
            Reply::ResponseBodyAsIs => "sb.",
            Reply::ResponseBodyReplaced(bytes) => {
                self.response_body.extend_from_slice(&bytes);
                "sb!"
            }
            Reply::ResponseTrailers => "st",
            Reply::Modes(modes) => {
                self.asked = Some(modes);
                "modes"
            }
            Reply::Wait(duration) => {
                self.patience = Some(duration);
                "wait"
            }
            Reply::Immediate(reply) => {
                let status = reply.status.to_string();
                self.immediate = Some(reply);
                return status;
            }
        };
        word.to_owned()
    }

    /// What came out since the last call.
    pub(super) fn out(&mut self) -> String {
        std::mem::take(&mut self.log).join(" ")
    }

    /// The body of the refusal that came out.
    pub(super) fn refusal_text(&self) -> &str {
        self.immediate.as_ref().map_or("", |reply| &reply.body)
    }
}

fn headers(lines: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in lines {
        headers.push(name, value.as_bytes().to_vec());
    }
    headers
}
