//! Configurations in files, and what is said of each: broken ones, one for each rule, and good ones of the kinds that are
//! in use, some of which name what is not there yet.
//!
//! What else counts stands in comments at the top: `# flags: --allow-experimental-plugins`, and
//! `# in force: ../good/minimal.yaml` for one that takes the place of another in a process that runs.

use std::fs;
use std::path::{Path, PathBuf};

use sluice_config::{Assembled, Diagnostic, Diagnostics, Options, Severity, Source, load, reload};
use sluice_core::GoDuration;
use sluice_plugins::BUILTIN;

use crate::repository;

const DIRECTORY: &str = "crates/config/tests/fixtures";

pub(crate) fn fixtures(kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join(DIRECTORY).join(kind)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|name| name == "yaml")).collect();
    paths.sort();
    paths
}

/// What stands behind `key` in a comment at the top.
fn heading<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let comments = text.lines().map_while(|line| line.strip_prefix("# "));
    comments.filter_map(|comment| comment.strip_prefix(key)?.strip_prefix(": ")).next()
}

fn options(text: &str) -> Options {
    let mut options = Options::default();
    for flag in heading(text, "flags").unwrap_or_default().split_whitespace() {
        match flag.split_once('=') {
            None if flag == "--allow-experimental-plugins" => options.allow_experimental_plugins = true,
            Some(("--refresh-metrics-interval", interval)) => {
                options.scrape_interval = interval.parse::<GoDuration>().unwrap().non_negative().unwrap();
            }
            _ => panic!("{flag}"),
        }
    }
    options
}

pub(crate) fn read(path: &Path) -> Result<Assembled, Diagnostics> {
    let bytes = fs::read(path).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let options = options(&text);
    let source = Source::new(path.file_name().unwrap().to_str().unwrap(), &*bytes);
    match heading(&text, "in force") {
        Some(other) => {
            let other = fs::read(path.parent().unwrap().join(other)).unwrap();
            let before = load(&Source::new("before.yaml", other), BUILTIN, &Options::default()).unwrap();
            reload(&source, BUILTIN, &options, &before.as_previous)
        }
        None => load(&source, BUILTIN, &options),
    }
}

/// Everything that is said, and whether the configuration can be used.
pub(crate) fn said_of(path: &Path) -> (Vec<Diagnostic>, bool) {
    match read(path) {
        Ok(assembled) => (assembled.warnings, true),
        Err(diagnostics) => (diagnostics.iter().cloned().collect(), false),
    }
}

fn assert_as_before(kind: &str, path: &Path, said: &[Diagnostic], is_usable: bool) {
    let name = path.file_stem().unwrap().to_str().unwrap();
    let directory = repository().join(DIRECTORY).join(kind);
    let end = is_usable.then(|| "ok".to_owned());
    let said = said.iter().map(ToString::to_string).chain(end).collect::<Vec<_>>().join("\n");
    insta::with_settings!({
        snapshot_path => directory.canonicalize().unwrap(),
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!(name, said);
    });
}

#[test]
fn every_broken_configuration_is_told_what_is_wrong_and_where() {
    let broken = fixtures("broken");
    assert!(broken.len() >= 60, "{}", broken.len());
    for path in broken {
        let (said, is_usable) = said_of(&path);
        assert!(!is_usable, "{} can be used", path.display());
        assert_as_before("broken", &path, &said, is_usable);
    }
}

#[test]
fn every_kind_of_sample_loads_or_says_what_is_not_there_yet() {
    for path in fixtures("good") {
        let (said, is_usable) = said_of(&path);
        let is_mistake = |said: &&Diagnostic| {
            said.severity == Severity::Error && !said.message.contains("not available in this version")
        };
        assert!(is_usable || !said.iter().any(|said| is_mistake(&said)), "{}: {said:?}", path.display());
        assert_as_before("good", &path, &said, is_usable);
    }
}

/// What was filled in, or left out for want of an effect, gives no reason for a warning.
#[test]
fn what_is_shown_of_a_good_configuration_means_the_same_and_says_no_more() {
    for path in fixtures("good") {
        let Ok(first) = read(&path) else { continue };
        let shown = first.effective_yaml().unwrap();
        let options = options(&fs::read_to_string(&path).unwrap());
        let again = load(&Source::new("shown.yaml", &*shown), BUILTIN, &options).unwrap();
        assert_eq!(again.effective, first.effective, "{}", path.display());
        for warning in &again.warnings {
            // What had no effect where it was named is not named again.
            let is_left = warning.message.starts_with("has no effect: nothing refers to the plugin");
            let was_said = first.warnings.iter().any(|said| said.message == warning.message);
            assert!(was_said || is_left, "{}: {warning}\n{shown}", path.display());
        }
        assert!(again.warnings.len() <= first.warnings.len(), "{}: {:?}", path.display(), again.warnings);
    }
}
