//! The spans of a trace: what one call does, down to its programs and system calls.
//!
//! A span is open until it is dropped. Only what has spans below it is entered: a call, an operation, a freeze barrier,
//! a command of LVM. Tasks and threads that work for a call enter its current span themselves.
//!
//! **Invariant:** without a subscriber that records them, a span costs one comparison of a level, and nothing of it is
//! formatted or allocated.

use std::{fmt, path::Path};

use tracing::{Span, debug_span, field};

/// The target of all spans; nothing else has it.
pub const TARGET: &str = "drumlin::trace";
/// The name of the span of a call, the root of its trace.
pub const RPC: &str = "rpc";

/// What a span waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A lock on an object, of this process or of all.
    Lock,
    /// A thread for work that blocks.
    Thread,
    /// The changes of a volume group before this one.
    Queue,
}

impl Wait {
    fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Thread => "thread",
            Self::Queue => "queue",
        }
    }
}

/// A call of `method` about `object`, from its request to its answer.
pub fn rpc(request: u64, method: &'static str, object: &dyn fmt::Display) -> Span {
    debug_span!(
        target: TARGET,
        RPC,
        request.id = request,
        rpc.method = method,
        %object,
        rpc.code = field::Empty,
        otel.name = method,
        otel.kind = "server",
        otel.status_code = field::Empty,
    )
}

/// An operation on `object`, which runs to completion even if its caller goes away.
pub fn operation(object: &dyn fmt::Display) -> Span {
    debug_span!(target: TARGET, "operation", %object)
}

/// A wait, until it is over.
pub fn wait(what: Wait) -> Span {
    debug_span!(target: TARGET, "wait", kind = what.name())
}

/// Waits for `what`, such as an asynchronous lock.
pub async fn waited<T>(what: Wait, arrival: impl Future<Output = T>) -> T {
    let _span = wait(what);
    arrival.await
}

/// An LVM command, wherever it runs.
pub fn command(name: &str) -> Span {
    debug_span!(target: TARGET, "command", name)
}

/// A program, from its start to its end.
pub fn program(line: &str) -> Span {
    debug_span!(target: TARGET, "program", line)
}

/// The members of a group snapshot are quiesced, copied and resumed.
pub(crate) fn quiesce(members: usize) -> Span {
    debug_span!(target: TARGET, "quiesce", members)
}

/// An `ioctl(2)`, by the name of its request.
pub(crate) fn ioctl(request: &'static str) -> Span {
    debug_span!(target: TARGET, "ioctl", request)
}

/// A copy of the bytes of an image or a device.
pub(crate) fn copy() -> Span {
    debug_span!(target: TARGET, "copy")
}

/// A search for the ranges of an image or a device that hold data, or that differ from another's.
pub(crate) fn compare() -> Span {
    debug_span!(target: TARGET, "compare")
}

/// A mount at `target`.
pub(crate) fn mount(target: &Path) -> Span {
    debug_span!(target: TARGET, "mount", path = %target.display())
}

/// An unmount at `target`.
pub(crate) fn umount(target: &Path) -> Span {
    debug_span!(target: TARGET, "umount", path = %target.display())
}

/// An `fsync(2)`.
pub(crate) fn fsync() -> Span {
    debug_span!(target: TARGET, "fsync")
}

/// An `fdatasync(2)`.
pub(crate) fn fdatasync() -> Span {
    debug_span!(target: TARGET, "fdatasync")
}

/// A `syncfs(2)`.
pub(crate) fn syncfs() -> Span {
    debug_span!(target: TARGET, "syncfs")
}
