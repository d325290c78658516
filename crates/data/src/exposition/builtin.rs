use super::{EngineConfig, MetricSpec};

/// The engines that need no configuration, by the name that the engine label of an endpoint gives.
pub(super) fn engines() -> [EngineConfig; 5] {
    [vllm(), sglang(), trtllm_serve(), triton_tensorrt_llm(), triton()]
}

fn spec(name: &str) -> Option<MetricSpec> {
    Some(MetricSpec::new(name, &[]))
}

fn labelled(name: &str, label: &str, value: &str) -> Option<MetricSpec> {
    Some(MetricSpec::new(name, &[(label, value)]))
}

pub(super) fn vllm() -> EngineConfig {
    EngineConfig {
        queued_requests_spec: spec("vllm:num_requests_waiting"),
        running_requests_spec: spec("vllm:num_requests_running"),
        kv_usage_spec: spec("vllm:kv_cache_usage_perc"),
        lora_spec: spec("vllm:lora_requests_info"),
        cache_info_spec: spec("vllm:cache_config_info"),
        ..EngineConfig::named("vllm")
    }
}

fn sglang() -> EngineConfig {
    EngineConfig {
        queued_requests_spec: spec("sglang:num_queue_reqs"),
        running_requests_spec: spec("sglang:num_running_reqs"),
        kv_usage_spec: spec("sglang:token_usage"),
        cache_info_spec: spec("sglang:cache_config_info"),
        cache_block_size_label_name: "page_size".to_owned(),
        cache_num_blocks_label_name: "num_pages".to_owned(),
        ..EngineConfig::named("sglang")
    }
}

fn trtllm_serve() -> EngineConfig {
    EngineConfig {
        queued_requests_spec: spec("trtllm_num_requests_waiting"),
        running_requests_spec: spec("trtllm_num_requests_running"),
        kv_usage_spec: spec("trtllm_kv_cache_utilization"),
        cache_block_size_spec: spec("trtllm_kv_cache_tokens_per_block"),
        cache_num_blocks_spec: spec("trtllm_kv_cache_max_blocks"),
        ..EngineConfig::named("trtllm-serve")
    }
}

fn triton_tensorrt_llm() -> EngineConfig {
    let requests = |kind| labelled("nv_trt_llm_request_metrics", "request_type", kind);
    let blocks = |kind| labelled("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", kind);
    EngineConfig {
        queued_requests_spec: requests("waiting"),
        running_requests_spec: requests("scheduled"),
        kv_usage_spec: blocks("fraction"),
        cache_block_size_spec: blocks("tokens_per"),
        cache_num_blocks_spec: blocks("max"),
        ..EngineConfig::named("triton-tensorrt-llm")
    }
}

/// Triton without a backend that counts its requests. What it executes is known only as a counter of executions, so
/// `running` is how many of them there are per second: good to compare endpoints by, but no number of requests.
fn triton() -> EngineConfig {
    EngineConfig {
        queued_requests_spec: spec("nv_inference_pending_request_count"),
        running_requests_spec: spec("nv_inference_exec_count"),
        ..EngineConfig::named("triton")
    }
}
