//! The configuration file changes while the process runs.

use std::fs;
use std::io::BufRead as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Epp, PATIENCE, configuration, directory, epp, ports};

/// Longer than the process takes to notice a change by looking.
const NOTICED: Duration = Duration::from_millis(1_500);

/// A good configuration that can be told by its limit.
fn with_limit(directory: &Path, limit: u32) -> String {
    format!("{}sluice: {{limits: {{maxRequestHeaders: {limit}}}}}\n", configuration(directory))
}

/// What replaces a file as editors and ConfigMaps do.
fn replace(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).unwrap();
    fs::rename(&draft, path).unwrap();
}

struct Followed {
    directory: PathBuf,
    path: PathBuf,
    epp: Epp,
}

impl Followed {
    /// A process whose configuration has the limit 100.
    fn start(test: &str) -> Self {
        let directory = directory(test);
        let path = directory.join("epp.yaml");
        fs::write(&path, with_limit(&directory, 100)).unwrap();
        Self::with(directory, path)
    }

    fn with(directory: PathBuf, path: PathBuf) -> Self {
        let mut arguments = ports();
        arguments.extend([format!("--config-file={}", path.display()), "--drain-timeout=0s".to_owned()]);
        let epp = Epp::serving(epp(&arguments));
        Self { directory, path, epp }
    }

    fn write(&self, limit: u32) {
        replace(&self.path, &with_limit(&self.directory, limit));
    }

