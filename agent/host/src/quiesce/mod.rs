//! Quiescing several images for a point-in-time copy: all writers are quiesced, the copies are taken, then the
//! writers resume.
//!
//! A write that was acknowledged before the last writer was quiesced is in its copy; later ones wait. So the copies
//! contain exactly the writes acknowledged by one instant, in whatever order the writers were quiesced
//! (crash-consistent).

mod barrier;
mod plan;
mod target;
mod watchdog;
mod watchdog_wait;

pub use plan::{Check, DEFAULT_FREEZE_LIMIT, Lock, Member, PointInTime, QuiescePlan, Step};
pub use target::QuiesceTarget;
pub use watchdog::{ThawWatchdog, WatchdogReport, serve};
pub use watchdog_wait::wait_for_watchdogs;
