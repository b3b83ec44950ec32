//! The argument that names kinds of objects, or one object, as `kubectl get` takes it.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error, ValueEnum,
    builder::{PossibleValue, TypedValueParser},
};

use super::{ObjectKind, ObjectWordParser, object_word::parse_kind};

/// Words for all kinds: the one of kubectl, and the category of our custom resource definitions.
const ALL: [&str; 2] = ["all", "drumlin"];

/// Kinds, separated by commas, and the name of an object behind a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KindsWord {
    /// Each kind once, in the order in which they are asked for.
    pub(crate) kinds: Vec<ObjectKind>,
    pub(crate) name: Option<String>,
}

/// Reads a [`KindsWord`]; completions and errors have the kinds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KindsWordParser;

impl TypedValueParser for KindsWordParser {
    type Value = KindsWord;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<KindsWord, Error> {
        let text = value.to_string_lossy();
        let (words, name) = match text.split_once('/') {
            Some((words, name)) => (words, Some(name.to_owned())),
            None => (&*text, None),
        };
        let mut kinds = Vec::new();
        for word in words.split(',') {
            if ALL.contains(&word) {
                kinds.extend(ObjectKind::value_variants());
            } else {
                kinds.push(parse_kind(command, argument, word)?);
            }
        }
        let mut seen = Vec::new();
        kinds.retain(|kind| {
            let is_new = !seen.contains(kind);
            seen.push(*kind);
            is_new
        });
        Ok(KindsWord { kinds, name })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let kinds = ObjectWordParser.possible_values()?;
        let kinds: Vec<PossibleValue> = kinds.chain([PossibleValue::new("all")]).collect();
        Some(Box::new(kinds.into_iter()))
    }
}
