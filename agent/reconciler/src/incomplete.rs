//! Why an operation that an administrator asked for has no result.

use drumlin_crd::Progress;
use tonic::Code;

use crate::{
    Error,
    client::{Cause, Failure},
    kept::failed,
};

/// Why an operation has no result.
#[derive(Debug)]
pub enum Incomplete {
    /// It goes on in the agent; asked for again, it is waited for.
    Pending {
        /// What it waits for.
        why: String,
        /// How far it is.
        progress: Option<Progress>,
    },
    /// It has failed.
    Failed(Error),
}

impl From<Failure> for Incomplete {
    fn from(failure: Failure) -> Self {
        let is_pending = match failure.cause {
            Cause::Deadline => true,
            Cause::Answer => failure.code == Code::Aborted,
            Cause::Transport => false,
        };
        if !is_pending {
            return Self::Failed(failed(failure));
        }
        Self::Pending {
            why: format!("{}: {}", failure.rpc, failure.message),
            progress: failure.progress,
        }
    }
}
