use std::collections::{BTreeMap, BTreeSet};

use super::*;
use sluice_core::{CacheGeometry, LoraAdapters, Time};

fn scan(page: &str) -> ScanReport {
    scan_as("vllm", page)
}

fn scan_as(engine: &str, page: &str) -> ScanReport {
    let mappings = EngineMappings::default();
    let labels = BTreeMap::from([(EngineMappings::DEFAULT_LABEL_KEY.to_owned(), engine.to_owned())]);
    mappings.for_labels(&labels).scan(page.as_bytes(), Time::ZERO, &mut ScanState::default())
}

const WAITING: &str = "vllm:num_requests_waiting";

fn waiting(page: &str) -> Option<u64> {
    scan(page).scraped.waiting
}

#[test]
fn a_page_of_vllm_is_read() {
    let report = scan(
        "# HELP vllm:num_requests_running Number of requests in model execution batches.\n\
         # TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
         vllm:num_requests_running_total{engine=\"0\",model_name=\"m\"} 99\n\
         vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n\
         vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25\n\
         vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a, b\",waiting_lora_adapters=\"\"} 1.7e+09\n\
         vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\",sliding_window=\"None\"} 1.0\n",
    );
    let scraped = report.scraped;
    assert_eq!((scraped.running, scraped.waiting, scraped.kv_usage), (Some(3), Some(2), Some(0.25)));
    let running = BTreeSet::from(["a".into(), "b".into()]);
    assert_eq!(scraped.lora, Some(LoraAdapters { running, waiting: BTreeSet::new(), max: Some(4) }));
    assert_eq!(scraped.cache, Some(CacheGeometry { block_size: Some(16), blocks: Some(1000) }));
    assert_eq!((report.ignored_values, report.broken_lines, report.missing), (0, 0, vec![]));
}

#[test]
fn a_line_has_many_spellings() {
    for line in [
        "vllm:num_requests_waiting 7\n",
        "vllm:num_requests_waiting\t7\n",
        "  vllm:num_requests_waiting  7  \n",
        "vllm:num_requests_waiting 7\r\n",
        "vllm:num_requests_waiting{} 7\n",
        "vllm:num_requests_waiting {a=\"b\"}7\n",
        "vllm:num_requests_waiting{a=\"b\",} 7 1700000000000\n",
        "vllm:num_requests_waiting{ a = \"b\" , c = \"\" } 7.9\n",
        "vllm:num_requests_waiting{a=\"\\\"} 1\\\\\\n\"} 7\n",
        "vllm:num_requests_waiting{a=\"b\"} 7 # {trace=\"x\"} 1 2\n",
        "vllm:num_requests_waiting{a=\"b\"} 7 1700000000.5 # {} 1\n",
        "vllm:num_requests_waiting 0.7e1\n# EOF\n",
    ] {
        let report = scan(line);
        assert_eq!((report.scraped.waiting, report.broken_lines), (Some(7), 0), "{line:?}");
    }
}

#[test]
fn a_broken_line_spoils_the_readings_of_its_family_only() {
    for line in [
        WAITING,
        "vllm:num_requests_waiting ",
        "vllm:num_requests_waiting many",
        "vllm:num_requests_waiting{a=\"b\" 7",
        "vllm:num_requests_waiting{a=b} 7",
        "vllm:num_requests_waiting{a=\"b} 7",
        "vllm:num_requests_waiting{a=\"b\\\"} 7",
        "vllm:num_requests_waiting{a=\"\\t\"} 7",
        "vllm:num_requests_waiting{a=\"b\"c=\"d\"} 7",
        "vllm:num_requests_waiting{,} 7",
        "vllm:num_requests_waiting{9=\"b\"} 7",
        "vllm:num_requests_waiting 7 soon",
        "vllm:num_requests_waiting 7 1 2",
        "vllm:num_requests_waiting 7 NaN",
    ] {
        let report = scan(&format!("{line}\nvllm:num_requests_running 1\n{WAITING}{{engine=\"1\"}} 5\n"));
        assert_eq!((report.scraped.waiting, report.scraped.running), (None, Some(1)), "{line:?}");
        assert!(
            report.missing.contains(&"waiting: vllm:num_requests_waiting (not all of it can be read)".into()),
            "{line:?}"
        );
        assert_eq!((report.ignored_values, report.broken_lines), (0, 1), "{line:?}");
    }
}

#[test]
fn a_line_without_an_end_may_be_half_a_line() {
    let report = scan("vllm:num_requests_waiting 12");
    assert_eq!((report.scraped.waiting, report.broken_lines), (None, 1));
}

#[test]
fn other_families_are_passed_over_however_alike() {
    let report = scan(
        "vllm:num_requests_waiting_total 1\nvllm:num_requests_waitin 1\nvllm:num_requests 1\nvllm:num_requests_waiting:x 1\n\
         xvllm:num_requests_waiting 1\nvllm:\nv\n\n{\nother{a=\" 1\nvllm:kv_cache_usage_perc_bucket{le=\"1\"} 1\n",
    );
    assert_eq!((report.scraped.waiting, report.scraped.kv_usage, report.broken_lines), (None, None, 0));
    assert_eq!(report.missing.len(), 4);
    assert!(report.missing.iter().any(|spec| **spec == *format!("waiting: {WAITING}")));
}

#[test]
fn values_that_make_no_sense_are_ignored_and_counted() {
    for value in ["NaN", "+Inf", "-Inf", "-1", "-0.5", "1e10", "1e308"] {
        let report = scan(&format!("{WAITING}{{engine=\"0\"}} {value}\n{WAITING}{{engine=\"1\"}} 5\n"));
        assert_eq!((report.scraped.waiting, report.ignored_values, report.broken_lines), (None, 1, 0), "{value}");
        assert!(
            report.missing.contains(&"waiting: vllm:num_requests_waiting (not all of it can be read)".into()),
            "{value}"
        );
    }
    for (value, expected, ignored) in [("1.004", Some(1.0), 0), ("37", None, 1), ("-0.1", None, 1), ("NaN", None, 1)] {
        let report = scan(&format!("vllm:kv_cache_usage_perc {value}\n"));
        assert_eq!((report.scraped.kv_usage, report.ignored_values), (expected, ignored), "{value}");
    }
}

#[test]
fn the_engines_of_one_server_are_taken_together() {
    let report = scan(
        "vllm:num_requests_waiting{engine=\"0\"} 2\nvllm:num_requests_waiting{engine=\"1\"} 3\n\
         vllm:num_requests_running{engine=\"0\"} 10\nvllm:num_requests_running{engine=\"1\"} 20\n\
         vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.25\n",
    );
    let scraped = report.scraped;
    assert_eq!((scraped.waiting, scraped.running, scraped.kv_usage), (Some(5), Some(30), Some(0.5)));
}

#[test]
fn the_fullest_of_the_caches_is_not_known_where_one_of_them_is_not() {
    for second in ["NaN", "many", "37"] {
        let report =
            scan(&format!("vllm:kv_cache_usage_perc{{e=\"0\"}} 0.1\nvllm:kv_cache_usage_perc{{e=\"1\"}} {second}\n"));
        assert_eq!(report.scraped.kv_usage, None, "{second}");
    }
}

/// An endpoint that has said this, and what is read of the next page.
fn scan_after(before: &[(u64, &str)], at: u64, page: &str) -> sluice_core::Scraped {
    let (mappings, mut state) = (EngineMappings::default(), ScanState::default());
    let vllm = mappings.for_labels(&BTreeMap::new());
    let mut scan = |at, page: &str| vllm.scan(page.as_bytes(), Time::from_millis(at), &mut state).scraped;
    for &(at, page) in before {
        scan(at, page);
    }
    scan(at, page)
}

#[test]
fn an_engine_that_is_not_told_of_any_more_makes_the_sum_unknown_for_a_while() {
    let both = "vllm:num_requests_waiting{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"1\"} 50\n";
    let one = "vllm:num_requests_waiting{engine=\"0\"} 0\n";
    let of = |scraped: sluice_core::Scraped| (scraped.waiting, scraped.lost_queue);
    assert_eq!(of(scan_after(&[(0, both)], 50, both)), (Some(50), false));
    assert_eq!(of(scan_after(&[(0, both)], 50, one)), (None, true));
    assert_eq!(of(scan_after(&[(0, both), (50, one)], 9_999, one)), (None, true));
    assert_eq!(of(scan_after(&[(0, both), (50, one)], 10_000, one)), (Some(0), false), "it has gone for good");
    assert_eq!(of(scan_after(&[(0, both), (50, one)], 100, both)), (Some(50), false));
}

#[test]
fn a_queue_that_is_not_named_any_more_is_missed_for_a_while() {
    let (both, cache) =
        ("vllm:num_requests_waiting 4\nvllm:kv_cache_usage_perc 0.5\n", "vllm:kv_cache_usage_perc 0.5\n");
    let lost = |before: &[(u64, &str)], at| scan_after(before, at, cache).lost_queue;
    assert!(lost(&[(0, both)], 50) && lost(&[(0, both), (50, cache)], 9_999));
    assert!(!lost(&[(0, both), (50, cache)], 10_000), "it has become one that never names it");
    assert!(!lost(&[], 0) && !lost(&[(0, cache)], 50));
}

#[test]
fn a_kind_is_declared_between_any_blanks() {
    for declaration in ["# TYPE vllm:num_requests_waiting counter", "#\tTYPE  vllm:num_requests_waiting \t counter \r"]
    {
        let page = format!("{declaration}\nvllm:num_requests_waiting 3\n");
        assert_eq!(scan(&page).scraped.waiting, None, "{declaration:?}: how a counter stands is no number of requests");
    }
    for comment in ["#TYPE vllm:num_requests_waiting counter", "# TYPEvllm:num_requests_waiting counter", "# TYPE"] {
        assert_eq!(waiting(&format!("{comment}\nvllm:num_requests_waiting 3\n")), Some(3), "{comment:?}");
    }
}

#[test]
fn what_a_hostile_page_has_too_much_of_is_not_read() {
    let names = (0..1_025).map(|name| format!("{name},")).collect::<String>();
    let lora = |names: &str| format!("vllm:lora_requests_info{{max_lora=\"4\",running_lora_adapters=\"{names}\"}} 1\n");
    let report = scan(&lora(&names));
    assert_eq!((report.scraped.lora, report.ignored_values), (None, 1), "too many adapters");
    assert_eq!(scan(&lora(names.strip_suffix("1024,").unwrap())).scraped.lora.unwrap().running.len(), 1_024);
    let report = scan(&lora(&"x".repeat(64 << 10)));
    assert_eq!((report.scraped.lora, report.broken_lines), (None, 1), "a long line");
    let series =
        |count: u32| (0..count).map(|n| format!("vllm:num_requests_waiting{{n=\"{n}\"}} 1\n")).collect::<String>();
    assert_eq!(waiting(&series(10_000)), Some(10_000));
    let report = scan(&series(10_001));
    assert_eq!(report.scraped.waiting, None);
    assert!(
        report.missing.contains(&"waiting: vllm:num_requests_waiting (more than 10000 lines)".into()),
        "{:?}",
        report.missing
    );
}

#[test]
fn a_page_is_read_in_parts_as_it_is_at_once() {
    let page = "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{e=\"0\"} 2\n\n  vllm:num_requests_running 3\n\
                vllm:num_requests_waiting{e=\"1\"} 3\nvllm:kv_cache_usage_perc 0.5";
    let mappings = EngineMappings::default();
    let vllm = mappings.for_labels(&BTreeMap::new());
    for bytes in 1..page.len() + 2 {
        let mut scan = vllm.begin(page.as_bytes());
        let mut parts = 1;
        while !scan.advance(bytes) {
            parts += 1;
        }
        assert!(parts <= page.len().div_ceil(bytes), "{bytes}");
        assert!(bytes > 20 || parts >= 4, "{bytes}");
        assert_eq!(scan.finish(Time::ZERO, &mut ScanState::default()), self::scan(page), "{bytes}");
    }
}

#[test]
fn of_the_samples_of_one_series_the_latest_counts() {
    assert_eq!(waiting(&format!("{WAITING} 9 100\n{WAITING} 4 300\n{WAITING} 5 200\n")), Some(4));
    assert_eq!(
        waiting(&format!("{WAITING}{{e=\"0\"}} 9 1\n{WAITING}{{e=\"0\"}} 4 2\n{WAITING}{{e=\"1\"}} 5 1\n")),
        Some(9)
    );
}

#[test]
fn a_summary_is_no_number_of_requests() {
    let report = scan(&format!("# TYPE {WAITING} summary\n{WAITING}{{quantile=\"0.5\"}} 3\n"));
    assert_eq!((report.scraped.waiting, report.ignored_values), (None, 1));
    assert_eq!(waiting(&format!("# TYPE {WAITING} untyped\n{WAITING} 3\n")), Some(3));
}

#[test]
fn the_lora_series_with_the_largest_value_is_the_newest() {
    let report = scan(
        "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"old\",waiting_lora_adapters=\"\"} 1.70e9\n\
         vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"new\",waiting_lora_adapters=\",x ,\"} 1.71e9\n\
         vllm:lora_requests_info{max_lora=\"many\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.69e9\n",
    );
    let expected =
        LoraAdapters { running: BTreeSet::from(["new".into()]), waiting: BTreeSet::from(["x".into()]), max: Some(2) };
    assert_eq!(report.scraped.lora, Some(expected));
}

#[test]
fn a_cache_that_does_not_know_its_size_yet_is_no_mistake() {
    let report = scan("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n");
    assert_eq!(report.scraped.cache, Some(CacheGeometry { block_size: Some(16), blocks: None }));
    assert_eq!(report.ignored_values, 0);
    let report = scan("vllm:cache_config_info{block_size=\"-16\",num_gpu_blocks=\"\"} 1\n");
    assert_eq!((report.scraped.cache, report.ignored_values), (None, 1));
}

#[test]
fn every_built_in_engine_is_read_by_its_names() {
    let read = |engine, page| {
        let report = scan_as(engine, page);
        assert!(report.missing.is_empty(), "{engine}: {:?}", report.missing);
        let scraped = report.scraped;
        let cache = scraped.cache.map(|cache| (cache.block_size, cache.blocks));
        (scraped.waiting, scraped.running, scraped.kv_usage, cache)
    };
    let expected = (Some(1), Some(2), Some(0.5), Some((Some(32), Some(64))));
    assert_eq!(
        read(
            "sglang",
            "sglang:num_queue_reqs{model_name=\"m\"} 1\nsglang:num_running_reqs 2\nsglang:token_usage 0.5\n\
             sglang:cache_config_info{page_size=\"32\",num_pages=\"64\"} 1\n",
        ),
        expected
    );
    assert_eq!(
        read(
            "trtllm-serve",
            "trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.5\n\
             trtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 64\n",
        ),
        expected
    );
    assert_eq!(
        read(
            "triton-tensorrt-llm",
            "nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\",version=\"1\"} 1\n\
             nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\",version=\"1\"} 2\n\
             nv_trt_llm_request_metrics{model=\"m\",request_type=\"max\",version=\"1\"} 512\n\
             nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.5\n\
             nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"} 32\n\
             nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 64\n",
        ),
        expected
    );
}

