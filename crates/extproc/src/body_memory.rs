//! A bound on the bytes of request bodies that wait in this process.
//!
//! Every body is counted while it is held: from its arrival until it goes back to the proxy. Where one more byte would
//! pass the budget, larger bodies of lower bands are given up first, the lowest band and in it the newest; only if all of
//! them together would not make room, the newcomer is refused itself.
//!
//! Small bodies are counted on an atomic and are otherwise unknown: they make up the bulk, and giving one up would make no
//! room to speak of. Only a body that has grown [large](LARGE) enters the register that victims are taken from.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_core::Priority;
use tokio::sync::oneshot;

/// Bytes from which on a body may be given up for another.
const LARGE: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct BodyMemory {
    budget: u64,
    used: AtomicU64,
    register: Mutex<Register>,
}

#[derive(Debug, Default)]
struct Register {
    next_serial: u64,
    holders: BTreeMap<Key, Holder>,
}

/// In the order in which holders are given up.
type Key = (Priority, Reverse<u64>);

#[derive(Debug)]
struct Holder {
    bytes: u64,
    give_up: oneshot::Sender<()>,
}

/// There is no room, not even if bodies of lower bands were given up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

impl BodyMemory {
    /// `budget` in bytes.
    pub(crate) const fn new(budget: u64) -> Self {
        let register = Register { next_serial: 0, holders: BTreeMap::new() };
        Self { budget, used: AtomicU64::new(0), register: Mutex::new(register) }
    }

    /// A share without a byte, of a request of band `priority`.
    pub(crate) const fn share(self: Arc<Self>, priority: Priority) -> Share {
        Share { memory: self, priority, bytes: 0, registered: None }
    }

    fn lock(&self) -> MutexGuard<'_, Register> {
        self.register.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `more` bytes if that stays within the budget.
    fn try_take(&self, more: u64) -> bool {
        let take = |used: u64| used.checked_add(more).filter(|&sum| sum <= self.budget);
        self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Counts `more` bytes after giving up as many holders below `priority` as that needs; none if it is no use.
    fn take_from_lower(&self, more: u64, priority: Priority) -> Result<(), OutOfMemory> {
        let mut register = self.lock();
        let lower = ..(priority, Reverse(u64::MAX));
        let freeable: u64 = register.holders.range(lower).map(|(_, holder)| holder.bytes).sum();
        let needed = self.used.load(Ordering::Relaxed).saturating_add(more).saturating_sub(self.budget);
        if needed > freeable {
            return Err(OutOfMemory);
        }
        while !self.try_take(more) {
            let Some(lowest) = register.holders.first_entry().filter(|entry| entry.key().0 < priority) else {
                return Err(OutOfMemory);
            };
            let Holder { bytes, give_up } = lowest.remove();
            // Its bytes are gone in a moment; the room is the newcomer's now.
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            // Nobody listens if it has just ended by itself.
            give_up.send(()).unwrap_or_default();
        }
        Ok(())
    }
}

/// The bytes that one request holds. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<BodyMemory>,
    priority: Priority,
    bytes: u64,
    registered: Option<Registered>,
}

#[derive(Debug)]
struct Registered {
    key: Key,
    given_up: oneshot::Receiver<()>,
}

impl Share {
    /// The request holds `bytes` now.
    pub(crate) fn resize(&mut self, bytes: u64) -> Result<(), OutOfMemory> {
        if let Some(registered) = &self.registered {
            let mut register = self.memory.lock();
            // It was given up, and its bytes are no longer counted.
            let Some(holder) = register.holders.get_mut(&registered.key) else { return Err(OutOfMemory) };
            if bytes <= holder.bytes {
                self.memory.used.fetch_sub(holder.bytes - bytes, Ordering::Relaxed);
                holder.bytes = bytes;
                self.bytes = bytes;
                return Ok(());
            }
        } else if bytes <= self.bytes {
            self.memory.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
            self.bytes = bytes;
            return Ok(());
        }
        let more = bytes - self.bytes;
        if !self.memory.try_take(more) {
            self.memory.take_from_lower(more, self.priority)?;
        }
        self.settle(bytes)
    }

    /// Notes that the budget was charged for `bytes` in all.
    fn settle(&mut self, bytes: u64) -> Result<(), OutOfMemory> {
        let before = std::mem::replace(&mut self.bytes, bytes);
        match &self.registered {
            None if bytes < LARGE => {}
            None => {
                let mut register = self.memory.lock();
                let (give_up, given_up) = oneshot::channel();
                let key = (self.priority, Reverse(register.next_serial));
                register.next_serial += 1;
                register.holders.insert(key, Holder { bytes, give_up });
                self.registered = Some(Registered { key, given_up });
            }
            Some(registered) => {
                let mut register = self.memory.lock();
                let Some(holder) = register.holders.get_mut(&registered.key) else {
                    // Given up in the meantime: what was charged before is not counted any more.
                    self.memory.used.fetch_sub(bytes - before, Ordering::Relaxed);
                    self.bytes = 0;
                    return Err(OutOfMemory);
                };
                holder.bytes = bytes;
            }
        }
        Ok(())
    }

    /// Ready when the bytes are needed for more urgent work; never for a request that holds few.
    pub(crate) async fn given_up(&mut self) {
        match &mut self.registered {
            // An error means the same: nobody counts the bytes any more.
            Some(registered) => (&mut registered.given_up).await.unwrap_or_default(),
            None => std::future::pending().await,
        }
    }

    /// [`Share::given_up`] may become ready.
    pub(crate) const fn is_registered(&self) -> bool {
        self.registered.is_some()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let counted = match self.registered.take() {
            Some(Registered { key, .. }) => self.memory.lock().holders.remove(&key).map_or(0, |holder| holder.bytes),
            None => self.bytes,
        };
        self.memory.used.fetch_sub(counted, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "body_memory_tests.rs"]
mod tests;
