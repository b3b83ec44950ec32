//! The gRPC codes by the names that they have in a status.

use tonic::Code;

/// All codes with their names, by their numbers.
pub const NAMES: [(Code, &str); 17] = [
    (Code::Ok, "OK"),
    (Code::Cancelled, "CANCELLED"),
    (Code::Unknown, "UNKNOWN"),
    (Code::InvalidArgument, "INVALID_ARGUMENT"),
    (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
    (Code::NotFound, "NOT_FOUND"),
    (Code::AlreadyExists, "ALREADY_EXISTS"),
    (Code::PermissionDenied, "PERMISSION_DENIED"),
    (Code::ResourceExhausted, "RESOURCE_EXHAUSTED"),
    (Code::FailedPrecondition, "FAILED_PRECONDITION"),
    (Code::Aborted, "ABORTED"),
    (Code::OutOfRange, "OUT_OF_RANGE"),
    (Code::Unimplemented, "UNIMPLEMENTED"),
    (Code::Internal, "INTERNAL"),
    (Code::Unavailable, "UNAVAILABLE"),
    (Code::DataLoss, "DATA_LOSS"),
    (Code::Unauthenticated, "UNAUTHENTICATED"),
];

/// The name of a code.
pub(crate) fn name(code: Code) -> &'static str {
    let found = NAMES.iter().find(|(known, _)| *known == code);
    found.map_or("UNKNOWN", |(_, name)| name)
}

/// The code of a name; `Unknown`, whose outcome is unknown, for any other text.
pub(crate) fn named(name: &str) -> Code {
    let found = NAMES.iter().find(|(_, known)| *known == name);
    found.map_or(Code::Unknown, |(code, _)| *code)
}

/// Returns true if a call that ends with this code is over: nothing of it is in progress, or half made.
pub(crate) fn is_final(code: Code) -> bool {
    !matches!(
        code,
        Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::Unavailable
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_name_that_says_it() {
        for number in 0..17 {
            let code = Code::from_i32(number);
            assert_eq!(named(name(code)), code);
        }
        assert_eq!(named("FINE"), Code::Unknown);
    }
}
