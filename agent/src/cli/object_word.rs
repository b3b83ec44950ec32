//! The argument that names a kind of objects, or one of them, as kubectl takes it.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{EnumValueParser, PossibleValue, TypedValueParser},
};

use super::ObjectKind;

/// A kind, and the name of an object behind a slash: `KIND`, `KIND/NAME` or `KIND/NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectWord {
    pub(crate) kind: ObjectKind,
    pub(crate) name: Option<String>,
}

/// A kind by any of its names, in upper or lower case, as kubectl takes it, or the error that lists all kinds.
pub(super) fn parse_kind(
    command: &Command,
    argument: Option<&Arg>,
    word: &str,
) -> Result<ObjectKind, Error> {
    ObjectKind::parse(word).map_or_else(
        || EnumValueParser::<ObjectKind>::new().parse_ref(command, argument, OsStr::new(word)),
        Ok,
    )
}

/// Reads an [`ObjectWord`]; completions and errors have the kinds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectWordParser;

impl TypedValueParser for ObjectWordParser {
    type Value = ObjectWord;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<ObjectWord, Error> {
        let text = value.to_string_lossy();
        let (kind, name) = match text.split_once('/') {
            Some((kind, name)) => (kind, Some(name.to_owned())),
            None => (&*text, None),
        };
        let kind = parse_kind(command, argument, kind)?;
        Ok(ObjectWord { kind, name })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let kinds = EnumValueParser::<ObjectKind>::new();
        let kinds: Vec<PossibleValue> = kinds.possible_values()?.collect();
        Some(Box::new(kinds.into_iter()))
    }
}
