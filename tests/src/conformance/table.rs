//! How much of a specification is ours, is shown by a test, and is not met.

use std::fmt;

use super::{Binds, Statement, Text};

/// The numbers of one specification.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Totals {
    /// Which specification.
    pub text: String,
    /// All statements.
    pub statements: usize,
    /// Those that bind a plugin such as this one.
    pub ours: usize,
    /// Of ours, those that a test shows in full.
    pub tested: usize,
    /// Of ours, those for which a mutation shows that a test would notice a violation.
    pub mutated: usize,
    /// Of ours, those that do not hold, or not in full.
    pub unmet: usize,
}

impl Totals {
    /// The head of the table.
    pub const HEAD: &str = "| text | statements | ours | tested | with a mutation | not met |\n|---|---|---|---|---|---|";

    /// Counts the statements of a text.
    pub fn of(text: &Text) -> Self {
        let count = |holds: &dyn Fn(&Statement) -> bool| {
            let chosen = text.statements.iter().filter(|one| holds(one));
            chosen.map(Statement::sentences).sum()
        };
        let ours = |one: &Statement| one.binds == Binds::Plugin;
        Self {
            text: text.text.clone(),
            statements: count(&|_| true),
            ours: count(&ours),
            tested: count(&|one| ours(one) && one.unmet.is_none()),
            mutated: text.statements.iter().map(Statement::mutated).sum(),
            unmet: count(&|one| ours(one) && one.unmet.is_some()),
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            text,
            statements,
            ours,
            tested,
            mutated,
            unmet,
        } = self;
        write!(
            f,
            "| {text} | {statements} | {ours} | {tested} | {mutated} | {unmet} |"
        )
    }
}

/// A line for each statement of a text that does not hold, or not in full: where, what, and why.
pub fn unmet(text: &Text) -> Vec<String> {
    let line = |one: &Statement| {
        let why = one.unmet.as_ref()?;
        let part = if one.named().next().is_some() {
            "in part"
        } else {
            "not at all"
        };
        Some(format!("- {} ({part}): {} — {why}", one.place(), one.says))
    };
    text.statements.iter().filter_map(line).collect()
}
