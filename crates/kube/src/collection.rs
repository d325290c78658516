use std::collections::BTreeMap;

/// Names one life of an object: what is made anew under an old name has another uid. What could not be told of an object
/// that is not understood is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub name: String,
    pub uid: String,
}

impl Key {
    /// Whether it may name the life that `known` does. What could not be told of it may be anything.
    fn may_be(&self, known: &Self) -> bool {
        let fits = |told: &str, known: &str| told.is_empty() || told == known;
        fits(&self.name, &known.name) && fits(&self.uid, &known.uid)
    }
}

/// What a watch says of the objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// A list of everything begins.
    Begin,
    Listed(T),
    /// The list is complete: what it does not have is gone.
    Complete,
    Applied(T),
    /// It is there and cannot be understood: what is known of this life of it stays as it is.
    Kept(Key),
    Deleted(Key),
    /// The server does not know the kind, or does not let us read it.
    Unavailable,
}

/// An object with a name.
pub(crate) trait Named {
    fn key(&self) -> &Key;
}

/// The objects of one kind by name. A list that is under way is not seen before it is complete.
#[derive(Clone, Debug)]
pub(crate) struct Collection<T> {
    present: BTreeMap<String, T>,
    coming: Option<BTreeMap<String, T>>,
    listed: bool,
}

impl<T> Default for Collection<T> {
    fn default() -> Self {
        Self { present: BTreeMap::new(), coming: None, listed: false }
    }
}

impl<T: Named + PartialEq + Clone> Collection<T> {
    /// Takes over an event; tells whether what is present has changed, or has been listed for the first time.
    pub(crate) fn apply(&mut self, event: Event<T>) -> bool {
        match event {
            Event::Begin => {
                self.coming = Some(BTreeMap::new());
                false
            }
            Event::Listed(object) => {
                put(self.coming.get_or_insert_default(), object);
                false
            }
            Event::Complete => {
                let coming = self.coming.take().unwrap_or_default();
                self.replace(coming)
            }
            Event::Unavailable => {
                self.coming = None;
                self.replace(BTreeMap::new())
            }
            Event::Applied(object) => {
                if let Some(coming) = &mut self.coming {
                    put(coming, object.clone());
                }
                put(&mut self.present, object)
            }
            Event::Kept(key) => {
                if let Some(coming) = &mut self.coming {
                    for object in self.present.values().filter(|object| key.may_be(object.key())) {
                        put(coming, object.clone());
                    }
                }
                false
            }
            Event::Deleted(key) => {
                if let Some(coming) = &mut self.coming {
                    remove(coming, &key);
                }
                remove(&mut self.present, &key)
            }
        }
    }

    /// Forgets everything, as if nothing had ever been said.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// A list has been complete once, or there is nothing to list.
    pub(crate) const fn is_listed(&self) -> bool {
        self.listed
    }

    /// In the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.present.values()
    }

    fn replace(&mut self, objects: BTreeMap<String, T>) -> bool {
        let changed = !self.listed || self.present != objects;
        self.present = objects;
        self.listed = true;
        changed
    }
}

fn put<T: Named + PartialEq>(objects: &mut BTreeMap<String, T>, object: T) -> bool {
    let name = object.key().name.clone();
    if objects.get(&name) == Some(&object) {
        return false;
    }
    objects.insert(name, object);
    true
}

/// A late word of an earlier life under the same name removes nothing.
fn remove<T: Named>(objects: &mut BTreeMap<String, T>, key: &Key) -> bool {
    let is_meant = objects.get(&key.name).is_some_and(|object| key.may_be(object.key()));
    is_meant && objects.remove(&key.name).is_some()
}
