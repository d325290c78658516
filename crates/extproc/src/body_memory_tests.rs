use std::task::{Context, Poll, Waker};

use futures_util::FutureExt as _;
use proptest::prelude::*;

use super::*;

const KIB: u64 = 1 << 10;

fn memory(budget: u64) -> Arc<BodyMemory> {
    Arc::new(BodyMemory::new(budget))
}

fn share(memory: &Arc<BodyMemory>, priority: i32, bytes: u64) -> Share {
    memory.hold(Priority(priority), bytes).unwrap()
}

fn is_out_of_memory(memory: &Arc<BodyMemory>, priority: i32, bytes: u64) -> bool {
    memory.hold(Priority(priority), bytes).is_err()
}

fn used(memory: &BodyMemory) -> u64 {
    memory.lock().used
}

fn is_given_up(share: &mut Share) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(std::pin::pin!(share.given_up()).poll_unpin(&mut context), Poll::Ready(()))
}

#[test]
fn what_is_held_counts_until_it_is_dropped() {
    let memory = memory(1_000 * KIB);
    let mut small = share(&memory, 0, 10);
    let mut large = share(&memory, -1, 100 * KIB);
    assert_eq!(used(&memory), 100 * KIB + 10);
    small.resize(20).unwrap();
    large.resize(120 * KIB).unwrap();
    assert_eq!(used(&memory), 120 * KIB + 20);
    small.resize(5).unwrap();
    large.resize(1).unwrap();
    assert_eq!(used(&memory), 6);
    drop((small, large));
    assert_eq!(used(&memory), 0);
    assert!(memory.lock().bands.is_empty());
}

#[test]
fn the_budget_is_exact() {
    let memory = memory(100 * KIB);
    let held = share(&memory, 0, 99 * KIB);
    assert!(is_out_of_memory(&memory, 0, KIB + 1), "not for one of the same band");
    let mut newcomer = share(&memory, 0, KIB);
    assert_eq!(newcomer.resize(KIB + 1), Err(OutOfMemory));
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
    assert_eq!(new.resize(1), Err(OutOfMemory), "it is no longer counted");
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
    for bytes in [101 * KIB, u64::MAX] {
        assert!(is_out_of_memory(&memory, 0, bytes));
        assert!(!is_given_up(&mut low));
        assert_eq!(used(&memory), 300 * KIB);
    }
    let _newcomer = share(&memory, 0, 100 * KIB);
    assert!(is_given_up(&mut low));
}

#[test]
fn small_bodies_of_lower_bands_make_room() {
    let memory = memory(1_000);
    let mut batch: Vec<Share> = (0..1_000).map(|_| share(&memory, -1, 1)).collect();
    assert!(is_out_of_memory(&memory, -1, 1), "the budget is full");
    let _premium = share(&memory, 100, 3);
    let given_up: Vec<usize> = (0..1_000).filter(|&index| is_given_up(&mut batch[index])).collect();
    assert_eq!(given_up, [997, 998, 999], "no more than it takes");
    assert_eq!(used(&memory), 1_000);
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
                let priority = Priority(priority);
                shares[slot] = match shares[slot].take() {
                    None => memory.hold(priority, size * KIB).ok(),
                    Some(mut share) => share.resize(size * KIB).is_ok().then_some(share),
                };
            }
            for share in &mut shares {
                if share.as_mut().is_some_and(is_given_up) {
                    *share = None;
                }
            }
            let books = memory.lock();
            let of = |share: &Share| books.held(share.priority, share.serial);
            let held: u64 = shares.iter().flatten().filter_map(of).sum();
            prop_assert_eq!(books.used, held);
            prop_assert_eq!(books.bands.values().map(|band| band.bytes).sum::<u64>(), held);
            prop_assert!(held <= 300 * KIB);
        }
        drop(shares);
        prop_assert_eq!(used(&memory), 0);
        prop_assert!(memory.lock().bands.is_empty());
    }
}
