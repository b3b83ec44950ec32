//! When a schedule runs and which snapshots it keeps: pure functions, without a clock of their own.

#[cfg(test)]
mod model;
mod name;
mod retention;
mod slots;

pub(crate) use name::{child_name, slot_of, slot_text};
pub(crate) use retention::superfluous;
pub(crate) use slots::{Clock, Plan, Timing, is_of_the_future};
