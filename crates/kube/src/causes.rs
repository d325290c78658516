use std::error::Error;

/// What an error says, and what those say that it comes from: a connection that fails says why only there.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let said = error.to_string();
        // Many quote the next one in their own words.
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{words}")]
    struct Because {
        words: &'static str,
        source: Option<Box<Self>>,
    }

    #[test]
    fn every_cause_is_named_once() {
        let third = Because { words: "the certificate is of an unknown issuer", source: None };
        let second = Because { words: "cannot connect", source: Some(Box::new(third)) };
        let first = Because { words: "the list failed: cannot connect", source: Some(Box::new(second)) };
        assert_eq!(causes(&first), "the list failed: cannot connect: the certificate is of an unknown issuer");
    }
}
