use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use sluice_testkit::{Class, EnvoyConfig, Exposition, Load, PickerConfig, Simulator, Stack, Tally, Template};

use super::{MODEL, Programs};

/// The slots of a simulated model server: what the examples in `config/` take for its limit.
pub(super) const SLOTS: &str = "32";

/// With every slot taken a token comes every 150 ms; with few, every 120 ms. Few and slow tokens keep the processor
/// idle enough for the waits to be those of the pool and not those of the machine.
const ENGINE: [&str; 8] =
    ["--model", MODEL, "--max-num-seqs", "32", "--time-per-output-token", "150", "--fixed-step-share", "0.8"];

/// Model servers behind Envoy and a picker with one of the examples in `config/`.
pub(super) struct Pool {
    // Before the servers, so that nothing is sent to one that is gone.
    stack: Stack,
    _servers: Vec<Simulator>,
}

impl Pool {
    pub(super) async fn start(
        programs: &Programs,
        servers: usize,
        config: impl FnOnce(&Path) -> Result<PickerConfig>,
    ) -> Result<Self> {
        let mut started = Vec::new();
        for _ in 0..servers {
            started.push(Simulator::start(&programs.simulator, &ENGINE).await?);
        }
        let addresses: Vec<_> = started.iter().map(Simulator::address).collect();
        let envoy = EnvoyConfig::from_template(Template::FullDuplex)?;
        let stack = Stack::start_configured(&programs.picker, &[], config, envoy, &addresses).await?;
        Ok(Self { stack, _servers: started })
    }

    /// Where to see what waits and why.
    pub(super) fn flow_page(&self) -> String {
        self.stack.picker.page("/debug/flow")
    }

    /// Where clients send their requests.
    pub(super) fn url(&self, path: &str) -> String {
        self.stack.envoy.url(path)
    }

    /// Sends for `duration` and waits for everything to end.
    pub(super) async fn load(&self, classes: &[Class], duration: Duration) -> Result<Vec<Tally>> {
        let url = self.url("/v1/chat/completions");
        Load { url: &url, model: MODEL, classes, duration, seed: 1 }.run().await
    }

    /// The same, and the most requests of a priority that `/debug/flow` showed in flight at once meanwhile.
    pub(super) async fn watched_load(
        &self,
        classes: &[Class],
        duration: Duration,
        priority: i32,
    ) -> Result<(Vec<Tally>, u64)> {
        let mut most = 0;
        let watch = async {
            loop {
                let page = self.stack.picker.flow().await?;
                let bands = page["bands"].as_array().into_iter().flatten();
                let flows = bands.filter(|band| band["priority"] == priority).flat_map(|band| band["flows"].as_array());
                let in_flight = flows.flatten().filter_map(|flow| flow["inFlight"].as_u64()).sum();
                most = most.max(in_flight);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let tallies = tokio::select! {
            biased;
            tallies = self.load(classes, duration) => tallies?,
            stopped = watch => return stopped,
        };
        if most == 0 {
            bail!("{} never showed a request of priority {priority} in flight", self.flow_page());
        }
        Ok((tallies, most))
    }

    pub(super) async fn metrics(&self) -> Result<Exposition> {
        self.stack.picker.metrics().await
    }
}

/// How long requests with these labels waited in the picker, on average; `None` if none went through its queue.
pub(super) fn mean_wait(page: &Exposition, labels: &[(&str, &str)]) -> Option<Duration> {
    const WAITS: &str = "llm_d_epp_flow_control_request_queue_duration_seconds";
    let sum = page.sum(&format!("{WAITS}_sum"), labels)?;
    let count = page.sum(&format!("{WAITS}_count"), labels)?;
    Duration::try_from_secs_f64(sum / count).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_the_mean_over_every_series_with_the_labels() {
        let page = "\
llm_d_epp_flow_control_request_queue_duration_seconds_sum{priority=\"0\",fairness_id=\"a\"} 3
llm_d_epp_flow_control_request_queue_duration_seconds_count{priority=\"0\",fairness_id=\"a\"} 2
llm_d_epp_flow_control_request_queue_duration_seconds_sum{priority=\"0\",fairness_id=\"b\"} 1
llm_d_epp_flow_control_request_queue_duration_seconds_count{priority=\"0\",fairness_id=\"b\"} 6
llm_d_epp_flow_control_request_queue_duration_seconds_sum{priority=\"1\",fairness_id=\"a\"} 0
llm_d_epp_flow_control_request_queue_duration_seconds_count{priority=\"1\",fairness_id=\"a\"} 0
";
        let page = Exposition::parse(page).unwrap();
        assert_eq!(mean_wait(&page, &[("priority", "0")]), Some(Duration::from_millis(500)));
        assert_eq!(mean_wait(&page, &[("fairness_id", "a"), ("priority", "0")]), Some(Duration::from_millis(1500)));
        assert_eq!(mean_wait(&page, &[("priority", "1")]), None);
        assert_eq!(mean_wait(&page, &[("priority", "2")]), None);
    }
}
