//! Metadata made by `thin_restore` and by a writer of these tests, compared with models and tools.

mod answers;
mod damage;
mod histories;
mod image;
mod model;
mod sharing;
mod tools;
