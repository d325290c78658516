use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use sluice_core::{CacheGeometry, LoraAdapters, Scraped, Time};
use smallvec::SmallVec;

use super::families::{Families, Found, Kind, Lines, MAX_SAMPLES};
use super::memory::{MEMORY, SeriesCount};
use super::rate::Rate;
use super::sample::{LabelValue, Labels};
use super::tally::{Combine, Flaw, Tally};
use super::{EngineConfig, MetricSpec};

/// How the pages of one kind of model server are read.
#[derive(Clone, Debug)]
pub struct EngineMapping {
    /// Marks what is read of a page, and how: another object means that it may be read in another way.
    name: Arc<str>,
    /// In the order of their families.
    readings: Vec<Reading>,
    families: Families,
    /// Which readings are of each family.
    readings_of: Vec<Range<usize>>,
}

/// What a scanner remembers of an endpoint from one page to the next.
#[derive(Clone, Debug, Default)]
pub struct ScanState {
    engine: Option<Arc<str>>,
    waiting: Remembered,
    running: Remembered,
    kv_usage: SeriesCount,
    /// When it last named its queue.
    queue_named: Option<Time>,
}

/// Of a number of requests.
#[derive(Clone, Debug, Default)]
struct Remembered {
    series: SeriesCount,
    rate: Rate,
}

/// What one page brought.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanReport {
    pub scraped: Scraped,
    /// Wanted values that make no sense: NaN, infinite, negative, or far too large.
    pub ignored_values: u64,
    /// Lines of wanted families that cannot be read.
    pub broken_lines: u64,
    /// The values of which the page has no series, or not all of them: what each is, the spec that was looked for, and, if
    /// it is another than that there is no series, the reason. The LoRA adapters are not listed where there are none:
    /// servers without any leave them out.
    pub missing: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Reading {
    spec: MetricSpec,
    role: Role,
    /// What is said of it where it is missing: what it is, and its spec.
    missing: Arc<str>,
}

/// What a reading is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Waiting,
    Running,
    KvUsage,
    Lora,
    CacheInfo { block_size_label: Box<str>, num_blocks_label: Box<str> },
    BlockSize,
    Blocks,
    Custom(Arc<str>),
}

impl EngineMapping {
    pub(super) fn new(config: &EngineConfig) -> Self {
        let mut readings = readings(config);
        readings.sort_by(|a, b| a.spec.name().cmp(b.spec.name()));
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut readings_of: Vec<Range<usize>> = Vec::new();
        for (index, Reading { spec, .. }) in readings.iter().enumerate() {
            match readings_of.last_mut() {
                Some(range) if *names[names.len() - 1] == *spec.name().as_bytes() => range.end = index + 1,
                _ => {
                    names.push(spec.name().as_bytes().into());
                    readings_of.push(index..index + 1);
                }
            }
        }
        Self { name: config.name.as_str().into(), readings, families: Families::new(names), readings_of }
    }

    /// Whether it has a spec of what tells how full an endpoint is.
    pub fn tells_load(&self) -> bool {
        self.readings.iter().any(|reading| matches!(reading.role, Role::Waiting | Role::KvUsage))
    }

    /// The name of the engine.
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Finds the same in every page.
    pub(super) fn reads_like(&self, other: &Self) -> bool {
        self.name == other.name && self.readings == other.readings
    }

    /// The same, as if nothing had been read so before.
    pub(super) fn read_anew(&self) -> Self {
        Self { name: Arc::from(&*self.name), ..self.clone() }
    }

    /// Reads a page that was asked for at `began`. Several series of one reading are those of several engines in one
    /// server: the requests of all are summed, and the fullest KV cache counts. Where one of them cannot be read, or is not
    /// there any more, the reading is missing: half a sum is none.
    ///
    /// A number of requests that the page declares a counter is taken as what the counter grows by per second; `state` is
    /// that of the endpoint.
    pub fn scan(&self, page: &[u8], began: Time, state: &mut ScanState) -> ScanReport {
        let mut scan = self.begin(page);
        while !scan.advance(usize::MAX) {}
        scan.finish(began, state)
    }

