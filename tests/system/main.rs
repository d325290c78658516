//! What a user sees: clients over HTTP/1.1 and HTTP/2, a real Envoy with a configuration from `deploy/envoy/`, the
//! picker with `config/standalone.yaml`, and model servers that simulate or record.

mod bodies;
mod drain;
mod endings;
mod envoy;
mod flow;
mod headers;
mod many;
mod picker_connection;
mod raw;
mod refusals;
mod round_trips;
mod support;
mod upgrades;
