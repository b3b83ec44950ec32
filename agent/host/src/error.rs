//! Errors, classified by what the caller should do about them.

use std::fmt;

/// Result of the fallible functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of an [`Error`], by what the caller should do about it; the gRPC services convert it to their codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request is invalid; correct it.
    Invalid,
    /// A well-formed capability that the volume, or this driver, does not support.
    Unsupported,
    /// No such volume, snapshot or node.
    NotFound,
    /// The name is in use by an object with other arguments.
    Conflict,
    /// Another operation on the same object is in flight; repeat the call.
    Busy,
    /// The storage that the call needs does not answer; repeat the call once it does.
    Silent,
    /// The page token was not issued by a list call; restart the listing without it.
    StaleToken,
    /// The object is in use; the message names the user.
    InUse,
    /// The object or the agent is not in the state that the call requires.
    Precondition,
    /// The size is not possible; another size may be.
    OutOfRange,
    /// Not enough space on this node; another node may have it.
    NoSpace,
    /// The object is on another node.
    WrongNode,
    /// The operation is incomplete; repeating the same call completes or undoes it.
    HalfDone,
    /// An external command failed; its change was undone.
    Command,
    /// An operating system call failed; the change was undone.
    Io,
    /// A bug in the agent.
    Bug,
}

/// An error: its kind, what was attempted on which object, and the cause.
///
/// `Display` omits the source; print the chain at the boundary.
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind` with a lower-case `message` that names the object.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The request is invalid; `message` names the field.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// The volume does not support a capability; `message` names the field.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// The same error; an unsupported capability is [`Kind::Precondition`] (CSI, "Exceeds capabilities" of
    /// `NodeStageVolume` and `NodePublishVolume`).
    #[must_use]
    pub fn exceeds_on_node(mut self) -> Self {
        if self.kind == Kind::Unsupported {
            self.kind = Kind::Precondition;
        }
        self
    }

    /// The object does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    /// An operating system call failed; a full disk is [`Kind::NoSpace`], the rest [`Kind::Io`].
    pub fn io(message: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        let source = source.into();
        let kind = match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Kind::NoSpace,
            _ => Kind::Io,
        };
        Self::new(kind, message).because(source)
    }

    /// The same error with `source` as its cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// [`Kind::HalfDone`]: after this error, what was begun could not be undone either. `what` says so, such as "the
    /// incomplete volume could not be removed".
    #[must_use]
    pub fn undo_failed(&self, what: &str, second: &Self) -> Self {
        let (first, second) = (self.chain(), second.chain());
        Self::new(Kind::HalfDone, format!("{first}; {what}: {second}"))
    }

    /// What the caller should do.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The message and every cause behind it, joined by `: `.
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.chain())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| -> &(dyn std::error::Error + 'static) { source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_undone_tells_both_reasons_and_their_causes() {
        let first = Error::new(Kind::NoSpace, "no room").because(Error::not_found("nothing"));
        let second = Error::new(Kind::Busy, "held").because(Error::invalid("a lock"));
        let both = first.undo_failed("the rest could not be removed", &second);
        assert_eq!(both.kind(), Kind::HalfDone);
        let text = "no room: nothing; the rest could not be removed: held: a lock";
        assert_eq!(both.chain(), text);
    }

    #[test]
    fn display_leaves_the_source_out_and_the_chain_has_it() {
        let error = Error::io(
            "could not write record",
            std::io::Error::other("disk on fire"),
        );
        assert_eq!(error.to_string(), "could not write record");
        assert_eq!(error.chain(), "could not write record: disk on fire");
        assert_eq!(error.kind(), Kind::Io);
    }

    #[test]
    fn a_full_disk_is_no_space() {
        let error = Error::io("x", std::io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(error.kind(), Kind::NoSpace);
    }
}
