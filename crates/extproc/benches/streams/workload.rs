use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use sluice_core::{Clock, SystemClock, Time};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use crate::messages::{self, Body};
use crate::proxy::{self, Connections, Open};

/// Streams that are open at once.
const STREAMS: u32 = 20;
/// Chunks of all responses together, as many as a busy pool generates in a second.
const CHUNKS_PER_SECOND: u32 = 8_000;
const CHUNKS: u32 = 40_000;

#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) connections: usize,
    pub(crate) flow_control: bool,
    load: Load,
}

#[derive(Clone, Copy, Debug)]
enum Load {
    /// Requests with a body of this size, as fast as they are let go.
    Requests { body: Body, bytes: usize, count: u32 },
    /// Responses of [`CHUNKS`] chunks in all.
    Responses(Body, Rhythm),
}

/// When the chunks of a response come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rhythm {
    /// Those of all streams together: an engine generates a token for each of its sequences in one step.
    Together,
    /// Each by itself, evenly spread: as if every stream had an engine of its own.
    OneByOne,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) micros_each: f64,
    pub(crate) per_second: f64,
}

const fn requests(name: &'static str, body: Body, bytes: usize, count: u32) -> Workload {
    Workload { name, connections: 4, flow_control: false, load: Load::Requests { body, bytes, count } }
}

const fn responses(name: &'static str, body: Body, rhythm: Rhythm) -> Workload {
    Workload { name, connections: 1, flow_control: false, load: Load::Responses(body, rhythm) }
}

pub(crate) const WORKLOADS: [Workload; 10] = [
    requests("request of 1 kB, FULL_DUPLEX_STREAMED", Body::FullDuplex, 1_000, 20_000),
    requests("request of 64 kB, FULL_DUPLEX_STREAMED", Body::FullDuplex, 64_000, 8_000),
    requests("request of 400 kB, FULL_DUPLEX_STREAMED", Body::FullDuplex, 400_000, 2_000),
    Workload {
        flow_control: true,
        ..requests("request of 1 kB, FULL_DUPLEX_STREAMED, flow control", Body::FullDuplex, 1_000, 20_000)
    },
    requests("request of 1 kB, NONE", Body::Hidden, 1_000, 20_000),
    requests("request of 64 kB, NONE", Body::Hidden, 64_000, 20_000),
    requests("request of 400 kB, NONE", Body::Hidden, 400_000, 20_000),
    responses("response, FULL_DUPLEX_STREAMED, chunks of all streams together", Body::FullDuplex, Rhythm::Together),
    responses("response, FULL_DUPLEX_STREAMED, each chunk by itself", Body::FullDuplex, Rhythm::OneByOne),
    responses("response, NONE", Body::Hidden, Rhythm::OneByOne),
];

impl Workload {
    /// What is counted.
    pub(crate) const fn each(&self) -> &'static str {
        match self.load {
            Load::Requests { .. } => "request",
            Load::Responses(..) => "chunk",
        }
    }

    /// A twentieth of the load, so that code, connections and memory are there.
    pub(crate) async fn warm_up(&self, connections: &Connections) -> Result<()> {
        self.load.put(connections, 20).await.map(drop)
    }

    /// Puts the load on the picker and returns how many requests or chunks it was.
    pub(crate) async fn run(&self, connections: &Connections) -> Result<u32> {
        self.load.put(connections, 1).await
    }
}

impl Load {
    async fn put(self, connections: &Connections, fraction: u32) -> Result<u32> {
        match self {
            Self::Requests { body, bytes, count } => {
                let each = count / fraction / STREAMS;
                let clients = streams().map(|stream| proxy::requests(connections.of(stream), body, bytes, each));
                finish(clients.collect()).await?;
                Ok(each * STREAMS)
            }
            Self::Responses(body, rhythm) => responses_of(connections, body, rhythm, CHUNKS / fraction).await,
        }
    }
}

/// `chunks` chunks of responses over all streams. Where the picker does not see bodies, the responses take as long.
async fn responses_of(connections: &Connections, body: Body, rhythm: Rhythm, chunks: u32) -> Result<u32> {
    let request = messages::request(Body::FullDuplex, body, 1_000);
    let mut open = Vec::new();
    for stream in streams() {
        open.push(Open::request(connections.of(stream), &request).await?);
    }
    let senders: Vec<_> = open.iter().map(|open| open.sender.clone()).collect();
    let pace = thread::spawn(move || pace(&senders, body, rhythm, chunks));
    let read = open.into_iter().map(|mut open| async move {
        let mut pieces = 0;
        while body == Body::FullDuplex && !open.body_ended().await? {
            pieces += 1;
        }
        if body == Body::FullDuplex {
            ensure!(pieces == chunks / STREAMS, "{pieces} chunks came back");
        }
        open.finish().await
    });
    finish(read.collect()).await?;
    pace.join().ok().context("the sender of chunks panicked")??;
    Ok(chunks)
}

/// Sends the chunks, each on the next stream, and then the ends of the responses. On a thread of its own:
/// the timers of a runtime would send several at once.
#[expect(clippy::disallowed_methods, reason = "this thread does nothing else than wait between chunks")]
fn pace(streams: &[UnboundedSender<ProcessingRequest>], body: Body, rhythm: Rhythm, chunks: u32) -> Result<()> {
    let chunk = messages::chunk(false);
    let clock = SystemClock::start();
    for (stream, number) in streams.iter().cycle().zip(0..chunks) {
        let turn = if rhythm == Rhythm::Together { number - number % STREAMS } else { number };
        let due = Time::ZERO.saturating_add(Duration::from_secs(1) / CHUNKS_PER_SECOND * turn);
        thread::sleep(due.saturating_since(clock.now()));
        if body == Body::FullDuplex {
            stream.send(chunk.clone())?;
        }
    }
    for stream in streams.iter().filter(|_| body == Body::FullDuplex) {
        stream.send(messages::chunk(true))?;
    }
    Ok(())
}

fn streams() -> impl Iterator<Item = usize> {
    (0..STREAMS).filter_map(|stream| usize::try_from(stream).ok())
}

/// Runs all at the same time; the first error ends them.
async fn finish(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}
