use slotmap::{Key, new_key_type};

new_key_type! {
    /// One request from submit to end, in whatever state. Never reused: a call with the ticket of a request
    /// that has ended does nothing.
    pub struct Ticket;

    /// One tenant's queue inside one band, for as long as it has tickets.
    pub struct FlowId;
}

/// What the caller uses to find who waits for a ticket. The engine hands it back and never reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiter(pub u64);

/// The dense index behind `ticket`, shared with no other living ticket.
pub(crate) fn slot_of(ticket: Ticket) -> usize {
    (ticket.data().as_ffi() & 0xffff_ffff) as usize
}
