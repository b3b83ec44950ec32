//! Statuses of calls to an agent, for commands that repeat a call.

use tonic::{Code, Status};

/// Returns true if the status was sent by the agent, and is not a local transport error.
pub(super) fn is_answer(status: &Status) -> bool {
    std::error::Error::source(status).is_none()
}

/// Returns true if the agent asks for a repetition: another operation is in flight, or the requested one has started.
pub(super) fn is_temporary(status: &Status) -> bool {
    is_answer(status) && matches!(status.code(), Code::Aborted | Code::Unavailable)
}
