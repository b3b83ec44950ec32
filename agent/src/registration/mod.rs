//! Registration with kubelet, without a sidecar.
//!
//! - [`registrar`]: keeps the driver registered.
//! - [`socket`]: the socket in kubelet's registration directory.
//! - [`backoff`]: the pauses between attempts.

mod backoff;
mod registrar;
mod socket;

pub(crate) use registrar::{Registrar, Target};
pub(crate) use socket::{file_name, hidden_path, remove_stale};
