//! Connections that bring no requests, or none yet.

use std::fs;
use std::io::{BufRead as _, ErrorKind, Read, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{TLS_VERSIONS, client};
use crate::support::{EPP, Epp, PATIENCE, PREFACE, arguments, directory, epp};

#[test]
fn without_free_file_descriptors_it_waits_and_then_goes_on() {
    let mut limited = Command::new("sh");
    let mut arguments = arguments(&directory("descriptors"));
    arguments.push("--secure-serving=false".to_owned());
    limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", EPP]).args(&arguments);
    let mut epp = Epp::serving(limited);
    let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&epp.ext_proc).unwrap()).collect();
    epp.line_with("cannot take connections");
    let before = epp.ticks();
    thread::sleep(Duration::from_secs(2));
    let used = epp.ticks() - before;
    assert!(used < 20, "{used} ticks in two seconds of waiting");

    drop(idle);
    let mut connection = TcpStream::connect(&epp.ext_proc).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection.write_all(PREFACE).unwrap();
    connection.read_exact(&mut [0; 9]).unwrap();

    epp.signal("TERM");
    let mut failures = 0;
    for line in epp.log.as_mut().unwrap().lines() {
        let line = line.unwrap();
        failures += u32::from(line.contains("cannot take connections"));
        if line.contains("draining") {
            break;
        }
    }
    assert!((1..20).contains(&failures), "{failures} more lines in about two seconds");
}

#[test]
fn the_limit_of_file_descriptors_is_raised_as_far_as_it_may_be() {
    let mut limited = Command::new("sh");
    let arguments = arguments(&directory("soft-limit"));
    limited.args(["-c", "ulimit -Sn 64; exec \"$0\" \"$@\"", EPP]).args(&arguments);
    let epp = Epp::serving(limited);
    let limits = fs::read_to_string(format!("/proc/{}/limits", epp.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let [soft, hard] = [3, 4].map(|field| line.split_whitespace().nth(field).unwrap());
    assert_eq!(soft, hard, "{line}");
}

#[test]
fn too_few_file_descriptors_for_the_queues_are_told_at_start() {
    let mut limited = Command::new("sh");
    let arguments = arguments(&directory("few-descriptors"));
    limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", EPP]).args(&arguments).stderr(Stdio::piped());
    let mut epp = Epp::starting(limited);
    let line = epp.line_with("too few file descriptors");
    assert!(line.contains("\"limit\":64") && line.contains("\"needed\":256"), "{line}");
}

/// Reads until the other side closes.
fn closed_after(mut peer: impl Read) -> Duration {
    let start = Instant::now();
    // A reset is as good an end as any.
    while peer.read(&mut [0; 64]).is_ok_and(|length| length > 0) {}
    start.elapsed()
}

#[test]
fn a_peer_that_does_not_begin_to_speak_is_sent_away() {
    let over_tls = Epp::serving(epp(&arguments(&directory("silent-tls"))));
    let mut in_plaintext = arguments(&directory("silent"));
    in_plaintext.push("--secure-serving=false".to_owned());
    let in_plaintext = Epp::serving(epp(&in_plaintext));

    let connect = |address: &str| {
        let peer = TcpStream::connect(address).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer
    };
    let begun = |address: &str, start: &[u8]| {
        let mut peer = connect(address);
        peer.write_all(start).unwrap();
        peer
    };
    let mut shaken_hands = client(&[b"h2"], &TLS_VERSIONS).connect(&over_tls.ext_proc).unwrap();
    shaken_hands.flush().unwrap();
    let peers: Vec<(&str, Box<dyn Read + Send>)> = vec![
        ("no handshake", Box::new(connect(&over_tls.ext_proc))),
        ("half a handshake", Box::new(begun(&over_tls.ext_proc, &[0x16, 3, 1]))),
        ("a handshake and no more", Box::new(shaken_hands)),
        ("nothing in plaintext", Box::new(connect(&in_plaintext.ext_proc))),
        ("half an opening", Box::new(begun(&in_plaintext.ext_proc, &PREFACE[..10]))),
        ("nothing to the health port", Box::new(connect(&over_tls.health))),
    ];
    thread::scope(|scope| {
        let waiting: Vec<_> =
            peers.into_iter().map(|(name, peer)| (name, scope.spawn(|| closed_after(peer)))).collect();
        for (name, closed) in waiting {
            let closed = closed.join().unwrap();
            assert!((Duration::from_secs(9)..PATIENCE).contains(&closed), "{name}: {closed:?}");
        }
    });
}

/// A client of the metrics port that has sent `text`.
fn metrics_client(epp: &Epp, text: &[u8]) -> TcpStream {
    let mut client = TcpStream::connect(&epp.metrics).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(text).unwrap();
    client
}

#[test]
fn clients_of_the_metrics_port_that_are_slow_are_sent_away_and_others_are_served() {
    let epp = Epp::serving(epp(&arguments(&directory("slow-metrics"))));
    const PAGE: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n";
    let silent: Vec<TcpStream> = (0..80).map(|_| metrics_client(&epp, b"")).collect();
    let start = Instant::now();
    // More than are served at once: this one waits until they are gone.
    let mut scraper = metrics_client(&epp, PAGE);
    let mut head = [0; 15];
    scraper.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    drop(silent);
    let half = closed_after(metrics_client(&epp, b"GET /metrics HT"));
    let idle = closed_after(scraper);
    for (name, closed) in [("half a request", half), ("no further request", idle)] {
        assert!((Duration::ZERO..Duration::from_secs(15)).contains(&closed), "{name}: {closed:?}");
    }

    // One that asks again and again without reading an answer.
    let mut deaf = metrics_client(&epp, b"");
    deaf.set_nonblocking(true).unwrap();
    let asked = Instant::now();
    let gone = loop {
        match deaf.write(PAGE) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(100)),
            Err(_) => break asked.elapsed(),
        }
        assert!(asked.elapsed() < Duration::from_secs(90), "it is still there");
    };
    assert!(gone > Duration::from_secs(55), "{gone:?}");
}

