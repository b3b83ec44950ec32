//! Converges manifests by calling a CSI socket.
//!
//! - [`source`]: where manifests come from: a directory of YAML.
//! - [`store`]: what is remembered of each object, on disk.
//! - [`engine`]: which object is looked at when, and what an error leads to.
//! - [`kinds`]: a file per kind: from what is there to what is wanted, a call at a time.
//! - [`status`]: what the operator is shown.
//!
//! **Invariant:** the socket is the only way in; nothing here depends on the operations.
//! **Invariant:** what is missing deletes nothing. Only `drumlin.dev/state: absent` destroys.
//! **Invariant:** what a repeated call must say again is on disk before the call is made.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        reason = "tests fail by panicking"
    )
)]

mod source;
