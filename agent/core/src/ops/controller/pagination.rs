//! Pagination that is stable while objects are created and deleted.

use crate::ops::lookup::LocatedImage;
use crate::{
    Error, Kind, Result,
    types::{ClassName, Handle, Key},
};

/// A request for a page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PageRequest {
    /// Maximum number of entries; none for all.
    pub max_entries: Option<usize>,
    /// The token returned with the previous page; none for the first page.
    pub token: Option<String>,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing<T> {
    /// Its entries.
    pub entries: Vec<T>,
    /// The token of the next page; none after the last one.
    pub next: Option<String>,
}

/// The sort key of an object in a list. All objects are of one node; with its name a token could exceed 128 bytes (CSI,
/// "Size Limits").
type ListPosition<'a> = (Key, &'a ClassName);

fn place(handle: &Handle) -> ListPosition<'_> {
    (handle.key, &handle.class)
}

fn token((key, class): ListPosition<'_>) -> String {
    format!("{class}/{key}")
}

fn parse(token: &str) -> Option<(Key, ClassName)> {
    let (class, key) = token.split_once('/')?;
    Some((Key::parse(key)?, class.parse().ok()?))
}

impl PageRequest {
    /// The object after which this page begins. A token names an object, not an index: it stays valid when objects are
    /// created or deleted, even the named one.
    ///
    /// # Errors
    /// [`Kind::StaleToken`] for a token that was not issued by a list call.
    fn after(&self) -> Result<Option<(Key, ClassName)>> {
        let Some(token) = &self.token else {
            return Ok(None);
        };
        parse(token).map(Some).ok_or_else(|| {
            Error::new(
                Kind::StaleToken,
                format!(
                    "starting_token {token:?} was not issued by this agent; restart the listing without a token"
                ),
            )
        })
    }

    /// Cuts this page out of the full list.
    ///
    /// # Errors
    /// [`Kind::StaleToken`].
    pub(crate) fn cut(&self, all: Vec<LocatedImage>) -> Result<Listing<LocatedImage>> {
        self.cut_by(all, |found| &found.handle)
    }

    /// As [`Self::cut`], for anything with a handle.
    ///
    /// # Errors
    /// [`Kind::StaleToken`].
    pub(crate) fn cut_by<T>(
        &self,
        mut all: Vec<T>,
        handle: impl Fn(&T) -> &Handle,
    ) -> Result<Listing<T>> {
        let after = self.after()?;
        all.sort_unstable_by(|a, b| place(handle(a)).cmp(&place(handle(b))));
        if let Some((key, class)) = &after {
            let skip = all.partition_point(|found| place(handle(found)) <= (*key, class));
            all.drain(..skip);
        }
        let mut next = None;
        if let Some(most) = self.max_entries
            && all.len() > most
        {
            all.truncate(most);
            next = all.last().map(|found| token(place(handle(found))));
        }
        Ok(Listing { entries: all, next })
    }
}

impl<T> Listing<T> {
    pub(crate) fn map<U>(self, change: impl FnMut(T) -> U) -> Listing<U> {
        Listing {
            entries: self.entries.into_iter().map(change).collect(),
            next: self.next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ImageKind, Name};

    #[test]
    fn a_token_is_within_the_limit_and_names_its_place() {
        let key = Key::of(ImageKind::Volume, &Name::parse("name", "v").unwrap());
        let class: ClassName = "c".repeat(63).parse().unwrap();
        let longest = token((key, &class));
        assert!(longest.len() <= 128, "{}", longest.len());
        assert_eq!(parse(&longest), Some((key, class)));
        for other in ["", "/", "c", "c/", "after:c/k", "c/not-a-key"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
