use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::document::Document;
use crate::workspace;

const LISTENER: &str = "static_resources/listeners/[name=inference]";
const CONNECTION_MANAGER: &str =
    "static_resources/listeners/[name=inference]/filter_chains/[0]/filters/[0]/typed_config";
const PICKER: &str = "static_resources/clusters/[name=picker]";

/// A part of the configuration that a test may change field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The listener for clients.
    Listener,
    /// Its HTTP connection manager.
    ConnectionManager,
    /// What its only route does.
    Route,
    /// The ext_proc filter.
    ExtProc,
    /// Its processing mode.
    ProcessingMode,
    /// The gRPC service that it asks.
    GrpcService,
    /// The cluster of the model servers.
    ModelServers,
    /// The cluster of the pickers.
    Picker,
    /// The HTTP/2 settings of that cluster.
    PickerHttp2,
}

impl Part {
    fn path(self) -> String {
        let filter = format!("{CONNECTION_MANAGER}/http_filters/[name=envoy.filters.http.ext_proc]/typed_config");
        match self {
            Self::Listener => LISTENER.to_owned(),
            Self::ConnectionManager => CONNECTION_MANAGER.to_owned(),
            Self::Route => format!("{CONNECTION_MANAGER}/route_config/virtual_hosts/[0]/routes/[0]/route"),
            Self::ExtProc => filter,
            Self::ProcessingMode => format!("{filter}/processing_mode"),
            Self::GrpcService => format!("{filter}/grpc_service"),
            Self::ModelServers => "static_resources/clusters/[name=model_servers]".to_owned(),
            Self::Picker => PICKER.to_owned(),
            Self::PickerHttp2 => format!(
                "{PICKER}/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/\
                 explicit_http_config/http2_protocol_options"
            ),
        }
    }
}

/// The configurations of Envoy in `deploy/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// The picker sees whole requests and whole responses.
    FullDuplex,
    /// The picker sees whole requests; response bodies pass it by.
    ResponseBypass,
    /// The picker asks for the bodies that it needs.
    PerRequest,
    /// The picker sees everything, and there are two of it.
    Ha,
    /// The picker sees everything, from the same pod.
    Sidecar,
}

impl Template {
    pub const ALL: [Self; 5] = [Self::FullDuplex, Self::ResponseBypass, Self::PerRequest, Self::Ha, Self::Sidecar];

    pub fn path(self) -> PathBuf {
        let path = match self {
            Self::FullDuplex => "envoy/full-duplex.yaml",
            Self::ResponseBypass => "envoy/response-bypass.yaml",
            Self::PerRequest => "envoy/per-request.yaml",
            Self::Ha => "envoy/ha.yaml",
            Self::Sidecar => "overlays/standalone/envoy.yaml",
        };
        workspace::root().join("deploy").join(path)
    }
}

/// An Envoy configuration made from a [`Template`]: the same in everything but the addresses and what a test changes
/// on purpose.
#[derive(Clone, Debug)]
pub struct EnvoyConfig {
    document: Document,
}

impl EnvoyConfig {
    /// The template as it stands in the repository.
    pub fn from_template(template: Template) -> Result<Self> {
        let path = template.path();
        let text = std::fs::read_to_string(&path)?;
        Ok(Self { document: Document::parse(&path.display().to_string(), &text)? })
    }

    /// Every listener and the admin port on 127.0.0.1 with a port that the system chooses.
    pub(crate) fn bind_anywhere(&mut self) -> Result<()> {
        let anywhere = json!({"socket_address": {"address": "127.0.0.1", "port_value": 0}});
        self.document.set("admin/address", anywhere.clone())?;
        for listener in self.document.list("static_resources/listeners")? {
            listener["address"] = anywhere.clone();
        }
        Ok(())
    }

    /// The pickers to ask, in place of the template's 127.0.0.1:9002.
    pub fn set_pickers(&mut self, pickers: &[SocketAddr]) -> Result<()> {
        let endpoints: Vec<Value> = pickers
            .iter()
            .map(|picker| {
                json!({"endpoint": {"address": {"socket_address": {
                    "address": picker.ip().to_string(), "port_value": picker.port(),
                }}}})
            })
            .collect();
        self.document.set(&format!("{PICKER}/load_assignment/endpoints/[0]/lb_endpoints"), endpoints)
    }

    /// Speaks plaintext to the picker.
    pub fn without_tls(&mut self) -> Result<()> {
        self.document.remove(PICKER, "transport_socket")
    }

    /// Takes the picker and the removal of the client's destination header out, so that the client's own
    /// `x-gateway-destination-endpoint` decides.
    pub fn without_picker(&mut self) -> Result<()> {
        let filters = self.document.list(&format!("{CONNECTION_MANAGER}/http_filters"))?;
        let before = filters.len();
        filters.retain(|filter| filter["name"] == "envoy.filters.http.router");
        if (before, filters.len()) != (3, 1) {
            bail!("the template no longer has three HTTP filters of which the router is one");
        }
        Ok(())
    }

    /// Sets a field of the HTTP connection manager of the listener for clients.
    pub fn set_connection_manager(&mut self, field: &str, value: impl Into<Value>) -> Result<()> {
        self.document.set(&format!("{CONNECTION_MANAGER}/{field}"), value)
    }

