//! Who a request is from, whether it may go on, and whether there is memory for it.

use std::time::Duration;

use sluice_router::{Rejection, Resolved};

use super::Driver;
use crate::message::{Inbound, Message, Standing};
use crate::reject::Refusal;
use crate::request_headers::{BodyLimit, content_length, is_header_only};
use crate::session::heed_only_vouched;

impl Driver {
    /// With the request headers it is known who the request is from, and sometimes that it need not go on.
    pub(super) fn identify(&mut self, inbound: &mut Inbound) {
        let Inbound { modes, message: Message::RequestHeaders { headers, end_of_stream }, vouched, standing, .. } =
            inbound
        else {
            return;
        };
        if let Some(record) = &mut self.record {
            record.named_by(headers);
        }
        if self.terms.router.heeds_only_vouched() {
            heed_only_vouched(headers, vouched.as_ref());
        }
        let Resolved { identity, unknown_objective } = match self.terms.router.identify(headers, vouched.as_ref()) {
            Ok(resolved) => resolved,
            Err(rejection) => {
                if matches!(rejection, Rejection::UnknownObjective { .. }) {
                    self.shared.metrics.objective_not_found();
                }
                standing.refusal = Some(rejection.into());
                return;
            }
        };
        if unknown_objective {
            self.shared.metrics.objective_not_found();
        }
        self.labels = self.shared.metrics.labels(&identity);
        let router = &self.terms.router;
        let length = content_length(headers);
        let holds_body = self.session.holds_body(*modes, headers, *end_of_stream);
        // What can never be served is refused by its size, however full the queues are.
        standing.refusal = self.session.refuse_by_headers(*modes, headers, *end_of_stream).or_else(|| {
            let header_only = is_header_only(headers, *end_of_stream);
            let held_bytes = length.filter(|_| holds_body).unwrap_or_default();
            let rejection = router.refuse_by_headers(&identity, held_bytes, header_only)?;
            if let Some(outcome) = rejection.outcome() {
                self.shared.metrics.queued(&mut self.labels, outcome, Duration::ZERO);
            }
            Some(rejection.into())
        });
        // It has to listen even if nothing is evicted now: that may change while it runs.
        self.revocable = identity.priority.is_sheddable();
        *standing = Standing {
            // Of a body whose length is known, admission has just looked at it.
            largest: if holds_body && length.is_none() { router.largest_request(identity.priority) } else { None },
            revocable: self.revocable && self.terms.session_settings.eviction.is_some(),
            refusal: standing.refusal.take(),
        };
        self.priority = identity.priority;
        self.identity = Some(identity);
    }

    /// Counts the bytes of the request that are held. One that there is no room for is refused.
    pub(super) fn hold(&mut self, bytes: u64) {
        if bytes == 0 {
            self.body = None;
            return;
        }
        let budget = self.terms.session_settings.body_memory;
        if bytes > budget {
            self.refuse_body(&Refusal::body_too_large(BodyLimit::of_memory(budget)));
            return;
        }
        let held = match &mut self.body {
            Some(share) => share.resize(bytes),
            None => self.shared.body_memory.hold(self.priority, bytes).map(|share| self.body = Some(share)),
        };
        if held.is_err() {
            self.give_up_body();
        }
    }

    /// The bytes that the request takes are needed for others.
    pub(super) fn give_up_body(&mut self) {
        let retry_after = self.terms.router.retry_after_seconds(self.priority);
        self.refuse_body(&Refusal::out_of_body_memory(retry_after));
    }

    fn refuse_body(&mut self, refusal: &Refusal) {
        self.body = None;
        self.session.on_refused(refusal, &mut self.actions);
    }
}
