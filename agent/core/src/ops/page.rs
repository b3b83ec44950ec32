//! Lists in pages that stay right while objects come and go.

use super::resolve::Found;
use crate::{
    Error, Kind, Result,
    types::{Handle, Key},
};

/// Which page of a list a caller wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PageRequest {
    /// How many entries at most; none for all.
    pub max_entries: Option<usize>,
    /// What the page before gave out; none for the first page.
    pub token: Option<String>,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing<T> {
    /// Its entries.
    pub entries: Vec<T>,
    /// What to ask the next page with; none after the last.
    pub next: Option<String>,
}

/// What tokens begin with, so that a future form can be told apart.
const TOKEN: &str = "after:";

impl PageRequest {
    /// The object after which this page begins. A token names an object, not a number: it stays right when
    /// others are made or deleted meanwhile, the named one too.
    ///
    /// # Errors
    /// [`Kind::StaleToken`] for a token that no list gives out.
    fn after(&self) -> Result<Option<Handle>> {
        let Some(token) = &self.token else {
            return Ok(None);
        };
        token
            .strip_prefix(TOKEN)
            .and_then(Handle::parse)
            .map(Some)
            .ok_or_else(|| {
                Error::new(
                    Kind::StaleToken,
                    format!("starting_token {token:?} was not given out by this agent; start again without it"),
                )
            })
    }

    /// Cuts this page out of everything there is.
    ///
    /// # Errors
    /// [`Kind::StaleToken`].
    pub(super) fn cut(&self, mut all: Vec<Found>) -> Result<Listing<Found>> {
        fn order(handle: &Handle) -> (Key, &Handle) {
            (handle.key, handle)
        }
        let after = self.after()?;
        all.sort_unstable_by(|a, b| order(&a.handle).cmp(&order(&b.handle)));
        if let Some(after) = &after {
            let skip = all.partition_point(|found| order(&found.handle) <= order(after));
            all.drain(..skip);
        }
        let mut next = None;
        if let Some(most) = self.max_entries
            && all.len() > most
        {
            all.truncate(most);
            next = all.last().map(|found| format!("{TOKEN}{}", found.handle));
        }
        Ok(Listing { entries: all, next })
    }
}

impl<T> Listing<T> {
    pub(super) fn map<U>(self, change: impl FnMut(T) -> U) -> Listing<U> {
        Listing {
            entries: self.entries.into_iter().map(change).collect(),
            next: self.next,
        }
    }
}
