//! Paths on this host, received from callers.

use std::{fmt, ops::Deref, path::Path, path::PathBuf};

use crate::{Error, Result};

/// Maximum length of a path in the kernel, in bytes without the NUL.
const PATH_BYTES: usize = 4095;

/// An absolute path without `.`, `..`, NUL, control characters or a trailing slash; never `/` itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbsolutePath(PathBuf);

impl AbsolutePath {
    /// Validates a path received in `field`. Repeated slashes are collapsed.
    ///
    /// # Errors
    /// Invalid, naming `field`.
    pub fn parse(field: &str, text: &str) -> Result<Self> {
        let wrong = |why: &str| Err(Error::invalid(format!("{field} {why}: {text:?}")));
        if text.is_empty() {
            return Err(Error::invalid(format!("{field} is missing")));
        }
        if text.len() > PATH_BYTES {
            return Err(Error::invalid(format!(
                "{field} has {} bytes; a path has at most {PATH_BYTES}",
                text.len()
            )));
        }
        if !text.starts_with('/') {
            return wrong("is not an absolute path");
        }
        if text.chars().any(char::is_control) {
            return wrong("has a control character");
        }
        let mut path = PathBuf::from("/");
        for part in text.split('/') {
            match part {
                "" => {}
                "." | ".." => return wrong("has a component '.' or '..'"),
                // A file name has at most 255 bytes on all supported file systems.
                long if long.len() > 255 => return wrong("has a component of more than 255 bytes"),
                part => path.push(part),
            }
        }
        if path == Path::new("/") {
            return wrong("is the root directory");
        }
        Ok(Self(path))
    }
}

impl Deref for AbsolutePath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for AbsolutePath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for AbsolutePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// The directory beneath which a path must stay: an [`AbsolutePath`] or `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootPath(PathBuf);

impl RootPath {
    /// Validates a path received in `field`.
    ///
    /// # Errors
    /// Invalid, naming `field`.
    pub fn parse(field: &str, text: &str) -> Result<Self> {
        if text == "/" {
            return Ok(Self(text.into()));
        }
        AbsolutePath::parse(field, text).map(|path| Self(path.0))
    }
}

impl Deref for RootPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_paths_are_refused_and_slashes_folded() {
        for bad in ["", "a/b", "/", "//", "/a/../b", "/a/.", "/a\nb", "/a\0b"] {
            let error = AbsolutePath::parse("target_path", bad).unwrap_err();
            assert!(error.to_string().starts_with("target_path "), "{error}");
        }
        let long = format!("/{}", "x".repeat(300));
        assert!(AbsolutePath::parse("target_path", &long).is_err());
        let path = AbsolutePath::parse("target_path", "//a///b/").unwrap();
        assert_eq!(&*path, Path::new("/a/b"));
        assert_eq!(&*RootPath::parse("root", "/").unwrap(), Path::new("/"));
        assert!(RootPath::parse("root", "/a/../b").is_err());
    }
}
