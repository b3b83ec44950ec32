//! The protocol of `NodeCall` as a model: two fronts, a sidecar that repeats, the agents of two nodes, the sweep and the audit
//! beside an API server, with watches that are late, answers that are lost, kills, users, Nodes that vanish and an etcd that
//! is set back. [`checker::explore`] visits every state.
//!
//! The agents and fronts that are released are not in it: it shows that the rules suffice, and which of them are needed.
//! `docs/src/decisions` says what the rules are.
//!
//! - [`checker`]: the exploration, of any model.
//! - [`rules`]: which protocol, in which world; the broken variants; the properties.
//! - `api_server`: objects, versions, preconditions.
//! - `sidecar`, `front`, `agent`, `world`: who does what.
//! - `state`, `steps`: all of it at one instant, and what follows.

pub mod checker;
pub mod rules;

mod agent;
mod api_server;
mod front;
mod sidecar;
mod state;
mod steps;
mod world;

pub use checker::{Counterexample, NEVER_QUIET, Outcome, explore};
pub use state::{Node, State};
