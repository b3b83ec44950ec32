//! The memory of this process: number of arenas of its heap, and returning what is free or not used any more.

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

/// Returns the pages of the program itself, which the kernel has in its cache: those that are used again are mapped again
/// with their next use. A third of them are what only the start of a process runs and reads, such as the table of its
/// relocations, its command line and its configuration.
pub fn release_program() {
    system::release_program();
}
