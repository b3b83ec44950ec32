//! Runs blocking work without blocking the threads that answer calls.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `work`, which may wait for a disk, while other threads take over the tasks of this one: the agent answers calls
/// on the same few threads, and kubelet restarts an agent that does not answer.
///
/// In place, not on a thread of its own: a step continues only after its record is written, and the lock of its object
/// is held until then, in code that does not await.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => {
            tokio::task::block_in_place(work)
        }
        // A runtime with one thread, as in tests, or no runtime: no other task waits for this thread.
        _ => work(),
    }
}
