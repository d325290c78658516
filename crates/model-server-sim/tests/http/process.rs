//! The binary.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::support::PATIENCE;

const BINARY: &str = env!("CARGO_BIN_EXE_model-server-sim");

/// A running binary, killed when dropped.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start() -> Self {
        let arguments = ["--port", "0", "--time-per-output-token", "1"];
        let mut child = Command::new(BINARY).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line);
        let address = line.trim_end().strip_prefix("listening on ").and_then(|address| address.parse().ok());
        match address {
            Some(address) => Self { child, address },
            None => {
                child.kill().ok();
                panic!("said {line:?} ({read:?})");
            }
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn signal(&mut self, name: &str) -> ExitStatus {
        // Built into every shell, while the program of that name is not everywhere.
        let sent = Command::new("sh").args(["-c", &format!("kill -s {name} {}", self.child.id())]).status().unwrap();
        assert!(sent.success());
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn signals_end_it_cleanly_even_with_a_stream_under_way() {
    for signal in ["TERM", "INT"] {
        let mut process = Process::start();
        let mut stream = process.connect();
        let body = r#"{"prompt": "a", "stream": true, "ignore_eos": true, "max_tokens": 30000}"#;
        write!(stream, "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            .unwrap();
        let mut head = [0; 15];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        assert_eq!(process.signal(signal).code(), Some(0), "{signal}");
        let mut rest = String::new();
        stream.read_to_string(&mut rest).ok();
        assert!(!rest.contains("[DONE]"));
    }
}

#[test]
fn settings_that_contradict_each_other_are_named() {
    let output = Command::new(BINARY).args(["--port", "0", "--kv-cache-blocks", "10"]).output().unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("the KV cache holds 160 tokens, less than max-model-len 32768"), "{message}");
}
