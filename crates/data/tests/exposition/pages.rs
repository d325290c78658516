//! Random pages.

use proptest::prelude::*;

/// Lines of families that are wanted, of others that are called alike, declarations, and lines that are broken.
pub(crate) fn page() -> impl Strategy<Value = String> {
    let lines = prop::collection::vec(line(), 0..16);
    (lines, prop::sample::select(vec!["\n", "\n", "\r\n"]))
        .prop_map(|(lines, end)| lines.into_iter().map(|line| line + end).collect())
}

fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => sample(),
        1 => (name(), prop::sample::select(vec!["gauge", "counter", "histogram", "summary", "untyped", ""]))
            .prop_map(|(name, kind)| format!("# TYPE {name} {kind}")),
        1 => name().prop_map(|name| format!("# HELP {name} {name} 1")),
        1 => (sample(), 0_usize..80).prop_map(|(line, end)| line.chars().take(end).collect()),
        1 => (sample(), 0_usize..80, prop::sample::select(vec!['"', '\\', '{', '}', ',', '=', ' ', '#', '\r', 'é']))
            .prop_map(|(line, at, added)| {
                let (before, after) = line.split_at(line.floor_char_boundary(at));
                format!("{before}{added}{after}")
            }),
    ]
}

fn sample() -> impl Strategy<Value = String> {
    let labels = prop::collection::btree_map(label_name(), label_value(), 0..4);
    let time = prop_oneof![4 => Just(String::new()), 1 => (0_u32..5).prop_map(|time| format!(" {time}"))];
    let exemplar = prop_oneof![9 => Just(""), 1 => Just(" # {trace_id=\"a b\"} 0.5 7")];
    (name(), labels, value(), time, exemplar).prop_map(|(name, labels, value, time, exemplar)| {
        let labels: Vec<_> = labels.into_iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        format!("{name}{labels} {value}{time}{exemplar}")
    })
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "e:waiting",
        "e:waiting",
        "e:running",
        "e:running",
        "e:kv",
        "e:lora",
        "e:cache",
        "e:block",
        "e:count",
        "e:count_total",
        "e:waiting_total",
        "e:waiting_x",
        "e:wait",
        "e:",
        "e",
        "other",
        "e:done",
        "e:done_total",
        "e:kv_bucket",
    ])
}

fn label_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "engine",
        "state",
        "model",
        "running_lora_adapters",
        "waiting_lora_adapters",
        "max_lora",
        "size",
        "number",
    ])
}

fn label_value() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "", "0", "1", "busy", "a,b", " a , ,c", "None", "16", "-3", "many", r"x\\", r#"\"} 1"#, r"a\nb", "é", "busy ",
    ])
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (0_u32..20).prop_map(|value| value.to_string()),
        2 => (0.0_f64..1.0).prop_map(|value| value.to_string()),
        2 => prop::sample::select(vec![
            "NaN", "+Inf", "-Inf", "-1", "1e300", "1e9", "1e10", "1.005", "1.5", "2.9", "9007199254740993", "0x10", "", "many",
        ])
        .prop_map(str::to_owned),
    ]
}
