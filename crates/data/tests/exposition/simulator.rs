use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use model_server_sim::{Server, Settings};
use sluice_core::CacheGeometry;
use sluice_data::{EngineMappings, ScanReport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::scan;

async fn exchange(address: SocketAddr, request: String) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    answer
}

async fn scrape(address: SocketAddr) -> ScanReport {
    let request = "GET /metrics HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n".to_owned();
    let answer = String::from_utf8(exchange(address, request).await).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && !head.contains("chunked"), "{head}");
    scan(&EngineMappings::default(), page.as_bytes())
}

#[tokio::test]
async fn the_simulator_says_what_it_does() {
    let settings = Settings {
        max_num_seqs: NonZeroU32::new(2).unwrap(),
        time_per_output_token: Duration::from_millis(20),
        kv_cache_blocks: NonZeroU32::new(500).unwrap(),
        max_model_len: NonZeroU32::new(4096).unwrap(),
        ..Settings::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new(settings).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let server = server.clone();
        async move { match server.serve(listener).await.unwrap() {} }
    });

    let idle = scrape(address).await;
    assert_eq!((idle.scraped.running, idle.scraped.waiting, idle.scraped.kv_usage), (Some(0), Some(0), Some(0.0)));
    assert_eq!(idle.scraped.cache, Some(CacheGeometry { block_size: Some(16), blocks: Some(500) }));
    assert_eq!((idle.ignored_values, idle.broken_lines, idle.missing), (0, 0, vec![]));

    for _ in 0..5 {
        let body = r#"{"model": "sim-model", "prompt": "a b c", "max_tokens": 3000, "ignore_eos": true}"#;
        let length = body.len();
        let head = format!("POST /v1/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: {length}\r\n\r\n");
        tasks.spawn(async move {
            exchange(address, head + body).await;
        });
    }
    let busy = async {
        loop {
            let report = scrape(address).await;
            if (report.scraped.running, report.scraped.waiting) == (Some(2), Some(3)) {
                return report;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let busy = tokio::time::timeout(Duration::from_secs(20), busy).await.unwrap();
    assert!(busy.scraped.kv_usage.unwrap() > 0.0);
}
