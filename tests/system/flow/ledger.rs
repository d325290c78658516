//! What the picker believes to be in flight is what the engines have.

use std::time::Duration;

use sluice_testkit::{Soak, workspace};

use crate::support::picker;

/// The short form of `cargo xtask soak`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_is_what_the_engines_say_at_every_quiet_moment() {
    let [simulator] = workspace::build_programs(["model-server-sim"]).unwrap();
    let soak = Soak { picker: picker(), simulator: &simulator, duration: Duration::from_secs(30), seed: 1 };
    let report = soak.run().await.unwrap();
    println!("{report}");
    assert!(report.quiet_moments >= 5 && report.returned > 0, "{report}");
    for ending in ["complete", "refused by the model", "left", "expired", "complete where it was hinted to"] {
        assert!(report.endings.get(ending).is_some_and(|&count| count > 0), "none {ending}: {report}");
    }
}