#[test]
fn a_counter_of_executions_is_read_as_its_growth() {
    let mappings = EngineMappings::new("triton", "engine", &[]).unwrap();
    let triton = mappings.for_labels(&BTreeMap::new());
    let mut state = ScanState::default();
    let mut running = |millis, count: u64| {
        let page = format!(
            "# TYPE nv_inference_exec_count counter\nnv_inference_exec_count{{model=\"a\"}} {count}\n\
             nv_inference_exec_count{{model=\"b\"}} 1000\nnv_inference_pending_request_count 4\n"
        );
        let scraped = triton.scan(page.as_bytes(), Time::from_millis(millis), &mut state).scraped;
        assert_eq!(scraped.waiting, Some(4));
        scraped.running
    };
    assert_eq!(running(0, 5000), None);
    assert_eq!(running(1000, 5012), Some(12));
    assert_eq!(running(1050, 5099), Some(12));
    assert_eq!(running(2000, 10), None, "it started again");
    // The state of an endpoint that turns out to run another engine is of no use.
    mappings.for_labels(&BTreeMap::from([("engine".to_owned(), "vllm".to_owned())])).scan(
        b"",
        Time::from_millis(3000),
        &mut state,
    );
    assert!(format!("{state:?}").contains("vllm"));
}

#[test]
fn a_counter_of_open_metrics_is_found_under_either_name() {
    let custom = |spec: &str| CustomMetric { attribute_key: spec.to_owned(), metric_spec: spec.parse().unwrap() };
    let config = EngineConfig {
        custom_metrics: vec![custom("jobs"), custom("jobs_total")],
        running_requests_spec: Some("jobs_running".parse().unwrap()),
        ..EngineConfig::named("own")
    };
    let mappings = EngineMappings::new("own", "engine", &[config]).unwrap();
    let own = mappings.for_labels(&BTreeMap::new());
    let page = b"# TYPE jobs counter\njobs_total{a=\"b\"} 3\njobs_created{a=\"b\"} 17\njobs_running 1\n# EOF\n";
    let report = own.scan(page, Time::ZERO, &mut ScanState::default());
    assert_eq!(report.scraped.custom, BTreeMap::from([("jobs".into(), 3.0), ("jobs_total".into(), 3.0)]));
    assert_eq!(report.scraped.running, Some(1));
}

