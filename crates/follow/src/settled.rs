/// Tells a change that is over from one that is under way, for settings that are written while they are looked at: a
/// finding is worth judging once two looks in a row have brought it.
#[derive(Clone, Debug)]
pub(crate) struct Settled<T> {
    /// What is in force.
    taken: T,
    /// What the last look has brought, and whether it has been judged.
    seen: Option<(Result<T, String>, bool)>,
}

/// What a look means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look<T> {
    /// It is what is in force.
    InForce,
    /// It is new, or it has been judged already.
    Nothing,
    /// It is to be judged, now and not again.
    Judge(Result<T, String>),
}

impl<T: Clone + PartialEq> Settled<T> {
    pub(crate) const fn new(taken: T) -> Self {
        Self { taken, seen: None }
    }

    /// Takes in what a look has `found`: a value, or why there is none.
    pub(crate) fn look(&mut self, found: Result<T, String>) -> Look<T> {
        if found.as_ref() == Ok(&self.taken) {
            self.seen = None;
            return Look::InForce;
        }
        match &mut self.seen {
            Some((seen, judged)) if *seen == found => {
                if std::mem::replace(judged, true) {
                    Look::Nothing
                } else {
                    Look::Judge(found)
                }
            }
            _ => {
                self.seen = Some((found, false));
                Look::Nothing
            }
        }
    }

    /// `value`, which was judged good, is in force from now on.
    pub(crate) fn take(&mut self, value: T) {
        self.taken = value;
        self.seen = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_judged_once_when_two_looks_agree() {
        let mut settled = Settled::new(1);
        assert_eq!(settled.look(Ok(1)), Look::InForce);
        assert_eq!(settled.look(Ok(2)), Look::Nothing);
        assert_eq!(settled.look(Ok(3)), Look::Nothing, "it is still changing");
        assert_eq!(settled.look(Ok(3)), Look::Judge(Ok(3)));
        assert_eq!(settled.look(Ok(3)), Look::Nothing, "it was judged, and is not in force: it was bad");
        settled.take(3);
        assert_eq!(settled.look(Ok(3)), Look::InForce);
    }

    #[test]
    fn a_failure_is_judged_like_a_value_and_forgotten_with_what_is_in_force() {
        let mut settled = Settled::new(1);
        let gone = || Err("gone".to_owned());
        assert_eq!(settled.look(gone()), Look::Nothing);
        assert_eq!(settled.look(gone()), Look::Judge(gone()));
        assert_eq!(settled.look(Err("other".to_owned())), Look::Nothing);
        assert_eq!(settled.look(Ok(1)), Look::InForce);
        assert_eq!(settled.look(gone()), Look::Nothing, "it is a new change");
    }
}