#[test]
fn peers_that_open_slowly_hold_up_nobody() {
    let epp = Epp::serving(epp(&arguments(&directory("slow"))));
    let _slow: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&epp.ext_proc).unwrap()).collect();
    let start = Instant::now();
    let mut stream = client(&[b"h2"], &TLS_VERSIONS).connect(&epp.ext_proc).unwrap();
    stream.write_all(PREFACE).unwrap();
    stream.read_exact(&mut [0; 9]).unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn two_sides_that_do_not_agree_on_tls_are_told() {
    let mut over_tls = Epp::serving(epp(&arguments(&directory("plaintext-to-tls"))));
    TcpStream::connect(&over_tls.ext_proc).unwrap().write_all(PREFACE).unwrap();
    over_tls.line_with("speaks plaintext to a port that serves TLS");

    let mut in_plaintext = arguments(&directory("tls-to-plaintext"));
    in_plaintext.push("--secure-serving=false".to_owned());
    let mut in_plaintext = Epp::serving(epp(&in_plaintext));
    assert!(client(&[b"h2"], &TLS_VERSIONS).connect(&in_plaintext.ext_proc).is_err());
    in_plaintext.line_with("speaks TLS to a port that serves plaintext");
}

#[test]
fn a_proxy_that_shows_no_sign_of_life_is_given_up() {
    let mut arguments = arguments(&directory("dead-proxy"));
    arguments.push("--secure-serving=false".to_owned());
    let epp = Epp::serving(epp(&arguments));
    let mut dead = TcpStream::connect(&epp.ext_proc).unwrap();
    dead.set_read_timeout(Some(PATIENCE)).unwrap();
    dead.write_all(PREFACE).unwrap();
    // It is asked after a quarter of a minute, and closed when it has not answered for as long.
    let closed = closed_after(dead);
    assert!((Duration::from_secs(28)..Duration::from_secs(45)).contains(&closed), "{closed:?}");
}
