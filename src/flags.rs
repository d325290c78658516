use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory as _, FromArgMatches as _, Parser};
use sluice_config::{Quantity, Timeout};
use sluice_data::MIN_SCRAPE_INTERVAL;

use crate::environment::Environment;
use crate::logging::is_level;
use crate::tls::TlsSettings;
use crate::tls_options::{CipherSuites, MinVersion};

/// An endpoint picker for LLM inference gateways: an external processor for Envoy that decides if, when and where
/// an inference request runs.
///
/// Takes the flags of llm-d-router's EPP. Switches are written `--flag` or `--flag=false`. Of a flag that is repeated
/// the last one counts, and an empty value counts as not given.
#[derive(Clone, Debug, Parser)]
#[command(name = "epp", version, max_term_width = 100, args_override_self = true)]
pub(crate) struct Flags {
    /// Address to listen on, for all ports.
    #[arg(long, default_value = "::", value_name = "IP")]
    pub(crate) listen_address: IpAddr,
    /// Port of the external processor; 0 picks a free one.
    #[arg(long, default_value_t = 9002)]
    pub(crate) grpc_port: u16,
    /// Port of the gRPC health service.
    #[arg(long, default_value_t = 9003)]
    pub(crate) grpc_health_port: u16,
    /// Port of /metrics.
    #[arg(long, default_value_t = 9090)]
    pub(crate) metrics_port: u16,
    /// EndpointPickerConfig to read, YAML or JSON.
    #[arg(long, value_name = "FILE")]
    config_file: Option<String>,
    /// EndpointPickerConfig given in place.
    #[arg(long, value_name = "YAML")]
    config_text: Option<String>,
    /// Allow plugins that are not yet stable.
    #[arg(long, value_parser = go_bool, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    pub(crate) allow_experimental_plugins: bool,
    /// Serve the external processor over TLS.
    #[arg(long, value_parser = go_bool, default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    pub(crate) secure_serving: bool,
    /// Directory with tls.crt and tls.key; without the flag a self-signed certificate is made.
    #[arg(long, value_name = "DIR")]
    cert_path: Option<String>,
    /// Take over a new certificate in the directory of --cert-path while running.
    #[arg(long, value_parser = go_bool, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    pub(crate) enable_cert_reload: bool,
    /// Certificates of those who sign the certificates of clients: others are not served on the port of the external processor.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<String>,
    /// Lowest version of TLS on the port of the external processor: VersionTLS12 (the default; VersionTLS10 and VersionTLS11
    /// mean it too) or VersionTLS13.
    #[arg(long, value_name = "VERSION")]
    pub(crate) tls_min_version: Option<MinVersion>,
    /// Suites for TLS 1.2 on the port of the external processor, with commas between them, named as in Go; unset: all. Those
    /// of TLS 1.3 are always on.
    #[arg(long, value_name = "SUITES")]
    pub(crate) tls_cipher_suites: Option<CipherSuites>,
    /// The health service is always on the port of the external processor, too, whatever is said here.
    #[arg(long, value_parser = go_bool, default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    pub(crate) health_checking: bool,
    /// Largest gRPC message taken, a quantity such as 16Mi; unset: 1 MiB more than the largest request body.
    #[arg(long, value_name = "QUANTITY", value_parser = message_size)]
    pub(crate) grpc_max_recv_msg_size: Option<MessageSize>,
    /// Largest gRPC message sent, a quantity such as 16Mi; unset: any.
    #[arg(long, value_name = "QUANTITY", value_parser = message_size)]
    pub(crate) grpc_max_send_msg_size: Option<MessageSize>,
    /// Name of the pool, as metrics show it; without a file of endpoints, of the InferencePool in Kubernetes.
    #[arg(long, value_name = "NAME")]
    pool_name: Option<String>,
    /// Namespace of the pool; unset: the environment's NAMESPACE, else that of the kubeconfig or service account.
    #[arg(long, value_name = "NAME")]
    pub(crate) pool_namespace: Option<String>,
    /// API group by which objectives name the pool.
    #[arg(long, value_name = "GROUP", default_value = "inference.networking.k8s.io")]
    pub(crate) pool_group: String,
    /// Label selector of the pods of the pool, where there is no InferencePool.
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) endpoint_selector: Option<String>,
    /// Ports of each pod that --endpoint-selector chooses, 1 to 8, with commas between them.
    #[arg(long, value_name = "PORTS")]
    pub(crate) endpoint_target_ports: Option<Ports>,
    /// Ignore the gateway's hint which endpoints a request may use.
    #[arg(long, value_parser = go_bool, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    pub(crate) disable_endpoint_subset_filter: bool,
    /// How often the metrics of each endpoint are read where their source does not say; at least 50ms.
    #[arg(long, default_value = "50ms", value_parser = duration)]
    refresh_metrics_interval: Duration,
    /// Metrics of an endpoint that are older than this do not count in the gauges of the pool. A new leader counts for
    /// twice as long what its endpoints say that they run.
    #[arg(long, default_value = "2s", value_parser = duration)]
    pub(crate) metrics_staleness_threshold: Duration,
    /// Serve /metrics and /debug to those only whom the API server lets get them; unset: true for a pool in Kubernetes.
    #[arg(long, value_parser = go_bool, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    pub(crate) metrics_endpoint_auth: Option<bool>,
    /// Of several pickers of a pool in Kubernetes only one is ready: the one that holds a Lease.
    #[arg(long, value_parser = go_bool, default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    pub(crate) ha_enable_leader_election: bool,
    /// Directory with tls.crt and tls.key: the port of /metrics speaks TLS with them, and follows their changes.
    #[arg(long, value_name = "DIR")]
    metrics_cert_dir: Option<String>,
    /// Certificates of those who sign the certificates of clients: others are not served on the port of /metrics.
    #[arg(long, value_name = "FILE")]
    metrics_client_ca_file: Option<String>,
    /// How long to go on serving after SIGTERM, so that gateways notice.
    #[arg(long, default_value = "30s", value_parser = duration)]
    pub(crate) drain_timeout: Duration,
    /// How long running requests may then take to end before they are cut.
    #[arg(long, default_value = "90s", value_parser = duration)]
    pub(crate) stream_drain_timeout: Duration,
    /// Verbosity: up to 3 info, 4 debug, 5 trace.
    #[arg(short = 'v', long = "v", default_value_t = 2, allow_negative_numbers = true, value_name = "LEVEL")]
    pub(crate) verbosity: i32,
    /// Log level by name or verbosity; wins over -v.
    #[arg(long, value_name = "LEVEL")]
    pub(crate) zap_log_level: Option<String>,
    #[command(flatten)]
    pub(crate) without_effect: WithoutEffect,
    /// What is not on the command line.
    #[arg(skip)]
    pub(crate) environment: Environment,
}

