use std::path::{Path, PathBuf};

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

fn sh(script: &str) -> Process {
    Process::spawn("script", Command::new("sh").args(["-c", script])).unwrap()
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    // "41 (name) S 1 ...": a zombie has ended and waits to be reaped.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

async fn wait_until_gone(pid: u32) {
    eventually(LIMIT, "end of the process", async || Ok((!is_alive(pid)).then_some(()))).await.unwrap();
}

#[tokio::test]
async fn captures_both_streams_and_the_exit_status() {
    let mut process = sh("echo out; echo err >&2; exit 3");
    assert_eq!(process.wait(LIMIT).await.unwrap().code(), Some(3));
    process.find_in_output(LIMIT, |line| (line == "out").then_some(())).await.unwrap();
    process.find_in_output(LIMIT, |line| (line == "err").then_some(())).await.unwrap();
}

#[tokio::test]
async fn hands_over_arguments_environment_and_directory_untouched() {
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"printf '%s|' "$@" "$GREETING" "$PWD"; echo"#, "name", "two words", "$HOME"])
        .env("GREETING", "a 'b'")
        .current_dir("/");
    let process = Process::spawn("script", &command).unwrap();
    let line = process.find_in_output(LIMIT, |line| Some(line.to_owned())).await.unwrap();
    assert_eq!(line, "two words|$HOME|a 'b'|/|");
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_named_with_its_output() {
    let process = Process::spawn("nothing", &Command::new("/no/such/program")).unwrap();
    let error = process.find_in_output(LIMIT, |line| (line == "ready").then_some(())).await.unwrap_err();
    let message = format!("{error:#}");
    assert!(message.contains("waiting for nothing") && message.contains("/no/such/program"), "{message}");
}

#[tokio::test]
async fn drop_kills_the_process_and_its_children() {
    let process = sh("sleep 600 & echo $!; wait");
    let grandchild = process.find_in_output(LIMIT, |line| line.parse::<u32>().ok()).await.unwrap();
    let child = process.id();
    assert!(is_alive(child) && is_alive(grandchild));
    drop(process);
    wait_until_gone(child).await;
    wait_until_gone(grandchild).await;
}

#[tokio::test]
async fn terminate_lets_a_process_end_in_its_own_way() {
    let mut process = sh("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done");
    process.find_in_output(LIMIT, |line| (line == "ready").then_some(())).await.unwrap();
    assert_eq!(process.terminate(LIMIT).await.unwrap().code(), Some(7));
    assert!(process.signal(Signal::TERM).is_err(), "an ended process cannot be signalled");
}

/// Runs this test binary once more as a parent that is killed without warning.
#[tokio::test]
async fn nothing_outlives_a_parent_that_is_killed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process::tests::parent_of_a_sleeper", "--ignored", "--nocapture"]);
    let mut parent = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let output = Output::new();
    output.capture(parent.stdout.take().unwrap());
    let sleeper = output.find(LIMIT, |line| line.strip_prefix("sleeper ")?.parse::<u32>().ok()).await;
    let directory = output.find(LIMIT, |line| line.strip_prefix("directory ").map(PathBuf::from)).await;
    let was_there = sleeper.as_ref().is_ok_and(|sleeper| is_alive(*sleeper))
        && directory.as_ref().is_ok_and(|directory| directory.is_dir());
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(was_there, "{sleeper:?}, {directory:?}, {}", output.tail());
    wait_until_gone(sleeper.unwrap()).await;
    let directory = directory.unwrap();
    let removed = async || Ok((!directory.exists()).then_some(()));
    eventually(LIMIT, "removal of the temporary directory", removed).await.unwrap();
}

#[test]
#[ignore = "not a test: the parent in `nothing_outlives_a_parent_that_is_killed`"]
fn parent_of_a_sleeper() {
    let process = Process::spawn("sleeper", Command::new("sleep").arg("600")).unwrap();
    let directory = guardian::temporary_dir("parent-").unwrap();
    println!("\nsleeper {}\ndirectory {}", process.id(), directory.path().display());
    std::thread::park_timeout(Duration::from_secs(20));
}
