use model_server_sim::page::{EngineGauges, Page};
use proptest::prelude::*;
use sluice_core::{CacheGeometry, LoraAdapters, Scraped, Time};
use sluice_data::{EngineMappings, ScanReport};

use crate::expected::{Expected, mappings};
use crate::pages::page;
use crate::{scan, scan_in_parts};

proptest! {
    #[test]
    fn any_page_is_read_as_a_plain_reader_reads_it(page in page()) {
        prop_assert_eq!(scan(&mappings(), page.as_bytes()), Expected::of(&page));
    }

    #[test]
    fn a_page_in_any_parts_is_read_as_it_is_at_once(
        page in page(),
        bytes in prop::collection::vec(any::<u8>(), 0..50),
        at in 0_usize..500,
        parts in prop::collection::vec(0_usize..300, 1..8),
    ) {
        let mut page = page.into_bytes();
        let at = at.min(page.len());
        page.splice(at..at, bytes);
        prop_assert_eq!(scan_in_parts(&mappings(), &page, &parts), scan(&mappings(), &page));
    }

    #[test]
    fn any_bytes_are_a_page(bytes in prop::collection::vec(any::<u8>(), 0..200), page in page(), at in 0_usize..500) {
        scan(&mappings(), &bytes);
        let mut page = page.into_bytes();
        let at = at.min(page.len());
        page.splice(at..at, bytes);
        scan(&mappings(), &page);
    }
}

/// What was cut off is missed, nothing else is read for it, and no part of a sum is taken for the sum.
#[test]
fn a_page_that_ends_early_is_read_up_to_its_last_whole_line() {
    let gauges = EngineGauges { running: 123, waiting: 45, kv_cache_usage: 0.678 };
    let whole = Page::new([gauges, gauges]).to_string();
    let wanted = ["vllm:num_requests", "vllm:kv_cache_usage", "vllm:lora_requests", "vllm:cache_config"];
    let lines = whole.lines().filter(|line| wanted.iter().any(|name| line.contains(name)));
    let page: String = lines.flat_map(|line| [line, "\n"]).collect();
    let mappings = EngineMappings::default();
    let mut before = scan(&mappings, b"");
    for end in 0..=page.len() {
        let cut = scan(&mappings, &page.as_bytes()[..end]);
        if page.as_bytes()[..end].ends_with(b"\n") {
            before = cut;
            assert_eq!(before.broken_lines, 0);
        } else {
            assert!(cut.broken_lines <= 1);
            let Scraped { waiting, running, kv_usage, .. } = before.scraped.clone();
            let is_cut = |is_there: bool| cut.broken_lines == 1 && !is_there;
            let expected = Scraped {
                waiting: waiting.filter(|_| !is_cut(cut.scraped.waiting.is_some())),
                running: running.filter(|_| !is_cut(cut.scraped.running.is_some())),
                kv_usage: kv_usage.filter(|_| !is_cut(cut.scraped.kv_usage.is_some())),
                ..before.scraped.clone()
            };
            assert_eq!(cut.scraped, expected, "the first {end} bytes of {page}");
        }
    }
    assert_eq!((before.scraped.running, before.scraped.waiting), (Some(246), Some(90)));
}

#[test]
fn a_page_of_the_usual_size_is_read_as_a_short_one() {
    let gauges = EngineGauges { running: 12, waiting: 3, kv_cache_usage: 0.25 };
    let report = scan(&EngineMappings::default(), Page::new([gauges]).to_string().as_bytes());
    let expected = Scraped {
        running: Some(12),
        waiting: Some(3),
        kv_usage: Some(0.25),
        lora: Some(LoraAdapters {
            running: ["sql-lora".into(), "chat-lora".into()].into(),
            waiting: ["tweet-lora".into()].into(),
            max: Some(4),
        }),
        cache: Some(CacheGeometry { block_size: Some(Page::CACHE.0), blocks: Some(Page::CACHE.1) }),
        engine: Some("vllm".into()),
        ..Scraped::at(Time::ZERO)
    };
    assert_eq!(report, ScanReport { scraped: expected, ignored_values: 0, broken_lines: 0, missing: vec![] });
}
