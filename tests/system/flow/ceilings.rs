//! Lower bands leave a reserve to higher ones.

use serde_json::json;

use super::support::{Counted, config};

/// 32 slots, of which the objectives high, middle and low may fill 0.9, 0.8 and 0.6; interactive all of them.
async fn reserve() -> Counted {
    let mut config = config(
        16,
        &json!({"usageLimitPolicyPluginRef": "reserve"}),
        &json!({"objectives": [
            {"name": "interactive", "priority": 100},
            {"name": "high", "priority": 2},
            {"name": "middle", "priority": 1},
            {"name": "low", "priority": -1},
        ]}),
    );
    let ceilings = json!([
        {"priority": 100, "ceiling": 1.0},
        {"priority": 2, "ceiling": 0.9},
        {"priority": 1, "ceiling": 0.8},
        {"priority": -1, "ceiling": 0.6},
    ]);
    let policy = json!({"name": "reserve", "type": "priority-holdback-policy", "parameters": {"ceilings": ceilings}});
    config["plugins"].as_array_mut().unwrap().push(policy);
    Counted::start(2, &config).await.unwrap()
}

#[tokio::test]
async fn each_band_alone_tops_out_at_its_slots_and_interactive_fills_the_rest() {
    let mut pool = reserve().await;
    for (objective, priority, slots) in [("low", -1, 20), ("middle", 1, 26), ("high", 2, 29)] {
        for index in 0..40 {
            let request = pool.chat_for(objective, &format!("{objective}-{index}"));
            pool.send(request);
        }
        pool.wait_for(slots, 40 - slots as u64).await.unwrap();
        let gated = pool.band(priority).await.unwrap()["gated"].clone();
        assert!(gated.as_str().is_some_and(|why| why.starts_with("saturation of ")), "{objective}: {gated}");

        for index in 0..32 - slots {
            let request = pool.chat_for("interactive", &format!("interactive-{index}"));
            pool.send(request);
        }
        pool.wait_for(32, 40 - slots as u64).await.unwrap();
        pool.hang_up().await.unwrap();
    }
    assert!(pool.servers.iter().all(|server| server.peak() == 16));

    // Whoever came into the reserve was let in by the call that brought it, 12, 6 and 3 times: nothing ended meanwhile that
    // could have let them in later. The bound is for a busy machine.
    let metrics = pool.stack.picker.metrics().await.unwrap();
    let waited = |bound: &str| {
        let labels = [("priority", "100"), ("outcome", "Dispatched"), ("le", bound)];
        metrics.count("llm_d_epp_flow_control_request_queue_duration_seconds_bucket", &labels)
    };
    assert_eq!((waited("0.5"), waited("+Inf")), (Some(21), Some(21)));
}

#[tokio::test]
async fn a_dry_run_counts_what_a_ceiling_would_hold_back_and_holds_back_nothing() {
    let mut config = config(10, &json!({"usageLimitPolicyPluginRef": "reserve"}), &json!({"dryRun": ["ceilings"]}));
    let parameters = json!({"ceilings": [{"priority": 0, "ceiling": 1.0}, {"priority": -10, "ceiling": 0.5}]});
    let policy = json!({"name": "reserve", "type": "priority-holdback-policy", "parameters": parameters});
    config["plugins"].as_array_mut().unwrap().push(policy);
    let mut pool = Counted::start(1, &config).await.unwrap();
    for index in 0..10 {
        let request = pool.chat_for("batch", &index.to_string());
        pool.send(request);
    }
    pool.wait_for(10, 0).await.unwrap();
    let metrics = pool.stack.picker.metrics().await.unwrap();
    let would = metrics.count("llm_d_epp_flow_control_would_gate_total", &[("priority", "-10")]);
    assert_eq!(would, Some(5));
}
