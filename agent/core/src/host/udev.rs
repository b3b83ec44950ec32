//! udevd: whether one runs here, and what it is told to do with the devices that are made without LVM.

use std::{path::Path, sync::LazyLock};

/// Where udevd listens (`udev_ctrl_new`).
const CONTROL: &str = "/run/udev/control";

// libdevmapper.h: what rules such as 55-dm.rules, 56-lvm.rules and 69-lvm.rules leave out.
const DISABLE_DM_RULES: u32 = 1 << 0;
const DISABLE_SUBSYSTEM_RULES: u32 = 1 << 1;
const DISABLE_DISK_RULES: u32 = 1 << 2;
const DISABLE_OTHER_RULES: u32 = 1 << 3;
const LOW_PRIORITY: u32 = 1 << 4;
const DISABLE_LIBRARY_FALLBACK: u32 = 1 << 5;
/// An event with this one counts; any other, such as those of `udevadm trigger`, keeps what was said before.
const PRIMARY_SOURCE: u32 = 1 << 6;

/// The flags are the upper half of a cookie. Nobody is told that an event is handled when the lower half is zero
/// (`_udevcomplete` of dmsetup).
const SHIFT: u32 = 16;

/// Whether udevd makes the device nodes. Looked at once, so that all that is made here is made in the same way.
pub fn is_running() -> bool {
    static FOUND: LazyLock<bool> = LazyLock::new(|| Path::new(CONTROL).exists());
    *FOUND
}

/// What udevd makes of a device; the same as LVM says of its own (`_get_udev_flags` of `dev_manager.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// The device of an old-style snapshot: it has all links, but those that its origin has, too.
    Snapshot,
    /// A device that is nobody's but ours: what is in it may be a former tenant's, and nobody looks for that or uses it.
    Hidden,
}

impl Visibility {
    /// The cookie for the event of a resume.
    pub(super) fn cookie(self) -> u32 {
        self.flags(is_running()) << SHIFT
    }

    fn flags(self, has_udev: bool) -> u32 {
        let common = PRIMARY_SOURCE | DISABLE_LIBRARY_FALLBACK;
        // A udevd that cannot be seen from here makes no links that nobody would take away (LVM's `udev_rules=0`).
        let unseen = if has_udev {
            0
        } else {
            DISABLE_DM_RULES | DISABLE_SUBSYSTEM_RULES
        };
        let own = match self {
            Self::Snapshot => LOW_PRIORITY,
            Self::Hidden => DISABLE_SUBSYSTEM_RULES | DISABLE_DISK_RULES | DISABLE_OTHER_RULES,
        };
        common | unseen | own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures as `dmsetup udevflags` shows them for LVM's own devices.
    #[test]
    fn devices_have_the_flags_of_lvms_own() {
        assert_eq!(Visibility::Snapshot.flags(true), 0x70);
        assert_eq!(Visibility::Hidden.flags(true), 0x6e);
        assert_eq!(Visibility::Snapshot.flags(false), 0x73);
        assert_eq!(Visibility::Hidden.flags(false), 0x6f);
    }
}
