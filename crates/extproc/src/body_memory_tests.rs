use std::task::{Context, Poll, Waker};

use futures_util::FutureExt as _;
use proptest::prelude::*;

use super::*;

const KIB: u64 = 1 << 10;

fn memory(budget: u64) -> Arc<BodyMemory> {
    Arc::new(BodyMemory::new(budget))
}

fn share(memory: &Arc<BodyMemory>, priority: i32, bytes: u64) -> Share {
    let mut share = Arc::clone(memory).share(Priority(priority));
    share.resize(bytes).unwrap();
    share
}

fn used(memory: &BodyMemory) -> u64 {
    memory.used.load(Ordering::Relaxed)
}

fn is_given_up(share: &mut Share) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(std::pin::pin!(share.given_up()).poll_unpin(&mut context), Poll::Ready(()))
}

#[test]
fn what_is_held_counts_until_it_is_dropped() {
    let memory = memory(1_000 * KIB);
    let mut small = share(&memory, 0, 10);
    let mut large = share(&memory, 0, 100 * KIB);
    assert_eq!(used(&memory), 100 * KIB + 10);
    assert!(!small.is_registered() && large.is_registered());
    small.resize(20).unwrap();
    large.resize(120 * KIB).unwrap();
    assert_eq!(used(&memory), 120 * KIB + 20);
    small.resize(5).unwrap();
    large.resize(1).unwrap();
    assert_eq!(used(&memory), 6);
    drop((small, large));
    assert_eq!(used(&memory), 0);
    assert!(memory.lock().holders.is_empty());
}

#[test]
fn the_budget_is_exact() {
    let memory = memory(100 * KIB);
    let held = share(&memory, 0, 99 * KIB);
    let mut newcomer = share(&memory, 0, KIB);
    assert_eq!(newcomer.resize(KIB + 1), Err(OutOfMemory), "not for one of the same band");
    assert_eq!(used(&memory), 100 * KIB);
    drop(held);
    assert_eq!(newcomer.resize(100 * KIB), Ok(()));
}

#[test]
fn the_lowest_band_goes_first_and_in_it_the_newest() {
    let memory = memory(400 * KIB);
    let mut old = share(&memory, -5, 100 * KIB);
    let mut new = share(&memory, -5, 100 * KIB);
    let mut middle = share(&memory, -1, 100 * KIB);
    let mut equal = share(&memory, 0, 100 * KIB);
    let mut newcomer = share(&memory, 0, KIB);
    let given_up = [&mut old, &mut new, &mut middle, &mut equal].map(is_given_up);
    assert_eq!(given_up, [false, true, false, false]);
    assert_eq!(used(&memory), 301 * KIB);
    assert_eq!(new.resize(101 * KIB), Err(OutOfMemory), "it is no longer counted");
    drop(new);
    assert_eq!(used(&memory), 301 * KIB, "nor is it taken off twice");

    newcomer.resize(250 * KIB).unwrap();
    let given_up = [&mut old, &mut middle, &mut equal].map(is_given_up);
    assert_eq!(given_up, [true, true, false]);
    assert_eq!(used(&memory), 350 * KIB);
}

#[test]
fn nobody_goes_if_that_would_not_help() {
    let memory = memory(300 * KIB);
    let mut low = share(&memory, -1, 100 * KIB);
    let _high = share(&memory, 5, 200 * KIB);
    let mut newcomer = Arc::clone(&memory).share(Priority(0));
    assert_eq!(newcomer.resize(101 * KIB), Err(OutOfMemory));
    assert!(!is_given_up(&mut low));
    assert_eq!(used(&memory), 300 * KIB);
    assert_eq!(newcomer.resize(u64::MAX), Err(OutOfMemory));
    newcomer.resize(100 * KIB).unwrap();
    assert!(is_given_up(&mut low));
}

#[test]
fn small_bodies_are_left_alone() {
    let memory = memory(100 * KIB);
    let mut small = share(&memory, -1, 64 * KIB - 1);
    let mut newcomer = Arc::clone(&memory).share(Priority(0));
    assert_eq!(newcomer.resize(64 * KIB), Err(OutOfMemory));
    assert!(!is_given_up(&mut small));
}

proptest! {
    #[test]
    fn the_books_balance(steps in proptest::collection::vec((0..4_usize, -2..3_i32, 0..200_u64), 0..100)) {
        let memory = memory(300 * KIB);
        let mut shares: Vec<Option<Share>> = (0..4).map(|_| None).collect();
        for (slot, priority, size) in steps {
            if size < 20 {
                shares[slot] = None;
            } else {
                let share = shares[slot].get_or_insert_with(|| Arc::clone(&memory).share(Priority(priority)));
                if share.resize(size * KIB).is_err() {
                    shares[slot] = None;
                }
            }
            for share in &mut shares {
                if share.as_mut().is_some_and(is_given_up) {
                    *share = None;
                }
            }
            let held: u64 = shares.iter().flatten().map(|share| share.bytes).sum();
            prop_assert_eq!(used(&memory), held);
            prop_assert!(held <= 300 * KIB);
        }
        drop(shares);
        prop_assert_eq!(used(&memory), 0);
        prop_assert!(memory.lock().holders.is_empty());
    }
}
