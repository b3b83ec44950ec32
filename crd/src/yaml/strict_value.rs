//! Builds values from a text, strictly: no duplicate keys, no tags, a limited number of nodes.

use std::{cell::RefCell, fmt};

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Visitor};
use serde_yaml::{Mapping, Value};

/// Maximum number of nodes; more result only from the expansion of aliases.
const NODES: usize = 250_000;

/// Observations while a text is parsed.
#[derive(Debug)]
pub(super) struct Notes<'a> {
    text: &'a str,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    nodes: usize,
    /// The words without quotes that other parsers do not read as strings, as (byte offset, word).
    ambiguous: Vec<(usize, String)>,
}

impl<'a> Notes<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            state: RefCell::default(),
        }
    }

    /// The words without quotes that a YAML 1.1 parser, such as that of kubectl, reads as a number or a boolean, as
    /// (byte offset, word).
    pub(super) fn ambiguous(self) -> Vec<(usize, String)> {
        self.state.into_inner().ambiguous
    }

    fn count<E: Error>(&self) -> Result<(), E> {
        let mut state = self.state.borrow_mut();
        state.nodes += 1;
        if state.nodes > NODES {
            return Err(E::custom(format_args!(
                "more than {NODES} values: aliases that expand to this many values are rejected"
            )));
        }
        Ok(())
    }

    /// Inspects a string that is a slice of the input; its position shows whether it is quoted.
    fn look(&self, word: &str) {
        if !is_ambiguous(word) {
            return;
        }
        let Some(offset) = word.as_ptr().addr().checked_sub(self.text.as_ptr().addr()) else {
            return;
        };
        let before = self.text.as_bytes().get(offset.wrapping_sub(1));
        if !matches!(before, Some(b'"' | b'\'')) {
            let place = (offset, word.to_owned());
            self.state.borrow_mut().ambiguous.push(place);
        }
    }
}

/// Returns true if YAML 1.1 reads this as a boolean or a number and YAML 1.2 as a string.
pub(crate) fn is_ambiguous(word: &str) -> bool {
    const WORDS: [&str; 16] = [
        "y", "Y", "n", "N", "yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off",
        "OFF",
    ];
    let unsigned = word.strip_prefix(['+', '-']).unwrap_or(word);
    let is_numeric = unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    WORDS.contains(&word)
        || is_numeric && {
            let plain = unsigned.replace('_', "");
            let binary = plain.strip_prefix("0b").unwrap_or_default();
            let hexadecimal = plain.strip_prefix("0x").unwrap_or_default();
            plain.parse::<f64>().is_ok()
                || u128::from_str_radix(binary, 2).is_ok()
                || u128::from_str_radix(hexadecimal, 16).is_ok()
        }
}

/// One value of a text.
pub(super) struct Node<'a>(pub(super) &'a Notes<'a>);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Value, E> {
        self.0.look(value);
        Ok(Value::String(value.to_owned()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Node(self.0))? {
            list.push(item);
        }
        Ok(Value::Sequence(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Mapping::new();
        while let Some(key) = entries.next_key_seed(Key {
            notes: self.0,
            map: &map,
        })? {
            let value = entries.next_value_seed(Node(self.0))?;
            map.insert(key, value);
        }
        Ok(Value::Mapping(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        Err(A::Error::custom(
            "tags such as !x are not supported: remove it",
        ))
    }
}

/// A key of a map that must not be present yet.
struct Key<'a> {
    notes: &'a Notes<'a>,
    map: &'a Mapping,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Key<'_> {
    // Refused while the key is read, so that the error has the position of the key, not of the map.
    fn once<E: Error>(&self, key: &str) -> Result<Value, E> {
        if self.map.contains_key(key) {
            return Err(E::custom(format_args!("duplicate key {key:?}: remove one")));
        }
        Ok(Value::String(key.to_owned()))
    }
}

impl<'de> Visitor<'de> for Key<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string as key: put it in quotes")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Value, E> {
        self.notes.look(key);
        self.once(key)
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Value, E> {
        self.once(key)
    }
}
