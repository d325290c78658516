use proptest::prelude::*;

use super::*;

fn units(text: &str) -> i64 {
    text.parse::<Quantity>().unwrap().units()
}

#[test]
fn reads_every_suffix() {
    for (text, expected) in [
        ("0", 0),
        ("5", 5),
        ("+5", 5),
        ("-5", -5),
        ("007", 7),
        ("2k", 2_000),
        ("20k", 20_000),
        ("3M", 3_000_000),
        ("1G", 1_000_000_000),
        ("1T", 1_000_000_000_000),
        ("1P", 1_000_000_000_000_000),
        ("1E", 1_000_000_000_000_000_000),
        ("1Ki", 1 << 10),
        ("1Mi", 1 << 20),
        ("6Gi", 6 << 30),
        ("1Ti", 1 << 40),
        ("1Pi", 1 << 50),
        ("1Ei", 1 << 60),
        ("1e3", 1_000),
        ("1E3", 1_000),
        ("1e+3", 1_000),
        ("12e-1", 2),
        ("1.5k", 1_500),
        ("1.G", 1_000_000_000),
        (".5Gi", 1 << 29),
        ("0.5Mi", 1 << 19),
    ] {
        assert_eq!(units(text), expected, "{text}");
    }
}

#[test]
fn fractions_of_a_unit_round_away_from_zero() {
    for (text, expected) in [
        ("1500m", 2),
        ("1m", 1),
        ("1n", 1),
        ("-1m", -1),
        ("-1500m", -2),
        ("2000m", 2),
        ("0.0", 0),
        ("0e999999999999999999", 0),
        // Finer than a billionth: still more than nothing.
        ("0.1n", 1),
        ("1e-1000000", 1),
        ("1.0000000001", 2),
    ] {
        assert_eq!(units(text), expected, "{text}");
    }
}

#[test]
fn what_is_too_large_is_capped() {
    for text in
        ["9223372036854775807", "9223372036854775808", "8Ei", "1e19", "1e999999999999", "99999999999999999999Ei"]
    {
        assert_eq!(units(text), i64::MAX, "{text}");
        assert_eq!(units(&format!("-{text}")), -i64::MAX, "-{text}");
    }
    assert_eq!(units("7Ei"), 7 << 60);
}

#[test]
fn refuses_what_is_no_quantity() {
    for text in [
        "", "+", "-", ".", "Gi", "k", "1.1.M", "1+1.0M", "0.1mi", "0.1am", "aoeu", ".5i", "1i", "-3.01i", "-3.01e-",
        " 1", "1 ", "1K", "1KI", "1gi", "1GB", "1MiB", "1e", "1ee3", "1e3k", "0x10", "1_000", "1,5", "NaN", "inf",
        "--1", "٣",
    ] {
        assert!(text.parse::<Quantity>().is_err(), "{text:?}");
    }
}

#[test]
fn an_error_names_the_suffix() {
    let error = "12GB".parse::<Quantity>().unwrap_err();
    assert!(error.to_string().starts_with(r#"invalid quantity "12GB": unknown suffix "GB""#), "{error}");
}

const SUFFIXES: [(&str, i128, i128); 13] = [
    // suffix, numerator, denominator
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1_000),
    ("", 1, 1),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("e6", 1_000_000, 1),
    ("E-3", 1, 1_000),
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Ti", 1 << 40, 1),
];

proptest! {
    /// Against rational arithmetic on numbers small enough for it.
    #[test]
    fn agrees_with_rational_arithmetic(
        negative: bool,
        whole in 0_u32..1_000_000,
        fraction in 0_u32..1_000_000,
        places in 0_u32..=6,
        suffix in 0_usize..SUFFIXES.len(),
    ) {
        let fraction = fraction % 10_u32.pow(places);
        let (suffix, numerator, denominator) = SUFFIXES[suffix];
        let sign = if negative { "-" } else { "" };
        let text = if places == 0 {
            format!("{sign}{whole}{suffix}")
        } else {
            format!("{sign}{whole}.{fraction:0width$}{suffix}", width = places as usize)
        };
        let scale = i128::from(10_u64.pow(places));
        let numerator = (i128::from(whole) * scale + i128::from(fraction)) * numerator;
        let denominator = scale * denominator;
        let expected = (numerator + denominator - 1) / denominator;
        let expected = i64::try_from(if negative { -expected } else { expected }).unwrap();
        prop_assert_eq!(text.parse::<Quantity>().unwrap().units(), expected, "{}", text);
    }

    #[test]
    fn every_quantity_prints_and_reads_back(text in r"[+-]?[0-9]{0,25}(\.[0-9]{0,25})?(|k|M|Gi|Ei|m|n|e-?[0-9]{1,20})") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            prop_assert_eq!(quantity.to_string().parse::<Quantity>().unwrap(), quantity);
        }
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ignored = text.parse::<Quantity>();
    }
}
