//! Starts the real parts around and inside the product, for system tests and for the demo: Envoy, the picker,
//! simulated model servers, and a model server that records what reaches it.
//!
//! Two rules hold for all of them. Ports are chosen by whoever binds them and read back, so that tests run side by
//! side. And nothing outlives the process that started it, however that ends: see [`Process`].

mod address;
pub mod apiserver;
pub mod batch;
mod burst;
pub mod client;
mod concurrency;
mod counting;
mod deadlines;
mod document;
mod envoy;
mod envoy_config;
mod envoy_install;
mod eviction_soak;
mod exposition;
mod flow_config;
mod guardian;
mod idle;
mod load;
mod output;
mod picker;
mod picker_config;
mod private_mount;
mod process;
mod process_use;
mod reload_soak;
mod reply;
mod server_thread;
mod simulator;
mod soak;
mod stack;
mod upstream;
mod wait;
pub mod workspace;

pub use address::unused_address;
pub use apiserver::{ApiServer, Resource};
pub use burst::{Burst, BurstReport, BurstServer};
pub use client::{Protocol, SseEvents};
pub use concurrency::{ConcurrencyCampaign, ConcurrencyReport, Room};
pub use counting::{CountingUpstream, HOLD_HEADER, STREAM_HEADER, TAG_HEADER, Visit, VisitEnd};
pub use deadlines::{DeadlineCampaign, DeadlineReport, InteractiveLoad, JobReport, Policies, Scale};
pub use envoy::Envoy;
pub use envoy_config::{EnvoyConfig, Part, Template};
pub use envoy_install::envoy_binary;
pub use eviction_soak::{EvictionSoak, EvictionSoakReport};
pub use exposition::{Exposition, Sample};
pub use flow_config::flow_config;
pub use load::{Arrivals, Class, Load, Tally};
pub use output::Output;
pub use picker::Picker;
pub use picker_config::{EndpointsFile, PickerConfig};
pub use private_mount::PrivateMount;
pub use process::Process;
pub use reload_soak::{ReloadSoak, ReloadSoakReport};
pub use reply::Reply;
pub use simulator::Simulator;
pub use soak::{Soak, SoakReport};
pub use stack::Stack;
pub use upstream::{RecordedRequest, RecordingUpstream, RequestBody, ResponseEnd};
pub use wait::eventually;
