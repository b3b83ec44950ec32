//! The heap of this process: how many there are, and what is given back of it.

use super::system;

/// Has all threads share one heap; call it before there are others.
///
/// The allocator of glibc gives each thread that finds the others busy a heap of its own, up to eight for each
/// processor, and what is freed in one serves no other: a dozen threads that answered a long list each, one after the
/// other, keep a dozen times what one list needs.
pub fn share() {
    system::share_heap();
}

/// Gives free pages back to the kernel, those between what is used, too. Costs less than a millisecond.
pub fn trim() {
    system::trim_heap();
}
