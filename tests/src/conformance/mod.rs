//! What the specifications ask for, and which test shows it: the lists in `tests/conformance`.
//!
//! - [`Text`]: a list as it is read.
//! - [`Totals`], [`unmet`]: the table that people read.
//! - [`sources`]: whether the tests that are named exist.
//! - [`Ran`]: whether they ran, by what the runner printed.
//! - [`mutate`]: whether they would notice a violation.

pub mod mutate;
mod ran;
pub mod sources;
mod statement;
mod table;

pub use ran::Ran;
pub use statement::{At, Binds, Level, Statement, Text, texts};
pub use table::{Totals, unmet};
