use std::sync::Arc;

use sluice_core::{Endpoint, EndpointLoad};
use smallvec::SmallVec;

/// The right to start one request. Becomes an [`InFlight`] when the endpoints are known; dropped before that, it
/// leaves no trace.
#[derive(Debug)]
pub struct Permit {
    /// Requests that an endpoint may have in flight.
    limit: u64,
}

/// An endpoint that has no room; the permit is still good for others.
#[derive(Debug)]
pub struct Full {
    pub permit: Permit,
    pub endpoint: Arc<Endpoint>,
}

/// A request on its way through one or more endpoints. Dropping it releases each of them, exactly once.
#[derive(Debug)]
#[must_use = "dropping the booking releases it at once"]
pub struct InFlight {
    loads: SmallVec<[Arc<EndpointLoad>; 2]>,
    /// Charged on each of them.
    tokens: u64,
}

impl Permit {
    /// A permit where nothing bounds what an endpoint may have in flight.
    pub const fn unlimited() -> Self {
        Self { limit: u64::MAX }
    }

    /// Books one request of `tokens` on every endpoint of `targets`, or on none of them.
    pub fn start<'a>(
        self,
        targets: impl IntoIterator<Item = &'a Arc<Endpoint>>,
        tokens: u64,
    ) -> Result<InFlight, Full> {
        let mut booked = InFlight { loads: SmallVec::new(), tokens };
        for endpoint in targets {
            if !endpoint.load().try_book(self.limit) {
                return Err(Full { permit: self, endpoint: Arc::clone(endpoint) });
            }
            endpoint.load().add_tokens(tokens);
            booked.loads.push(Arc::clone(endpoint.load()));
        }
        Ok(booked)
    }
}

impl InFlight {
    /// Books `endpoint` in place of the first one, whatever its limit: the request is there already.
    pub fn move_to(&mut self, endpoint: &Arc<Endpoint>) {
        let Some(load) = self.loads.first_mut().filter(|load| !Arc::ptr_eq(load, endpoint.load())) else { return };
        endpoint.load().try_book(u64::MAX);
        endpoint.load().add_tokens(self.tokens);
        let before = std::mem::replace(load, Arc::clone(endpoint.load()));
        before.sub_tokens(self.tokens);
        before.release();
    }

    /// Charges no tokens from now on; the request still counts.
    pub fn release_tokens(&mut self) {
        let tokens = std::mem::take(&mut self.tokens);
        for load in &self.loads {
            load.sub_tokens(tokens);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for load in self.loads.drain(..) {
            load.sub_tokens(self.tokens);
            load.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use sluice_core::{EndpointId, EndpointUid};

    use super::*;

    fn endpoints(count: u16) -> Vec<Arc<Endpoint>> {
        (0..count)
            .map(|index| {
                let name = index.to_string();
                let address = ([127, 0, 0, 1], index + 1).into();
                let id = EndpointId::new("default", &name);
                Arc::new(Endpoint::new(id, EndpointUid(name.into()), address, BTreeMap::new()))
            })
            .collect()
    }

    fn loads(endpoints: &[Arc<Endpoint>]) -> Vec<u64> {
        endpoints.iter().map(|endpoint| endpoint.load().requests()).collect()
    }

    #[test]
    fn a_booking_counts_until_it_is_dropped() {
        let endpoints = endpoints(2);
        let in_flight = Permit::unlimited().start(&endpoints, 7).unwrap();
        assert_eq!(loads(&endpoints), [1, 1]);
        assert_eq!(endpoints[1].load().tokens(), 7);
        drop(in_flight);
        assert_eq!(loads(&endpoints), [0, 0]);
        assert_eq!(endpoints[1].load().tokens(), 0);
    }

    #[test]
    fn a_booking_moves_as_a_whole() {
        let endpoints = endpoints(2);
        let mut in_flight = Permit::unlimited().start(&endpoints[..1], 7).unwrap();
        for _ in 0..2 {
            in_flight.move_to(&endpoints[1]);
            assert_eq!(loads(&endpoints), [0, 1]);
            assert_eq!((endpoints[0].load().tokens(), endpoints[1].load().tokens()), (0, 7));
        }
        drop(in_flight);
        assert_eq!(loads(&endpoints), [0, 0]);
        assert_eq!(endpoints[1].load().tokens(), 0);
    }

    #[test]
    fn tokens_can_be_given_back_before_the_request() {
        let endpoints = endpoints(2);
        let mut in_flight = Permit::unlimited().start(&endpoints[..1], 7).unwrap();
        let tokens = || endpoints.iter().map(|endpoint| endpoint.load().tokens()).collect::<Vec<_>>();
        for _ in 0..2 {
            in_flight.release_tokens();
            assert_eq!((tokens(), loads(&endpoints)), (vec![0, 0], vec![1, 0]));
        }
        in_flight.move_to(&endpoints[1]);
        assert_eq!((tokens(), loads(&endpoints)), (vec![0, 0], vec![0, 1]));
        drop(in_flight);
        assert_eq!((tokens(), loads(&endpoints)), (vec![0, 0], vec![0, 0]));
    }

    #[test]
    fn a_full_endpoint_books_nothing_and_gives_the_permit_back() {
        let endpoints = endpoints(2);
        let held = Permit { limit: 1 }.start(&endpoints[1..], 7).unwrap();
        let full = Permit { limit: 1 }.start(&endpoints, 7).unwrap_err();
        assert_eq!(full.endpoint.id, endpoints[1].id);
        assert_eq!(loads(&endpoints), [0, 1]);
        let second = full.permit.start(&endpoints[..1], 7).unwrap();
        assert_eq!(loads(&endpoints), [1, 1]);
        drop((held, second));
        assert_eq!(loads(&endpoints), [0, 0]);
    }

    proptest! {
        #[test]
        fn counters_end_at_zero_and_never_pass_the_limit(
            operations in proptest::collection::vec((any::<bool>(), 0..3_usize, 0..3_usize), 0..200),
        ) {
            let endpoints = endpoints(3);
            let mut held = Vec::new();
            for (start, first, second) in operations {
                if start {
                    let targets: Vec<_> = if first == second { vec![&endpoints[first]] } else { vec![&endpoints[first], &endpoints[second]] };
                    held.extend(Permit { limit: 4 }.start(targets, 7).ok());
                } else if !held.is_empty() {
                    drop(held.swap_remove(first % held.len()));
                }
                prop_assert!(loads(&endpoints).into_iter().all(|load| load <= 4));
            }
            drop(held);
            prop_assert_eq!(loads(&endpoints), vec![0, 0, 0]);
        }
    }
}
