//! Registration with kubelet, without a sidecar.
//!
//! - [`registrar`]: keeps the driver registered.
//! - [`socket`]: the socket in kubelet's registration directory.
//! - [`directory_watch`]: notices that the socket was removed or replaced.
//! - [`backoff`]: the pauses between attempts.

mod backoff;
mod directory_watch;
mod registrar;
mod socket;

pub(crate) use registrar::{Registrar, Target};
pub(crate) use socket::{file_name, hidden_path, remove_stale};
