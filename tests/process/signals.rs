use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::raw_http2::{END_STREAM, HEADERS, RawHttp2};
use crate::support::{Epp, PATIENCE, PING, PREFACE, arguments, directory, epp};

#[test]
fn a_signal_drains_and_ends_it_well() {
    let mut arguments = arguments(&directory("drain"));
    arguments.push("--drain-timeout=0s".to_owned());
    for signal in ["TERM", "INT"] {
        let mut epp = Epp::serving(epp(&arguments));
        epp.signal(signal);
        epp.line_with(&format!("\"signal\":\"SIG{signal}\""));
        assert_eq!(epp.exit(PATIENCE), Some(0));
    }
}

#[test]
fn a_stream_that_brings_no_message_does_not_hold_up_the_end() {
    let mut arguments = arguments(&directory("wordless"));
    arguments.extend(["--secure-serving=false", "--drain-timeout=1s", "--stream-drain-timeout=1h"].map(str::to_owned));
    let mut epp = Epp::serving(epp(&arguments));
    let mut wordless = RawHttp2::open(&epp.ext_proc, 65_535);
    epp.signal("TERM");
    let waiting = epp.line_with("waiting for running ones");
    assert!(waiting.contains("\"streams\":1"), "{waiting}");
    let start = Instant::now();
    let answer = wordless.next_of_stream();
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    assert_eq!((answer.kind, answer.flags & END_STREAM), (HEADERS, END_STREAM), "an answer that is its end");
    drop(wordless);
    assert_eq!(epp.exit(PATIENCE), Some(0));
}

/// As of a client that is stopped, or behind a network that has gone: it does not answer the server's farewell.
#[test]
fn a_peer_that_has_fallen_silent_does_not_hold_up_the_end() {
    let mut arguments = arguments(&directory("mute"));
    arguments.extend(["--secure-serving=false", "--drain-timeout=1s", "--stream-drain-timeout=1h"].map(str::to_owned));
    let mut epp = Epp::serving(epp(&arguments));
    let mut mute = [&epp.ext_proc, &epp.health].map(|address| TcpStream::connect(address).unwrap());
    for peer in &mut mute {
        peer.write_all(PREFACE).unwrap();
        // The server knows it: these are its settings.
        peer.read_exact(&mut [0; 9]).unwrap();
    }
    epp.signal("TERM");
    // Less than the keepalive of the server takes to find out, which would end it, too.
    assert_eq!(epp.exit(Duration::from_secs(12)), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut arguments = arguments(&directory("second"));
    arguments.push("--drain-timeout=1h".to_owned());
    for (first, second) in [("TERM", "TERM"), ("TERM", "INT"), ("INT", "TERM")] {
        let mut epp = Epp::serving(epp(&arguments));
        epp.signal(first);
        epp.line_with("draining");
        assert_eq!(epp.exit(Duration::from_millis(200)), None, "it drains");
        epp.signal(second);
        assert_eq!(epp.exit(PATIENCE), Some(1));
    }
}

#[test]
fn a_second_signal_ends_it_also_when_nobody_reads_its_log() {
    let mut arguments = arguments(&directory("unread"));
    arguments.extend(["--secure-serving=false", "-v=5"].map(str::to_owned));
    let mut epp = Epp::serving(epp(&arguments));
    // Each frame is logged: more than the pipe holds.
    let pings = [PREFACE, &PING.repeat(4_000)].concat();
    let connections: Vec<TcpStream> = (0..16)
        .map(|_| {
            let mut connection = TcpStream::connect(&epp.ext_proc).unwrap();
            connection.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
            // It stops reading when it is stuck.
            connection.write_all(&pings).unwrap_or_default();
            connection
        })
        .collect();
    let stuck = (0..50).any(|_| {
        let mut scrape = TcpStream::connect(&epp.metrics).unwrap();
        scrape.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        scrape.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        scrape.read(&mut [0]).is_err()
    });
    assert!(stuck, "the log of so many frames blocks every thread that serves");
    epp.signal("TERM");
    assert_eq!(epp.exit(Duration::from_secs(1)), None);
    epp.signal("TERM");
    assert_eq!(epp.exit(PATIENCE), Some(1));
    drop(connections);
}