    /// The same in parts.
    pub fn begin<'m, 'p>(&'m self, page: &'p [u8]) -> Scan<'m, 'p> {
        let tallies = self.readings.iter().map(|reading| Tally::new(reading.role.combine())).collect();
        Scan { mapping: self, lines: self.families.lines(page), tallies, ignored_values: 0, broken_lines: 0 }
    }
}

/// A page that is being read.
#[derive(Clone, Debug)]
pub struct Scan<'m, 'p> {
    mapping: &'m EngineMapping,
    lines: Lines<'p>,
    tallies: SmallVec<[Tally<'p>; 12]>,
    ignored_values: u64,
    broken_lines: u64,
}

impl Scan<'_, '_> {
    /// Reads the next lines, those that begin within `bytes` bytes and one at the least; tells whether those were the last
    /// ones.
    pub fn advance(&mut self, bytes: usize) -> bool {
        let Self { mapping, lines, tallies, ignored_values, broken_lines } = self;
        mapping.families.read(lines, bytes, |family, kind, found| {
            let of_family = mapping.readings_of[family].clone();
            let sample = match found {
                Found::Sample(sample) => sample,
                Found::Broken => {
                    *broken_lines += 1;
                    // Nobody knows which of them it is.
                    for index in of_family.filter(|index| mapping.readings[*index].role.needs_all()) {
                        tallies[index].flaw.get_or_insert(Flaw::Unreadable);
                    }
                    return;
                }
                Found::TooMany => {
                    of_family.for_each(|index| tallies[index].flaw = Some(Flaw::TooMany));
                    return;
                }
            };
            for index in of_family {
                let (Reading { role, .. }, tally) = (&mapping.readings[index], &mut tallies[index]);
                if mapping.readings[index].is_met_by(sample.labels) {
                    tally.matched = true;
                    tally.kind = kind;
                    if role.accepts(kind, sample.value) {
                        tally.add(sample);
                    } else {
                        *ignored_values += 1;
                        if role.needs_all() {
                            tally.flaw.get_or_insert(Flaw::Unreadable);
                        }
                    }
                }
            }
        })
    }

    /// What the page says, as far as it was read.
    pub fn finish(self, began: Time, state: &mut ScanState) -> ScanReport {
        let Self { mapping, lines: _, tallies, ignored_values, broken_lines } = self;
        if !state.engine.as_ref().is_some_and(|engine| Arc::ptr_eq(engine, &mapping.name)) {
            *state = ScanState { engine: Some(Arc::clone(&mapping.name)), ..ScanState::default() };
        }
        let scraped = Scraped { engine: Some(Arc::clone(&mapping.name)), ..Scraped::at(began) };
        let mut report = ScanReport { scraped, ignored_values, broken_lines, missing: Vec::new() };
        for (Reading { spec: _, role, missing }, tally) in mapping.readings.iter().zip(&tallies) {
            match role.gap(tally, began, state) {
                None => role.publish(tally, state, &mut report),
                Some(Gap::NoSeries) if matches!(role, Role::Lora) => {}
                Some(Gap::NoSeries) => report.missing.push(Arc::clone(missing)),
                Some(gap) => report.missing.push(format!("{missing} ({gap})").into()),
            }
        }
        report.scraped.lost_queue = state.has_lost_queue(began, report.scraped.waiting.is_some());
        report
    }
}

impl ScanState {
    /// Takes note of whether the page at `began` names the queue; tells whether it does not, though one did lately.
    fn has_lost_queue(&mut self, began: Time, names_queue: bool) -> bool {
        if names_queue {
            self.queue_named = Some(began);
        }
        !names_queue && self.queue_named.is_some_and(|at| began.saturating_since(at) < MEMORY)
    }
}

/// Why a reading is missing.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Gap {
    #[error("no series")]
    NoSeries,
    #[error("not all of it can be read")]
    Unreadable,
    #[error("more than {MAX_SAMPLES} lines")]
    TooMany,
    #[error("fewer series than lately")]
    Fewer,
}

