//! What a user sees: clients over HTTP/1.1 and HTTP/2, a real Envoy with a configuration from `deploy/envoy/`, the
//! picker with `config/standalone.yaml` or with flow control, and model servers that simulate, record or count.
//!
//! What the product relies on in Envoy, and where it is shown:
//!
//! | what Envoy does | modules |
//! |---|---|
//! | body modes in both directions, bodies of any size, trailers, `content-length` | `envoy::modes`, `bodies` |
//! | streams live as long as responses: bookings and slots are free when they end | `endings`, `envoy::bypass` |
//! | what the picker can know of how a request ended | `causes` |
//! | which timeouts end a waiting request (504, 408), and that it has left the queue | `envoy::timeouts` |
//! | message timeouts and buffer limits (413) outside full duplex | `envoy::outside_full_duplex` |
//! | a waiting client leaves: FIN, RST, half-close, `RST_STREAM`, GOAWAY, in an upload | `envoy::leaving` |
//! | refusals and early answers in an upload, `Expect: 100-continue` | `envoy::uploads`, `envoy::outside_full_duplex` |
//! | gRPC clients, shapes of refusals | `envoy::grpc`, `refusals`, `flow::outcomes` |
//! | hints and destinations in metadata, IPv6, hints by flow control | `envoy::metadata`, `flow::hints` |
//! | a destination named by the client is ignored, also while no picker answers | `headers`, `envoy::deaths` |
//! | pickers that die, hang or are down; messages over the gRPC limit | `envoy::deaths`, `envoy::timeouts` |
//! | requests that move to another picker: dead, hanging, draining | `many::replicas` |
//! | limits of headers, bodies, and of the memory for what waits | `limits` |
//! | thousands waiting, bursts of clients that leave, a picker that stalls | `many::waiting`, `many::stalls` |
//! | connections to the picker: TLS, plaintext, health, drain | `picker_connection`, `drain` |
//! | upgrades to another protocol | `upgrades` |
//! | another configuration while requests wait and run | `reload` |
//! | changed bodies and their lengths | `rewrites` |
//!
//! What the product relies on in Kubernetes is shown in `kubernetes`, with an API server that is made for it; what the
//! picker reads of model servers by itself, in `scraping`.

mod bodies;
mod causes;
mod drain;
mod endings;
mod envoy;
mod eviction;
mod flow;
mod headers;
mod kubernetes;
mod limits;
mod many;
mod model_names;
mod picker_connection;
mod raw;
mod refusals;
mod reload;
mod rewrites;
mod round_trips;
mod scraping;
mod support;
mod upgrades;
