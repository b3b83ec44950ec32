//! Why the front does not answer a call with a response.

use drumlin_crd::names;
use tonic::Code;

use crate::calls::Failure;

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

    /// What a sidecar is told of a failed call about something that exists on `node`.
    pub(crate) fn of(node: &str, failure: Failure) -> Self {
        match failure {
            Failure::Answer(code, message) => Self::new(code, message),
            Failure::Withdrawn => {
                Self::unavailable(format!("the agent of node {node} does not answer"))
            }
            Failure::NodeGone => Self::new(
                Code::FailedPrecondition,
                format!(
                    "node {node} is not a part of the cluster any more; if it will never return, give up what it holds: \
                     kubectl annotate nodestorage {node} {}={node}",
                    names::ABANDON
                ),
            ),
            Failure::Pending => Self::new(
                Code::Aborted,
                format!("the call is in progress on node {node}; repeat it"),
            ),
            Failure::Conflict(other) => Self::new(
                Code::Aborted,
                format!(
                    "another call about the same object is in progress on node {other}; repeat it later"
                ),
            ),
            Failure::Server(error) => {
                Self::unavailable(format!("the API server does not do as asked: {error}"))
            }
        }
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