#[test]
fn an_engine_of_the_configuration_replaces_the_built_in_one_as_a_whole() {
    let own = EngineConfig { kv_usage_spec: Some("kv".parse().unwrap()), ..EngineConfig::named("vllm") };
    let mappings = EngineMappings::new("vllm", "engine", &[own]).unwrap();
    let page = format!("{WAITING} 5\nkv 0.5\nvllm:kv_cache_usage_perc 0.9\n");
    let report = mappings.for_labels(&BTreeMap::new()).scan(page.as_bytes(), Time::ZERO, &mut ScanState::default());
    assert_eq!((report.scraped.waiting, report.scraped.kv_usage), (None, Some(0.5)));
    assert_eq!(report.missing, Vec::<std::sync::Arc<str>>::new());
}

#[test]
fn the_label_of_an_endpoint_names_its_engine() {
    let mappings = EngineMappings::new("sglang", "engine", &[]).unwrap();
    let engine = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        mappings.for_labels(&labels).name().to_string()
    };
    assert_eq!(engine(&[]), "sglang");
    assert_eq!(engine(&[("engine", "triton")]), "triton");
    assert_eq!(engine(&[("engine", "unheard-of")]), "sglang");
    assert_eq!(engine(&[(EngineMappings::LEGACY_LABEL_KEY, "vllm")]), "vllm");
    assert_eq!(engine(&[(EngineMappings::LEGACY_LABEL_KEY, "vllm"), ("engine", "triton")]), "triton");
}

