//! Runs one simulated model server; the library says what it is.

use std::io::{self, Write};

use clap::Parser;
use model_server_sim::{Server, Settings};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A simulated vLLM server.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,

    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value = "8000")]
    port: u16,

    #[command(flatten)]
    settings: Settings,
}

// One thread keeps all streams on time, and leaves the other cores to what is measured.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Cli { host, port, settings } = Cli::parse();
    // Before the address is announced: whoever reads it may send a signal.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let server = Server::new(settings)?;
    let listener = TcpListener::bind((host.as_str(), port)).await?;
    writeln!(io::stdout(), "listening on {}", listener.local_addr()?)?;
    tokio::select! {
        // A busy server must not put off its end.
        biased;
        _ = received(&mut terminate, &mut interrupt) => Ok(()),
        failed = server.serve(listener) => match failed? {},
    }
}

async fn received(terminate: &mut Signal, interrupt: &mut Signal) -> Option<()> {
    tokio::select! {
        // Either will do.
        biased;
        signal = terminate.recv() => signal,
        signal = interrupt.recv() => signal,
    }
}