    /// Sets a field of the ext_proc filter.
    pub fn set_ext_proc(&mut self, field: &str, value: impl Into<Value>) -> Result<()> {
        let filter = format!("{CONNECTION_MANAGER}/http_filters/[name=envoy.filters.http.ext_proc]/typed_config");
        self.document.set(&format!("{filter}/{field}"), value)
    }

    /// Gives a part the field `key`, in place of the one it may have; null is Envoy's default.
    pub fn put(&mut self, part: Part, key: &str, value: impl Into<Value>) -> Result<()> {
        self.document.put(&part.path(), key, value)
    }

    /// Puts an HTTP filter before all others of the listener for clients.
    pub fn insert_http_filter(&mut self, filter: Value) -> Result<()> {
        self.document.list(&format!("{CONNECTION_MANAGER}/http_filters"))?.insert(0, filter);
        Ok(())
    }

    /// Turns headers of requests into metadata for the picker, as a filter that authenticates clients would. Each rule: the
    /// header, which goes no further, and namespace and key of what it becomes.
    pub fn metadata_from_headers(&mut self, rules: &[(&str, &str, &str)]) -> Result<()> {
        let rule = |&(header, namespace, key): &(&str, &str, &str)| json!({"header": header, "remove": true, "on_header_present": {"metadata_namespace": namespace, "key": key}});
        self.insert_http_filter(json!({
            "name": "envoy.filters.http.header_to_metadata",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
                "request_rules": rules.iter().map(rule).collect::<Vec<_>>(),
            },
        }))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        self.document.write(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_differ_in_the_response_body_mode_only() {
        let mut full_duplex = EnvoyConfig::from_template(Template::FullDuplex).unwrap();
        let bypass = EnvoyConfig::from_template(Template::ResponseBypass).unwrap();
        assert_ne!(full_duplex.document.to_json(), bypass.document.to_json());
        full_duplex.set_ext_proc("processing_mode/response_body_mode", "NONE").unwrap();
        assert_eq!(full_duplex.document.to_json(), bypass.document.to_json());
    }

    #[test]
    fn no_client_names_a_destination_and_waiting_requests_are_not_timed_out() {
        for template in Template::ALL {
            let mut config = EnvoyConfig::from_template(template).unwrap();
            let manager = CONNECTION_MANAGER;
            for (timeout, expected) in [("stream_idle_timeout", "0s"), ("stream_flush_timeout", "60s")] {
                let value = config.document.at(&format!("{manager}/{timeout}")).unwrap();
                assert_eq!(*value, expected, "{template:?}: {timeout}");
            }
            let filters = config.document.list(&format!("{manager}/http_filters")).unwrap();
            let names: Vec<_> = filters.iter().map(|filter| filter["name"].as_str().unwrap()).collect();
            assert_eq!(
                names[..2],
                ["envoy.filters.http.header_mutation", "envoy.filters.http.ext_proc"],
                "{template:?}"
            );
            let mutations = &filters[0]["typed_config"]["mutations"];
            assert_eq!(mutations, &json!({"request_mutations": [{"remove": "x-gateway-destination-endpoint"}]}));
            let ext_proc = filters[1]["typed_config"].clone();
            assert_eq!(ext_proc["message_timeout"], "3600s", "{template:?}");
            let retry = &ext_proc["grpc_service"]["retry_policy"];
            assert_eq!(retry["retry_host_predicate"][0]["name"], "envoy.retry_host_predicates.previous_hosts");
            let mode = &ext_proc["processing_mode"];
            for trailers in ["request_trailer_mode", "response_trailer_mode"] {
                assert_eq!(mode[trailers], "SEND", "{template:?}");
            }
            // The picker may choose the modes in one file only, and only there is it told so.
            let per_request = template == Template::PerRequest;
            assert_eq!(ext_proc.get("allow_mode_override").is_some(), per_request);
            let told = json!([
                {"key": "x-sluice-mode-override", "value": "allowed"},
                {"key": "x-sluice-message-timeout", "value": ext_proc["message_timeout"]},
            ]);
            assert_eq!(ext_proc["grpc_service"].get("initial_metadata"), per_request.then_some(&told));
        }
    }

    #[test]
    fn every_edit_finds_its_place_in_every_template() {
        for template in Template::ALL {
            let mut config = EnvoyConfig::from_template(template).unwrap();
            config.bind_anywhere().unwrap();
            config.set_pickers(&["127.0.0.1:4711".parse().unwrap()]).unwrap();
            config.without_tls().unwrap();
            config.set_connection_manager("delayed_close_timeout", "1s").unwrap();
            for part in [
                Part::Listener,
                Part::ConnectionManager,
                Part::Route,
                Part::ExtProc,
                Part::ProcessingMode,
                Part::GrpcService,
                Part::ModelServers,
                Part::Picker,
                Part::PickerHttp2,
            ] {
                config.put(part, "field", "value").unwrap();
            }
            let text = config.document.to_json();
            assert!(text.contains("4711") && !text.contains("9002") && !text.contains("8081"), "{text}");
            config.without_picker().unwrap();
        }
    }
}
