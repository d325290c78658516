use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What a server sends to whoever asks for its metrics, down to the byte.
#[derive(Debug)]
pub(super) enum Page {
    /// These bytes; then it waits for the next request.
    Once(Vec<u8>),
    /// The same, and it closes the connection.
    Close(Vec<u8>),
    /// The same, and then nothing.
    Silence(Vec<u8>),
    /// The first bytes, and the second ones for ever.
    Endless(Vec<u8>, Vec<u8>),
}

/// A server that has nothing but such a page.
#[derive(Debug)]
pub(super) struct Hostile {
    pub(super) address: SocketAddr,
    counts: Arc<Counts>,
    _serving: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Counts {
    scrapes: AtomicUsize,
    strays: AtomicUsize,
}

impl Hostile {
    pub(super) async fn start(page: Page) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (page, counts) = (Arc::new(page), Arc::new(Counts::default()));
        let counted = Arc::clone(&counts);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(serve(socket, Arc::clone(&page), Arc::clone(&counted)));
            }
        });
        Self { address, counts, _serving: serving }
    }

    /// How often its metrics were asked for.
    pub(super) fn scrapes(&self) -> usize {
        self.counts.scrapes.load(Ordering::Relaxed)
    }

    /// How often it was asked for anything else.
    pub(super) fn strays(&self) -> usize {
        self.counts.strays.load(Ordering::Relaxed)
    }
}

async fn serve(mut socket: TcpStream, page: Arc<Page>, counts: Arc<Counts>) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = socket.read_u8().await else { return };
            head.push(byte);
        }
        let is_scrape = head.starts_with(b"GET /metrics ");
        let count = if is_scrape { &counts.scrapes } else { &counts.strays };
        count.fetch_add(1, Ordering::Relaxed);
        if !matches!(answer(&mut socket, &page).await, Ok(true)) {
            return;
        }
    }
}

/// Tells whether the connection goes on.
async fn answer(socket: &mut TcpStream, page: &Page) -> std::io::Result<bool> {
    match page {
        Page::Once(bytes) => {
            socket.write_all(bytes).await?;
            Ok(true)
        }
        Page::Close(bytes) => {
            socket.write_all(bytes).await?;
            socket.shutdown().await?;
            Ok(false)
        }
        Page::Silence(bytes) => {
            socket.write_all(bytes).await?;
            socket.read_u8().await?;
            Ok(false)
        }
        Page::Endless(first, again) => {
            socket.write_all(first).await?;
            loop {
                socket.write_all(again).await?;
            }
        }
    }
}