fn readings(config: &EngineConfig) -> Vec<Reading> {
    let EngineConfig {
        name: _,
        queued_requests_spec,
        running_requests_spec,
        kv_usage_spec,
        lora_spec,
        cache_info_spec,
        cache_block_size_label_name,
        cache_num_blocks_label_name,
        cache_block_size_spec,
        cache_num_blocks_spec,
        custom_metrics,
    } = config;
    let cache_info = Role::CacheInfo {
        block_size_label: cache_block_size_label_name.as_str().into(),
        num_blocks_label: cache_num_blocks_label_name.as_str().into(),
    };
    let own = [
        (queued_requests_spec, Role::Waiting),
        (running_requests_spec, Role::Running),
        (kv_usage_spec, Role::KvUsage),
        (lora_spec, Role::Lora),
        (cache_info_spec, cache_info),
        (cache_block_size_spec, Role::BlockSize),
        (cache_num_blocks_spec, Role::Blocks),
    ];
    let own = own.into_iter().filter_map(|(spec, role)| Some(Reading::new(spec.clone()?, role)));
    let custom = custom_metrics.iter();
    let custom = custom
        .map(|custom| Reading::new(custom.metric_spec.clone(), Role::Custom(custom.attribute_key.as_str().into())));
    own.chain(custom).collect()
}

impl Reading {
    fn new(spec: MetricSpec, role: Role) -> Self {
        let missing = format!("{}: {}", role.noun(), spec.text()).into();
        Self { spec, role, missing }
    }

    fn is_met_by(&self, labels: Labels<'_>) -> bool {
        self.spec.matchers().iter().all(|matcher| labels.matches(&matcher.name, &matcher.value))
    }
}

/// More requests than any server has.
const MOST_REQUESTS: f64 = 1e9;
/// Whole numbers are exact up to here.
const MOST_COUNTED: f64 = (1_u64 << 53) as f64;
/// A full cache may be 1 and an error of rounding. More than that is another unit.
const FULL: f64 = 1.01;

const UNKNOWN: CacheGeometry = CacheGeometry { block_size: None, blocks: None };

impl Role {
    /// What it is, for people: as `/debug/flow` has it where it shows it.
    fn noun(&self) -> &str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::KvUsage => "kvUsage",
            Self::Lora => "LoRA adapters",
            Self::CacheInfo { .. } => "KV cache",
            Self::BlockSize => "block size",
            Self::Blocks => "number of blocks",
            Self::Custom(key) => key,
        }
    }

    const fn combine(&self) -> Combine {
        match self {
            Self::Waiting | Self::Running => Combine::Sum,
            Self::KvUsage | Self::Lora => Combine::Largest,
            Self::CacheInfo { .. } | Self::BlockSize | Self::Blocks | Self::Custom(_) => Combine::Newest,
        }
    }

    /// Whether a part of its series tells nothing.
    const fn needs_all(&self) -> bool {
        matches!(self, Self::Waiting | Self::Running | Self::KvUsage)
    }

    /// What a page lacks for it that brought `tally`.
    fn gap(&self, tally: &Tally<'_>, began: Time, state: &mut ScanState) -> Option<Gap> {
        match tally.flaw {
            Some(Flaw::TooMany) => return Some(Gap::TooMany),
            Some(Flaw::Unreadable) => return Some(Gap::Unreadable),
            None if !tally.matched => return Some(Gap::NoSeries),
            None => {}
        }
        let series = match self {
            Self::Waiting => &mut state.waiting.series,
            Self::Running => &mut state.running.series,
            Self::KvUsage => &mut state.kv_usage,
            Self::Lora | Self::CacheInfo { .. } | Self::BlockSize | Self::Blocks | Self::Custom(_) => return None,
        };
        (!series.note(began, tally.series)).then_some(Gap::Fewer)
    }

    /// Whether `value`, of a family of this kind, can be what it is said to be.
    fn accepts(&self, kind: Kind, value: f64) -> bool {
        match self {
            // Their labels are what counts.
            Self::CacheInfo { .. } => true,
            _ if kind == Kind::Distribution => false,
            Self::Waiting | Self::Running if kind == Kind::Counter => (0.0..=MOST_COUNTED).contains(&value),
            Self::Waiting | Self::Running => (0.0..=MOST_REQUESTS).contains(&value),
            Self::KvUsage => (0.0..=FULL).contains(&value),
            Self::BlockSize | Self::Blocks => (1.0..=MOST_COUNTED).contains(&value),
            Self::Lora | Self::Custom(_) => value.is_finite(),
        }
    }

    /// Puts what was found where it belongs.
    fn publish(&self, tally: &Tally<'_>, state: &mut ScanState, report: &mut ScanReport) {
        let ScanReport { scraped, ignored_values, .. } = report;
        let began = scraped.began;
        match self {
            Self::Waiting => scraped.waiting = requests(tally, began, &mut state.waiting.rate),
            Self::Running => scraped.running = requests(tally, began, &mut state.running.rate),
            Self::KvUsage => scraped.kv_usage = tally.value().map(|usage| usage.min(1.0)),
            Self::Lora => scraped.lora = tally.labels().and_then(|labels| adapters(labels, ignored_values)),
            Self::CacheInfo { block_size_label, num_blocks_label } => {
                let Some(labels) = tally.labels() else { return };
                let block_size = labels.get(block_size_label).and_then(|value| whole(value, ignored_values));
                let blocks = labels.get(num_blocks_label).and_then(|value| whole(value, ignored_values));
                scraped.cache = geometry(CacheGeometry { block_size, blocks }, scraped.cache.unwrap_or(UNKNOWN));
            }
            Self::BlockSize => {
                let gauge = CacheGeometry { block_size: tally.value().map(truncated), ..UNKNOWN };
                scraped.cache = geometry(scraped.cache.unwrap_or(UNKNOWN), gauge);
            }
            Self::Blocks => {
                let gauge = CacheGeometry { blocks: tally.value().map(truncated), ..UNKNOWN };
                scraped.cache = geometry(scraped.cache.unwrap_or(UNKNOWN), gauge);
            }
            Self::Custom(key) => {
                if let Some(value) = tally.value() {
                    scraped.custom.insert(Arc::clone(key), value);
                }
            }
        }
    }
}

