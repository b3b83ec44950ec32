//! Labels that objects must have: the selectors of Kubernetes, read strictly.
//!
//! A field that is not known would be left out elsewhere, and a selector without fields means everything.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Label selector: all requirements must match. An empty selector matches all objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a map such as {matchLabels: {app: db}}"
)]
pub struct Selector {
    /// Labels that must have exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub match_expressions: Vec<Requirement>,
}

/// A requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a map such as {key: app, operator: In, values: [db]}"
)]
pub struct Requirement {
    /// Key of the label.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Operator that compares the label with the values.
    #[schemars(schema_with = "operators")]
    pub operator: Operator,
    /// The values; only for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub values: Vec<String>,
}

/// Operator of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// The schema of the operators: a list of words.
fn operators(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]})
}

impl Selector {
    /// Returns true if an object with these labels matches.
    pub fn matches(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        let label = |key: &str| labels.and_then(|labels| labels.get(key));
        let has = |(key, value): (&String, &String)| label(key) == Some(value);
        self.match_labels.iter().all(has)
            && self.match_expressions.iter().all(|requirement| {
                let found = label(&requirement.key);
                let is_in = found.is_some_and(|value| requirement.values.contains(value));
                match requirement.operator {
                    Operator::In => is_in,
                    Operator::NotIn => !is_in,
                    Operator::Exists => found.is_some(),
                    Operator::DoesNotExist => found.is_none(),
                }
            })
    }
}

impl Selector {
    /// The problems of its requirements: of each the field, such as `matchExpressions.0.key`, and what is valid.
    pub fn problems(&self) -> Vec<(String, &'static str)> {
        let mut problems = Vec::new();
        for (index, requirement) in self.match_expressions.iter().enumerate() {
            let mut that = |holds: bool, field: &str, valid| {
                if !holds {
                    problems.push((format!("matchExpressions.{index}.{field}"), valid));
                }
            };
            that(
                (1..=317).contains(&requirement.key.len()),
                "key",
                "must have 1 to 317 characters",
            );
            that(
                requirement.has_the_values_it_needs(),
                "values",
                "In and NotIn need values, Exists and DoesNotExist take none",
            );
        }
        problems
    }
}

impl Requirement {
    /// Returns true if the operator has values exactly when it needs them.
    fn has_the_values_it_needs(&self) -> bool {
        let needs = matches!(self.operator, Operator::In | Operator::NotIn);
        needs != self.values.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_mean_what_they_mean_to_kubernetes() {
        let labels: BTreeMap<String, String> = [("app", "pg"), ("tier", "db")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        for (key, operator, values, holds) in [
            ("app", Operator::In, "pg mysql", true),
            ("app", Operator::In, "mysql", false),
            ("app", Operator::NotIn, "mysql", true),
            ("app", Operator::NotIn, "pg", false),
            ("other", Operator::In, "x", false),
            ("other", Operator::NotIn, "x", true),
            ("app", Operator::Exists, "", true),
            ("other", Operator::Exists, "", false),
            ("app", Operator::DoesNotExist, "", false),
            ("other", Operator::DoesNotExist, "", true),
        ] {
            let selector = Selector {
                match_expressions: vec![Requirement {
                    key: key.to_owned(),
                    operator,
                    values: values.split_whitespace().map(str::to_owned).collect(),
                }],
                ..Selector::default()
            };
            let found = selector.matches(Some(&labels));
            assert_eq!(found, holds, "{key} {operator:?} {values}");
        }
        let named = |value: &str| Selector {
            match_labels: [("app".to_owned(), value.to_owned())].into(),
            ..Selector::default()
        };
        assert!(named("pg").matches(Some(&labels)));
        assert!(!named("mysql").matches(Some(&labels)));
        assert!(!named("pg").matches(None));
        assert!(Selector::default().matches(None), "as it is there");
    }
}
