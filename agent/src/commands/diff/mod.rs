//! `drumlin diff`: the ranges in which two snapshots of a volume differ.

mod command;
mod report;
mod search;

pub(crate) use command::run;
