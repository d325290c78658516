//! A page of metrics of the size and shape that a busy vLLM serves.
//!
//! The simulator's own page has the series that a gateway looks at. A real one hides them among some six hundred lines of
//! others, most of them buckets of histograms; readers of pages are to be measured on that.

use std::fmt;

use crate::metrics::{FIRST_TOKEN_SECONDS, NEXT_TOKEN_SECONDS, REQUEST_SECONDS};

/// What a page says of a server with one or more engines. With one engine a page has about
/// 60 kB, with each further one about 45 kB more.
#[derive(Clone, Debug)]
pub struct Page {
    pub model_name: String,
    pub engines: Vec<EngineGauges>,
    /// Requests served so far, by each engine: the counts of all histograms and counters follow from it.
    pub served: u64,
}

/// The levels of one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineGauges {
    pub running: u64,
    pub waiting: u64,
    /// 0 to 1.
    pub kv_cache_usage: f64,
}

impl Page {
    /// The page of a server with these engines, after some requests.
    pub fn new(engines: impl Into<Vec<EngineGauges>>) -> Self {
        Self { model_name: "meta-llama/Llama-3.1-8B-Instruct".to_owned(), engines: engines.into(), served: 48_213 }
    }

    /// Tokens per block, and blocks, of each engine's KV cache.
    pub const CACHE: (u64, u64) = (16, 27_583);
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        process(f)?;
        self.levels(f)?;
        self.counters(f)?;
        for (name, bounds) in HISTOGRAMS {
            self.histogram(f, name, bounds)?;
        }
        self.adapters_and_cache(f)?;
        self.http(f)
    }
}

const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 50_000.0,
    100_000.0,
];
const BATCH_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0];

const HISTOGRAMS: [(&str, &[f64]); 15] = [
    ("vllm:request_prompt_tokens", TOKENS),
    ("vllm:request_generation_tokens", TOKENS),
    ("vllm:iteration_tokens_total", BATCH_TOKENS),
    ("vllm:request_max_num_generation_tokens", TOKENS),
    ("vllm:request_params_n", &[1.0, 2.0, 5.0, 10.0, 20.0]),
    ("vllm:request_params_max_tokens", TOKENS),
    ("vllm:time_to_first_token_seconds", FIRST_TOKEN_SECONDS),
    ("vllm:inter_token_latency_seconds", NEXT_TOKEN_SECONDS),
    ("vllm:request_time_per_output_token_seconds", NEXT_TOKEN_SECONDS),
    ("vllm:e2e_request_latency_seconds", REQUEST_SECONDS),
    ("vllm:request_queue_time_seconds", REQUEST_SECONDS),
    ("vllm:request_inference_time_seconds", REQUEST_SECONDS),
    ("vllm:request_prefill_time_seconds", REQUEST_SECONDS),
    ("vllm:request_decode_time_seconds", REQUEST_SECONDS),
    ("vllm:request_prefill_kv_computed_tokens", TOKENS),
];

/// What the Python runtime says of its process.
fn process(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (name, kind) in [
        ("python_gc_objects_collected_total", "counter"),
        ("python_gc_objects_uncollectable_total", "counter"),
        ("python_gc_collections_total", "counter"),
    ] {
        head(f, name, kind)?;
        for generation in 0..3 {
            writeln!(f, "{name}{{generation=\"{generation}\"}} {}.0", 10_783 >> (3 * generation))?;
        }
    }
    for (name, kind, value) in [
        ("process_virtual_memory_bytes", "gauge", "1.2872495104e+010"),
        ("process_resident_memory_bytes", "gauge", "8.03106816e+08"),
        ("process_start_time_seconds", "gauge", "1.77233912041e+09"),
        ("process_cpu_seconds_total", "counter", "41.9"),
        ("process_open_fds", "gauge", "64.0"),
        ("process_max_fds", "gauge", "1.048576e+06"),
    ] {
        head(f, name, kind)?;
        writeln!(f, "{name} {value}")?;
    }
    Ok(())
}

fn head(f: &mut fmt::Formatter<'_>, name: &str, kind: &str) -> fmt::Result {
    writeln!(
        f,
        "# HELP {name} What is known as {} of this server, since it started.\n# TYPE {name} {kind}",
        &name.replace(['_', ':'], " ")
    )
}

impl Page {
    fn each(
        &self,
        f: &mut fmt::Formatter<'_>,
        name: &str,
        kind: &str,
        value: impl Fn(&EngineGauges) -> f64,
    ) -> fmt::Result {
        head(f, name, kind)?;
        for (engine, gauges) in self.engines.iter().enumerate() {
            let model = &self.model_name;
            writeln!(f, "{name}{{engine=\"{engine}\",model_name=\"{model}\"}} {:?}", value(gauges))?;
        }
        Ok(())
    }

    fn levels(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.each(f, "vllm:num_requests_running", "gauge", |gauges| count(gauges.running))?;
        self.each(f, "vllm:num_requests_waiting", "gauge", |gauges| count(gauges.waiting))?;
        self.each(f, "vllm:kv_cache_usage_perc", "gauge", |gauges| gauges.kv_cache_usage)
    }

