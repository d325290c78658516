use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

/// The place of one piece of data that plugins pass to each other, typed. Holding a slot is the permission
/// to use it: slots are handed out while the configuration is built, never looked up by name at run time.
pub struct Slot<T> {
    index: usize,
    marker: PhantomData<fn() -> T>,
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slot<T> {}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot<{}>({})", std::any::type_name::<T>(), self.index)
    }
}

/// Hands out slots, each once.
#[derive(Debug, Default)]
pub struct SlotAllocator {
    next: usize,
}

impl SlotAllocator {
    pub const fn allocate<T: Any + Send + Sync>(&mut self) -> Slot<T> {
        let index = self.next;
        self.next += 1;
        Slot { index, marker: PhantomData }
    }
}

/// The data of one request, by slot.
#[derive(Default)]
pub struct Attributes {
    values: Vec<Option<Box<dyn Any + Send + Sync>>>,
}

impl Attributes {
    /// Puts `value` in its slot, in place of any earlier one.
    pub fn set<T: Any + Send + Sync>(&mut self, slot: Slot<T>, value: T) {
        if self.values.len() <= slot.index {
            self.values.resize_with(slot.index + 1, || None);
        }
        self.values[slot.index] = Some(Box::new(value));
    }

    /// What was put in `slot`, if anything was.
    pub fn read<T: Any + Send + Sync>(&self, slot: Slot<T>) -> Option<&T> {
        self.values.get(slot.index)?.as_ref()?.downcast_ref()
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filled = self.values.iter().filter(|value| value.is_some()).count();
        write!(f, "Attributes({filled} set)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_holds_its_own_value() {
        let mut slots = SlotAllocator::default();
        let tokens: Slot<u64> = slots.allocate();
        let hits: Slot<u64> = slots.allocate();
        let mut attributes = Attributes::default();
        attributes.set(hits, 3);
        assert_eq!(attributes.read(tokens), None);
        assert_eq!(attributes.read(hits), Some(&3));
        attributes.set(hits, 4);
        assert_eq!(attributes.read(hits), Some(&4));
    }
}
