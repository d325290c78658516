use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

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
