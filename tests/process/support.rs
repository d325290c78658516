use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const EPP: &str = env!("CARGO_BIN_EXE_epp");
/// For everything that is done in far less.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const GOOD_ENDPOINTS: &str = "endpoints: [{name: a, address: 127.0.0.1, port: 1}]";
/// Of HTTP/2: the client's opening, with empty settings.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
pub(crate) const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0abcdefgh";

/// A directory of one test.
pub(crate) fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
    // Of an earlier run with the same number.
    fs::remove_dir_all(&directory).unwrap_or_default();
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// The arguments of a process that works, with the endpoint file in `directory`.
pub(crate) fn arguments(directory: &Path) -> Vec<String> {
    let configuration = configuration(directory);
    ports().into_iter().chain([format!("--config-text={configuration}")]).collect()
}

/// Free ones.
pub(crate) fn ports() -> Vec<String> {
    let flags = ["--listen-address=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"];
    flags.map(str::to_owned).into()
}

/// A configuration that names the endpoint file in `directory`, which is made if it is not there.
pub(crate) fn configuration(directory: &Path) -> String {
    let endpoints = directory.join("endpoints.yaml");
    if !endpoints.exists() {
        fs::write(&endpoints, GOOD_ENDPOINTS).unwrap();
    }
    format!(
        "plugins: [{{type: file-discovery, parameters: {{path: {:?}, watchFile: true}}}}]\n\
         dataLayer: {{discovery: {{pluginRef: file-discovery}}}}\n",
        endpoints.display().to_string()
    )
}

/// Ends with the test.
pub(crate) struct Epp {
    pub(crate) child: Child,
    pub(crate) ext_proc: String,
    pub(crate) health: String,
    pub(crate) metrics: String,
    pub(crate) log: Option<BufReader<ChildStderr>>,
}

impl Epp {
    /// Without waiting for anything.
    pub(crate) fn starting(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = child.stderr.take().map(BufReader::new);
        let [ext_proc, health, metrics] = [const { String::new() }; 3];
        Self { child, ext_proc, health, metrics, log }
    }

    /// Starts it, and reads its log until it serves.
    pub(crate) fn serving(command: Command) -> Self {
        let mut epp = Self::starting(command);
        let line = epp.line_with("\"message\":\"serving\"");
        let value = |key: &str| {
            let (_, rest) = line.split_once(&format!("\"{key}\":\"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        (epp.ext_proc, epp.health, epp.metrics) = (value("ext_proc"), value("health"), value("metrics"));
        epp
    }

    pub(crate) fn line_with(&mut self, text: &str) -> String {
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

    /// The body of a page on the metrics port.
    pub(crate) fn page(&self, path: &str) -> String {
        let connection = TcpStream::connect(&self.metrics).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        page_on(connection, path).unwrap()
    }

    /// The page `/debug/config`.
    pub(crate) fn configuration(&self) -> serde_json::Value {
        serde_json::from_str(&self.page("/debug/config")).unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(kill.unwrap().success());
    }

    /// The exit code, as soon as there is one.
    pub(crate) fn exit(&mut self, within: Duration) -> Option<i32> {
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
    pub(crate) fn ticks(&self) -> u64 {
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

pub(crate) fn epp(arguments: &[String]) -> Command {
    let mut command = Command::new(EPP);
    command.args(arguments);
    command
}

/// The body of a page that is asked for on `connection`, the only one there.
pub(crate) fn page_on(mut connection: impl io::Read + io::Write, path: &str) -> io::Result<String> {
    write!(connection, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
    let mut response = String::new();
    connection.read_to_string(&mut response)?;
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    Ok(body.to_owned())
}

/// Exit code and log of a process that ends by itself.
pub(crate) fn run(arguments: &[String]) -> (Option<i32>, String) {
    let child = epp(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let [ext_proc, health, metrics] = [const { String::new() }; 3];
    let mut epp = Epp { child, ext_proc, health, metrics, log: None };
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
