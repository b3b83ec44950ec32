//! Reads and changes LVM volume groups.
//!
//! The metadata of a group is read from its disks without running a program ([`metadata`]); every change is made by one
//! of LVM's own commands ([`command`]), one at a time, in a shell that is kept for the next one.
//!
//! - [`VolumeGroup`]: a volume group of this host, with its command queue.
//! - [`metadata`]: the parsed metadata: volumes, pools, physical volumes, segments.
//! - [`ThinMetadata`]: the metadata of a thin pool: the blocks that are mapped, and those that differ.
//! - [`command`]: the commands that change a group: building, running, classifying their errors.
//! - [`placement`]: the extents of volumes whose parts must be on different disks.
//! - [`preflight`]: whether LVM of this host can be used safely.
//! - [`reservations`], [`in_flight`]: what running operations of this process have promised and begun.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use drumlin_lvm::{VolumeGroup, command::Command};
//!
//! # async fn example() -> drumlin_lvm::Result<()> {
//! let group = Arc::new(VolumeGroup::new("data"));
//! let before = group.now().await?;
//! println!("{} bytes are in a volume of {}", before.bytes(&before.volumes["root"]), before.name);
//! // Appended by LVM, and verified in the metadata that is read afterwards.
//! let create = Command::new("lvcreate")
//!     .words(["-L", "64M", "-n", "scratch", "data"])
//!     .done_when(|now| now.volumes.contains_key("scratch"));
//! group.change(vec![create]).await?;
//! assert!(group.now().await?.volumes.contains_key("scratch"));
//! # Ok(())
//! # }
//! ```
//!
//! **Invariant:** nothing here knows what a volume is for: no tag is interpreted, and no word of a protocol is used.
//! **Invariant:** the disks are the source of truth; what is kept between two reads is where they are.

#![cfg_attr(
    any(test, feature = "testing"),
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "tests fail by panicking"
    )
)]

pub mod command;
mod decrypted_devices;
pub mod dmeventd;
mod duplicates;
pub mod in_flight;
pub mod lock_files;
pub mod merges;
pub mod metadata;
mod physical_volumes;
pub mod placement;
pub mod preflight;
pub mod reservations;
mod stale_cookies;
mod system_dir;
#[cfg(feature = "testing")]
pub mod testing;
mod thin_metadata;
mod units;
mod unresponsive_disks;
mod volume_group;

pub(crate) use drumlin_host::{self as host, blocking, blocking_at_once, fail};
pub use drumlin_host::{Error, Kind, Result};
pub use thin_metadata::{ThinDevice, ThinMetadata, ThinRuns, ThinView};
pub use units::{Extents, ThinBlocks};
pub use volume_group::VolumeGroup;