#[test]
fn all_mistakes_in_the_engines_are_told() {
    let custom = |key: &str| CustomMetric { attribute_key: key.to_owned(), metric_spec: "m".parse().unwrap() };
    let configs = [
        EngineConfig::named(""),
        EngineConfig::named("default"),
        EngineConfig { custom_metrics: vec![custom("a"), custom(""), custom("a")], ..EngineConfig::named("own") },
        EngineConfig::named("own"),
    ];
    let errors = EngineMappings::new("other", "engine", &configs).unwrap_err();
    let errors: Vec<_> = errors.iter().map(|error| format!("{}: {error}", error.parameter())).collect();
    assert_eq!(
        errors,
        [
            "engineConfigs[0].name: the name of an engine is empty",
            "engineConfigs[1].name: \"default\" is not a name for an engine; say which one is it with defaultEngine",
            "engineConfigs[2].customMetrics[1].attributeKey: the key is empty",
            "engineConfigs[2].customMetrics[2].attributeKey: another metric of the engine has the key \"a\"",
            "engineConfigs[3].name: another engine is called \"own\"",
            "defaultEngine: there is no engine \"other\"; the engines are own, sglang, triton, triton-tensorrt-llm, trtllm-serve, vllm",
        ]
    );
}

/// The cells of the rows of all tables of the page, without the marks of code.
fn documented_rows() -> Vec<Vec<String>> {
    let page = include_str!("../../../../docs/engines.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect()).collect()
}

#[test]
fn the_built_in_engines_are_documented() {
    let rows = documented_rows();
    let text = |spec: &Option<MetricSpec>| spec.as_ref().map_or_else(String::new, ToString::to_string);
    for engine in builtin::engines() {
        let rows: Vec<_> = rows.iter().filter(|row| row[0] == engine.name).collect();
        let [levels, cache] = rows.as_slice() else { panic!("{}: {rows:?}", engine.name) };
        assert_eq!(levels[1], text(&engine.queued_requests_spec), "{}", engine.name);
        assert_eq!(levels[2].trim_end_matches(" (per second)"), text(&engine.running_requests_spec), "{}", engine.name);
        assert_eq!(levels[3], text(&engine.kv_usage_spec), "{}", engine.name);
        if let Some(info) = &engine.cache_info_spec {
            assert_eq!(cache[1], format!("label {} of {info}", engine.cache_block_size_label_name), "{}", engine.name);
            assert_eq!(cache[2], format!("its label {}", engine.cache_num_blocks_label_name), "{}", engine.name);
        } else {
            assert_eq!(cache[1], text(&engine.cache_block_size_spec), "{}", engine.name);
            assert_eq!(cache[2], text(&engine.cache_num_blocks_spec), "{}", engine.name);
        }
        assert_eq!(cache[3], text(&engine.lora_spec), "{}", engine.name);
    }
}

#[test]
fn the_fields_of_an_engine_are_documented() {
    let written = serde_json::to_value(EngineConfig::named("own")).unwrap();
    let rows = documented_rows();
    for (field, default) in written.as_object().unwrap() {
        let row = rows.iter().find(|row| row[0] == *field).unwrap_or_else(|| panic!("{field} is not documented"));
        if default.is_string() && field != "name" {
            assert_eq!(row[1], *default, "{field}");
        }
    }
}
