//! The heap of this process: number of arenas, and returning free memory.

use crate::system;

/// Makes all threads share one heap; call it before other threads are started.
///
/// glibc's allocator gives each thread that finds the others busy a separate arena, up to eight per processor, and
/// memory freed in one is not available to others: a dozen threads that each answer a long list, one after the other,
/// keep a dozen times the memory of one list.
pub fn share() {
    system::share_heap();
}

/// Returns free pages to the kernel, including those between used ones. Costs less than a millisecond.
pub fn trim() {
    system::trim_heap();
}
