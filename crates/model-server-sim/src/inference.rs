//! The engine at work: one mutex around it, one loop that keeps its time, one channel per request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context as TaskContext, Poll, ready};

use sluice_core::{Clock, SystemClock, Time};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::sleep_until;

use crate::engine::{Ask, AskError, Engine, FinishReason, Output, SequenceId, Stats};
use crate::metrics::{Ending, Metrics};
use crate::settings::Settings;
use crate::text::Token;

/// A token on its way to the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) token: Token,
    /// Set on the last one.
    pub(crate) finish: Option<FinishReason>,
}

/// The engine of one server.
#[derive(Debug)]
pub(crate) struct Inference {
    clock: SystemClock,
    state: Mutex<State>,
    /// Notified when the engine's next wake-up has moved.
    moved: Notify,
    metrics: Metrics,
}

#[derive(Debug)]
struct State {
    engine: Engine,
    clients: BTreeMap<SequenceId, Client>,
}

/// Where the tokens of one sequence go. The channel is unbounded: it holds at most what the request asked for,
/// and a slow reader does not slow the engine.
#[derive(Debug)]
struct Client {
    pieces: UnboundedSender<Piece>,
    prompt_tokens: u32,
    arrived: Time,
    last_token: Option<Time>,
}

impl Inference {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            clock: SystemClock::start(),
            state: Mutex::new(State { engine: Engine::new(settings), clients: BTreeMap::new() }),
            moved: Notify::new(),
            metrics: Metrics::new(settings),
        }
    }

    /// Hands a request to the engine. Dropping what is returned aborts it.
    pub(crate) fn submit(self: &Arc<Self>, ask: Ask) -> Result<Generation, AskError> {
        let prompt_tokens = ask.context.tokens();
        let (sender, pieces) = unbounded_channel();
        let id = self.change(|state, now| {
            let id = state.engine.submit(now, ask)?;
            let client = Client { pieces: sender, prompt_tokens, arrived: now, last_token: None };
            state.clients.insert(id, client);
            Ok(id)
        })?;
        Ok(Generation { inference: Arc::clone(self), id, prompt_tokens, pieces, finished: false })
    }

    /// Runs the engine's steps. Nothing comes out while this is not polled.
    pub(crate) async fn drive(&self) -> Infallible {
        loop {
            let wakeup = self.catch_up().0.engine.next_wakeup();
            match wakeup.and_then(|at| self.clock.instant(at)) {
                Some(at) => tokio::select! {
                    // Both lead to the same look at the engine; the cheaper one is asked first.
                    biased;
                    () = self.moved.notified() => {}
                    () = sleep_until(at.into()) => {}
                },
                None => self.moved.notified().await,
            }
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.lock().engine.stats()
    }

    /// The page of `/metrics`.
    pub(crate) fn render_metrics(&self) -> prometheus::Result<Vec<u8>> {
        self.metrics.render(self.stats())
    }

    /// Time since the server was made.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    fn abort(&self, id: SequenceId) {
        self.change(|state, now| {
            if state.engine.abort(now, id) {
                state.clients.remove(&id);
                self.metrics.count_ending(Ending::Aborted);
            }
        });
    }

    /// Makes a change at the present time, and tells the loop if it must wake up at another time for it.
    fn change<T>(&self, change: impl FnOnce(&mut State, Time) -> T) -> T {
        let (mut state, now) = self.catch_up();
        let wakeup = state.engine.next_wakeup();
        let returned = change(&mut state, now);
        if state.engine.next_wakeup() != wakeup {
            self.moved.notify_one();
        }
        returned
    }

    /// Locks the state, brought up to the present time, with every token that was due sent out.
    fn catch_up(&self) -> (MutexGuard<'_, State>, Time) {
        let mut state = self.lock();
        // Read under the lock, so that the engine never sees time go back.
        let now = self.clock.now();
        state.engine.on_time(now);
        state.deliver(&self.metrics);
        (state, now)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no call to the engine has panicked")
    }
}

impl State {
    fn deliver(&mut self, metrics: &Metrics) {
        for Output { id, at, token, finish } in self.engine.drain_outputs() {
            // Every sequence alive has a client: both come and go under the same lock.
            let Some(client) = self.clients.get_mut(&id) else { continue };
            metrics.generation_tokens.inc();
            match client.last_token.replace(at) {
                None => {
                    metrics.prompt_tokens.inc_by(u64::from(client.prompt_tokens));
                    metrics.time_to_first_token.observe(at.saturating_since(client.arrived).as_secs_f64());
                }
                Some(last) => metrics.inter_token_latency.observe(at.saturating_since(last).as_secs_f64()),
            }
            // The other end is gone only if an abort is on its way.
            client.pieces.send(Piece { token, finish }).ok();
            if let Some(reason) = finish {
                metrics.request_latency.observe(at.saturating_since(client.arrived).as_secs_f64());
                metrics.count_ending(Ending::Finished(reason));
                self.clients.remove(&id);
            }
        }
    }
}

/// A request in the engine, and its tokens. Dropped before its last token, it is aborted.
pub(crate) struct Generation {
    inference: Arc<Inference>,
    id: SequenceId,
    prompt_tokens: u32,
    pieces: UnboundedReceiver<Piece>,
    finished: bool,
}

impl Generation {
    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Appends every piece that is there, at least one unless the last has been taken.
    pub(crate) fn poll_pieces(&mut self, cx: &mut TaskContext<'_>, into: &mut Vec<Piece>) -> Poll<()> {
        const AT_ONCE: usize = 256;
        if !self.finished {
            let received = ready!(self.pieces.poll_recv_many(cx, into, AT_ONCE));
            self.finished = received == 0 || into.last().is_some_and(|piece| piece.finish.is_some());
        }
        Poll::Ready(())
    }

    /// Waits for all pieces.
    pub(crate) async fn collect(mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while !self.finished {
            std::future::poll_fn(|cx| self.poll_pieces(cx, &mut pieces)).await;
        }
        pieces
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.finished {
            self.inference.abort(self.id);
        }
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("id", &self.id).field("finished", &self.finished).finish_non_exhaustive()
    }
}
