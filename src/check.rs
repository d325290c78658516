//! `epp check`: what the process would run on, without running.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::process::ExitCode;

use sluice_config::settings::Objective;
use sluice_config::{Assembled, BandSlots, FlowControl, Slots};
use sluice_core::Priority;

use crate::flags::CommandLine;
use crate::run::{EXIT_FAILURE, EXIT_SETUP};
use crate::setup::{self, Configured, Finding, Setup};

/// Says on standard error what is wrong with the command line and the configuration, and with the files that they name if
/// `files`, and prints the configuration with everything filled in.
pub(crate) fn run(line: &CommandLine, files: bool) -> ExitCode {
    let Setup { mut findings, configured } = Setup::read(line);
    if let Some(Configured { assembled, .. }) = &configured {
        match page(assembled) {
            // A reader that went away has seen enough.
            Ok(page) => drop(io::stdout().lock().write_all(page.as_bytes())),
            Err(error) => {
                complain(format_args!("{error:#}"));
                return ExitCode::from(EXIT_FAILURE);
            }
        }
        if files {
            findings.extend(setup::findings_in_files(&line.flags, assembled));
        }
    }
    for finding in &findings {
        complain(format_args!("{finding}"));
    }
    if findings.iter().any(Finding::is_mistake) { ExitCode::from(EXIT_SETUP) } else { ExitCode::SUCCESS }
}

fn complain(line: fmt::Arguments<'_>) {
    drop(writeln!(io::stderr().lock(), "{line}"));
}

/// The configuration as YAML, and the slots of its bands as comments behind it.
fn page(assembled: &Assembled) -> anyhow::Result<String> {
    let mut page = assembled.effective_yaml()?;
    if let Some(flow_control) = &assembled.flow_control {
        write_slots(&mut page, flow_control, &assembled.settings.objectives)?;
    }
    Ok(page)
}

fn write_slots(page: &mut String, flow_control: &FlowControl, objectives: &[Objective]) -> fmt::Result {
    let slots = flow_control.slots();
    if slots.is_empty() {
        return Ok(());
    }
    let dry_run =
        if flow_control.config.dry_run.ceilings { "; a dry run: what is beyond is counted, not held" } else { "" };
    writeln!(page, "\n# Slots of each band on an endpoint without a limit of its own{dry_run}")?;
    for BandSlots { priority, requests, tokens } in slots {
        let name = band_name(priority, objectives);
        match (requests, tokens) {
            (Some(Slots { band, all }), None) => writeln!(page, "# {name}: {band} of {all}")?,
            (None, Some(Slots { band, all })) => writeln!(page, "# {name}: {band} of {all} tokens")?,
            (Some(requests), Some(tokens)) => {
                let (Slots { band, all }, Slots { band: band_tokens, all: all_tokens }) = (requests, tokens);
                writeln!(page, "# {name}: {band} of {all}, {band_tokens} of {all_tokens} tokens")?;
            }
            (None, None) => {}
        }
    }
    Ok(())
}

/// The objectives that have the priority, or what it is.
fn band_name(priority: Priority, objectives: &[Objective]) -> String {
    let names = objectives.iter().filter(|objective| objective.priority == priority.0);
    // A name is no more than a word of a comment.
    let names: Vec<String> = names.map(|objective| objective.name.escape_debug().to_string()).collect();
    if names.is_empty() { format!("priority {priority}") } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use sluice_config::{Options, Source};
    use sluice_plugins::BUILTIN;

    use super::*;

    fn accept(text: &str) -> Assembled {
        sluice_config::load(&Source::new("c.yaml", text), BUILTIN, &Options::default()).unwrap()
    }

    fn comments(text: &str) -> String {
        let page = page(&accept(text)).unwrap();
        page.lines().filter_map(|line| line.strip_prefix("# ")).collect::<Vec<_>>().join("\n")
    }

    fn with_detector(parameters: &str, rest: &str) -> String {
        format!(
            "
featureGates: [flowControl]
plugins:
  - {{type: concurrency-detector, parameters: {parameters}}}
  - {{type: priority-holdback-policy, parameters: {{ceilings: [{{priority: 0, ceiling: 0.8}}, {{priority: -10, ceiling: 0.6}}]}}}}
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  usageLimitPolicyPluginRef: priority-holdback-policy
  priorityBands: [{{priority: 5}}]
sluice:
  objectives: [{{name: premium, priority: 100}}, {{name: batch, priority: -10}}, {{name: nightly, priority: -10}}]
{rest}"
        )
    }

    #[test]
    fn each_band_is_told_its_slots_by_the_names_of_its_objectives() {
        let slots = comments(&with_detector("{maxConcurrency: 32, headroom: 0.5}", ""));
        let expected = "Slots of each band on an endpoint without a limit of its own
premium: 32 of 32
priority 5: 32 of 32
priority 0: 26 of 32
batch, nightly: 20 of 32";
        assert_eq!(slots, expected);
    }

    #[test]
    fn slots_are_in_what_the_detector_counts() {
        let tokens = "{concurrencyMode: tokens, maxTokenConcurrency: 1000}";
        assert!(comments(&with_detector(tokens, "")).ends_with("batch, nightly: 600 of 1000 tokens"));
        let hybrid = "{concurrencyMode: hybrid, maxConcurrency: 10, maxTokenConcurrency: 1000}";
        assert!(comments(&with_detector(hybrid, "")).ends_with("batch, nightly: 6 of 10, 600 of 1000 tokens"));
        let dry_run = comments(&with_detector("{}", "  dryRun: [ceilings]\n"));
        assert!(
            dry_run.starts_with("Slots of each band on an endpoint without a limit of its own; a dry run"),
            "{dry_run}"
        );
        assert_eq!(comments("{}"), "");
    }

    #[test]
    fn the_page_is_a_configuration_that_means_the_same() {
        for text in ["{}".to_owned(), with_detector("{headroom: 0.1}", "  limits: {bodyProgressTimeout: 250ms}\n")] {
            let first = accept(&text);
            let again = accept(&page(&first).unwrap());
            assert_eq!(again.effective, first.effective);
        }
    }
}