/// Flags of llm-d-router's EPP that are taken, so that its command lines work, but change nothing.
#[derive(Clone, Debug, Parser)]
#[command(next_help_heading = "Accepted, without effect in this version")]
pub(crate) struct WithoutEffect {
    #[arg(long)]
    refresh_prometheus_metrics_interval: Option<String>,
    #[arg(long)]
    zap_encoder: Option<String>,
    #[arg(long)]
    zap_stacktrace_level: Option<String>,
    #[arg(long)]
    zap_time_encoding: Option<String>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    zap_devel: Option<bool>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    emit_endpoint_scores: Option<bool>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    enable_grpc_stream_metrics: Option<bool>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    enable_pprof: Option<bool>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    tracing: Option<bool>,
    // Retired by llm-d-router's EPP, which refuses them.
    #[arg(long, hide = true)]
    total_queued_requests_metric: Option<String>,
    #[arg(long, hide = true)]
    total_running_requests_metric: Option<String>,
    #[arg(long, hide = true)]
    kv_cache_usage_percentage_metric: Option<String>,
    #[arg(long, hide = true)]
    lora_info_metric: Option<String>,
    #[arg(long, hide = true)]
    cache_info_metric: Option<String>,
    #[arg(long, hide = true)]
    model_server_metrics_scheme: Option<String>,
    #[arg(long, hide = true)]
    model_server_metrics_path: Option<String>,
    #[arg(long, hide = true)]
    model_server_metrics_port: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    model_server_metrics_https_insecure_skip_verify: Option<String>,
}