    fn counters(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, per_request) in [
            ("vllm:prefix_cache_queries_total", 700),
            ("vllm:prefix_cache_hits_total", 500),
            ("vllm:external_prefix_cache_queries_total", 0),
            ("vllm:external_prefix_cache_hits_total", 0),
            ("vllm:mm_cache_queries_total", 0),
            ("vllm:mm_cache_hits_total", 0),
            ("vllm:num_preemptions_total", 0),
            ("vllm:prompt_tokens_total", 700),
            ("vllm:generation_tokens_total", 180),
        ] {
            self.each(f, name, "counter", |_| count(self.served * per_request))?;
            self.each(f, &name.replace("_total", "_created"), "gauge", |_| CREATED)?;
        }
        let name = "vllm:request_success_total";
        head(f, name, "counter")?;
        for engine in 0..self.engines.len() {
            for reason in ["stop", "length", "abort", "error"] {
                let model = &self.model_name;
                writeln!(
                    f,
                    "{name}{{engine=\"{engine}\",finished_reason=\"{reason}\",model_name=\"{model}\"}} {}.0",
                    self.served / 4
                )?;
            }
        }
        Ok(())
    }

    fn histogram(&self, f: &mut fmt::Formatter<'_>, name: &str, bounds: &[f64]) -> fmt::Result {
        head(f, name, "histogram")?;
        for engine in 0..self.engines.len() {
            let model = &self.model_name;
            let labels = format!("engine=\"{engine}\",model_name=\"{model}\"");
            buckets(f, name, &labels, bounds, self.served)?;
        }
        self.each(f, &format!("{name}_created"), "gauge", |_| CREATED)
    }

    fn adapters_and_cache(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "vllm:lora_requests_info";
        head(f, name, "gauge")?;
        for (running, waiting, seconds) in [("", "", 0), ("sql-lora", "", 3), ("sql-lora,chat-lora", "tweet-lora", 7)] {
            writeln!(
                f,
                "{name}{{max_lora=\"4\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} \
                 1.77233918{seconds}00000e+09"
            )?;
        }
        let name = "vllm:cache_config_info";
        let (block_size, blocks) = Self::CACHE;
        head(f, name, "gauge")?;
        for engine in 0..self.engines.len() {
            writeln!(
                f,
                "{name}{{block_size=\"{block_size}\",cache_dtype=\"auto\",calculate_kv_scales=\"False\",cpu_offload_gb=\"0\",\
                 enable_prefix_caching=\"True\",engine=\"{engine}\",gpu_memory_utilization=\"0.9\",is_attention_free=\"False\",\
                 kv_cache_memory_bytes=\"None\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",\
                 num_gpu_blocks_override=\"None\",prefix_caching_hash_algo=\"sha256\",sliding_window=\"None\",\
                 swap_space=\"4\",swap_space_bytes=\"4294967296\"}} 1.0"
            )?;
        }
        Ok(())
    }

    /// What the HTTP server says of its routes.
    fn http(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "http_requests_total";
        head(f, name, "counter")?;
        for route in ["/v1/chat/completions", "/v1/completions", "/v1/models", "/health"] {
            for status in ["2xx", "4xx"] {
                writeln!(f, "{name}{{handler=\"{route}\",method=\"POST\",status=\"{status}\"}} {}.0", self.served)?;
            }
        }
        let name = "http_request_duration_seconds";
        head(f, name, "histogram")?;
        for route in ["/v1/chat/completions", "/v1/completions"] {
            let labels = format!("handler=\"{route}\",method=\"POST\"");
            buckets(f, name, &labels, NEXT_TOKEN_SECONDS, self.served)?;
        }
        Ok(())
    }
}

/// When the page's server started, in seconds since 1970.
const CREATED: f64 = 1_772_339_180.417_3;

/// The lines of one series of a histogram. Each bucket holds half of what is above it.
fn buckets(f: &mut fmt::Formatter<'_>, name: &str, labels: &str, bounds: &[f64], served: u64) -> fmt::Result {
    let mut above = served;
    for bound in bounds {
        above /= 2;
        writeln!(f, "{name}_bucket{{{labels},le=\"{bound:?}\"}} {:?}", count(served - above))?;
    }
    writeln!(f, "{name}_bucket{{{labels},le=\"+Inf\"}} {:?}", count(served))?;
    writeln!(f, "{name}_count{{{labels}}} {:?}", count(served))?;
    writeln!(f, "{name}_sum{{{labels}}} {:?}", count(served) * 1.37)
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests and tokens are exact")]
const fn count(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_one_engine_is_as_long_as_a_real_one() {
        let gauges = EngineGauges { running: 12, waiting: 3, kv_cache_usage: 0.41 };
        let page = Page::new([gauges]).to_string();
        assert!((55_000..=65_000).contains(&page.len()), "{}", page.len());
        assert!((500..=800).contains(&page.lines().count()), "{}", page.lines().count());
        let line = "vllm:num_requests_waiting{engine=\"0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 3.0";
        assert_eq!(page.lines().filter(|found| *found == line).count(), 1);
    }
}
