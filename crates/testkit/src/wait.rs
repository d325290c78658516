use std::time::Duration;

use anyhow::{Result, bail};

/// Calls `probe` every 10 ms until it returns a value or an error, at most for `limit`. `what` stands in the error.
pub async fn eventually<T>(
    limit: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let polling = async {
        loop {
            if let Some(value) = probe().await? {
                return Ok(value);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(limit, polling).await {
        Ok(result) => result,
        Err(_) => bail!("waited {limit:?} in vain for: {what}"),
    }
}
