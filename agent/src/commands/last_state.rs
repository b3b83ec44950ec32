//! Whether what the state files say is still true: they are what the reconciler saw last.

use std::path::Path;

use drumlin_core::host::file_locks;

use super::print::note;

/// Says on standard error that no reconciler runs, if none does: what is shown is what the last one left. Whoever reads the
/// output in a program is told the same there as ever. Where it cannot be determined, as without the capabilities of the
/// reconciler, nothing is said.
pub(crate) fn note_if_last(state_dir: &Path) {
    let lock = state_dir.join("reconciler/LOCK");
    if lock.exists() && matches!(file_locks::holder(&lock), Ok(None)) {
        note(
            "note: no reconciler runs on this state directory; what is shown is what the last one left",
        );
    }
}
