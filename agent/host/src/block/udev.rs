//! udevd: detecting it, and the udev flags of devices that are created without LVM.

use std::{
    io,
    path::Path,
    process,
    sync::{LazyLock, Mutex},
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::{Error, Kind, Result, lock};
use crate::{
    Sectors,
    device_mapper::{DeviceMapper, Line},
    system::{new_semaphore, remove_semaphore, semaphore},
};

/// The control socket of udevd (`udev_ctrl_new`).
const CONTROL: &str = "/run/udev/control";

// libdevmapper.h: the flags that disable rules such as 55-dm.rules, 56-lvm.rules and 69-lvm.rules.
const DISABLE_DM_RULES: u32 = 1 << 0;
const DISABLE_SUBSYSTEM_RULES: u32 = 1 << 1;
const DISABLE_DISK_RULES: u32 = 1 << 2;
const DISABLE_OTHER_RULES: u32 = 1 << 3;
const LOW_PRIORITY: u32 = 1 << 4;
const DISABLE_LIBRARY_FALLBACK: u32 = 1 << 5;
/// Only an event with this flag changes the stored flags; others, such as those of `udevadm trigger`, keep them.
const PRIMARY_SOURCE: u32 = 1 << 6;

/// The flags are the upper half of a cookie. A zero lower half means that no process waits for the event
/// (`_udevcomplete` of dmsetup).
pub(crate) const SHIFT: u32 = 16;
/// The upper half of a cookie that is the key of its semaphore (`DM_COOKIE_MAGIC`).
pub(crate) const MAGIC: u32 = 0x0d4d;

/// Exists while udevd has events to handle (`udev_queue_is_empty`).
const QUEUE: &str = "/run/udev/queue";

/// Timeout for a reply of an idle udevd: less than the timeout for the disks of a group. Usually it takes
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// Timeout while it has events to handle, as after a boot with many disks.
const PATIENCE_BUSY: Duration = Duration::from_secs(30);
/// Time for which an unresponsive udevd is not tested again: callers get the reason, not a timeout.
const AGAIN: Duration = Duration::from_secs(10);
/// The UUID prefix of the devices that test udevd's replies.
const ASKING: &str = "DRUMLIN-udev-";

/// Returns true if udevd creates the device nodes. Determined once, so that all nodes are created in the same way.
pub fn is_running() -> bool {
    static FOUND: LazyLock<bool> = LazyLock::new(|| Path::new(CONTROL).exists());
    *FOUND
}

/// Whether udevd can be seen from here; in another mount namespace it may run all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Udevd {
    Seen,
    Unseen,
}

/// How udevd treats a device; the same flags as LVM uses for its own devices (`_get_udev_flags` of `dev_manager.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// The device of an old-style snapshot: it gets all links except those that its origin also has.
    Snapshot,
    /// A private device: it may contain a former tenant's data, and must not be probed or used by other programs.
    Hidden,
}

impl Visibility {
    /// The cookie for the event of a resume.
    pub(crate) fn cookie(self) -> u32 {
        let seen = if is_running() {
            Udevd::Seen
        } else {
            Udevd::Unseen
        };
        self.flags(seen) << SHIFT
    }

    fn flags(self, udevd: Udevd) -> u32 {
        let common = PRIMARY_SOURCE | DISABLE_LIBRARY_FALLBACK;
        // A udevd that is not visible here must not create links, because nothing would remove them (LVM's
        // `udev_rules=0`).
        let unseen = match udevd {
            Udevd::Seen => 0,
            Udevd::Unseen => DISABLE_DM_RULES | DISABLE_SUBSYSTEM_RULES,
        };
        let own = match self {
            Self::Snapshot => LOW_PRIORITY,
            Self::Hidden => DISABLE_SUBSYSTEM_RULES | DISABLE_DISK_RULES | DISABLE_OTHER_RULES,
        };
        common | unseen | own
    }
}

