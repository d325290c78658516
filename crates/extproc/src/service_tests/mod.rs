mod endings;
mod eviction;
mod hand_over;
mod hostile;
mod limits;
mod model_names;
mod modes;
mod reconfigured;
mod rig;
mod unread;

use super::*;

#[test]
fn the_margin_before_the_end_of_a_stream_is_a_tenth_and_at_most_100_ms() {
    for (timeout, waiting) in [(0, 0), (10, 9), (500, 450), (1_000, 900), (60_000, 59_900)] {
        assert_eq!(in_time(Duration::from_millis(timeout)), Duration::from_millis(waiting), "{timeout}");
    }
    assert_eq!(in_time(Duration::MAX), Duration::MAX - Duration::from_millis(100));
}

#[test]
fn a_grpc_timeout_has_at_most_eight_digits_and_a_unit() {
    for (text, timeout) in [
        ("1H", Some(Duration::from_secs(3_600))),
        ("2M", Some(Duration::from_secs(120))),
        ("99999999S", Some(Duration::from_secs(99_999_999))),
        ("250m", Some(Duration::from_millis(250))),
        ("3u", Some(Duration::from_micros(3))),
        ("4n", Some(Duration::from_nanos(4))),
        ("", None),
        ("m", None),
        ("5", None),
        ("123456789S", None),
        ("+5S", None),
        ("5x", None),
    ] {
        assert_eq!(grpc_timeout(text.as_bytes()), timeout, "{text:?}");
    }
}
