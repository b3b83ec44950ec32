//! A normative statement of a specification, and what shows that it holds.

use std::{collections::BTreeMap, fs};

use serde::Deserialize;

use crate::programs::workspace;

/// The lists, in the order in which they are shown.
const FILES: [&str; 6] = [
    "csi-0.1",
    "csi-0.3",
    "csi-1",
    "csi-1-calls",
    "csi-1.13",
    "volumegroup",
];

/// The statements of one specification.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// Which specification.
    pub text: String,
    /// All that it asks for.
    pub statements: Vec<Statement>,
}

/// What a specification asks for in one sentence.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// Where it says so.
    pub at: At,
    /// How strictly.
    pub level: Level,
    /// What, in a few words of our own.
    pub says: String,
    /// Who has to do it.
    pub binds: Binds,
    /// How many sentences this line stands for, where it is not ours.
    #[serde(default)]
    pub count: Option<usize>,
    /// The tests that show it.
    #[serde(default)]
    pub tests: Vec<String>,
    /// Those that show it on every back end.
    #[serde(default)]
    pub everywhere: Vec<String>,
    /// Mutations of the agent that violate it, each with the test that must fail then.
    #[serde(default)]
    pub mutations: BTreeMap<String, String>,
    /// What of it does not hold, and why.
    #[serde(default)]
    pub unmet: Option<String>,
}

/// A section, an RPC or a field; several that say the same are a statement each.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum At {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// How strictly something is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Level {
    /// As a requirement.
    #[serde(
        alias = "MUST NOT",
        alias = "SHALL",
        alias = "SHALL NOT",
        alias = "REQUIRED"
    )]
    Must,
    /// As a recommendation.
    #[serde(alias = "SHOULD NOT")]
    Should,
    /// Without any of these words, as what happens; or as what is not required.
    #[serde(rename = "plain", alias = "NOT REQUIRED")]
    Plain,
}

/// Who has to do what a statement says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Binds {
    /// We.
    Plugin,
    /// Who calls us.
    Caller,
    /// Who starts us, or sees to both.
    Supervisor,
    /// The specification itself.
    Text,
    /// Plugins of another kind: what it is about is not there.
    Others,
}

impl Statement {
    /// How many sentences this line stands for.
    pub fn sentences(&self) -> usize {
        match (&self.at, self.count) {
            (_, Some(count)) => count,
            (At::One(_), None) => 1,
            (At::Many(places), None) => places.len(),
        }
    }

    /// For how many of its sentences there is a mutation: one sentence may have several, a line of many calls only some.
    pub fn mutated(&self) -> usize {
        self.mutations.len().min(self.sentences())
    }

    /// Where it says so, in words.
    pub fn place(&self) -> String {
        match &self.at {
            At::One(place) => place.clone(),
            At::Many(places) => places.join(", "),
        }
    }

    /// Every test that it names.
    pub fn named(&self) -> impl Iterator<Item = &String> {
        self.tests.iter().chain(&self.everywhere)
    }

    /// What is wrong with the line itself.
    pub fn mistake(&self) -> Option<&'static str> {
        let has_tests = self.named().next().is_some();
        match self.binds {
            Binds::Plugin if self.count.is_some() => Some("what is ours is not counted together"),
            Binds::Plugin if !has_tests && self.unmet.is_none() => {
                Some("it has neither a test nor a reason why it is not met")
            }
            Binds::Plugin => {
                let mut noticing = self.mutations.values();
                noticing
                    .any(|test| !self.named().any(|named| named == test))
                    .then_some("a test of a mutation is not among its tests")
            }
            _ if has_tests || self.unmet.is_some() || !self.mutations.is_empty() => {
                Some("it is not ours, and needs no test")
            }
            _ => None,
        }
    }
}

/// All lists, as they are committed.
///
/// # Panics
/// When one cannot be read; the line and column are named.
pub fn texts() -> Vec<Text> {
    let directory = workspace().join("tests/conformance");
    let read = |name: &str| {
        let path = directory.join(format!("{name}.yaml"));
        let text = fs::read_to_string(&path);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let parsed = serde_yaml::from_str(&text);
        parsed.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    FILES.into_iter().map(read).collect()
}
