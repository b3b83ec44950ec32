//! Position of a field in a text.

use std::fmt;

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_yaml::Value;

use super::parse;

/// A line and a column, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// The error that ends the walk through the text at the field; its position is that of the field.
const FOUND: &str = "\u{1}found";

impl Location {
    /// The position of the field with this path: that of its key, or of the beginning of a list item.
    ///
    /// If there is no such field, the position of its nearest existing parent. It parses the text again, so it is only
    /// used for errors.
    pub fn of(text: &str, path: &[String]) -> Self {
        let found = (0..=path.len()).rev().find_map(|end| {
            let step = Step::Into(path.get(..end)?);
            let error = step
                .deserialize(serde_yaml::Deserializer::from_str(text))
                .err()?;
            let location = error.location()?;
            error.to_string().contains(FOUND).then(|| Self {
                line: location.line(),
                column: location.column(),
            })
        });
        found.unwrap_or(Self { line: 1, column: 1 })
    }

    /// The position of a field such as `spec.mount.path` of the object at the path `within`.
    pub fn of_field(text: &str, within: &[String], field: &str) -> Self {
        let parsed = parse(text).ok();
        let mut at = parsed.as_ref().map(|parsed| &parsed.value);
        let mut path = Vec::new();
        for step in within {
            at = at.and_then(|at| child(at, step));
            path.push(step.clone());
        }
        path.extend(steps(at, field));
        Self::of(text, &path)
    }

    /// The line of each map in the list under `items`, in one pass; none if there is no such list or one of its items
    /// is not a map.
    pub fn lines_of_items(text: &str) -> Vec<usize> {
        let list = List::deserialize(serde_yaml::Deserializer::from_str(text));
        let keys = list.map_or_else(|_| Vec::new(), |list| list.items);
        let (mut line, mut counted) = (1, 0);
        keys.into_iter()
            .map(|FirstKey(key)| {
                let offset = key.as_ptr().addr() - text.as_ptr().addr();
                line += text
                    .get(counted..offset)
                    .map_or(0, |passed| passed.matches('\n').count());
                counted = offset;
                line
            })
            .collect()
    }

    /// The position of a byte.
    pub(super) fn of_offset(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.rsplit('\n').next().unwrap_or_default();
        Self {
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
        }
    }
}

/// The value of a field of a map, or of an item of a list.
fn child<'a>(value: &'a Value, step: &str) -> Option<&'a Value> {
    match value {
        Value::Mapping(map) => map.get(step),
        Value::Sequence(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    }
}

/// The steps of a field such as `spec.mount.path` of a value.
///
/// A key may have dots of its own, as that of an annotation has: the longest key that is there is meant.
pub(super) fn steps(value: Option<&Value>, field: &str) -> Vec<String> {
    let (mut at, mut rest, mut path) = (value, Some(field), Vec::new());
    while let Some(left) = rest {
        let step = at.and_then(|at| first_step(at, left));
        let step = step.unwrap_or_else(|| left.split('.').next().unwrap_or(left));
        at = at.and_then(|at| child(at, step));
        path.push(step.to_owned());
        rest = left
            .strip_prefix(step)
            .and_then(|rest| rest.strip_prefix('.'));
    }
    path
}

/// The longest key of a map with which a path with dots begins.
fn first_step<'a>(value: &Value, path: &'a str) -> Option<&'a str> {
    let keys = value.as_mapping()?.keys().filter_map(Value::as_str);
    let keys = keys.filter(|key| {
        let rest = path.strip_prefix(key);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    path.get(..keys.map(str::len).max()?)
}

/// The action for the next value.
#[derive(Clone, Copy)]
enum Step<'a> {
    /// Follow this path.
    Into(&'a [String]),
    /// It is a key: stop if it is this one.
    Key(&'a str, KeyMatch),
}

/// The meaning of a matching key.
#[derive(Clone, Copy, PartialEq)]
enum KeyMatch {
    Here,
    Within,
}

/// The result of a step that did not end the walk.
#[derive(PartialEq)]
enum WalkResult {
    Match,
    Other,
}

impl<'de> DeserializeSeed<'de> for Step<'_> {
    type Value = WalkResult;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<WalkResult, D::Error> {
        match self {
            Self::Key(..) => deserializer.deserialize_str(self),
            Self::Into(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Step<'_> {
    type Value = WalkResult;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // At the end of the path any value ends the walk, also one that is neither map nor list.
        f.write_str(if matches!(self, Self::Into([])) {
            FOUND
        } else {
            "a field"
        })
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<WalkResult, E> {
        match self {
            Self::Key(wanted, KeyMatch::Here) if key == wanted => Err(E::custom(FOUND)),
            Self::Key(wanted, KeyMatch::Within) if key == wanted => Ok(WalkResult::Match),
            Self::Key(..) => Ok(WalkResult::Other),
            Self::Into(_) => Err(E::invalid_type(serde::de::Unexpected::Str(key), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<WalkResult, A::Error> {
        let Self::Into([index, rest @ ..]) = self else {
            return Err(A::Error::custom(FOUND));
        };
        for _ in 0..index.parse().unwrap_or(usize::MAX) {
            if items.next_element::<IgnoredAny>()?.is_none() {
                return Ok(WalkResult::Other);
            }
        }
        let inner = items.next_element_seed(Self::Into(rest))?;
        Ok(inner.unwrap_or(WalkResult::Other))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<WalkResult, A::Error> {
        let Self::Into([key, rest @ ..]) = self else {
            return Err(A::Error::custom(FOUND));
        };
        let arrival = if rest.is_empty() {
            KeyMatch::Here
        } else {
            KeyMatch::Within
        };
        while let Some(passed) = entries.next_key_seed(Self::Key(key, arrival))? {
            if passed == WalkResult::Match {
                return entries.next_value_seed(Self::Into(rest));
            }
            entries.next_value::<IgnoredAny>()?;
        }
        Ok(WalkResult::Other)
    }
}

/// A list of objects, as `kubectl get -o yaml` writes it.
#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    items: Vec<FirstKey<'a>>,
}

/// The first key of a map, as it stands in the text.
struct FirstKey<'a>(&'a str);

impl<'de: 'a, 'a> Deserialize<'de> for FirstKey<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = FirstKey<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let key = entries
                    .next_entry::<&str, IgnoredAny>()?
                    .map(|(key, _)| key);
                while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                key.map(FirstKey)
                    .ok_or_else(|| A::Error::custom("an empty map"))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}