fn requests(tally: &Tally<'_>, at: Time, rate: &mut Rate) -> Option<u64> {
    let value = tally.value()?;
    if tally.kind == Kind::Counter {
        rate.observe(at, value).map(|rate| truncated(rate.round()))
    } else {
        Some(truncated(value))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "accepted values are not negative and not huge"
)]
const fn truncated(value: f64) -> u64 {
    value as u64
}

/// The geometry, where `labels` say it or else gauges do.
fn geometry(labels: CacheGeometry, gauges: CacheGeometry) -> Option<CacheGeometry> {
    let block_size = labels.block_size.or(gauges.block_size);
    let blocks = labels.blocks.or(gauges.blocks);
    (block_size.is_some() || blocks.is_some()).then_some(CacheGeometry { block_size, blocks })
}

/// More LoRA adapters than any server has.
const MOST_ADAPTERS: usize = 1024;

/// None if there are too many: some of them are not all.
fn adapters(labels: Labels<'_>, ignored_values: &mut u64) -> Option<LoraAdapters> {
    let mut listed = |label: &str| -> Option<BTreeSet<Arc<str>>> {
        let text = labels.get(label).and_then(LabelValue::text).unwrap_or_default();
        let names = || text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let is_bounded = names().nth(MOST_ADAPTERS).is_none();
        *ignored_values += u64::from(!is_bounded);
        is_bounded.then(|| names().map(Arc::from).collect())
    };
    Some(LoraAdapters {
        running: listed("running_lora_adapters")?,
        waiting: listed("waiting_lora_adapters")?,
        max: labels.get("max_lora").and_then(|value| whole(value, ignored_values)),
    })
}

/// A label that is a number from 1 up. Servers write `None` for one they do not know, or 0 or nothing.
fn whole(value: LabelValue<'_>, ignored_values: &mut u64) -> Option<u64> {
    let text = value.text();
    match text.as_deref().map(str::trim) {
        Some("" | "None" | "0") => None,
        text => match text.and_then(|text| text.parse().ok()) {
            Some(number) => Some(number),
            None => {
                *ignored_values += 1;
                None
            }
        },
    }
}
