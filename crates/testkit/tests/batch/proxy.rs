//! A connection that breaks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A TCP proxy that cuts each connection after a random number of bytes from the server.
pub(crate) struct CuttingProxy {
    address: SocketAddr,
    cuts: Arc<AtomicU64>,
    _serving: JoinSet<()>,
}

impl CuttingProxy {
    /// Cuts after fewer than `most` bytes.
    pub(crate) async fn start(server: SocketAddr, most: u64, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = Arc::new(AtomicU64::new(0));
        let mut serving = JoinSet::new();
        serving.spawn({
            let cuts = Arc::clone(&cuts);
            async move {
                let mut random = StdRng::seed_from_u64(seed);
                let mut connections = JoinSet::new();
                loop {
                    let (client, _) = listener.accept().await.unwrap();
                    while connections.try_join_next().is_some() {}
                    let (bytes, reset) = (random.random_range(0..most), random.random_bool(0.5));
                    connections.spawn(carry(client, server, bytes, reset, Arc::clone(&cuts)));
                }
            }
        });
        Self { address, cuts, _serving: serving }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections were cut rather than left by an end.
    pub(crate) fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

async fn carry(client: TcpStream, server: SocketAddr, bytes: u64, reset: bool, cuts: Arc<AtomicU64>) {
    let server = TcpStream::connect(server).await.unwrap();
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let upload = tokio::io::copy(&mut from_client, &mut to_server);
    let download = download(from_server, &mut to_client, bytes);
    tokio::select! {
        // The proxy's own cut is told from a client that leaves at the same moment.
        biased;
        cut = download => if cut { cuts.fetch_add(1, Ordering::Relaxed); },
        _ = upload => return,
    }
    if reset {
        to_client.as_ref().set_zero_linger().unwrap();
    }
}

/// Whether the bytes were used up before the server or the client ended.
async fn download(from_server: OwnedReadHalf, to_client: &mut tokio::net::tcp::OwnedWriteHalf, bytes: u64) -> bool {
    tokio::io::copy(&mut from_server.take(bytes), to_client).await.is_ok_and(|copied| copied == bytes)
}
