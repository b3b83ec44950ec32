//! The annotations and labels of this project in manifests. A misspelt one would do nothing, and nobody would be told.

use std::collections::BTreeMap;

use crate::{names, validate::FieldError, yaml::nearest};

/// What an annotation can say.
#[derive(Clone, Copy)]
enum Values {
    /// One of these words.
    Words(&'static [&'static str]),
    /// A text of this meaning, which is not empty.
    Filled(&'static str),
    /// Any text.
    Any,
}

/// The annotations that a manifest can have.
const ANNOTATIONS: [(&str, Values); 6] = [
    (names::ABANDON, Values::Filled("the name of a lost node")),
    (names::ADOPT, Values::Filled("a handle")),
    // The word `false` is that of who takes a pause back without removing the line.
    (names::PAUSED, Values::Words(&["true", "false"])),
    (names::RECONCILE_AT, Values::Any),
    (
        names::RECREATE,
        Values::Filled("the handle of a lost volume"),
    ),
    (names::STATE, Values::Words(&["absent"])),
];

/// The labels that a manifest can have. Those that the agent sets are in what `kubectl get -o yaml` writes.
const LABELS: [&str; 1] = [names::SCHEDULE];

/// Problems of annotations and labels with the prefix of this project; those of others can be anything.
pub(crate) fn problems(
    annotations: Option<&BTreeMap<String, String>>,
    labels: Option<&BTreeMap<String, String>>,
) -> Vec<FieldError> {
    let annotations = annotations.into_iter().flatten();
    let annotations = annotations.filter_map(|(key, value)| {
        let message = annotation(key, value)?;
        let field = format!("metadata.annotations.{key}");
        Some(FieldError { field, message })
    });
    let labels = labels.into_iter().flatten();
    let labels = labels.filter_map(|(key, _)| {
        let message = label(key)?;
        let field = format!("metadata.labels.{key}");
        Some(FieldError { field, message })
    });
    annotations.chain(labels).collect()
}

fn annotation(key: &str, value: &str) -> Option<String> {
    let known = ANNOTATIONS.map(|(known, _)| known);
    let values = ANNOTATIONS.iter().find(|(known, _)| *known == key);
    let Some((_, values)) = values else {
        return unknown(key, &known).map(|why| format!("is no annotation of this project; {why}"));
    };
    match *values {
        Values::Words(words) if !words.contains(&value) => {
            let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
            let near = nearest(value, words.iter().copied());
            let hint = near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
            Some(format!(
                "{value:?} is not allowed; use {}{hint}",
                quoted.join(" or ")
            ))
        }
        Values::Filled(meaning) if value.trim().is_empty() => {
            Some(format!("is empty; it has to be {meaning}"))
        }
        Values::Words(_) | Values::Filled(_) | Values::Any => None,
    }
}

fn label(key: &str) -> Option<String> {
    if LABELS.contains(&key) {
        return None;
    }
    if ANNOTATIONS.iter().any(|(known, _)| *known == key) {
        let why = "is no label, but an annotation; move it to metadata.annotations";
        return Some(why.to_owned());
    }
    unknown(key, &LABELS).map(|why| format!("is no label of this project; {why}"))
}

/// What there is in place of a key with the prefix of this project that is not known.
fn unknown(key: &str, known: &[&str]) -> Option<String> {
    let name = name(key)?;
    // The prefix, which all have, would make any two alike.
    let near = nearest(name, known.iter().filter_map(|known| self::name(known)));
    let hint = near.map_or_else(String::new, |near| {
        format!("; did you mean {}/{near}?", names::GROUP)
    });
    let list = match known {
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
        [] => String::new(),
    };
    Some(format!("use {list}{hint}"))
}

/// The name of a key with the prefix of this project.
fn name(key: &str) -> Option<&str> {
    let (prefix, name) = key.split_once('/')?;
    (prefix == names::GROUP).then_some(name)
}
