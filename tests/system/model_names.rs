//! A client chooses the name of its model, and may have it chosen in a header: what that costs the picker, behind a real
//! proxy.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use serde_json::json;
use sluice_testkit::{EnvoyConfig, PickerConfig, Protocol, RecordingUpstream, Reply, Stack, Template, flow_config};

use crate::support::{CHAT, picker};

const REWRITE: &str = "x-llm-d-model-name-rewrite";

/// As long as a name may be.
const LONGEST: usize = 4_096;

/// So many models are in a body of half a megabyte, which would be 180 MB with a long name in the place of each.
const MODELS: usize = 45_000;

/// What the picker may have taken after all of it, in kB.
const MOST: u64 = 64 << 10;

/// The most memory that the picker has had, in kB.
fn peak(stack: &Stack) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", stack.picker.process().id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// The last of the models counts.
fn body(models: usize, last: &str) -> String {
    format!("{{{}\"model\":{}}}", r#""model":"","#.repeat(models), json!(last))
}

#[tokio::test]
async fn names_of_models_take_no_memory_however_long_they_are_and_however_often_they_are_written() {
    let server = RecordingUpstream::start(Reply::Echo).unwrap();
    for template in [Template::FullDuplex, Template::PerRequest, Template::ResponseBypass] {
        let envoy = EnvoyConfig::from_template(template).unwrap();
        let config = |endpoints: &_| PickerConfig::custom(&flow_config(100), endpoints);
        let stack = Stack::start_configured(picker(), &[], config, envoy, &[server.address()]).await.unwrap();
        let client = Protocol::Http2.client().unwrap();
        let ask = async |target: &str, body: String| {
            let request = client.post(stack.envoy.url(CHAT)).header("content-type", "application/json");
            let response = request.header(REWRITE, target).body(body).send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        };
        assert_eq!(ask("T", body(1, "small")).await.0, 200, "{template:?}");
        let before = peak(&stack);

        let (status, text) = ask(&"T".repeat(LONGEST), body(MODELS, "a")).await;
        assert_eq!(status, 413, "{template:?}: {text}");
        assert!(text.contains("its model replaced"), "{template:?}: {text}");
        for (target, body) in [("T".repeat(30_000), body(MODELS, "a")), ("T".to_owned(), body(1, &"m".repeat(500_000)))]
        {
            let (status, text) = ask(&target, body).await;
            assert_eq!(status, 400, "{template:?}: {text}");
            assert!(text.contains("longer than 4096 bytes") && text.len() < 300, "{template:?}: {text}");
        }
        // Each name that comes back is the client's, as far as the response passes through the picker.
        let (status, text) = ask("T", body(5_000, &"m".repeat(LONGEST))).await;
        assert_eq!(status, 200, "{template:?}");
        assert_eq!(text.len() > 5_000 * 100, template != Template::ResponseBypass, "{template:?}: {}", text.len());

        let taken = peak(&stack) - before;
        assert!(taken < MOST, "{template:?}: {taken} kB");
    }
}
