//! What is wrong before it serves.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::support::{EPP, arguments, directory, run};

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
fn a_configuration_without_end_is_not_read_to_it() {
    let directory = directory("setup-endless");
    let [sparse, pipe] = ["sparse", "pipe"].map(|name| directory.join(name));
    fs::File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let zeros = Command::new("dd").args(["if=/dev/zero", "bs=64k", &format!("of={}", pipe.display())]).spawn();
    for path in ["/dev/zero", sparse.to_str().unwrap(), pipe.to_str().unwrap()] {
        let mut arguments = arguments(&directory);
        arguments.pop();
        arguments.push(format!("--config-file={path}"));
        let (code, log) = run(&arguments);
        assert_eq!(code, Some(64), "{path}: {log}");
        assert!(log.contains("at most 1048576 are read"), "{path}: {log}");
    }
    // It ends by itself: nobody reads what it writes.
    assert!(!zeros.unwrap().wait().unwrap().success());
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
fn without_a_source_of_endpoints_that_can_be_asked_it_ends_with_64() {
    let cases: [(&[&str], &str); 3] = [
        (&[], "no source of endpoints"),
        (&["--pool-name=a", "--endpoint-selector=b", "--endpoint-target-ports=1"], "exclude each other"),
        (&["--pool-name=a"], "no access to a Kubernetes API server"),
    ];
    for (given, named) in cases {
        let mut command = Command::new(EPP);
        command.args(["--listen-address=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"]);
        command.args(given).env("KUBECONFIG", "/nowhere/config").env_remove("KUBERNETES_SERVICE_HOST");
        let output = command.output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{log}");
        assert!(log.contains(named), "{log}");
    }
}