    fn limit(&self) -> u64 {
        let page = self.epp.configuration();
        page["config"]["sluice"]["limits"]["maxRequestHeaders"].as_u64().unwrap()
    }

    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let page = self.epp.configuration();
            if is_so(&page) {
                return page;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{what}: {:#}", self.epp.configuration());
    }

    fn until_limit(&self, limit: u64) {
        self.until("another limit", |page| page["config"]["sluice"]["limits"]["maxRequestHeaders"] == limit);
    }

    /// Waits for a refusal whose first line has `text`; returns all of them.
    fn until_refused(&self, text: &str) -> Vec<String> {
        let is_refused = |page: &Value| {
            let first = page["lastRefused"]["diagnostics"][0].as_str();
            page["failing"] == true && first.is_some_and(|line| line.contains(text))
        };
        let page = self.until("refused", is_refused);
        let lines = page["lastRefused"]["diagnostics"].as_array().unwrap();
        lines.iter().map(|line| line.as_str().unwrap().to_owned()).collect()
    }

    fn count(&self, series: &str) -> String {
        let page = self.epp.page("/metrics");
        let line =
            page.lines().find(|line| line.starts_with(series)).unwrap_or_else(|| panic!("no {series} in {page}"));
        line.rsplit(' ').next().unwrap().to_owned()
    }

    fn reloads(&self) -> [String; 3] {
        ["applied", "refused", "unreadable"]
            .map(|outcome| self.count(&format!("llm_d_epp_config_reload_total{{outcome=\"{outcome}\"}}")))
    }
}

#[test]
fn a_good_change_is_put_in_force_and_a_bad_one_is_not() {
    let mut followed = Followed::start("reload");
    let at_start = followed.epp.configuration();
    assert_eq!((&at_start["followed"], &at_start["failing"]), (&true.into(), &false.into()));
    followed.write(200);
    followed.until_limit(200);
    let line = followed.epp.line_with("configuration reloaded");
    assert!(line.contains("\"changed\":\"sluice.limits\""), "{line}");
    let sum = Command::new("sha256sum").arg(&followed.path).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap().split(' ').next().unwrap().to_owned();
    let page = followed.epp.configuration();
    assert_eq!(page["sha256"], sum);
    assert!(page["inForceSince"].as_str() > at_start["inForceSince"].as_str(), "{page}");
    assert_eq!(followed.count(&format!("llm_d_epp_config_info{{sha256=\"{sum}\"}}")), "1");

    // All mistakes, those of a plugin too.
    let bad =
        with_limit(&followed.directory, 300).replace("watchFile", "watchfile").replace("maxRequestH", "maxRequesth");
    fs::write(&followed.path, bad).unwrap();
    let mistakes = followed.until_refused("epp.yaml:1:");
    assert_eq!(mistakes.len(), 2, "{mistakes:?}");
    assert!(mistakes[1].contains("did you mean \"maxRequestHeaders\"?"), "{mistakes:?}");
    followed.epp.line_with("did you mean \\\"watchFile\\\"?");
    followed.epp.line_with("the previous one stays in force");
    assert_eq!(followed.limit(), 200);
    assert_eq!(followed.count("llm_d_epp_config_reload_failing"), "1");
    thread::sleep(NOTICED);
    assert_eq!(followed.reloads(), ["1", "1", "0"], "once");

    followed.write(200);
    followed.until("good again", |page| page["failing"] == false);
    followed.write(400);
    followed.until_limit(400);
    assert_eq!(followed.reloads(), ["2", "1", "0"]);
}

#[test]
fn what_cannot_change_is_refused_by_name() {
    let followed = Followed::start("reload-fixed");
    let other = followed.directory.join("other");
    fs::create_dir(&other).unwrap();
    let text = configuration(&other) + "sluice: {limits: {maxRequestHeaders: 7}, metrics: {legacyNames: false}}\n";
    fs::write(&followed.path, text).unwrap();
    let mistakes = followed.until_refused("plugins[0].parameters: the source of the endpoints cannot change");
    assert!(mistakes[1].contains("sluice.metrics.legacyNames: "), "{mistakes:?}");
    assert_eq!(followed.limit(), 100, "nor is the rest of it in force");
}

/// Nobody listens where the endpoint is said to be.
#[test]
fn endpoints_are_scraped_from_when_somebody_wants_it() {
    let followed = Followed::start("reload-scraping");
    let failures = || {
        let page = followed.epp.page("/metrics");
        let mut lines = page.lines().filter(|line| line.starts_with("llm_d_epp_datalayer_poll_errors_total{"));
        lines.any(|line| !line.ends_with(" 0"))
    };
    assert!(!failures());
    let text = with_limit(&followed.directory, 100).replace("plugins: [", "plugins: [{type: queue-scorer}, ");
    replace(&followed.path, &text);
    let start = Instant::now();
    while !failures() {
        assert!(start.elapsed() < PATIENCE, "{:#}", followed.epp.configuration());
        thread::sleep(Duration::from_millis(20));
    }
}

/// As with two ConfigMaps, of which one arrives later.
#[test]
fn what_names_a_file_that_is_not_there_yet_is_put_in_force_when_it_comes() {
    let mut followed = Followed::start("reload-not-yet");
    let ca = followed.directory.join("ca.pem");
    let source = format!(
        "plugins: [{{type: queue-scorer}}, {{type: metrics-data-source, parameters: \
         {{scheme: https, insecureSkipVerify: false, caCertPath: {ca:?}}}}}, "
    );
    let text = with_limit(&followed.directory, 200).replace("plugins: [", &source);
    replace(&followed.path, &text);
    followed.until_refused("No such file");
    // It is tried again after a second.
    thread::sleep(NOTICED + Duration::from_secs(1));
    assert_eq!(followed.reloads(), ["0", "1", "0"], "said once");
    fs::write(&ca, "no certificate").unwrap();
    followed.until_refused("holds no certificate");
    assert_eq!((followed.reloads(), followed.limit()), (["0", "2", "0"].map(str::to_owned), 100));
    fs::write(&ca, rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap().cert.pem()).unwrap();
    followed.until_limit(200);
    assert_eq!(followed.reloads(), ["1", "2", "0"]);
    assert_eq!(followed.epp.configuration()["failing"], false);

    followed.epp.signal("TERM");
    let log = followed.epp.log.take().unwrap().lines().map(Result::unwrap);
    let told: Vec<String> = log.filter(|line| line.contains("\"ERROR\"") && line.contains("ca.pem")).collect();
    assert_eq!(told.len(), 2, "{told:?}");
}

#[test]
fn a_config_map_is_followed() {
    let directory = directory("reload-map");
    let link = |target: &str, name: &str| {
        symlink(target, directory.join("tmp-link")).unwrap();
        fs::rename(directory.join("tmp-link"), directory.join(name)).unwrap();
    };
    for (version, limit) in [("v1", 100), ("v2", 200), ("v3", 300)] {
        fs::create_dir(directory.join(version)).unwrap();
        fs::write(directory.join(version).join("epp.yaml"), with_limit(&directory, limit)).unwrap();
    }
    link("v1", "..data");
    link("..data/epp.yaml", "epp.yaml");
    let followed = Followed::with(directory.clone(), directory.join("epp.yaml"));
    for (version, limit) in [("v2", 200), ("v3", 300)] {
        link(version, "..data");
        fs::remove_dir_all(directory.join(format!("v{}", limit / 100 - 1))).unwrap();
        followed.until_limit(limit);
    }
}

#[test]
fn what_cannot_be_read_leaves_everything_as_it_is() {
    let followed = Followed::start("reload-unreadable");
    let path = &followed.path;
    fs::remove_file(path).unwrap();
    followed.until_refused("No such file");
    fs::create_dir(path).unwrap();
    followed.until_refused("not a regular file");
    fs::remove_dir(path).unwrap();
    replace(path, &with_limit(&followed.directory, 100));
    followed.until("good again", |page| page["failing"] == false);

    // Whoever opens it waits for somebody to write.
    fs::remove_file(path).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    followed.until_refused("not a regular file");
    replace(path, &format!("{}# {}\n", with_limit(&followed.directory, 200), "x".repeat(1 << 20)));
    followed.until_refused("at most 1048576 are read");
    replace(path, "\u{feff}\u{0}");
    followed.until_refused("epp.yaml:");
    replace(path, "");
    followed.until_refused("epp.yaml:1:1: the configuration is empty");
    assert_eq!(followed.limit(), 100);
    replace(path, &with_limit(&followed.directory, 300));
    followed.until_limit(300);
    assert_eq!(followed.reloads()[0], "1");
}

#[test]
fn of_changes_in_a_row_the_last_one_counts() {
    let followed = Followed::start("reload-row");
    for limit in 200..300 {
        followed.write(limit);
        if limit % 10 == 0 {
            thread::sleep(Duration::from_millis(30));
        }
    }
    followed.until_limit(299);
    thread::sleep(NOTICED);
    assert_eq!(followed.limit(), 299);
    assert_eq!(followed.reloads()[1..], ["0", "0"], "no half of a text was taken for one");
}

#[test]
fn a_configuration_that_is_not_to_be_followed_is_not() {
    let directory = directory("reload-off");
    let path = directory.join("epp.yaml");
    let off = |limit: u32| with_limit(&directory, limit).replace("sluice: {", "sluice: {reload: {enabled: false}, ");
    fs::write(&path, off(100)).unwrap();
    let followed = Followed::with(directory.clone(), path.clone());
    assert_eq!(followed.epp.configuration()["followed"], false);
    followed.write(200);
    thread::sleep(NOTICED);
    assert_eq!(followed.limit(), 100);
    drop(followed);

    // The last change is the one that says so.
    fs::write(&path, with_limit(&directory, 300)).unwrap();
    let followed = Followed::with(directory.clone(), path.clone());
    fs::write(&path, off(400)).unwrap();
    followed.until_limit(400);
    assert_eq!(followed.epp.configuration()["followed"], false);
    followed.write(500);
    thread::sleep(NOTICED);
    assert_eq!(followed.limit(), 400);
}

#[test]
fn a_pipe_is_read_once() {
    let directory = directory("reload-pipe");
    let path = directory.join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (text, pipe) = (with_limit(&directory, 100), path.clone());
    let writer = thread::spawn(move || fs::write(pipe, text).unwrap());
    let followed = Followed::with(directory, path);
    writer.join().unwrap();
    assert_eq!(followed.limit(), 100);
    assert_eq!(followed.epp.configuration()["followed"], false);
    thread::sleep(NOTICED);
    assert_eq!(followed.reloads(), ["0", "0", "0"]);
}

#[test]
fn a_signal_ends_it_well_whatever_is_being_reloaded() {
    let mut followed = Followed::start("reload-signal");
    for limit in 101..=140 {
        followed.write(limit);
        thread::sleep(Duration::from_millis(5));
    }
    followed.epp.signal("TERM");
    for limit in 141..=160 {
        followed.write(limit);
    }
    assert_eq!(followed.epp.exit(PATIENCE), Some(0));
}
