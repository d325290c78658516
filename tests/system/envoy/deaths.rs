//! Pickers that are gone, or die with requests in them, with no other to take over.

use sluice_testkit::{
    EnvoyConfig, Part, PickerConfig, Protocol, RecordingUpstream, Reply, Stack, eventually, unused_address,
};
use tokio::task::JoinSet;

use crate::flow::support::{Counted, config};
use crate::support::{
    CHAT, DESTINATION, LIMIT, Simulated, TEMPLATES, WHOLE_REQUESTS, chat, endless_chat, picker, post,
};

#[tokio::test]
async fn a_request_that_waits_in_the_only_picker_ends_with_a_500_when_that_dies() {
    for template in TEMPLATES {
        let envoy = EnvoyConfig::from_template(template).unwrap();
        let config = config(1, &serde_json::json!({}), &serde_json::json!({}));
        let mut pool = Counted::start_with(1, &config, &[], envoy).await.unwrap();
        let running = pool.chat("running");
        pool.send(running);
        pool.wait_for(1, 0).await.unwrap();
        let waiting = JoinSet::from_iter([pool.chat("waits").send()]);
        pool.wait_for(1, 1).await.unwrap();
        pool.stack.picker.process_mut().kill().unwrap();
        let ended = tokio::time::timeout(LIMIT, waiting.join_all()).await.expect("an end in time");
        assert_eq!(ended[0].as_ref().unwrap().status(), 500, "{template:?}");
        assert_eq!(pool.servers[0].tags(), ["running"]);
    }
}

/// Also where no body passes the picker: a response that nobody could count or cut any more does not go on.
#[tokio::test]
async fn responses_are_cut_when_the_picker_dies() {
    for template in TEMPLATES {
        for protocol in Protocol::ALL {
            let mut simulated = Simulated::start_with(template, &[]).await.unwrap();
            let open = endless_chat(&protocol.client().unwrap(), &simulated.stack).await.unwrap();
            simulated.stack.picker.process_mut().kill().unwrap();
            let rest = tokio::time::timeout(LIMIT, open.events.collect()).await.expect("an end in time");
            assert!(rest.is_err(), "{template:?}, {protocol:?}: a response that was cut looks complete");
            eventually(LIMIT, "the model servers are idle", async || {
                Ok((simulated.running_at(0).await? + simulated.running_at(1).await? == 0).then_some(()))
            })
            .await
            .unwrap();
        }
    }
}

/// With and without `failure_mode_allow`, and whatever the client says about its destination.
#[tokio::test]
async fn nothing_is_served_past_a_picker_that_is_down() {
    let outsider = RecordingUpstream::start(Reply::Echo).unwrap();
    for fail_open in [false, true] {
        for template in TEMPLATES {
            let mut envoy = EnvoyConfig::from_template(template).unwrap();
            envoy.put(Part::ExtProc, "failure_mode_allow", fail_open).unwrap();
            envoy.set_pickers(&[unused_address().unwrap()]).unwrap();
            let envoy = sluice_testkit::Envoy::start(&envoy).await.unwrap();
            for protocol in Protocol::ALL {
                let client = protocol.client().unwrap();
                let chat = post(&client, &envoy.url(CHAT), &chat("hello", 1, false));
                for request in [chat, client.get(envoy.url("/v1/models"))] {
                    let request = request.header(DESTINATION, outsider.address().to_string());
                    let response = request.send().await.unwrap();
                    let expected = if fail_open { [500, 503] } else { [500, 500] };
                    let status = response.status().as_u16();
                    assert!(expected.contains(&status), "{template:?}, {protocol:?}, {fail_open}: {status}");
                }
            }
        }
    }
    assert!(outsider.requests().is_empty(), "a client has chosen its own destination");
}

/// An end of the stream without an error would be taken for "go on without the picker", with what had been sent of the
/// body.
#[tokio::test]
async fn a_message_that_is_larger_than_the_picker_takes_is_refused() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for template in WHOLE_REQUESTS {
        let envoy = EnvoyConfig::from_template(template).unwrap();
        let arguments = ["--grpc-max-recv-msg-size", "10000"];
        let servers = [server.address()];
        let stack =
            Stack::start_configured(picker(), &arguments, PickerConfig::standalone, envoy, &servers).await.unwrap();
        for protocol in Protocol::ALL {
            let client = protocol.client().unwrap();
            for size in [20_000, 400_000] {
                let body = "x".repeat(size);
                let response = client.post(stack.envoy.url("/large")).body(body).send().await.unwrap();
                assert_eq!(response.status(), 413, "{template:?}, {protocol:?}, {size}");
            }
            let response = client.post(stack.envoy.url("/small")).body("small").send().await.unwrap();
            assert_eq!(response.text().await.unwrap(), "small", "{template:?}, {protocol:?}");
        }
    }
    assert!(server.requests().iter().all(|request| request.uri == "/small"));
}
