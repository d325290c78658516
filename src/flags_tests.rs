use super::*;

fn parse(line: &str) -> Result<CommandLine, clap::Error> {
    CommandLine::parse(line.split_whitespace())
}

#[test]
fn the_command_lines_of_charts_are_understood() {
    let line = parse(
        "epp --pool-name lab --pool-namespace=lab --config-file /etc/epp.yaml -v 4 --zap-encoder json \
         --grpc-port 9002 --tracing=false --secure-serving=false --health-checking --enable-pprof=true \
         --kv-cache-usage-percentage-metric=x --drain-timeout=1m30s --grpc-max-recv-msg-size 16MiB",
    )
    .unwrap();
    assert_eq!(line.flags.verbosity, 4);
    assert!(!line.flags.secure_serving);
    assert_eq!(line.flags.drain_timeout, Duration::from_secs(90));
    assert_eq!(line.flags.grpc_max_recv_msg_size, Some(MessageSize(Some(16 << 20))));
    assert_eq!(line.flags.pool_name(), "lab");
    assert_eq!(line.flags.pool_namespace.as_deref(), Some("lab"));
    let ignored = ["--zap-encoder", "--enable-pprof", "--tracing", "--kv-cache-usage-percentage-metric"];
    assert_eq!(line.ignored.len(), ignored.len(), "{:?}", line.ignored);
    assert!(ignored.iter().all(|flag| line.ignored.iter().any(|given| given == flag)), "{:?}", line.ignored);
}

#[test]
fn nothing_given_is_nothing_ignored() {
    let line = parse("epp").unwrap();
    assert_eq!(line.ignored, Vec::<String>::new());
    assert!(line.flags.secure_serving);
    assert_eq!(line.flags.grpc_max_recv_msg_size, None);
}

#[test]
fn every_way_to_write_verbosity() {
    for text in ["epp -v 4", "epp -v=4", "epp -v4", "epp --v 4", "epp --v=4"] {
        assert_eq!(parse(text).unwrap().flags.verbosity, 4, "{text}");
    }
    assert_eq!(parse("epp -v=-1").unwrap().flags.verbosity, -1);
}

#[test]
fn switches_take_gos_words() {
    for (text, secure) in [("", true), ("=true", true), ("=1", true), ("=F", false), ("=0", false)] {
        assert_eq!(parse(&format!("epp --secure-serving{text}")).unwrap().flags.secure_serving, secure, "{text}");
    }
    assert!(parse("epp --secure-serving=maybe").is_err());
    assert!(parse("epp --allow-experimental-plugins").unwrap().flags.allow_experimental_plugins);
}

