//! HTTP clients as users have them, and what they need to read streams.

use std::collections::VecDeque;

use anyhow::Result;
use reqwest::{Client, ClientBuilder, Response};

/// The protocol versions that clients speak to Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    pub const ALL: [Self; 2] = [Self::Http1, Self::Http2];

    pub fn client(self) -> Result<Client> {
        match self {
            Self::Http1 => http1(),
            Self::Http2 => http2(),
        }
    }
}

/// Speaks HTTP/1.1 only.
pub fn http1() -> Result<Client> {
    Ok(plain().http1_only().build()?)
}

/// Speaks HTTP/2 over plaintext without asking first.
pub fn http2() -> Result<Client> {
    Ok(plain().http2_prior_knowledge().build()?)
}

/// No proxy from the environment, no redirects, no root certificates: it talks plaintext to this machine only.
fn plain() -> ClientBuilder {
    Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).tls_certs_only([])
}

/// The `data` of server-sent events, one by one as they arrive.
#[derive(Debug)]
pub struct SseEvents {
    response: Response,
    partial: Vec<u8>,
    ready: VecDeque<String>,
}

impl SseEvents {
    pub fn of(response: Response) -> Self {
        Self { response, partial: Vec::new(), ready: VecDeque::new() }
    }

    /// The next event's data; `None` when the stream ended in order, an error when it was cut.
    pub async fn next(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Ok(Some(data));
            }
            let Some(chunk) = self.response.chunk().await? else { return Ok(None) };
            self.push(&chunk);
        }
    }

    /// The data of all events up to the end of the stream.
    pub async fn collect(mut self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        while let Some(data) = self.next().await? {
            all.push(data);
        }
        Ok(all)
    }

    fn push(&mut self, chunk: &[u8]) {
        for &byte in chunk {
            if byte != b'\n' {
                self.partial.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.partial);
            if let Some(data) = line.trim_end_matches('\r').strip_prefix("data:") {
                self.ready.push_back(data.trim_start().to_owned());
            }
            self.partial.clear();
        }
    }
}
