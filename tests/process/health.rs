//! The health service on both ports, by the stage the process is in.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::support::{Epp, PATIENCE, arguments, directory, epp};

const EXT_PROC: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

fn request(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

async fn client(address: &str) -> HealthClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

async fn check(client: &mut HealthClient<Channel>, service: &str) -> ServingStatus {
    client.check(request(service)).await.unwrap().into_inner().status()
}

async fn next(updates: &mut Streaming<HealthCheckResponse>) -> Result<ServingStatus, Code> {
    let update = tokio::time::timeout(PATIENCE, updates.message()).await.unwrap();
    Ok(update.map_err(|status| status.code())?.expect("the end of the stream is an error").status())
}

#[tokio::test]
async fn both_ports_tell_the_true_status_and_those_who_watch_hear_every_change() {
    let mut arguments = arguments(&directory("health"));
    arguments.extend(["--secure-serving=false", "--drain-timeout=2s", "--stream-drain-timeout=1h"].map(str::to_owned));
    let mut epp = Epp::serving(epp(&arguments));
    let mut clients = [client(&epp.ext_proc).await, client(&epp.health).await];
    let mut watches = Vec::new();
    for client in &mut clients {
        for name in ["", EXT_PROC, "readiness", "liveness", "inference-extension"] {
            assert_eq!(check(client, name).await, ServingStatus::Serving, "{name:?}");
        }
        let mut updates = client.watch(request("")).await.unwrap().into_inner();
        assert_eq!(next(&mut updates).await, Ok(ServingStatus::Serving));
        watches.push(updates);
    }

    epp.signal("TERM");
    for (client, updates) in clients.iter_mut().zip(&mut watches) {
        assert_eq!(next(updates).await, Ok(ServingStatus::NotServing));
        for name in ["", EXT_PROC, "readiness", "inference-extension"] {
            assert_eq!(check(client, name).await, ServingStatus::NotServing, "{name:?}");
        }
        assert_eq!(check(client, "liveness").await, ServingStatus::Serving);
    }
    // They are told that it ends, and do not hold it up.
    for updates in &mut watches {
        assert_eq!(next(updates).await, Err(Code::Unavailable));
    }
    assert_eq!(epp.exit(Duration::from_secs(20)), Some(0));
}
