//! Pages for whoever wants to know what the process does.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::support::{Epp, PATIENCE, arguments, directory, epp};

#[test]
fn the_configuration_in_force_is_shown_with_what_was_left_out() {
    let epp = Epp::serving(epp(&arguments(&directory("debug-config"))));
    let mut connection = TcpStream::connect(&epp.metrics).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection.write_all(b"GET /debug/config HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("application/json"), "{head}");
    let page: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(page["dataLayer"]["discovery"]["pluginRef"], "file-discovery");
    assert_eq!(page["schedulingProfiles"][0]["plugins"][0]["pluginRef"], "max-score-picker");
    assert_eq!(page["sluice"]["unknownObjective"], "default");
}
