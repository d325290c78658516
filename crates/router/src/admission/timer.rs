//! The one task that tells the engine the time.

#[cfg(not(loom))]
pub(super) use self::alarm::{Alarm, run};

#[cfg(not(loom))]
mod alarm {
    use std::future::pending;

    use tokio::sync::Notify;

    use super::super::shared::Shared;
    use super::super::sync::Arc;

    /// Tells the timer that something is due before the time it sleeps until.
    #[derive(Debug, Default)]
    pub(in super::super) struct Alarm(Notify);

    impl Alarm {
        pub(in super::super) fn set(&self) {
            self.0.notify_one();
        }
    }

    /// Sleeps until the engine has something to do, for as long as the process runs. While nothing waits for
    /// a time, it sleeps until the alarm is set.
    pub(in super::super) async fn run(shared: Arc<Shared>) {
        loop {
            let next = shared.on_time();
            let sleep = async {
                match next {
                    Some(time) => tokio::time::sleep(time.saturating_since(shared.now())).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                // Either way the engine is asked what is due.
                biased;
                () = shared.alarm.0.notified() => {}
                () = sleep => {}
            }
        }
    }
}

/// Loom has no timers: its tests tell the time themselves.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(super) struct Alarm;

#[cfg(loom)]
impl Alarm {
    pub(super) const fn set(&self) {}
}

#[cfg(loom)]
#[expect(clippy::unused_async, reason = "it stands for the timer")]
pub(super) async fn run(_: super::sync::Arc<super::shared::Shared>) {}
