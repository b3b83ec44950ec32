//! Mutation testing: a test build that violates a specification on purpose, so that a test can prove that it would notice.
//!
//! `DRUMLIN_MUTATE="<service>/<method> <change>"` changes the requests or the responses of one RPC; `rule` has the
//! changes. The rows of the conformance table name the mutation that violates their statement and the test that must
//! fail then (`just conformance --mutate`). Release builds have none of this.

mod layer;
mod rule;
mod wire;

pub(crate) use layer::layer;