#[test]
fn bad_values_are_refused() {
    for text in [
        "epp --nonsense",
        "epp --grpc-port 70000",
        "epp --drain-timeout -1s",
        "epp --drain-timeout 30",
        "epp --grpc-max-recv-msg-size -1",
        "epp --grpc-max-recv-msg-size lots",
        "epp --config-file a --config-text b",
        "epp --tls-min-version 1.2",
        "epp --endpoint-target-ports 8000,",
        "epp --endpoint-target-ports 0",
        "epp --endpoint-target-ports 70000",
        "epp --tls-cipher-suites TLS_NULL",
        "epp stray",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn an_empty_value_is_no_value() {
    let line = CommandLine::parse(["epp", "--config-file", "", "--config-text", "x", "--cert-path="]).unwrap();
    assert_eq!(line.flags.config_source(), ConfigSource::Text("x".into()));
    assert_eq!(line.flags.certificate_directory(), None);
    assert_eq!(parse("epp").unwrap().flags.config_source(), ConfigSource::BuiltIn);
}

#[test]
fn every_flag_may_be_repeated_and_may_be_empty() {
    let command = Flags::command();
    let flags: Vec<&Arg> = command.get_arguments().collect();
    assert!(flags.len() > 40);
    // With one that another one needs.
    let line = |given: &[&str]| {
        [&["epp", "--metrics-cert-dir=a"], given].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    for flag in flags {
        let long = flag.get_long().unwrap();
        let switch = flag.is_require_equals_set();
        let apart = vec![format!("--{long}"), String::new()];
        let mut empty = vec![vec![format!("--{long}=")]];
        empty.extend((!switch).then_some(apart));
        for given in empty {
            let line = CommandLine::parse(std::iter::once("epp".to_owned()).chain(given.clone()));
            assert_eq!(line.unwrap().ignored, Vec::<String>::new(), "{given:?}");
        }
        let value = ["1", "1s", "::", "true", "VersionTLS12", "TLS_AES_128_GCM_SHA256"]
            .into_iter()
            .find(|value| CommandLine::parse(line(&[&format!("--{long}={value}")])).is_ok());
        let once = format!("--{long}={}", value.unwrap());
        CommandLine::parse(line(&[&once, &format!("--{long}="), &once])).unwrap();
    }
}

#[test]
fn the_last_of_repeated_flags_counts() {
    let line = parse("epp --grpc-port 1 --grpc-port=2 -v 1 --v=4 --secure-serving --secure-serving=false").unwrap();
    assert_eq!((line.flags.grpc_port, line.flags.verbosity, line.flags.secure_serving), (2, 4, false));
    let line = parse("epp --config-file a --config-file b --tracing --tracing=false --enable-pprof").unwrap();
    assert_eq!(line.flags.config_source(), ConfigSource::File("b".into()));
    assert_eq!(line.ignored.len(), 2, "{:?}", line.ignored);
}

#[test]
fn an_empty_value_leaves_the_default_or_what_was_given() {
    let line = CommandLine::parse(["epp", "--drain-timeout", "", "--listen-address=", "-v=", "-v", ""]).unwrap();
    assert_eq!(line.flags.drain_timeout, Duration::from_secs(30));
    assert!(line.flags.listen_address.is_unspecified());
    assert_eq!(line.flags.verbosity, 2);
    let line = CommandLine::parse(["epp", "--grpc-port", "7", "--grpc-port", ""]).unwrap();
    assert_eq!(line.flags.grpc_port, 7);
    for refused in [&["epp", ""][..], &["epp", "--nonsense="], &["epp", "--tracing", ""], &["epp", "--config-text"]] {
        assert!(CommandLine::parse(refused.iter().copied()).is_err(), "{refused:?}");
    }
}

#[test]
fn the_definition_holds_together() {
    command().debug_assert();
}

#[test]
fn a_check_takes_the_same_flags() {
    let line = parse("epp check --config-file a --pool-name lab --tracing=false --secure-serving=false").unwrap();
    assert_eq!(line.task, Task::Check { files: false });
    assert_eq!(parse("epp check --files").unwrap().task, Task::Check { files: true });
    assert!(parse("epp --files").is_err());
    assert_eq!(line.flags.config_source(), ConfigSource::File("a".into()));
    assert_eq!((line.flags.secure_serving, line.ignored), (false, vec!["--tracing".to_owned()]));
    assert_eq!(parse("epp --config-file check").unwrap().task, Task::Serve, "a value is no task");
    assert_eq!(parse("epp check").unwrap().flags.config_source(), ConfigSource::BuiltIn);
    for refused in ["epp --config-file a check", "epp check stray", "epp check check", "epp checks", "epp help"] {
        assert!(parse(refused).is_err(), "{refused}");
    }
    assert!(parse("epp check --config-file a --config-text b").is_err());
}

#[test]
fn what_is_asked_for_and_not_done_is_told() {
    let warnings = |line: &str| parse(line).unwrap().flags.warnings();
    assert_eq!(warnings("epp --health-checking --tls-min-version VersionTLS12"), Vec::<String>::new());
    assert_eq!(warnings("epp --enable-cert-reload --cert-path /certs"), Vec::<String>::new());
    assert_eq!(warnings("epp --endpoint-selector a=b --endpoint-target-ports 1"), Vec::<String>::new());
    assert!(warnings("epp --pool-name lab --endpoint-target-ports 1")[0].contains("--endpoint-target-ports"));
    for (line, flag) in [
        ("epp --health-checking=false", "--health-checking"),
        ("epp --enable-cert-reload", "--cert-path"),
        ("epp --refresh-metrics-interval 20ms", "--refresh-metrics-interval: 20ms becomes 50ms"),
        ("epp --tls-min-version=VersionTLS11", "--tls-min-version"),
        ("epp --secure-serving=false --cert-path=/certs", "--cert-path"),
        ("epp --secure-serving=false --tls-min-version=VersionTLS13", "--tls-min-version"),
        (
            "epp --tls-min-version=VersionTLS13 --tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "VersionTLS13",
        ),
        ("epp --grpc-max-recv-msg-size=64Ki", "--grpc-max-recv-msg-size"),
        ("epp --grpc-max-send-msg-size=1k", "--grpc-max-send-msg-size"),
        ("epp --tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA", "TLS_RSA_WITH_AES_128_CBC_SHA"),
    ] {
        let warnings = warnings(line);
        assert!(warnings.len() == 1 && warnings[0].contains(flag), "{line}: {warnings:?}");
    }
}
