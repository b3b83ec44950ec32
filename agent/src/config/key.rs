//! Errors of the values of the configuration file, with the place of their keys.

use std::{error::Error, fmt};

use anyhow::anyhow;

/// A value that is not valid, and the key that it belongs to.
#[derive(Debug)]
pub(super) struct KeyError {
    /// The path of the key from the top, such as `classes.0.trash.keep`.
    path: String,
    /// The key, for people: `classes[0] (default): trash.keep`.
    key: String,
    why: anyhow::Error,
}

impl KeyError {
    /// The path of the key.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The key and what is wrong with its value, for people. `path` is its path in the file, where what is wrong was left out
    /// of what was read.
    pub(super) fn message(&self, path: &str) -> String {
        let index = |path: &str| {
            let (index, _) = path.strip_prefix("classes.")?.split_once('.')?;
            Some(format!("classes[{index}]"))
        };
        let indices = index(&format!("{}.", self.path)).zip(index(&format!("{path}.")));
        let key = indices.map_or_else(
            || self.key.clone(),
            |(read, written)| self.key.replacen(&read, &written, 1),
        );
        format!("{key}: {:#}", self.why)
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

impl Error for KeyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.why.as_ref())
    }
}

/// Gives an error the key whose value it is about.
pub(super) trait AtKey<T>: Sized {
    /// Of the value of this key, which is within those that are added later.
    fn at_key(self, key: &str) -> anyhow::Result<T> {
        self.within(key, key.to_owned())
    }

    /// Of a value below this path, which people know by another name.
    fn within(self, path: &str, name: String) -> anyhow::Result<T>;

    /// Of the value of this key, unless an argument has precedence over it.
    fn at_key_without<A>(self, argument: Option<&A>, key: &str) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> AtKey<T> for Result<T, E> {
    fn within(self, path: &str, name: String) -> anyhow::Result<T> {
        self.map_err(|error| {
            anyhow::Error::new(match error.into().downcast::<KeyError>() {
                Ok(inner) => KeyError {
                    path: format!("{path}.{}", inner.path),
                    key: format!("{name}: {}", inner.key),
                    why: inner.why,
                },
                Err(why) => KeyError {
                    path: path.to_owned(),
                    key: name,
                    why,
                },
            })
        })
    }

    fn at_key_without<A>(self, argument: Option<&A>, key: &str) -> anyhow::Result<T> {
        match argument {
            None => self.at_key(key),
            Some(_) => self.map_err(|error| error.into().context(key.to_owned())),
        }
    }
}

/// Refuses the value of a key.
pub(super) fn refused<T>(key: &str, why: impl fmt::Display) -> anyhow::Result<T> {
    Err(anyhow!("{why}")).at_key(key)
}