/// Where the configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConfigSource {
    File(PathBuf),
    Text(String),
    /// Nothing was given.
    BuiltIn,
}

/// Room for a piece of a body, up to 64 KiB, and for what stands around it.
const SMALLEST_MESSAGE: usize = 65 << 10;

impl Flags {
    pub(crate) fn config_source(&self) -> ConfigSource {
        match (&self.config_file, &self.config_text) {
            (Some(file), _) => ConfigSource::File(file.into()),
            (None, Some(text)) => ConfigSource::Text(text.clone()),
            (None, None) => ConfigSource::BuiltIn,
        }
    }

    /// Of the external processor; none: plaintext.
    pub(crate) fn tls(&self) -> Option<TlsSettings<'_>> {
        self.secure_serving.then(|| TlsSettings {
            directory: self.certificate_directory(),
            follow_directory: self.enable_cert_reload,
            client_authorities: self.client_ca_file.as_deref().map(Path::new),
            min_version: self.tls_min_version.unwrap_or_default(),
            cipher_suites: self.tls_cipher_suites.as_ref(),
        })
    }

    /// Of the metrics port; none: plaintext.
    pub(crate) fn metrics_tls(&self) -> Option<TlsSettings<'_>> {
        self.metrics_cert_dir.as_deref().map(|directory| TlsSettings {
            directory: Some(Path::new(directory)),
            follow_directory: true,
            client_authorities: self.metrics_client_ca_file.as_deref().map(Path::new),
            min_version: MinVersion::default(),
            cipher_suites: None,
        })
    }

    fn certificate_directory(&self) -> Option<&Path> {
        self.cert_path.as_deref().map(Path::new)
    }

    /// What was asked for and is not done, with the reason.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.health_checking {
            warnings.push(
                "--health-checking=false: the health service is always on the port of the external processor".into(),
            );
        }
        if self.enable_cert_reload && self.cert_path.is_none() {
            warnings.push("--enable-cert-reload: there are no files to follow without --cert-path".into());
        }
        if let Some(level) = self.zap_log_level.as_deref().filter(|level| !is_level(level)) {
            warnings
                .push(format!("--zap-log-level: {level:?} is neither the name of a level nor a verbosity: -v counts"));
        }
        if self.refresh_metrics_interval < MIN_SCRAPE_INTERVAL {
            let given = self.refresh_metrics_interval;
            warnings.push(format!("--refresh-metrics-interval: {given:?} becomes {MIN_SCRAPE_INTERVAL:?}"));
        }
        let without_tls = [
            ("--cert-path", self.cert_path.is_some()),
            ("--tls-min-version", self.tls_min_version.is_some()),
            ("--tls-cipher-suites", self.tls_cipher_suites.is_some()),
        ];
        for (flag, _) in without_tls.into_iter().filter(|(_, given)| *given && !self.secure_serving) {
            warnings.push(format!("{flag}: has no effect with --secure-serving=false"));
        }
        if self.tls_min_version == Some(MinVersion::Tls13) && self.tls_cipher_suites.is_some() {
            warnings.push("--tls-cipher-suites: has no effect with VersionTLS13, whose suites are always on".into());
        }
        let messages = [
            ("--grpc-max-recv-msg-size", self.grpc_max_recv_msg_size),
            ("--grpc-max-send-msg-size", self.grpc_max_send_msg_size),
        ];
        for (flag, size) in messages {
            if let Some(bytes) = size.and_then(|size| size.0).filter(|&bytes| bytes < SMALLEST_MESSAGE) {
                warnings.push(format!(
                    "{flag}: {bytes} bytes are less than a piece of a body with its frame ({SMALLEST_MESSAGE}): streams will fail"
                ));
            }
        }
        if self.tls_min_version == Some(MinVersion::BelowTls12) {
            warnings.push("--tls-min-version: the lowest version of this server is TLS 1.2".into());
        }
        if self.endpoint_target_ports.is_some() && self.endpoint_selector.is_none() {
            warnings.push("--endpoint-target-ports: has no effect without --endpoint-selector".into());
        }
        for suite in self.tls_cipher_suites.iter().flat_map(|suites| &suites.not_offered) {
            warnings.push(format!("--tls-cipher-suites: this server does not offer {suite}"));
        }
        warnings
    }

    /// What cannot be as it was asked for.
    pub(crate) fn mistakes(&self) -> Vec<String> {
        let ports = [
            ("--grpc-port", self.grpc_port),
            ("--grpc-health-port", self.grpc_health_port),
            ("--metrics-port", self.metrics_port),
        ];
        let mut mistakes = Vec::new();
        for (index, (flag, port)) in ports.iter().enumerate() {
            let same = ports.iter().take(index).find(|(_, earlier)| port == earlier && *port != 0);
            mistakes.extend(same.map(|(earlier, _)| format!("{flag}: {port} is the port of {earlier} already")));
        }
        mistakes
    }

    /// How often the metrics of each endpoint are read where their source does not say.
    pub(crate) fn scrape_interval(&self) -> Duration {
        self.refresh_metrics_interval.max(MIN_SCRAPE_INTERVAL)
    }

    /// As metrics show it. What has no name is called by what the process belongs to.
    pub(crate) fn pool_name(&self) -> &str {
        self.pool_name.as_deref().or_else(|| self.environment.workload()).unwrap_or("epp")
    }

    /// Whether the pool was given a name.
    pub(crate) const fn names_pool(&self) -> bool {
        self.pool_name.is_some()
    }

    fn check(&self) -> Result<(), clap::Error> {
        // Without TLS nobody would be asked for a certificate, and everybody be served.
        let mistakes = [
            (
                self.config_file.is_some() && self.config_text.is_some(),
                "--config-file and --config-text exclude each other",
            ),
            (
                self.client_ca_file.is_some() && !self.secure_serving,
                "--client-ca-file and --secure-serving=false exclude each other: certificates are shown in TLS only",
            ),
            (
                self.metrics_client_ca_file.is_some() && self.metrics_cert_dir.is_none(),
                "--metrics-client-ca-file needs --metrics-cert-dir: certificates are shown in TLS only",
            ),
        ];
        match mistakes.into_iter().find(|(is_made, _)| *is_made) {
            Some((_, message)) => Err(Self::command().error(clap::error::ErrorKind::ArgumentConflict, message)),
            None => Ok(()),
        }
    }
}

