//! One page: what comes of each way to answer.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::uri::PathAndQuery;
use hyper::body::Bytes;

use super::super::client::{Connection, MAX_PAGE, Page, ReadError, unpack};
use super::server::{Answer, Server, eventually, with_headers};

fn page() -> Page {
    Page::new(PathAndQuery::from_static("/metrics"), None, None)
}

type Read = Result<(Bytes, Option<Connection>), ReadError>;

async fn read(address: SocketAddr) -> Read {
    page().read(address, None).await
}

/// What is said of a server that answers like this.
async fn reason(answer: Answer) -> String {
    let server = Server::start(answer).await;
    read(server.address).await.unwrap_err().to_string()
}

async fn body(answer: Answer) -> Bytes {
    let server = Server::start(answer).await;
    read(server.address).await.unwrap().0
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(plain).unwrap();
    packed.finish().unwrap()
}

#[tokio::test]
async fn a_server_that_goes_on_announcing_its_answer_is_not_heard_out() {
    let early = b"HTTP/1.1 103 Early Hints\r\n\r\n";
    let flood = early.repeat(1_000);
    assert_eq!(reason(Answer::Keep(flood)).await, "more than 16 informational answers");
    let few = [early.repeat(16), with_headers("200 OK", &[], b"a 1\n")].concat();
    assert_eq!(*body(Answer::Keep(few)).await, *b"a 1\n");
}

#[tokio::test]
async fn one_connection_serves_many_reads() {
    let server = Server::start(Answer::page("a 1\n")).await;
    let mut kept = None;
    for _ in 0..3 {
        let (page, connection) = page().read(server.address, kept).await.unwrap();
        assert_eq!(*page, *b"a 1\n");
        kept = Some(connection.expect("the server keeps it open"));
    }
    assert_eq!(server.connections(), (1, 1));
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    for request in requests {
        let request = request.to_lowercase();
        assert!(request.starts_with("get /metrics http/1.1\r\n"), "{request}");
        assert!(request.contains(&format!("\r\nhost: {}\r\n", server.address)), "{request}");
        assert!(request.contains("\r\naccept-encoding: identity\r\n"), "{request}");
    }
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_opened_anew() {
    // The headers do not say that it will be closed.
    let server = Server::start(Answer::Close(with_headers("200 OK", &[], b"a 1\n"))).await;
    let mut kept = None;
    for _ in 0..3 {
        kept = page().read(server.address, kept).await.unwrap().1;
        eventually("it is closed", || server.connections().1 == 0).await;
    }
    assert_eq!(server.connections().0, 3);
    assert_eq!(server.requests().len(), 3, "nothing is asked twice");
}

#[tokio::test]
async fn a_body_may_be_chunked_or_end_with_the_connection() {
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\na 1\n\r\n4\r\nb 2\n\r\n0\r\n\r\n";
    assert_eq!(*body(Answer::Keep(chunked.to_vec())).await, *b"a 1\nb 2\n");
    assert_eq!(*body(Answer::Close(b"HTTP/1.1 200 OK\r\n\r\na 1\n".to_vec())).await, *b"a 1\n");
    assert_eq!(*body(Answer::Close(b"HTTP/1.0 200 OK\r\n\r\na 1\n".to_vec())).await, *b"a 1\n");
}

#[tokio::test]
async fn the_port_can_be_another_one() {
    let server = Server::start(Answer::page("a 1\n")).await;
    let page = Page::new(PathAndQuery::from_static("/internal?x=1"), Some(server.address.port()), None);
    page.read(SocketAddr::new(server.address.ip(), 1), None).await.unwrap();
    assert!(server.requests()[0].starts_with("GET /internal?x=1 "), "{:?}", server.requests());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_given_up_in_time() {
    assert_eq!(reason(Answer::Nothing).await, "no complete answer within 1s");
    let trickle =
        Answer::Trickle(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n".to_vec(), Duration::from_millis(50));
    assert_eq!(reason(trickle).await, "no complete answer within 1s");
}

#[tokio::test]
async fn anything_but_a_page_is_refused_with_the_reason() {
    let answer = |status, headers: &[&str]| Answer::Keep(with_headers(status, headers, b"a 1\n"));
    assert_eq!(reason(answer("500 Internal Server Error", &[])).await, "status 500");
    assert_eq!(reason(answer("204 No Content", &[])).await, "status 204");
    let redirected = reason(answer("302 Found", &["location: http://elsewhere/metrics"])).await;
    assert_eq!(redirected, "redirected to \"http://elsewhere/metrics\" with status 302, which is not followed");
    let encoded = reason(answer("200 OK", &["content-encoding: br"])).await;
    assert_eq!(encoded, "content encoding \"br\", which was not asked for");
    assert!(
        reason(Answer::Close(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na 1\n".to_vec()))
            .await
            .contains("end of file")
    );
    assert!(!reason(Answer::Close(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec())).await.is_empty());
    assert!(!reason(Answer::Close(Vec::new())).await.is_empty());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be_unreachable() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let reason = read(address).await.unwrap_err().to_string();
    assert!(reason.starts_with("cannot connect: "), "{reason}");
}

#[tokio::test]
async fn a_page_has_a_bound_however_its_length_is_told() {
    let told = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", MAX_PAGE + 1);
    assert_eq!(reason(Answer::Keep(told.into_bytes())).await, "more than 8388608 bytes");
    let untold = [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'#'; MAX_PAGE + 1]].concat();
    assert_eq!(reason(Answer::Close(untold)).await, "more than 8388608 bytes");
    let largest = [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'#'; MAX_PAGE]].concat();
    assert_eq!(body(Answer::Close(largest)).await.len(), MAX_PAGE);
}

#[tokio::test]
async fn gzip_is_unpacked_though_nobody_asked_for_it() {
    let packed = |plain: &[u8]| Answer::Keep(with_headers("200 OK", &["content-encoding: gzip"], &gzip(plain)));
    assert_eq!(*body(packed(b"a 1\n")).await, *b"a 1\n");
    let damaged = Answer::Keep(with_headers("200 OK", &["content-encoding: gzip"], b"a 1\n"));
    assert!(reason(damaged).await.starts_with("damaged gzip: "));
}

/// Apart from a server: on a busy machine it takes longer than a page may.
#[tokio::test]
async fn what_is_packed_has_the_bound_of_a_page() {
    assert_eq!(unpack(&gzip(&vec![b'#'; MAX_PAGE])).await.unwrap().len(), MAX_PAGE);
    let reason = unpack(&gzip(&vec![b'#'; MAX_PAGE + 1])).await.unwrap_err().to_string();
    assert_eq!(reason, "more than 8388608 bytes");
}

/// Each takes some twenty bytes, and time to unpack: a page of them would hold up the scrapes of all endpoints.
#[tokio::test]
async fn many_streams_of_gzip_behind_each_other_are_no_page() {
    let empty = gzip(b"");
    let many = [empty.repeat(MAX_PAGE / empty.len() - 100), gzip(b"a 1\n")].concat();
    let answer = Answer::Keep(with_headers("200 OK", &["content-encoding: gzip"], &many));
    assert_eq!(reason(answer).await, "damaged gzip: bytes behind the end");
}
