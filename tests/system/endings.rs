//! However a request ends, what it held is free again: the picker's booking and the model server's slot.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Client;
use sluice_testkit::{Protocol, Simulator, SseEvents, Template, eventually};
use tokio::task::JoinSet;

use crate::support::{CHAT, LIMIT, Simulated, TEMPLATES, chat, endless_chat, post, served_by};

#[tokio::test]
async fn a_client_that_hangs_up_mid_stream_frees_its_booking_and_its_slot() {
    for template in TEMPLATES {
        let simulated = Simulated::start_with(template, &[]).await.unwrap();
        for protocol in Protocol::ALL {
            let client = protocol.client().unwrap();
            let leaving = endless_chat(&client, &simulated.stack).await.unwrap();
            let staying = endless_chat(&client, &simulated.stack).await.unwrap();
            let (left, stayed) = (leaving.server, staying.server);
            assert_eq!(simulated.running_at_picker().await.unwrap(), 2, "{template:?}, {protocol:?}");

            drop(leaving);
            eventually(LIMIT, "booking and slot are free", async || {
                let free = simulated.running_at_picker().await? == 1 && simulated.running_at(left).await? == 0;
                Ok(free.then_some(()))
            })
            .await
            .unwrap();
            assert_eq!(simulated.running_at(stayed).await.unwrap(), 1);
            let next = endless_chat(&client, &simulated.stack).await.unwrap();
            assert_eq!(next.server, left, "{template:?}, {protocol:?}: the server that became idle is picked");

            drop((next, staying));
            simulated.wait_until_idle().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_before_the_answer_frees_its_booking_and_its_slot() {
    // No token comes for a minute.
    let arguments = ["--first-token-floor", "60000"];
    let simulated = Simulated::start_with(Template::FullDuplex, &arguments).await.unwrap();
    for protocol in Protocol::ALL {
        let client = protocol.client().unwrap();
        let url = simulated.stack.envoy.url(CHAT);
        let waiting = JoinSet::from_iter([post(&client, &url, &chat("hello", 5, false)).send()]);
        eventually(LIMIT, "the request has reached a server", async || {
            Ok((simulated.running_at_picker().await? == 1).then_some(()))
        })
        .await
        .unwrap();
        drop(waiting);
        simulated.wait_until_idle().await.unwrap();
    }
}

#[tokio::test]
async fn a_model_server_that_dies_mid_stream_cuts_its_streams_only() {
    for protocol in Protocol::ALL {
        let mut simulated = Simulated::start().await.unwrap();
        let client = protocol.client().unwrap();
        let doomed = endless_chat(&client, &simulated.stack).await.unwrap();
        let mut healthy = endless_chat(&client, &simulated.stack).await.unwrap();

        simulated.servers[doomed.server].process_mut().kill().unwrap();
        let rest = tokio::time::timeout(LIMIT, doomed.events.collect()).await.unwrap();
        assert!(rest.is_err(), "{protocol:?}: a stream that was cut looks complete");
        eventually(
            LIMIT,
            "the booking is free",
            async || Ok((simulated.running_at_picker().await? == 1).then_some(())),
        )
        .await
        .unwrap();
        for _ in 0..10 {
            healthy.events.next().await.unwrap().unwrap();
        }

        let survivor = simulated.servers[healthy.server].address();
        simulated.stack.endpoints.replace(&[survivor]).unwrap();
        let url = simulated.stack.envoy.url(CHAT);
        eventually(LIMIT, "new chats go to the other server", async || {
            let response = post(&client, &url, &chat("hello", 2, false)).send().await?;
            Ok((response.status() == 200 && served_by(&response)? == healthy.server).then_some(()))
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn after_two_thousand_requests_with_random_disconnects_nothing_is_in_flight() {
    const REQUESTS: u64 = 2_000;
    const AT_ONCE: usize = 64;

    let simulated = Simulated::start().await.unwrap();
    // Several connections per protocol: Envoy closes an HTTP/2 connection on which more than half of at least 500
    // requests were given up within a second.
    let clients = [Protocol::ALL; 4].as_flattened().iter().map(|protocol| protocol.client().unwrap());
    let clients: Arc<[Client]> = clients.collect();
    let url = simulated.stack.envoy.url(CHAT);
    let mut running = JoinSet::new();
    let mut tally = Tally::default();
    for seed in 0..REQUESTS {
        if running.len() == AT_ONCE {
            tally.add(running.join_next().await);
        }
        running.spawn(one_of_many(seed, Arc::clone(&clients), url.clone()));
    }
    while !running.is_empty() {
        tally.add(running.join_next().await);
    }

    let Tally { complete, left } = tally;
    assert_eq!(complete + left, REQUESTS);
    assert!(complete > REQUESTS / 10 && left > REQUESTS / 10, "{complete} complete, {left} left: one-sided");
    if let Err(error) = simulated.wait_until_idle().await {
        panic!("{error:#}: {:?}", simulated.in_flight().await);
    }
    assert_no_booking_is_left(&simulated, &clients[0]).await.unwrap();
}

/// Bookings show in where chats go. If some were left on server-0, it would get fewer chats than server-1, which begins
/// anew when it is taken out of the pool and put back.
async fn assert_no_booking_is_left(simulated: &Simulated, client: &Client) -> Result<()> {
    let [first, second] = simulated.servers.each_ref().map(Simulator::address);
    let chat_on = async |server: usize| {
        eventually(LIMIT, "a chat on the other server", async || {
            let chat = endless_chat(client, &simulated.stack).await?;
            Ok((chat.server == server).then_some(chat))
        })
        .await
    };
    simulated.stack.endpoints.replace(&[first])?;
    let on_first = chat_on(0).await?;
    // Not on server-1 although that one is idle: it is out of the pool.
    drop(chat_on(0).await?);
    simulated.stack.endpoints.replace(&[first, second])?;
    let on_second = chat_on(1).await?;
    eventually(LIMIT, "only two chats run", async || Ok((simulated.running_at_picker().await? == 2).then_some(())))
        .await?;

    let third = endless_chat(client, &simulated.stack).await?;
    let fourth = endless_chat(client, &simulated.stack).await?;
    let [third, fourth] = [third.server, fourth.server];
    ensure!(third != fourth, "two chats in a row went to server-{third}: the other one has bookings left");
    drop((on_first, on_second));
    Ok(())
}

#[derive(Debug, Default)]
struct Tally {
    complete: u64,
    left: u64,
}

impl Tally {
    fn add(&mut self, finished: Option<Result<Result<End>, tokio::task::JoinError>>) {
        match finished.expect("a task").expect("a task that did not panic").expect("an answered request") {
            End::Complete => self.complete += 1,
            End::Left => self.left += 1,
        }
    }
}

enum End {
    Complete,
    Left,
}

/// A chat of random length; its client leaves before the answer, after some events, or not at all.
async fn one_of_many(seed: u64, clients: Arc<[Client]>, url: String) -> Result<End> {
    let mut random = StdRng::seed_from_u64(seed);
    let client = &clients[random.random_range(0..clients.len())];
    let stream = random.random_bool(0.7);
    let body = chat(&format!("chat {seed}"), random.random_range(1..40), stream);
    let patience = Duration::from_millis(random.random_range(0..150));
    let answer = async {
        let response = post(client, &url, &body).send().await?.error_for_status()?;
        if stream {
            let events = SseEvents::of(response).collect().await?;
            ensure!(events.last().is_some_and(|event| event == "[DONE]"), "a stream without its end");
        } else {
            response.bytes().await?;
        }
        Ok(End::Complete)
    };
    if random.random_bool(0.4) {
        return answer.await;
    }
    tokio::time::timeout(patience, answer).await.unwrap_or(Ok(End::Left))
}
