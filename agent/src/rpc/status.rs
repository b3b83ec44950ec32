//! From kinds of errors to gRPC codes. The only file that names codes.
#![expect(
    clippy::disallowed_methods,
    reason = "codes are named here and nowhere else"
)]

use drumlin_core::{Error, Kind};
use tonic::{Code, Status};

/// The longest message, in characters.
const MESSAGE_CHARACTERS: usize = 1000;

/// The code that a caller gets for a kind of error (CSI, "gRPC Error Codes").
fn code(kind: Kind) -> Code {
    match kind {
        Kind::Invalid => Code::InvalidArgument,
        Kind::NotFound => Code::NotFound,
        Kind::Conflict => Code::AlreadyExists,
        Kind::Busy | Kind::StaleToken => Code::Aborted,
        Kind::InUse | Kind::Precondition => Code::FailedPrecondition,
        Kind::OutOfRange => Code::OutOfRange,
        // The provisioner tries another node on this code alone.
        Kind::NoSpace | Kind::WrongNode => Code::ResourceExhausted,
        // Something is left behind: a final code would make sidecars forget it.
        Kind::HalfDone => Code::Unavailable,
        Kind::Command | Kind::Io | Kind::Bug => Code::Internal,
    }
}

/// What a caller is told. Failures that a person must look into are logged here, once, with all their causes.
pub(super) fn status(error: &Error) -> Status {
    let code = code(error.kind());
    match error.kind() {
        Kind::Bug => tracing::error!(rpc.code = ?code, error = %error.chain(), "internal error"),
        Kind::Command | Kind::Io | Kind::HalfDone | Kind::NoSpace | Kind::Precondition => {
            tracing::warn!(rpc.code = ?code, error = %error.chain(), "operation failed");
        }
        _ => tracing::debug!(rpc.code = ?code, error = %error.chain(), "call refused"),
    }
    Status::new(code, shortened(error.chain()))
}

/// A message travels in a header, and clients refuse headers of more than 16 KiB: a caller's own long text must not
/// come back as a broken connection. A character takes at most 12 bytes there.
fn shortened(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARACTERS) {
        message.truncate(end);
        message.push('…');
    }
    message
}

/// The answer to an RPC that this agent does not offer, and does not advertise.
pub(super) fn unimplemented(rpc: &str) -> Status {
    Status::new(Code::Unimplemented, format!("{rpc} is not offered"))
}

/// The answer to a call that ended in our own mistake.
pub(crate) fn internal(message: &str) -> Status {
    Status::new(Code::Internal, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_the_whole_chain() {
        let error = Error::io(
            "could not write record",
            std::io::Error::other("disk on fire"),
        );
        let status = status(&error);
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(status.message(), "could not write record: disk on fire");
    }

    #[test]
    fn a_long_text_of_the_caller_does_not_come_back_whole() {
        let status = status(&Error::invalid("ü".repeat(100_000)));
        assert_eq!(status.message().chars().count(), MESSAGE_CHARACTERS + 1);
    }

    #[test]
    fn what_may_be_tried_again_or_elsewhere_has_the_code_that_says_so() {
        assert_eq!(code(Kind::Busy), Code::Aborted);
        assert_eq!(code(Kind::HalfDone), Code::Unavailable);
        assert_eq!(code(Kind::WrongNode), Code::ResourceExhausted);
    }
}
