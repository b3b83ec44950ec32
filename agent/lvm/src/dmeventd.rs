//! dmeventd, which monitors pools, mirrors and the exception stores of snapshots.

use std::{path::Path, sync::LazyLock};

use crate::host::exec::find;

/// The socket directory of dmeventd, while it runs.
const DMEVENTD: &str = "/run/dmeventd-server";

/// The availability of dmeventd, which monitors pools and mirrors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dmeventd {
    /// It is running.
    Runs,
    /// LVM would start it.
    Starts,
    /// It is not installed.
    Absent,
}

impl Dmeventd {
    /// The current state: it can be started at any time, but is assumed to stay installed or not.
    pub fn now() -> Self {
        static INSTALLED: LazyLock<bool> = LazyLock::new(|| find("dmeventd").is_some());
        if Path::new(DMEVENTD).exists() {
            Self::Runs
        } else if *INSTALLED {
            Self::Starts
        } else {
            Self::Absent
        }
    }
}
