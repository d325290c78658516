//! Which of Envoy's timeouts end a request that waits, and which do not.

use std::time::Duration;

use anyhow::Result;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock};
use sluice_testkit::{EnvoyConfig, Part, Protocol, TAG_HEADER, Template, eventually};

use crate::flow::support::{AT_ONCE, Counted, config, for_millis, streamed};
use crate::raw::RawClient;
use crate::support::{CHAT, LIMIT, TEMPLATES, chat, post};

type Change = fn(&mut EnvoyConfig) -> Result<()>;

/// A pool whose only slot is taken, behind a template with a change.
async fn full(template: Template, change: impl FnOnce(&mut EnvoyConfig) -> Result<()>) -> Counted {
    let mut envoy = EnvoyConfig::from_template(template).unwrap();
    change(&mut envoy).unwrap();
    let config = config(1, &json!({"defaultRequestTTL": "30m"}), &json!({}));
    let mut pool = Counted::start_with(1, &config, &[], envoy).await.unwrap();
    let running = pool.chat("running");
    pool.send(running);
    pool.wait_for(1, 0).await.unwrap();
    pool
}

fn ask(pool: &Counted, protocol: Protocol, tag: &str) -> RequestBuilder {
    let client = protocol.client().unwrap();
    post(&client, &pool.stack.envoy.url(CHAT), &chat("hello", 1, false)).header(TAG_HEADER, tag)
}

/// How many streams Envoy has open to the picker.
async fn streams_to_picker(pool: &Counted) -> Result<Option<i64>> {
    let stats = pool.stack.envoy.stats().await?;
    Ok(stats.count("envoy_cluster_upstream_rq_active", &[("envoy_cluster_name", "picker")]))
}

#[tokio::test]
async fn a_timeout_that_ends_a_waiting_request_takes_it_out_of_the_queue() {
    let cases: [(&str, &str, Change); 3] = [
        ("stream_idle_timeout", "stream_idle_timeout", |envoy| {
            envoy.put(Part::Route, "idle_timeout", Value::Null)?;
            envoy.put(Part::ConnectionManager, "stream_idle_timeout", "1s")
        }),
        ("idle_timeout of the route", "stream_idle_timeout", |envoy| envoy.put(Part::Route, "idle_timeout", "1s")),
        ("max_stream_duration of the route", "max_stream_duration", |envoy| {
            envoy.put(Part::Route, "max_stream_duration", json!({"max_stream_duration": "1s"}))
        }),
    ];
    for (name, told, change) in cases {
        for template in TEMPLATES {
            let pool = empty(template, change).await;
            for protocol in Protocol::ALL {
                let clock = SystemClock::start();
                let response = ask(&pool, protocol, "waits").send().await.unwrap();
                let took = clock.now().saturating_since(sluice_core::Time::ZERO);
                assert_eq!(response.status(), 504, "{name}, {template:?}, {protocol:?}");
                assert!(took >= Duration::from_millis(900), "{name}, {template:?}, {protocol:?}: after {took:?}");
                // Not Envoy's answer but the picker's, which says what to look at.
                let body: Value = response.json().await.unwrap();
                let message = body["error"]["message"].as_str().unwrap();
                assert!(message.contains(told), "{name}, {template:?}, {protocol:?}: {message}");
                eventually(AT_ONCE, "it has left the queue", async || {
                    Ok((pool.waiting().await? == 0 && streams_to_picker(&pool).await? == Some(0)).then_some(()))
                })
                .await
                .unwrap();
            }
            assert_eq!(pool.ended_with("EvictedContextCancelled").await.unwrap(), 2, "{name}, {template:?}");
        }
    }
}

/// A pool without a slot: every request waits.
async fn empty(template: Template, change: Change) -> Counted {
    let mut envoy = EnvoyConfig::from_template(template).unwrap();
    change(&mut envoy).unwrap();
    let flow_control = json!({"defaultRequestTTL": "30m", "noEndpointRequestTTL": "30m"});
    Counted::start_with(0, &config(1, &flow_control, &json!({})), &[], envoy).await.unwrap()
}

#[tokio::test]
async fn other_timeouts_do_not_end_a_waiting_request() {
    for template in TEMPLATES {
        let pool = full(template, |envoy| {
            envoy.put(Part::GrpcService, "timeout", "1s")?;
            envoy.put(Part::Route, "timeout", "1s")?;
            envoy.put(Part::ConnectionManager, "request_timeout", "1s")?;
            let connections = json!({"idle_timeout": "1s"});
            envoy.put(Part::ConnectionManager, "common_http_protocol_options", connections)
        })
        .await;
        let (first, second, ()) = tokio::join!(
            for_millis(ask(&pool, Protocol::Http1, "h1"), 1).send(),
            for_millis(ask(&pool, Protocol::Http2, "h2"), 1).send(),
            async {
                pool.wait_for(1, 2).await.unwrap();
                tokio::time::sleep(Duration::from_millis(2_500)).await;
                pool.servers[0].release(1);
            }
        );
        assert_eq!([first, second].map(|response| response.unwrap().status().as_u16()), [200, 200], "{template:?}");
    }
}

