use std::future::pending;
use std::pin::Pin;

use sluice_core::{Clock, Time};
use tokio::time::Sleep;

/// Wakes a stream when its session has something to do.
///
/// A session puts its next time off with every part of a body that arrives. The timer lets an earlier alarm stand, so
/// that it is set anew once per timeout and not once per part; whoever is woken too early finds nothing to do.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    alarm: Option<Alarm>,
}

#[derive(Debug)]
struct Alarm {
    at: Time,
    sleep: Pin<Box<Sleep>>,
}

impl Timer {
    /// Whether there is a time to wait for. Without one, an alarm that was set is taken back.
    pub(crate) fn is_needed(&mut self, wakeup: Option<Time>) -> bool {
        if wakeup.is_none() {
            self.alarm = None;
        }
        wakeup.is_some()
    }

    /// Ready at `wakeup`, or before. Sets no alarm before it is polled.
    pub(crate) async fn sleep_until(&mut self, wakeup: Option<Time>, clock: &dyn Clock) {
        let Some(wakeup) = wakeup else { return pending().await };
        if self.alarm.as_ref().is_none_or(|alarm| alarm.at > wakeup) {
            let sleep = tokio::time::sleep(wakeup.saturating_since(clock.now()));
            self.alarm = Some(Alarm { at: wakeup, sleep: Box::pin(sleep) });
        }
        if let Some(alarm) = &mut self.alarm {
            alarm.sleep.as_mut().await;
        }
        self.alarm = None;
    }
}
