//! All that is wrong with a configuration file.

use std::{
    error::Error,
    fmt,
    path::{Path, PathBuf},
};

use drumlin_crd::yaml::{Leniently, Location, YamlError};
use serde::de::DeserializeOwned;

use super::key::KeyError;

/// Maximum number of reported problems: each requires parsing the file again.
pub(super) const PROBLEMS: usize = 100;

/// All that is wrong with a configuration file.
#[derive(Debug)]
pub(crate) struct InvalidFile {
    path: PathBuf,
    problems: Vec<YamlError>,
}

impl InvalidFile {
    /// The problems of the file at a path, the first line first.
    pub(super) fn new(path: &Path, mut problems: Vec<YamlError>) -> Self {
        problems.sort_by_key(|problem| (problem.line, problem.column));
        Self {
            path: path.to_owned(),
            problems,
        }
    }

    /// The problems, each with file, line and key.
    fn lines(&self) -> Vec<String> {
        let file = self.path.display();
        let problems = self.problems.iter();
        problems
            .map(|problem| format!("config file {file}: {problem}"))
            .collect()
    }
}

impl fmt::Display for InvalidFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

impl Error for InvalidFile {}

/// What an error of the configuration says, problem by problem.
pub(crate) fn problems(error: &anyhow::Error) -> Vec<String> {
    match error.downcast_ref::<InvalidFile>() {
        Some(invalid) => invalid.lines(),
        None => vec![format!("{error:#}")],
    }
}

/// Notes a value that was refused, unless that follows from what is wrong already, and leaves it out of what is read of the
/// file.
///
/// # Errors
/// The error itself, if it is about no value of the file.
pub(super) fn refuse<T: DeserializeOwned>(
    read: &mut Leniently<T>,
    text: &str,
    error: anyhow::Error,
) -> anyhow::Result<()> {
    let Some(refused) = error.downcast_ref::<KeyError>() else {
        return Err(error);
    };
    let path = refused.path();
    let first = path.split('.').next().unwrap_or_default();
    // Otherwise the value is the default one.
    if read.rest.get(first).is_none() {
        return Err(error);
    }
    let original = read.original(path);
    if !read.is_wrong(&original) {
        let Location { line, column } = Location::of_field(text, &[], &original);
        read.problems.push(YamlError {
            line,
            column,
            message: refused.message(&original),
        });
    }
    if read.leave_out(path, text, PROBLEMS) {
        Ok(())
    } else {
        Err(error)
    }
}
