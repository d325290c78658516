//! A bound on the bytes of requests that wait in this process.
//!
//! Every request is counted, headers and body, while it is held: from its arrival until it goes back to the proxy. Where
//! one more byte would pass the budget, requests of lower bands are given up first, the lowest band and in it the newest,
//! however small they are: small ones make up the bulk. Only if all of them together would not make room, the newcomer is
//! refused itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_core::Priority;
use tokio::sync::oneshot;

#[derive(Debug)]
pub(crate) struct BodyMemory {
    budget: AtomicU64,
    books: Mutex<Books>,
}

/// What is held. The bytes of all bands, and of all holders of each, add up.
#[derive(Debug, Default)]
struct Books {
    used: u64,
    next_serial: u64,
    /// Those with holders.
    bands: BTreeMap<Priority, Band>,
}

#[derive(Debug, Default)]
struct Band {
    bytes: u64,
    /// By serial number: the newest is the last.
    holders: BTreeMap<u64, Holder>,
}

#[derive(Debug)]
struct Holder {
    bytes: u64,
    give_up: oneshot::Sender<()>,
}

/// There is no room, not even if requests of lower bands were given up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

impl BodyMemory {
    /// `budget` in bytes.
    pub(crate) const fn new(budget: u64) -> Self {
        Self {
            budget: AtomicU64::new(budget),
            books: Mutex::new(Books { used: 0, next_serial: 0, bands: BTreeMap::new() }),
        }
    }

    /// Whoever holds bytes keeps them, also beyond a smaller budget.
    pub(crate) fn set_budget(&self, budget: u64) {
        self.budget.store(budget, Ordering::Relaxed);
    }

    fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Counts `bytes` for a request of band `priority`.
    pub(crate) fn hold(self: &Arc<Self>, priority: Priority, bytes: u64) -> Result<Share, OutOfMemory> {
        let (give_up, given_up) = oneshot::channel();
        let mut books = self.lock();
        books.make_room(self.budget(), bytes, priority)?;
        let serial = books.next_serial;
        books.next_serial += 1;
        books.used += bytes;
        let band = books.bands.entry(priority).or_default();
        band.bytes += bytes;
        band.holders.insert(serial, Holder { bytes, give_up });
        drop(books);
        Ok(Share { memory: Arc::clone(self), priority, serial, given_up })
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Gives up as many holders below `priority` as `more` bytes need; none if that would be no use.
    fn make_room(&mut self, budget: u64, more: u64, priority: Priority) -> Result<(), OutOfMemory> {
        let mut needed = self.used.saturating_add(more).saturating_sub(budget);
        let freeable: u64 = self.bands.range(..priority).map(|(_, band)| band.bytes).sum();
        if needed > freeable {
            return Err(OutOfMemory);
        }
        while needed > 0 {
            let Some(freed) = self.give_up_lowest() else { return Err(OutOfMemory) };
            needed = needed.saturating_sub(freed);
        }
        Ok(())
    }

    /// Takes the bytes of the newest holder of the lowest band off the books, and tells how many. They are gone in a
    /// moment; the room is the newcomer's now.
    fn give_up_lowest(&mut self) -> Option<u64> {
        let mut lowest = self.bands.first_entry()?;
        let band = lowest.get_mut();
        let (_, Holder { bytes, give_up }) = band.holders.pop_last()?;
        band.bytes -= bytes;
        self.used -= bytes;
        if band.holders.is_empty() {
            lowest.remove();
        }
        // Nobody listens if it has just ended by itself.
        give_up.send(()).unwrap_or_default();
        Some(bytes)
    }

    /// Notes that a holder has `bytes` now. False if it was given up.
    fn settle(&mut self, priority: Priority, serial: u64, bytes: u64) -> bool {
        let Some(band) = self.bands.get_mut(&priority) else { return false };
        let Some(holder) = band.holders.get_mut(&serial) else { return false };
        let before = std::mem::replace(&mut holder.bytes, bytes);
        band.bytes = band.bytes - before + bytes;
        self.used = self.used - before + bytes;
        true
    }

    /// The bytes of a holder; none if it was given up.
    fn held(&self, priority: Priority, serial: u64) -> Option<u64> {
        Some(self.bands.get(&priority)?.holders.get(&serial)?.bytes)
    }

    fn remove(&mut self, priority: Priority, serial: u64) {
        if self.settle(priority, serial, 0)
            && let Some(band) = self.bands.get_mut(&priority)
        {
            band.holders.remove(&serial);
            if band.holders.is_empty() {
                self.bands.remove(&priority);
            }
        }
    }
}

/// The bytes that one request holds. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<BodyMemory>,
    priority: Priority,
    serial: u64,
    given_up: oneshot::Receiver<()>,
}

impl Share {
    /// The request holds `bytes` now.
    pub(crate) fn resize(&mut self, bytes: u64) -> Result<(), OutOfMemory> {
        let mut books = self.memory.lock();
        let held = books.held(self.priority, self.serial).ok_or(OutOfMemory)?;
        books.make_room(self.memory.budget(), bytes.saturating_sub(held), self.priority)?;
        if books.settle(self.priority, self.serial, bytes) { Ok(()) } else { Err(OutOfMemory) }
    }

    /// Ready when the bytes are needed for more urgent work.
    pub(crate) async fn given_up(&mut self) {
        // An error means the same: nobody counts the bytes any more.
        (&mut self.given_up).await.unwrap_or_default();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.lock().remove(self.priority, self.serial);
    }
}

#[cfg(test)]
#[path = "body_memory_tests.rs"]
mod tests;
