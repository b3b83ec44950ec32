//! What a test build does between any two steps of the reconciler, and to its waits.

use drumlin_core::fail;
use drumlin_reconciler::Hooks;

/// The fail points and the time lapse; both do nothing in a release build.
pub(super) const HOOKS: Hooks = Hooks {
    fail: fail::point,
    time_lapse: fail::time_lapse,
    now: fail::now,
};
