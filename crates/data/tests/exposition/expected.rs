//! What is to be read of a page, worked out from a list of all its lines.

use std::sync::Arc;

use sluice_core::{CacheGeometry, LoraAdapters, Scraped, Time};
use sluice_data::{EngineConfig, EngineMappings, ScanReport};

use crate::plain::{Line, Plain, Sample};

const ENGINE: &str = r#"{
    "name": "e",
    "queuedRequestsSpec": "e:waiting",
    "runningRequestsSpec": "e:running{state=busy}",
    "kvUsageSpec": "e:kv",
    "loraSpec": "e:lora",
    "cacheInfoSpec": "e:cache{model=\"\"}",
    "cacheBlockSizeLabelName": "size",
    "cacheNumBlocksLabelName": "number",
    "cacheBlockSizeSpec": "e:block",
    "cacheNumBlocksSpec": "e:count_total",
    "customMetrics": [
        {"attributeKey": "done", "metricSpec": "e:done"},
        {"attributeKey": "busy", "metricSpec": "e:running{state=busy,engine=\"1\"}"}
    ]
}"#;

/// The engine of the random pages.
pub(crate) fn mappings() -> EngineMappings {
    let config: EngineConfig = serde_json::from_str(ENGINE).unwrap();
    EngineMappings::new("e", "engine", &[config]).unwrap()
}

/// The report on a page as the plain reader would write it.
#[derive(Default)]
pub(crate) struct Expected<'a> {
    lines: &'a [Line],
    ignored_values: u64,
    missing: Vec<Arc<str>>,
}

