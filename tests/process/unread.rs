//! Peers that do not take what is said to them, or take it late.

use std::thread;
use std::time::{Duration, Instant};

use crate::raw_http2::{DATA, END_STREAM, HEADERS, RST_STREAM, RawHttp2, request_headers};
use crate::support::{Epp, arguments, directory, epp};

fn serving(test: &str, further: &[&str]) -> Epp {
    let mut arguments = arguments(&directory(test));
    arguments.push("--secure-serving=false".to_owned());
    arguments.extend(further.iter().map(|&argument| argument.to_owned()));
    Epp::serving(epp(&arguments))
}

#[test]
fn a_stream_whose_peer_takes_no_reply_is_given_up_after_a_minute() {
    let epp = serving("deaf", &[]);
    let start = Instant::now();
    let mut deaf = RawHttp2::open(&epp.ext_proc, 0);
    deaf.message(&request_headers());
    assert_eq!(deaf.next_of_stream().kind, HEADERS);
    let peer = thread::spawn(move || {
        // It says that it lives, for as long as it is asked.
        while start.elapsed() < Duration::from_secs(70) {
            deaf.next();
        }
        deaf
    });
    let ended = "llm_d_epp_request_ended_total{cause=\"error\"} 1";
    while !epp.page("/metrics").contains(ended) {
        assert!(start.elapsed() < Duration::from_secs(90), "it still holds its place");
        thread::sleep(Duration::from_millis(200));
    }
    assert!(start.elapsed() > Duration::from_secs(55), "{:?}", start.elapsed());

    let mut deaf = peer.join().unwrap();
    deaf.set_window(65_535);
    let mut frame = deaf.next_of_stream();
    while frame.kind == DATA {
        frame = deaf.next_of_stream();
    }
    assert_eq!(frame.kind, RST_STREAM, "it is told as soon as it listens");
}

#[test]
fn the_way_out_waits_for_a_peer_that_takes_its_last_reply_late() {
    let mut epp = serving("late", &["--drain-timeout=0s", "--stream-drain-timeout=1h"]);
    let mut late = RawHttp2::open(&epp.ext_proc, 0);
    // It is answered that this is no message, and no more.
    late.message(b"?");
    assert_eq!(late.next_of_stream().kind, HEADERS);
    epp.signal("TERM");
    let waiting = epp.line_with("waiting for running ones");
    assert!(waiting.contains("\"streams\":0"), "{waiting}");
    assert_eq!(epp.exit(Duration::from_secs(4)), None);

    late.set_window(65_535);
    assert_eq!(late.next_of_stream().kind, DATA);
    let end = late.next_of_stream();
    assert_eq!((end.kind, end.flags & END_STREAM), (HEADERS, END_STREAM));
    assert_eq!(epp.exit(Duration::from_secs(12)), Some(0));
}
