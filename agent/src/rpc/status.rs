//! From kinds of errors to gRPC codes. The only file that names codes.
#![expect(
    clippy::disallowed_methods,
    reason = "codes are named here and nowhere else"
)]

use drumlin_core::{Error, Kind};
use tonic::{
    Code, Status,
    codegen::http::{self, HeaderValue},
};

/// The longest message, in characters.
const MESSAGE_CHARACTERS: usize = 1000;

/// The code that a caller gets for a kind of error (CSI, "gRPC Error Codes").
pub(super) fn code(kind: Kind) -> Code {
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

/// What a caller is told: the failure with all its causes.
pub(super) fn status(error: &Error) -> Status {
    Status::new(code(error.kind()), shortened(error.chain()))
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

/// The answer to a request that was not whole in time: it may be asked again.
pub(crate) fn late(seconds: u64) -> Status {
    Status::new(
        Code::Unavailable,
        format!("the request was not received completely within {seconds} s; repeat the call"),
    )
}

/// The answer to an RPC that this agent does not offer, and does not advertise.
pub(super) fn unimplemented(rpc: &str) -> Status {
    tracing::debug!(rpc.method = rpc, rpc.code = ?Code::Unimplemented, "rpc");
    Status::new(
        Code::Unimplemented,
        format!("{rpc} is not implemented by this driver"),
    )
}

/// The answer to a method that no service has: the library's own, which says nothing.
pub(crate) fn with_words<B>(mut answer: http::Response<B>) -> http::Response<B> {
    let status = Status::from_header_map(answer.headers());
    if status
        .is_some_and(|status| status.code() == Code::Unimplemented && status.message().is_empty())
    {
        let words = HeaderValue::from_static("this socket serves no such method");
        answer.headers_mut().insert("grpc-message", words);
    }
    answer
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
    fn every_kind_has_the_code_that_tells_a_caller_what_to_do() {
        for (kind, expected) in [
            (Kind::Invalid, Code::InvalidArgument),
            (Kind::NotFound, Code::NotFound),
            (Kind::Conflict, Code::AlreadyExists),
            (Kind::Busy, Code::Aborted),
            (Kind::StaleToken, Code::Aborted),
            (Kind::InUse, Code::FailedPrecondition),
            (Kind::Precondition, Code::FailedPrecondition),
            (Kind::OutOfRange, Code::OutOfRange),
            (Kind::NoSpace, Code::ResourceExhausted),
            (Kind::WrongNode, Code::ResourceExhausted),
            (Kind::HalfDone, Code::Unavailable),
            (Kind::Command, Code::Internal),
            (Kind::Io, Code::Internal),
            (Kind::Bug, Code::Internal),
        ] {
            assert_eq!(code(kind), expected, "{kind:?}");
        }
    }

    #[test]
    fn what_is_not_offered_is_unimplemented_by_name() {
        let status = unimplemented("NodeGetVolumeHealth");
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(status.message().contains("NodeGetVolumeHealth"));
    }
}
