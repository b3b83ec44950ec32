//! Why the front does not answer a call with a response.

use tonic::Code;

/// A call that has failed: the code and the message for the sidecar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The gRPC code.
    pub code: Code,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// `INVALID_ARGUMENT`: the request can never succeed.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// `UNAVAILABLE`: the outcome is unknown or nothing was tried; the call may be repeated.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, message)
    }

    /// The same failure with another code, for a sidecar that understands the first one otherwise.
    #[must_use]
    pub(crate) fn told_as(mut self, from: Code, to: Code) -> Self {
        if self.code == from {
            self.code = to;
        }
        self
    }
}
