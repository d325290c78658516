use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, FileReport, Plugin, Roles, Stability, Timeout};
use sluice_data::{ClientPair, HttpsOptions, MetricsPath, MetricsSource, Transport, Verify};

/// Says where endpoints serve their metrics, and how they are fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetricsDataSource;

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct MetricsDataSourceParams {
    scheme: String,
    path: String,
    port: Option<i64>,
    insecure_skip_verify: bool,
    ca_cert_path: String,
    client_cert_path: String,
    client_key_path: String,
    interval: String,
}

impl Default for MetricsDataSourceParams {
    fn default() -> Self {
        Self {
            scheme: "http".to_owned(),
            path: "/metrics".to_owned(),
            port: None,
            insecure_skip_verify: true,
            ca_cert_path: String::new(),
            client_cert_path: String::new(),
            client_key_path: String::new(),
            interval: String::new(),
        }
    }
}

impl Plugin for MetricsDataSource {
    const TYPE: &'static str = "metrics-data-source";
    const STABILITY: Stability = Stability::Beta;
    type Params = MetricsDataSourceParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let source = MetricsSource {
            transport: transport(&params, cx)?,
            path: MetricsPath::parse(&params.path).map_err(|error| BuildError::new("path", error))?,
            port: params.port.map(port).transpose()?,
            interval: interval(&params.interval, cx)?,
        };
        if let Some(wanted) = source.interval {
            let taken = source.interval(cx.scrape_interval());
            if taken != wanted {
                let tick = taken.min(cx.scrape_interval());
                cx.warn("interval", format!("{wanted:?} becomes {taken:?}, a multiple of {tick:?}"));
                cx.fill_in("interval", Timeout(taken));
            }
        }
        Ok(Roles::metrics_source(source))
    }
}

fn transport(params: &MetricsDataSourceParams, cx: &mut BuildContext<'_>) -> Result<Transport, BuildError> {
    let files = [
        ("caCertPath", &params.ca_cert_path),
        ("clientCertPath", &params.client_cert_path),
        ("clientKeyPath", &params.client_key_path),
    ];
    match params.scheme.as_str() {
        "http" => {
            for (name, _) in files.iter().filter(|(_, path)| !path.is_empty()) {
                cx.warn(name, "has no effect: the scheme is http");
            }
            Ok(Transport::Http)
        }
        "https" => {
            if params.insecure_skip_verify && !params.ca_cert_path.is_empty() {
                cx.warn("caCertPath", "has no effect: insecureSkipVerify is true, as it is by default");
            }
            let verify = match (params.insecure_skip_verify, params.ca_cert_path.as_str()) {
                (true, _) => Verify::Anybody,
                (false, "") => Verify::System,
                (false, path) => Verify::Authorities(path.into()),
            };
            let client = client(params)?;
            note_files(&verify, client.as_ref(), cx);
            Ok(Transport::Https(HttpsOptions { verify, client }))
        }
        other => Err(BuildError::new("scheme", format!("{other:?} is neither http nor https"))),
    }
}

fn note_files(verify: &Verify, client: Option<&ClientPair>, cx: &mut BuildContext<'_>) {
    if let Verify::Authorities(_) = verify {
        let verify = verify.clone();
        cx.reads_file("caCertPath", move || FileReport::of(verify.check()));
    }
    if let Some(pair) = client {
        let (certificate, key) = (pair.clone(), pair.clone());
        cx.reads_file("clientCertPath", move || FileReport::of(certificate.check_certificate()));
        cx.reads_file("clientKeyPath", move || FileReport::of(key.check_key()));
    }
}

fn client(params: &MetricsDataSourceParams) -> Result<Option<ClientPair>, BuildError> {
    match (params.client_cert_path.as_str(), params.client_key_path.as_str()) {
        ("", "") => Ok(None),
        ("", _) => Err(BuildError::new("clientKeyPath", "a key needs its certificate: set clientCertPath too")),
        (_, "") => Err(BuildError::new("clientCertPath", "a certificate needs its key: set clientKeyPath too")),
        (certificate, key) => Ok(Some(ClientPair { certificate: certificate.into(), key: key.into() })),
    }
}

fn port(port: i64) -> Result<u16, BuildError> {
    let port = u16::try_from(port).ok().filter(|&port| port > 0);
    port.ok_or_else(|| BuildError::new("port", "a port is a number from 1 to 65535"))
}

/// None: as the process does by default.
fn interval(text: &str, cx: &mut BuildContext<'_>) -> Result<Option<Duration>, BuildError> {
    if text.is_empty() {
        return Ok(None);
    }
    let interval = text.parse::<Timeout>().map_err(|error| BuildError::new("interval", format!("{error}")))?.0;
    if interval.is_zero() {
        let taken = Timeout(cx.scrape_interval());
        cx.warn("interval", format!("{text} stands for the interval of the process, {taken}: leave it out"));
        cx.fill_in("interval", "");
        return Ok(None);
    }
    Ok(Some(interval))
}
