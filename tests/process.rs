//! The process as its supervisor sees it: exit codes, signals, and what it does when the system gives it nothing.
#![expect(clippy::disallowed_methods, reason = "waits for another process, which has a clock of its own")]
#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const EPP: &str = env!("CARGO_BIN_EXE_epp");
/// For everything that is done in far less.
const PATIENCE: Duration = Duration::from_secs(60);
const GOOD_ENDPOINTS: &str = "endpoints: [{name: a, address: 127.0.0.1, port: 1}]";
/// Of HTTP/2: the client's opening, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0abcdefgh";

/// A directory of one test.
fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
    // Of an earlier run with the same number.
    fs::remove_dir_all(&directory).unwrap_or_default();
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// The arguments of a process that works, with the endpoint file in `directory`.
fn arguments(directory: &Path) -> Vec<String> {
    let endpoints = directory.join("endpoints.yaml");
    if !endpoints.exists() {
        fs::write(&endpoints, GOOD_ENDPOINTS).unwrap();
    }
    let configuration = format!(
        "plugins: [{{type: file-discovery, parameters: {{path: {:?}, watchFile: true}}}}]\n\
         dataLayer: {{discovery: {{pluginRef: file-discovery}}}}\n",
        endpoints.display().to_string()
    );
    let flags = ["--listen-address=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"];
    let mut arguments: Vec<String> = flags.map(str::to_owned).into();
    arguments.push(format!("--config-text={configuration}"));
    arguments
}

/// Ends with the test.
struct Epp {
    child: Child,
    ext_proc: String,
    metrics: String,
    log: Option<BufReader<ChildStderr>>,
}

impl Epp {
    /// Starts it, and reads its log until it serves.
    fn serving(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = child.stderr.take().map(BufReader::new);
        let mut epp = Self { child, ext_proc: String::new(), metrics: String::new(), log };
        let line = epp.line_with("\"message\":\"serving\"");
        let value = |key: &str| {
            let (_, rest) = line.split_once(&format!("\"{key}\":\"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        (epp.ext_proc, epp.metrics) = (value("ext_proc"), value("metrics"));
        epp
    }

    fn line_with(&mut self, text: &str) -> String {
        let mut seen = String::new();
        for line in self.log.as_mut().unwrap().lines() {
            let line = line.unwrap();
            if line.contains(text) {
                return line;
            }
            seen += &line;
        }
        panic!("no {text} in {seen}");
    }

    fn signal(&self, name: &str) {
        let kill = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(kill.unwrap().success());
    }

    /// The exit code, as soon as there is one.
    fn exit(&mut self, within: Duration) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < within {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status.code().expect("not killed by a signal"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Clock ticks, of which a second has 100, that its threads have run.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }
}

impl Drop for Epp {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().unwrap_or_default();
        self.child.wait().unwrap();
    }
}

fn epp(arguments: &[String]) -> Command {
    let mut command = Command::new(EPP);
    command.args(arguments);
    command
}

/// Exit code and log of a process that ends by itself.
fn run(arguments: &[String]) -> (Option<i32>, String) {
    let child = epp(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut epp = Epp { child, ext_proc: String::new(), metrics: String::new(), log: None };
    let mut stderr = epp.child.stderr.take().unwrap();
    let (send, log) = mpsc::channel();
    thread::spawn(move || {
        let mut log = String::new();
        stderr.read_to_string(&mut log).unwrap();
        send.send(log).unwrap_or_default();
    });
    let code = epp.exit(PATIENCE);
    drop(epp);
    (code, log.recv_timeout(PATIENCE).unwrap())
}

#[test]
fn a_mistake_in_the_setup_is_named_and_ends_it_with_64() {
    let root = directory("setup");
    let cases: [(&str, &[&str], &str); 6] = [
        ("flag", &["--nonsense"], "--nonsense"),
        ("port", &["--grpc-port=70000"], "70000"),
        ("config", &["--config-text=plugins: ["], "--config-text"),
        ("config-file", &["--config-text=", "--config-file=/nowhere/epp.yaml"], "/nowhere/epp.yaml"),
        ("no-certificate", &["--cert-path=/nowhere"], "/nowhere/tls.crt"),
        ("level", &["--cert-path=/nowhere", "--zap-log-level=nonsense"], "--zap-log-level"),
    ];
    for (name, given, named) in cases {
        let directory = root.join(name);
        fs::create_dir_all(&directory).unwrap();
        let mut arguments = arguments(&directory);
        if given[0] == "--config-text=" {
            arguments.pop();
        }
        arguments.extend(given.iter().map(|&flag| flag.to_owned()));
        let (code, log) = run(&arguments);
        assert_eq!(code, Some(64), "{name}: {log}");
        assert!(log.contains(named), "{name}: {log}");
    }
}

#[test]
fn a_certificate_that_is_no_good_is_named_and_ends_it_with_64() {
    for (name, certificate, key, named) in
        [("empty", "", "", "tls.crt"), ("garbage", "-----BEGIN CERTIFICATE-----\nx", "", "tls.crt")]
    {
        let directory = directory(&format!("certificate-{name}"));
        fs::write(directory.join("tls.crt"), certificate).unwrap();
        fs::write(directory.join("tls.key"), key).unwrap();
        let mut arguments = arguments(&directory);
        arguments.push(format!("--cert-path={}", directory.display()));
        let (code, log) = run(&arguments);
        assert_eq!(code, Some(64), "{log}");
        assert!(log.contains("--cert-path") && log.contains(named), "{log}");
    }
}

#[test]
fn an_endpoint_file_that_is_no_good_is_named_and_ends_it_with_64() {
    for name in ["bad", "directory", "device", "pipe"] {
        let directory = directory(&format!("endpoints-{name}"));
        let path = directory.join("endpoints.yaml");
        match name {
            "bad" => fs::write(&path, "endpoints: 3").unwrap(),
            "directory" => fs::create_dir(&path).unwrap(),
            "device" => symlink("/dev/zero", &path).unwrap(),
            _ => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
        }
        let (code, log) = run(&arguments(&directory));
        assert_eq!(code, Some(64), "{name}: {log}");
        assert!(log.contains("endpoints.yaml"), "{name}: {log}");
    }
}

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
fn a_peer_that_never_begins_its_handshake_is_sent_away() {
    let epp = Epp::serving(epp(&arguments(&directory("silent"))));
    let mut silent = TcpStream::connect(&epp.ext_proc).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
}