/// What the process is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Serve,
    /// Say what is wrong with the configuration and the flags, print the configuration in force, and end.
    Check {
        /// And with the files that they name.
        files: bool,
    },
}

/// A command line that was understood.
#[derive(Clone, Debug)]
pub(crate) struct CommandLine {
    pub(crate) task: Task,
    pub(crate) flags: Flags,
    /// Flags that were given and change nothing, as they are written.
    pub(crate) ignored: Vec<String>,
}

impl CommandLine {
    pub(crate) fn parse(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Self, clap::Error> {
        let matches = command().try_get_matches_from(without_empty(arguments))?;
        let (task, matches) = match matches.subcommand() {
            Some((_check, matches)) => (Task::Check { files: matches.get_flag(CHECK_FILES) }, matches),
            None => (Task::Serve, &matches),
        };
        let flags = Flags::from_arg_matches(matches)?;
        flags.check()?;
        Ok(Self { task, flags, ignored: ignored(matches) })
    }
}

/// The command line of the process, and of its check with the same flags.
pub(crate) fn command() -> Command {
    let check = "Say what is wrong with these flags and the configuration, print the configuration with everything filled \
                 in and the slots of each band, and end: with 64 if the process would not start.";
    Flags::command()
        .args_conflicts_with_subcommands(true)
        .disable_help_subcommand(true)
        .subcommand(Flags::command().name("check").about(check).long_about(None).arg(check_files()))
}

const CHECK_FILES: &str = "files";

/// A switch of the check only.
fn check_files() -> Arg {
    let help = "Also read the files that the flags and the configuration name, as the process would where the check runs: \
                certificates, keys, the endpoint file.";
    Arg::new(CHECK_FILES).long(CHECK_FILES).action(ArgAction::SetTrue).help(help)
}

/// The arguments without flags that have an empty value, as charts pass them for what is not set.
fn without_empty(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Vec<OsString> {
    let command = Flags::command();
    let flag = |text: &str| command.get_arguments().find(|flag| is_spelled(flag, text));
    let mut arguments = arguments.into_iter().map(Into::into).peekable();
    let mut kept = Vec::new();
    while let Some(argument) = arguments.next() {
        let text = argument.to_str().unwrap_or_default();
        if text.strip_suffix('=').is_some_and(|name| flag(name).is_some()) {
            continue;
        }
        // The value of a switch never stands apart.
        let may_stand_apart = flag(text).is_some_and(|flag| !flag.is_require_equals_set());
        if may_stand_apart && arguments.next_if(|value| value.is_empty()).is_some() {
            continue;
        }
        kept.push(argument);
    }
    kept
}

fn is_spelled(flag: &Arg, text: &str) -> bool {
    let long = text.strip_prefix("--");
    let short = text.strip_prefix('-').and_then(|rest| rest.parse().ok());
    long.is_some() && long == flag.get_long() || short.is_some() && short == flag.get_short()
}

fn ignored(matches: &ArgMatches) -> Vec<String> {
    WithoutEffect::command()
        .get_arguments()
        .filter(|argument| {
            let given = matches.try_contains_id(argument.get_id().as_str()).is_ok()
                && matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine);
            given && argument.get_long().is_some()
        })
        .filter_map(|argument| argument.get_long().map(|long| format!("--{long}")))
        .collect()
}

/// As Go's flag package reads it.
fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("not true or false".to_owned()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<Timeout>().map(|Timeout(duration)| duration).map_err(|error| format!("{error} (write 30s, 1m30s, 0s)"))
}

/// Ports, in the order in which they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ports(pub(crate) Vec<u16>);

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |port: &str| match port.trim().parse() {
            Ok(0) | Err(_) => Err(format!("{port:?} is not a port from 1 to 65535")),
            Ok(port) => Ok(port),
        };
        text.split(',').map(port).collect::<Result<_, _>>().map(Self)
    }
}

/// Bytes of one gRPC message; `None` stands for the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageSize(pub(crate) Option<usize>);

/// A Kubernetes quantity, one trailing `B` allowed (`16MiB`); 0 stands for the default.
fn message_size(text: &str) -> Result<MessageSize, String> {
    let number = text.strip_suffix(['B', 'b']).unwrap_or(text);
    let quantity: Quantity = number.parse().map_err(|error| format!("{error} (write 16Mi, 25MB, 4194304)"))?;
    match usize::try_from(quantity.units()) {
        Ok(0) => Ok(MessageSize(None)),
        Ok(bytes) => Ok(MessageSize(Some(bytes))),
        Err(_) => Err("must not be negative".to_owned()),
    }
}

#[cfg(test)]
#[path = "flags_tests.rs"]
mod tests;
