use std::fmt;
use std::time::Duration;

use sluice_testkit::Tally;

/// A line for each class of clients.
pub(super) struct Table(Vec<Row>);

pub(super) struct Row {
    pub(super) class: &'static str,
    pub(super) tally: Tally,
    /// The mean wait in the picker; `None` without a queue.
    pub(super) waited: Option<Duration>,
}

impl Table {
    pub(super) const fn new(rows: Vec<Row>) -> Self {
        Self(rows)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = ["sent", "served", "dropped", "TTFT p50", "TTFT p95", "waited"];
        write_row(f, "", titles.map(str::to_owned))?;
        for Row { class, tally, waited } in &self.0 {
            let counts = [tally.sent(), tally.served, tally.refused + tally.broken].map(|count| count.to_string());
            let times = [tally.ttft_percentile(50), tally.ttft_percentile(95), *waited].map(seconds);
            let [sent, served, dropped] = counts;
            let [p50, p95, waited] = times;
            write_row(f, class, [sent, served, dropped, p50, p95, waited])?;
        }
        Ok(())
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, class: &str, cells: [String; 6]) -> fmt::Result {
    let [sent, served, dropped, p50, p95, waited] = cells;
    writeln!(f, "  {class:<12} {sent:>6} {served:>7} {dropped:>8} {p50:>10} {p95:>10} {waited:>9}")
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_stand_under_their_titles() {
        let premium = Tally { served: 2, refused: 0, broken: 1, ttft: [120, 900].map(Duration::from_millis).to_vec() };
        let batch = Tally { refused: 2, broken: 1, ..Tally::default() };
        let table = Table::new(vec![
            Row { class: "premium", tally: premium, waited: Some(Duration::from_millis(50)) },
            Row { class: "batch", tally: batch, waited: None },
        ]);
        let expected = "
                 sent  served  dropped   TTFT p50   TTFT p95    waited
  premium           3       2        1     0.12 s     0.90 s    0.05 s
  batch             3       0        3          -          -         -
";
        assert_eq!(format!("\n{table}"), expected);
    }
}
