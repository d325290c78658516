use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::sync::watch;

/// Lines kept per process; older ones are forgotten.
const KEPT_LINES: usize = 5_000;
/// Lines shown when something goes wrong.
const SHOWN_LINES: usize = 40;

/// What a child process has written to standard output and standard error, line by line.
#[derive(Clone, Debug)]
pub struct Output {
    captured: Arc<watch::Sender<Captured>>,
}

#[derive(Debug, Default)]
struct Captured {
    lines: VecDeque<String>,
    forgotten: usize,
    open_streams: usize,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self { captured: Arc::new(watch::Sender::new(Captured::default())) }
    }

    /// Reads `stream` to its end on a thread of its own, so that the child never waits for a reader and a runtime
    /// that ends takes nothing with it.
    pub(crate) fn capture(&self, stream: impl Read + Send + 'static) {
        self.captured.send_modify(|captured| captured.open_streams += 1);
        let output = self.clone();
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while let Ok(1..) = stream.read_until(b'\n', &mut line) {
                output.push(String::from_utf8_lossy(&line).trim_end().to_owned());
                line.clear();
            }
            output.captured.send_modify(|captured| captured.open_streams -= 1);
        });
    }

    fn push(&self, line: String) {
        self.captured.send_modify(|captured| {
            captured.lines.push_back(line);
            if captured.lines.len() > KEPT_LINES {
                captured.lines.pop_front();
                captured.forgotten += 1;
            }
        });
    }

    /// The lines that are kept, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.captured.borrow().lines.iter().cloned().collect()
    }

    /// The last lines, for an error message.
    pub fn tail(&self) -> String {
        let captured = self.captured.borrow();
        let skipped = captured.lines.len().saturating_sub(SHOWN_LINES);
        let mut tail = String::new();
        if skipped + captured.forgotten > 0 {
            tail.push_str(&format!("... {} lines before\n", skipped + captured.forgotten));
        }
        for line in captured.lines.iter().skip(skipped) {
            tail.push_str(line);
            tail.push('\n');
        }
        tail
    }

    /// The first value that `read` finds in a line, past or future. Fails after `limit`, or as soon as the process has
    /// closed its output without such a line.
    pub async fn find<T>(&self, limit: Duration, read: impl Fn(&str) -> Option<T>) -> Result<T> {
        let mut changes = self.captured.subscribe();
        let mut seen = 0_usize;
        let search = async {
            loop {
                {
                    let captured = changes.borrow_and_update();
                    let skip = seen.saturating_sub(captured.forgotten);
                    if let Some(found) = captured.lines.iter().skip(skip).find_map(|line| read(line)) {
                        return Ok(found);
                    }
                    if captured.open_streams == 0 {
                        bail!("the output ended before the expected line");
                    }
                    seen = captured.forgotten + captured.lines.len();
                }
                changes.changed().await?;
            }
        };
        match tokio::time::timeout(limit, search).await {
            Ok(found) => found,
            Err(_) => bail!("the expected line did not come within {limit:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(text: &'static str) -> Output {
        let output = Output::new();
        output.capture(text.as_bytes());
        output
    }

    #[tokio::test]
    async fn finds_a_line_that_is_already_there_or_comes_later() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let output = Output::new();
        output.capture(reader);
        std::io::Write::write_all(&mut writer, b"first\n").unwrap();
        let is = |wanted: &'static str| move |line: &str| (line == wanted).then_some(());
        output.find(Duration::from_secs(5), is("first")).await.unwrap();
        let (found, ()) = tokio::join!(output.find(Duration::from_secs(5), is("second")), async {
            tokio::task::yield_now().await;
            std::io::Write::write_all(&mut writer, b"second\n").unwrap();
        });
        found.unwrap();
    }

    #[tokio::test]
    async fn fails_at_once_when_the_output_ends() {
        let output = captured("only\n");
        let error = output.find(Duration::from_secs(60), |line| (line == "other").then_some(())).await.unwrap_err();
        assert!(error.to_string().contains("ended"), "{error}");
    }

    #[tokio::test]
    async fn a_last_line_without_a_line_feed_and_bad_utf8_are_kept() {
        let output = Output::new();
        output.capture(&b"a\xff\nb"[..]);
        output.find(Duration::from_secs(5), |line| (line == "b").then_some(())).await.unwrap();
        assert_eq!(output.lines(), ["a\u{fffd}", "b"]);
    }
}
