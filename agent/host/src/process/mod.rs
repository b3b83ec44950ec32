//! Programs, and this process: running, holders of files, identity, memory.

pub mod descriptor;
pub mod exec;
pub mod file_locks;
pub mod heap;
pub mod holders;
pub mod identity;
pub mod isolated;
pub mod session;
