//! Locks on objects: all or none at once, never waited for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{Error, Kind, Result, types::ImageId};

/// How an object is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// By one change alone.
    Exclusive(ImageId),
    /// By any number of changes that only read it, such as copies.
    Shared(ImageId),
}

/// Who holds what in this process. After a crash nobody holds anything, and the disk shows what was half-made.
#[derive(Debug, Default)]
pub(super) struct Locks {
    held: Arc<Mutex<HashMap<ImageId, Holders>>>,
}

#[derive(Debug, Clone, Copy)]
enum Holders {
    One,
    Readers(usize),
}

/// Holds some objects until it is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    held: Arc<Mutex<HashMap<ImageId, Holders>>>,
    holds: Vec<Hold>,
}

impl Locks {
    /// Takes all of `holds`, or none.
    ///
    /// # Errors
    /// [`Kind::Busy`] naming the object that another change holds.
    pub(super) fn take(&self, holds: Vec<Hold>) -> Result<Guard> {
        let mut held = lock(&self.held);
        for hold in &holds {
            let (id, free) = match hold {
                Hold::Exclusive(id) => (id, !held.contains_key(id)),
                Hold::Shared(id) => (id, !matches!(held.get(id), Some(Holders::One))),
            };
            if !free {
                return Err(Error::new(
                    Kind::Busy,
                    format!("another change of {id} is running; ask again"),
                ));
            }
        }
        for hold in &holds {
            match hold {
                Hold::Exclusive(id) => {
                    held.insert(*id, Holders::One);
                }
                Hold::Shared(id) => {
                    let readers = held.entry(*id).or_insert(Holders::Readers(0));
                    if let Holders::Readers(count) = readers {
                        *count += 1;
                    }
                }
            }
        }
        Ok(Guard {
            held: Arc::clone(&self.held),
            holds,
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        for hold in &self.holds {
            match hold {
                Hold::Exclusive(id) => {
                    held.remove(id);
                }
                Hold::Shared(id) => match held.get_mut(id) {
                    Some(Holders::Readers(count)) if *count > 1 => *count -= 1,
                    _ => {
                        held.remove(id);
                    }
                },
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ImageKind, Key, Name};

    fn id(name: &str) -> ImageId {
        let kind = ImageKind::Volume;
        ImageId {
            kind,
            key: Key::of(kind, &Name::parse("name", name).unwrap()),
        }
    }

    #[test]
    fn a_held_key_is_refused_at_once_and_free_afterwards() {
        let locks = Locks::default();
        let guard = locks.take(vec![Hold::Exclusive(id("a"))]).unwrap();
        for hold in [Hold::Exclusive(id("a")), Hold::Shared(id("a"))] {
            let error = locks
                .take(vec![Hold::Exclusive(id("b")), hold])
                .unwrap_err();
            assert_eq!(error.kind(), Kind::Busy);
        }
        locks.take(vec![Hold::Exclusive(id("b"))]).unwrap();
        drop(guard);
        locks.take(vec![Hold::Exclusive(id("a"))]).unwrap();
    }

    #[test]
    fn readers_share_and_keep_writers_out_until_the_last_is_gone() {
        let locks = Locks::default();
        let first = locks.take(vec![Hold::Shared(id("a"))]).unwrap();
        let second = locks.take(vec![Hold::Shared(id("a"))]).unwrap();
        assert!(locks.take(vec![Hold::Exclusive(id("a"))]).is_err());
        drop(first);
        assert!(locks.take(vec![Hold::Exclusive(id("a"))]).is_err());
        drop(second);
        assert!(locks.take(vec![Hold::Exclusive(id("a"))]).is_ok());
    }
}
