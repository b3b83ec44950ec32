//! Metadata made by `thin_restore`, by a writer of these tests and by the kernel, compared with models and tools.

mod answers;
mod damage;
mod histories;
mod image;
#[cfg(feature = "lab")]
#[path = "kernel.rs"]
mod in_lab;
mod model;
mod sharing;
mod tools;
