//! Work that blocks a thread, off the threads that answer calls.

use crate::{Error, Kind, Result};

/// Runs `work` on a thread where blocking is allowed. Once begun it runs to its end, whatever becomes of the caller.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(cause) => std::panic::resume_unwind(cause),
            Err(error) => Err(Error::new(Kind::HalfDone, "work was stopped").because(error)),
        },
    }
}
