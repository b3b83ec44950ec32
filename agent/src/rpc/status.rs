//! Maps kinds of errors to gRPC codes. The only file that names codes.
#![expect(
    clippy::disallowed_methods,
    reason = "codes are named here and nowhere else"
)]

use std::collections::HashMap;

use drumlin_cluster::Refusal;
use drumlin_core::{Error, Kind, backend::Progress};
use drumlin_crd::names::{DOMAIN, IN_PROGRESS};
use tonic::{
    Code, Status,
    codegen::http::{self, HeaderValue},
};
use tonic_types::{ErrorDetails, StatusExt as _};

/// Maximum length of a message, in characters.
const MESSAGE_CHARACTERS: usize = 1000;

/// The gRPC code for a kind of error (CSI, "gRPC Error Codes").
pub(super) fn code(kind: Kind) -> Code {
    match kind {
        Kind::Invalid | Kind::Unsupported => Code::InvalidArgument,
        Kind::NotFound => Code::NotFound,
        Kind::Conflict => Code::AlreadyExists,
        Kind::Busy | Kind::StaleToken => Code::Aborted,
        Kind::InUse | Kind::Precondition => Code::FailedPrecondition,
        Kind::OutOfRange => Code::OutOfRange,
        // The external-provisioner tries another node only on this code.
        Kind::NoSpace | Kind::WrongNode => Code::ResourceExhausted,
        // The operation is incomplete: on a final code the sidecars would not repeat the call.
        Kind::HalfDone | Kind::Silent => Code::Unavailable,
        Kind::Command | Kind::Io | Kind::Bug => Code::Internal,
    }
}

/// The status for the caller: the error with all its causes. Where it says how far an operation is, so do its details.
pub(super) fn status(error: &Error) -> Status {
    let (code, message) = (code(error.kind()), shortened(error.chain()));
    let cause = std::error::Error::source(error);
    match cause.and_then(|cause| cause.downcast_ref::<Progress>()) {
        Some(progress) => Status::with_error_details(code, message, details(progress)),
        None => Status::new(code, message),
    }
}

/// `google.rpc.ErrorInfo` with the reason `IN_PROGRESS`: `operation`, `percent`, and, once they are known, `bytesPerSecond`
/// and `secondsLeft`.
fn details(progress: &Progress) -> ErrorDetails {
    let mut metadata = HashMap::from([
        ("operation".to_owned(), progress.job.word().to_owned()),
        ("percent".to_owned(), progress.percent().to_string()),
    ]);
    let numbers = [
        ("bytesPerSecond", progress.rate),
        ("secondsLeft", progress.seconds_left()),
    ];
    for (key, number) in numbers {
        metadata.extend(number.map(|number| (key.to_owned(), number.to_string())));
    }
    ErrorDetails::with_error_info(IN_PROGRESS, DOMAIN, metadata)
}

/// The status of a call that a node, or the front of the cluster, has refused.
pub(super) fn refused(refusal: &Refusal) -> Status {
    Status::new(refusal.code, shortened(refusal.message.clone()))
}

/// Truncates a message. It is sent in a header, and clients refuse headers above 16 KiB: a long caller-supplied text
/// must not break the connection. A character takes at most 12 bytes there.
fn shortened(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARACTERS) {
        message.truncate(end);
        message.push('…');
    }
    message
}

/// The status for a request that was not received in time; it may be repeated.
pub(crate) fn late(seconds: u64) -> Status {
    Status::new(
        Code::Unavailable,
        format!("the request was not received completely within {seconds} s; repeat the call"),
    )
}

/// The status for an RPC that is neither implemented nor advertised.
pub(super) fn unimplemented(rpc: &str) -> Status {
    Status::new(
        Code::Unimplemented,
        format!("{rpc} is not implemented by this driver"),
    )
}

/// Adds a message to the response for an unknown method, which the library sends without one.
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

/// The response that a mutation sends instead of another one.
#[cfg(debug_assertions)]
pub(crate) fn mutated(code: Code, message: &str) -> http::Response<tonic::body::Body> {
    Status::new(code, message).into_http()
}

/// The status for a call that failed because of a bug.
pub(crate) fn internal(message: &str) -> Status {
    Status::new(Code::Internal, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use drumlin_core::backend::Job;

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
    fn a_status_says_how_far_an_operation_is_in_its_details() {
        let progress = |rate| Progress {
            job: Job::Copying,
            done: 50,
            bytes: 200,
            rate,
        };
        let told = |rate| {
            let error = Error::new(Kind::Busy, "busy").because(progress(rate));
            let status = status(&error);
            assert_eq!(status.code(), Code::Aborted);
            assert!(
                status.message().starts_with("busy: copying, 25 %"),
                "{status}"
            );
            status.get_error_details().error_info().unwrap().clone()
        };
        let info = told(Some(10));
        assert_eq!((&*info.reason, &*info.domain), (IN_PROGRESS, DOMAIN));
        let text = |key: &str| info.metadata[key].as_str();
        assert_eq!(
            ["operation", "percent", "bytesPerSecond", "secondsLeft"].map(text),
            ["copying", "25", "10", "15"]
        );
        assert_eq!(told(None).metadata.len(), 2);
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
            (Kind::Unsupported, Code::InvalidArgument),
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
            (Kind::Silent, Code::Unavailable),
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