impl Expected<'_> {
    pub(crate) fn of(page: &str) -> ScanReport {
        let plain = Plain::read(page);
        let mut expected = Expected { lines: &plain.lines, ..Expected::default() };
        let mut scraped = Scraped { engine: Some("e".into()), ..Scraped::at(Time::ZERO) };
        let requests = |value: f64| (0.0..=1e9).contains(&value);
        let size = |value: f64| (1.0..=9_007_199_254_740_992.0).contains(&value);

        // In the order of the names.
        let block = expected.newest("e:block", &[], size);
        let info = expected.labels("e:cache{model=\"\"}", "e:cache", &[("model", "")]);
        let blocks = expected.newest("e:count_total", &[], size);
        let done = expected.newest("e:done", &[], f64::is_finite);
        let usage = expected.all("e:kv", "e:kv", &[], |value| (0.0..=1.01).contains(&value));
        let lora = expected.series("", "e:lora", &[], f64::is_finite);
        let busy = [("state", "busy")];
        let running = expected.all("e:running{state=\"busy\"}", "e:running", &busy, requests);
        let one_busy = expected.newest("e:running", &[("state", "busy"), ("engine", "1")], f64::is_finite);
        let waiting = expected.all("e:waiting", "e:waiting", &[], requests);

        scraped.waiting = waiting.and_then(|series| expected.total("e:waiting", &series));
        scraped.running = running.and_then(|series| expected.total("e:running", &series));
        scraped.kv_usage = usage.unwrap_or_default().iter().map(|sample| sample.value.min(1.0)).reduce(f64::max);
        let lora = lora.into_iter().rev().max_by(|a, b| a.value.total_cmp(&b.value));
        scraped.lora = lora.map(|sample| expected.adapters(&sample));
        let of_info = |expected: &mut Expected<'_>, label: &str| {
            info.as_ref().and_then(|sample| expected.whole(sample.labels.get(label).map(String::as_str)))
        };
        let block_size = of_info(&mut expected, "size").or_else(|| block.map(whole_part));
        let blocks = of_info(&mut expected, "number").or_else(|| blocks.map(whole_part));
        let known = block_size.is_some() || blocks.is_some();
        scraped.cache = known.then_some(CacheGeometry { block_size, blocks });
        scraped.custom.extend(done.map(|value| ("done".into(), value)));
        scraped.custom.extend(one_busy.map(|value| ("busy".into(), value)));

        let broken = plain.lines.iter().filter(|line| line.sample.is_none() && line.is_wanted());
        ScanReport {
            scraped,
            ignored_values: expected.ignored_values,
            broken_lines: broken.count() as u64,
            missing: expected.missing,
        }
    }

    /// The series, if each of them can be read.
    fn all(
        &mut self,
        spec: &str,
        name: &str,
        labels: &[(&str, &str)],
        sensible: impl Fn(f64) -> bool,
    ) -> Option<Vec<Sample>> {
        let (ignored, missing) = (self.ignored_values, self.missing.len());
        let series = self.series(spec, name, labels, sensible);
        let is_broken = self.lines.iter().any(|line| line.sample.is_none() && line.kind(name).is_some());
        if !is_broken && ignored == self.ignored_values {
            return Some(series);
        }
        self.missing.truncate(missing);
        self.missing.push(format!("{} (not all of it can be read)", named(spec)).into());
        None
    }

    /// The latest sample of each series with these labels whose value is sensible, in the order of the page.
    fn series(
        &mut self,
        spec: &str,
        name: &str,
        labels: &[(&str, &str)],
        sensible: impl Fn(f64) -> bool,
    ) -> Vec<Sample> {
        let mut series: Vec<Sample> = Vec::new();
        let mut found = false;
        for line in self.lines {
            let (Some(kind), Some(sample)) = (line.kind(name), &line.sample) else { continue };
            let value_of = |label: &str| sample.labels.get(label).map_or("", String::as_str);
            if !labels.iter().all(|&(label, value)| value_of(label) == value) {
                continue;
            }
            found = true;
            let counts = kind == "counter" && matches!(name, "e:waiting" | "e:running");
            let most = |value| {
                if counts && labels.len() < 2 {
                    (0.0..=9_007_199_254_740_992.0).contains(&value)
                } else {
                    sensible(value)
                }
            };
            let part = matches!(kind, "histogram" | "gaugehistogram" | "summary") && name != "e:cache";
            if part || !most(sample.value) {
                self.ignored_values += 1;
                continue;
            }
            match series.last_mut() {
                Some(last) if last.labels == sample.labels => {
                    if sample.timestamp >= last.timestamp {
                        *last = sample.clone();
                    }
                }
                _ => series.push(sample.clone()),
            }
        }
        if !found && !spec.is_empty() {
            self.missing.push(named(spec).into());
        }
        series
    }

    fn newest(&mut self, name: &str, labels: &[(&str, &str)], sensible: impl Fn(f64) -> bool) -> Option<f64> {
        let spec = if labels.is_empty() { name } else { "e:running{state=\"busy\",engine=\"1\"}" };
        newest(self.series(spec, name, labels, sensible)).map(|sample| sample.value)
    }

    fn labels(&mut self, spec: &str, name: &str, labels: &[(&str, &str)]) -> Option<Sample> {
        newest(self.series(spec, name, labels, |_| true))
    }

    /// The sum; nothing if it is of counters, of which this is the first one seen.
    fn total(&self, name: &str, series: &[Sample]) -> Option<u64> {
        let sum = series.iter().map(|sample| sample.value).reduce(|sum, value| sum + value)?;
        (!self.is_counter(name)).then_some(whole_part(sum))
    }

    fn is_counter(&self, name: &str) -> bool {
        let of_family = self.lines.iter().filter_map(|line| Some((line.kind(name)?, line.sample.as_ref()?)));
        let mut wanted = of_family.filter(|(_, sample)| {
            name != "e:running" || sample.labels.get("state").is_some_and(|state| state == "busy")
        });
        wanted.next_back().is_some_and(|(kind, _)| kind == "counter")
    }

    fn adapters(&mut self, sample: &Sample) -> LoraAdapters {
        let listed = |label: &str| {
            let list = sample.labels.get(label).map_or("", String::as_str);
            list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(Arc::from).collect()
        };
        LoraAdapters {
            running: listed("running_lora_adapters"),
            waiting: listed("waiting_lora_adapters"),
            max: self.whole(sample.labels.get("max_lora").map(String::as_str)),
        }
    }

    fn whole(&mut self, label: Option<&str>) -> Option<u64> {
        let text = label?.trim();
        if matches!(text, "" | "None" | "0") {
            return None;
        }
        let number = text.parse().ok();
        self.ignored_values += u64::from(number.is_none());
        number
    }
}

impl Line {
    fn is_wanted(&self) -> bool {
        const WANTED: [&str; 8] =
            ["e:block", "e:cache", "e:count_total", "e:done", "e:kv", "e:lora", "e:running", "e:waiting"];
        WANTED.iter().any(|name| self.kind(name).is_some())
    }
}

fn newest(series: Vec<Sample>) -> Option<Sample> {
    let later = |kept: Sample, next: Sample| if next.timestamp > kept.timestamp { next } else { kept };
    series.into_iter().reduce(later)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of something")]
fn whole_part(value: f64) -> u64 {
    value as u64
}

/// What is looked for with the spec, and the spec.
fn named(spec: &str) -> String {
    let noun = match spec {
        "e:waiting" => "waiting",
        "e:running{state=\"busy\"}" => "running",
        "e:kv" => "kvUsage",
        "e:cache{model=\"\"}" => "KV cache",
        "e:block" => "block size",
        "e:count_total" => "number of blocks",
        "e:done" => "done",
        _ => "busy",
    };
    format!("{noun}: {spec}")
}
