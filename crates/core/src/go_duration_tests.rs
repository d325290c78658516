use proptest::prelude::*;

use super::*;

fn nanos(text: &str) -> i64 {
    text.parse::<GoDuration>().unwrap().as_nanos()
}

const SECOND: i64 = 1_000_000_000;

#[test]
fn reads_what_go_reads() {
    for (text, expected) in [
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        ("5s", 5 * SECOND),
        ("+5s", 5 * SECOND),
        ("-5s", -5 * SECOND),
        ("200ms", SECOND / 5),
        ("5.0s", 5 * SECOND),
        ("5.6s", 5 * SECOND + 600_000_000),
        ("5.s", 5 * SECOND),
        (".5s", SECOND / 2),
        ("1.004s", SECOND + 4_000_000),
        ("10ns", 10),
        ("11us", 11_000),
        ("12\u{b5}s", 12_000),
        ("12\u{3bc}s", 12_000),
        ("13ms", 13_000_000),
        ("15m", 15 * 60 * SECOND),
        ("16h", 16 * 3600 * SECOND),
        ("1h2m", 3720 * SECOND),
        ("3h30m", 12_600 * SECOND),
        ("10.5s4m", 250 * SECOND + SECOND / 2),
        ("-2m3.4s", -(123 * SECOND + 400_000_000)),
        ("1h1h", 7200 * SECOND),
        ("52763797000ns", 52_763_797_000),
        ("0.3333333333333333333h", 20 * 60 * SECOND),
        ("9007199254740993ns", (1 << 53) + 1),
        ("9223372036854775807ns", i64::MAX),
        ("9223372036854775.807us", i64::MAX),
        ("9223372036s854ms775us807ns", i64::MAX),
        ("-9223372036854775808ns", i64::MIN),
        ("0.100000000000000000000h", 360 * SECOND),
        ("0.830103483285477580700h", 2_988_372_539_827),
    ] {
        assert_eq!(nanos(text), expected, "{text}");
    }
}

#[test]
fn refuses_what_go_refuses() {
    for text in [
        "",
        "3",
        "-",
        "s",
        ".",
        "-.",
        ".s",
        "+.s",
        "1d",
        "1 s",
        " 1s",
        "1s ",
        "1S",
        "1h 2m",
        "1e3s",
        "--1s",
        "1,5s",
        "0x1s",
        "3000000h",
        "9223372036854775808ns",
        "9223372036854775.808us",
        "-9223372036854775809ns",
        "18446744073709551616ns",
        "\u{85}\u{85}",
        "1\u{b5}",
        "٣s",
    ] {
        assert!(text.parse::<GoDuration>().is_err(), "{text:?}");
    }
}

#[test]
fn errors_tell_what_is_wrong() {
    let error = |text: &str| text.parse::<GoDuration>().unwrap_err();
    assert!(matches!(error("30"), GoDurationError::NoUnit { .. }));
    assert!(matches!(error("3x"), GoDurationError::Unit { unit, .. } if unit == "x"));
    assert!(matches!(error("soon"), GoDurationError::Malformed { .. }));
    assert!(matches!(error("999999999h"), GoDurationError::Range { .. }));
}

#[test]
fn only_durations_from_zero_up_convert() {
    assert_eq!("0s".parse::<GoDuration>().unwrap().non_negative(), Some(Duration::ZERO));
    assert_eq!("-1ns".parse::<GoDuration>().unwrap().non_negative(), None);
}

proptest! {
    #[test]
    fn every_duration_prints_and_reads_back(nanos: i64) {
        let duration = GoDuration::from_nanos(nanos);
        prop_assert_eq!(duration.to_string().parse(), Ok(duration), "{}", duration);
    }

    /// Whole numbers of units add up exactly.
    #[test]
    fn parts_add_up(parts in prop::collection::vec((0_u32..100_000, 0_usize..6), 1..6), negative: bool) {
        let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", SECOND), ("m", 60 * SECOND), ("h", 3600 * SECOND)];
        let mut text = if negative { String::from("-") } else { String::new() };
        let mut expected = 0;
        for (number, unit) in parts {
            let (unit, nanos) = units[unit];
            text += &format!("{number}{unit}");
            expected += i64::from(number) * nanos;
        }
        prop_assert_eq!(nanos(&text), if negative { -expected } else { expected });
    }

    #[test]
    fn a_fraction_is_exact_to_the_nanosecond(millis in 0_i64..10_000_000) {
        let text = format!("{}.{:03}s", millis / 1000, millis % 1000);
        prop_assert!((nanos(&text) - millis * 1_000_000).abs() <= 1, "{}", text);
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ignored = text.parse::<GoDuration>();
    }
}