/// Makes sure that udevd's replies to device-mapper cookies arrive here. LVM waits for them without a timeout, with
/// its group locked. The reply is a semaphore operation, and another IPC namespace has other semaphores.
///
/// # Errors
/// [`Kind::Precondition`] when no reply arrives, saying which namespace to share.
pub fn check_answers(mapper: &DeviceMapper) -> Result<()> {
    static SILENT: Mutex<Option<Instant>> = Mutex::new(None);
    let mut silent = lock(&SILENT);
    if silent.is_some_and(|since| since.elapsed() < AGAIN) {
        return Err(does_not_answer());
    }
    // Left by agents that were killed here.
    for device in mapper.list(ASKING)? {
        gone(mapper.remove(&device.uuid))?;
    }
    let cookie = Cookie::new()?;
    let (name, uuid) = (
        format!("drumlin-udev-{}", process::id()),
        format!("{ASKING}{}", process::id()),
    );
    let nothing = Line {
        start: Sectors(0),
        length: Sectors(8),
        kind: "error".to_owned(),
        words: String::new(),
    };
    let flags = Visibility::Hidden.cookie();
    mapper.create_with(&name, &uuid, &[nothing], flags | cookie.number)?;
    let answered = cookie.wait();
    gone(mapper.remove(&uuid))?;
    let is_answered = answered?;
    *silent = (!is_answered).then(Instant::now);
    is_answered.then_some(()).ok_or_else(does_not_answer)
}

fn does_not_answer() -> Error {
    Error::new(
        Kind::Precondition,
        format!(
            "udevd runs ({CONTROL}), but its replies to device-mapper do not arrive within {} s ({} s while it handles other events), so LVM would wait indefinitely; share the host's IPC namespace with the container (`hostIPC: true`, `--ipc=host`), or check on the host that udevd works (`udevadm settle`) and has the device-mapper rules (95-dm-notify.rules)",
            PATIENCE.as_secs(),
            PATIENCE_BUSY.as_secs()
        ),
    )
}

/// Another agent may have removed it.
fn gone(removed: Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        other => other,
    }
}

/// A semaphore that udevd's `dmsetup udevcomplete` decrements. It is removed with this value.
#[derive(Debug)]
struct Cookie {
    /// The lower half of the cookie.
    number: u32,
    semaphore: i32,
}

impl Cookie {
    fn new() -> Result<Self> {
        let failed = |error| Error::io("could not create a semaphore for udevd", error);
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        // Any free number: device-mapper's programs choose theirs in the same way.
        let mut number = now.subsec_nanos();
        loop {
            // Zero means that no process waits.
            number = number % 0xffff + 1;
            let key = ((MAGIC << SHIFT) | number).cast_signed();
            match new_semaphore(key) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Ok(semaphore) => {
                    let cookie = Self { number, semaphore };
                    self::semaphore(semaphore, Some(1)).map_err(failed)?;
                    return Ok(cookie);
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Waits for the reply; returns whether it arrived.
    fn wait(&self) -> Result<bool> {
        let begun = Instant::now();
        let mut idle_since = begun;
        loop {
            if Path::new(QUEUE).exists() {
                idle_since = Instant::now();
            }
            let left = semaphore(self.semaphore, None);
            let left = left.map_err(|error| Error::io("could not wait for udevd", error))?;
            if left == 0 {
                return Ok(true);
            }
            if idle_since.elapsed() >= PATIENCE || begun.elapsed() >= PATIENCE_BUSY {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Cookie {
    fn drop(&mut self) {
        let _ = remove_semaphore(self.semaphore);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values as `dmsetup udevflags` shows them for LVM's own devices.
    #[test]
    fn devices_have_the_flags_of_lvms_own() {
        assert_eq!(Visibility::Snapshot.flags(Udevd::Seen), 0x70);
        assert_eq!(Visibility::Hidden.flags(Udevd::Seen), 0x6e);
        assert_eq!(Visibility::Snapshot.flags(Udevd::Unseen), 0x73);
        assert_eq!(Visibility::Hidden.flags(Udevd::Unseen), 0x6f);
    }
}
