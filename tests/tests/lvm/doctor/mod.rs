//! `drumlin doctor` over volume groups: each check finds what it looks for, and is content once that is mended.

mod adopted;
mod decrypted;
mod devices;
mod groups;
mod pools;
mod tags;
mod tools;

use drumlin_tests::{agent::Agent, doctor::Diagnosis};

/// What is found in the volume groups of an agent.
fn look(agent: &Agent) -> Diagnosis {
    Diagnosis::of_part(agent, "volume-groups")
}