#[tokio::test]
async fn the_timeout_of_a_route_begins_when_the_picker_has_let_the_request_go() {
    for template in TEMPLATES {
        let pool = full(template, |envoy| envoy.put(Part::Route, "timeout", "1s")).await;
        // The one that runs is ended by it: the timeout is at work.
        pool.wait_for(0, 0).await.unwrap();
        for protocol in Protocol::ALL {
            let response = ask(&pool, protocol, "late").send().await.unwrap();
            assert_eq!(response.status(), 504, "{template:?}, {protocol:?}");
            let begun = streamed(ask(&pool, protocol, "cut")).send().await.unwrap();
            assert_eq!(begun.status(), 200, "{template:?}, {protocol:?}");
            assert!(begun.bytes().await.is_err(), "{template:?}, {protocol:?}: a response that was cut looks complete");
            pool.wait_for(0, 0).await.unwrap();
        }
    }
}

#[tokio::test]
async fn an_upload_that_envoy_gives_up_leaves_nothing_behind() {
    for template in TEMPLATES {
        let pool = full(template, |envoy| envoy.put(Part::ConnectionManager, "request_timeout", "1s")).await;
        let mut client = RawClient::connect(&pool.stack.envoy).await;
        client.post(CHAT, "content-length: 1000\r\n").await;
        client.send(r#"{"model":"#).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 408"), "{template:?}: {head}");
        assert!(head.contains("content-type: application/json"), "{template:?}: {head}");
        client.closed().await;
        eventually(AT_ONCE, "its stream to the picker is closed", async || {
            Ok((streams_to_picker(&pool).await? == Some(1)).then_some(()))
        })
        .await
        .unwrap();
        pool.wait_for(1, 0).await.unwrap();
    }
}

/// Waits for `time` with the templates as they are shipped.
async fn wait_in_every_template(time: Duration) {
    let wait = async |template| {
        let pool = full(template, |_| Ok(())).await;
        let (first, second, ()) = tokio::join!(
            for_millis(ask(&pool, Protocol::Http1, "h1"), 1).send(),
            for_millis(ask(&pool, Protocol::Http2, "h2"), 1).send(),
            async {
                pool.wait_for(1, 2).await.unwrap();
                tokio::time::sleep(time).await;
                assert_eq!(pool.waiting().await.unwrap(), 2);
                pool.servers[0].release(1);
            }
        );
        for response in [first, second] {
            let response = response.unwrap();
            assert_eq!(response.status(), 200, "{template:?}");
            assert_eq!(response.text().await.unwrap(), "{}", "{template:?}");
        }
    };
    futures_util::future::join_all(TEMPLATES.map(wait)).await;
}

#[tokio::test]
async fn a_request_that_waits_thirty_seconds_is_served() {
    wait_in_every_template(Duration::from_secs(30)).await;
}

#[tokio::test]
#[ignore = "takes more than five minutes: longer than any default of Envoy allows a request to be idle"]
async fn a_request_that_waits_longer_than_any_default_timeout_is_served() {
    wait_in_every_template(Duration::from_secs(330)).await;
}

#[tokio::test]
async fn a_picker_that_hangs_is_noticed_by_keepalive() {
    let mut pool = full(Template::FullDuplex, |envoy| {
        envoy.put(Part::PickerHttp2, "connection_keepalive", json!({"interval": "1s", "timeout": "1s"}))
    })
    .await;
    for protocol in Protocol::ALL {
        let waiting = ask(&pool, protocol, "waits").send();
        let waiting = tokio::task::JoinSet::from_iter([waiting]);
        pool.wait_for(1, 1).await.unwrap();
        pool.stack.picker.process_mut().freeze().unwrap();
        let ended = tokio::time::timeout(LIMIT, waiting.join_all()).await.expect("an end in time");
        assert_eq!(ended[0].as_ref().unwrap().status(), 500, "{protocol:?}");
        pool.stack.picker.process_mut().resume().unwrap();
        eventually(LIMIT, "the picker has forgotten the requests", async || {
            Ok((pool.waiting().await? == 0 && streams_to_picker(&pool).await? == Some(0)).then_some(()))
        })
        .await
        .unwrap();
        pool.wait_for(0, 0).await.unwrap();
        let running = pool.chat("running");
        pool.send(running);
        pool.wait_for(1, 0).await.unwrap();
    }
}
