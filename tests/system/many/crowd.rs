use std::collections::BTreeMap;

use anyhow::Result;
use reqwest::{Client, RequestBuilder};
use sluice_testkit::{Protocol, TAG_HEADER};
use tokio::task::JoinSet;

use crate::support::{CHAT, chat, post};

/// Envoy allows a client 1,024 streams on one connection.
const STREAMS_PER_CONNECTION: usize = 800;

/// Many requests over few connections. Dropping it hangs all of them up at once.
#[derive(Debug)]
pub(super) struct Crowd {
    url: String,
    clients: Vec<Client>,
    running: JoinSet<String>,
}

impl Crowd {
    /// Clients for `size` requests to a gateway, whose `url` makes the address of a path.
    pub(super) fn new(size: usize, url: impl FnOnce(&str) -> String) -> Result<Self> {
        let connections = size.div_ceil(STREAMS_PER_CONNECTION);
        let clients = (0..connections).map(|_| Protocol::Http2.client()).collect::<Result<_>>()?;
        Ok(Self { url: url(CHAT), clients, running: JoinSet::new() })
    }

    /// Sends chats of a kilobyte, changed by `with`.
    pub(super) fn send(&mut self, count: usize, with: impl Fn(RequestBuilder) -> RequestBuilder) {
        let body = chat(&"hello ".repeat(150), 1, false);
        for index in 0..count {
            let client = &self.clients[index % self.clients.len()];
            let request = with(post(client, &self.url, &body).header(TAG_HEADER, format!("crowd-{index}")));
            self.running.spawn(async move { outcome(request).await });
        }
    }

    /// How the requests ended, counted: by status, or broken off.
    pub(super) async fn outcomes(self) -> BTreeMap<String, usize> {
        count(self.running.join_all().await)
    }

    /// The same of those that have ended.
    pub(super) fn outcomes_so_far(&mut self) -> BTreeMap<String, usize> {
        count(std::iter::from_fn(|| self.running.try_join_next()).map(Result::unwrap))
    }
}

fn count(ended: impl IntoIterator<Item = String>) -> BTreeMap<String, usize> {
    let mut outcomes = BTreeMap::new();
    for outcome in ended {
        *outcomes.entry(outcome).or_default() += 1;
    }
    outcomes
}

async fn outcome(request: RequestBuilder) -> String {
    match request.send().await {
        Ok(response) => {
            let status = response.status().as_u16();
            if response.bytes().await.is_ok() { status.to_string() } else { format!("{status}, then broken off") }
        }
        Err(error) => format!("broken off: {error:?}"),
    }
}

/// What [`Crowd::outcomes`] says when all went well.
pub(super) fn all_served(count: usize) -> BTreeMap<String, usize> {
    [("200".to_owned(), count)].into()
}
