//! udev cookies: the semaphores by which device-mapper's programs wait for udevd, and detection of stale ones.
//!
//! An LVM program creates one for a batch of changes, increments it for each change that udevd confirms, and at the
//! end decrements it, waits for zero and removes it (`_udev_wait` of libdm-common.c). A killed program leaves it
//! behind forever. The kernel does not record the owner of a semaphore, but who waits for it, who changed it last,
//! and when.

use std::{fs, io};

use nix::{errno::Errno, sys::signal::kill, unistd::Pid};

use crate::{Error, Kind, Result};
use crate::{
    system::{last_user, remove_semaphore, semaphore, waiting_for_zero},
    udev::{MAGIC, SHIFT},
};

/// The semaphores of this IPC namespace.
const SEMAPHORES: &str = "/proc/sysvipc/sem";

/// The state of a cookie at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    /// Its row in the kernel's table.
    row: Row,
    /// The number of pending replies, plus one until its program waits.
    value: i32,
    /// True if a program waits for it.
    is_awaited: bool,
    /// The process that changed it last; zero if that is in a process namespace that is not visible here.
    last_user: i32,
}

/// A row of [`SEMAPHORES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    key: u32,
    /// Its id, which is never reused: the kernel counts the uses of each slot.
    semaphore: i32,
    /// Time of the last semop(2), in seconds.
    used: i64,
    /// Time at which its value was set, in seconds.
    set: i64,
}

impl Cookie {
    /// All cookies. Costs reading one file when there are none.
    ///
    /// # Errors
    /// `Io` when they cannot be read.
    pub fn all() -> Result<Vec<Self>> {
        let failed = |error: io::Error| Error::io(format!("could not read {SEMAPHORES}"), error);
        let text = fs::read_to_string(SEMAPHORES).map_err(failed)?;
        let rows = parse(&text)?.into_iter();
        let cookies = rows.filter_map(|row| Self::read(row).transpose());
        cookies.collect::<io::Result<_>>().map_err(failed)
    }

    /// None when it was removed meanwhile.
    fn read(row: Row) -> io::Result<Option<Self>> {
        let read = || {
            Ok(Self {
                row,
                value: semaphore(row.semaphore, None)?,
                is_awaited: waiting_for_zero(row.semaphore)? > 0,
                last_user: last_user(row.semaphore)?,
            })
        };
        match read() {
            Err(error) if is_gone(&error) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Returns true if no program needs it, as far as the kernel shows: no process waits for it, the last one that
    /// changed it has ended, and it is unchanged since `before`. It may still belong to an LVM program that holds
    /// LVM's lock.
    pub fn is_idle(&self, before: &[Self]) -> bool {
        self.is_left(before, is_alive)
    }

    fn is_left(&self, before: &[Self], is_alive: impl Fn(i32) -> bool) -> bool {
        // That is the owner itself, or udevd's helper that replied, which ends at once.
        before.contains(self) && !self.is_awaited && !is_alive(self.last_user)
    }

    /// Removes it.
    ///
    /// # Errors
    /// `Io` when the kernel refuses.
    pub fn remove(self) -> Result<()> {
        let key = self.row.key;
        match remove_semaphore(self.row.semaphore) {
            Err(error) if !is_gone(&error) => Err(Error::io(
                format!("could not remove udev cookie {key:#x}"),
                error,
            )),
            _ => {
                tracing::warn!(
                    cookie = format_args!("{key:#x}"),
                    answers = self.value,
                    "udev cookie of a killed program removed"
                );
                Ok(())
            }
        }
    }
}

/// The cookies among the rows of [`SEMAPHORES`].
fn parse(text: &str) -> Result<Vec<Row>> {
    let rows = text.lines().skip(1).map(|line| {
        parse_row(line).ok_or_else(|| {
            Error::new(
                Kind::Io,
                format!("could not parse the line {line:?} of {SEMAPHORES}"),
            )
        })
    });
    let rows = rows.filter(|row| !row.as_ref().is_ok_and(|row| row.key >> SHIFT != MAGIC));
    rows.collect()
}

/// `key semid perms nsems uid gid cuid cgid otime ctime`.
fn parse_row(line: &str) -> Option<Row> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [key, semaphore, _, _, _, _, _, _, used, set] = words.as_slice() else {
        return None;
    };
    let key: i32 = key.parse().ok()?;
    Some(Row {
        key: key.cast_unsigned(),
        semaphore: semaphore.parse().ok()?,
        used: used.parse().ok()?,
        set: set.parse().ok()?,
    })
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIDRM))
}

fn is_alive(pid: i32) -> bool {
    // kill(2) treats zero and negative numbers as process groups.
    pid > 0 && kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;
    use crate::system::{new_semaphore, semaphore};

    const TEXT: &str =
        "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime
 223170941          3   600          1     0     0     0     0 1763916000 1763915999
-559038737          4   600          1     0     0     0     0          0 1763915999
         0          5   600         17  1000  1000  1000  1000          0 1763915999
";

    fn cookie() -> Cookie {
        Cookie {
            row: parse(TEXT).unwrap()[0],
            value: 1,
            is_awaited: false,
            last_user: 7,
        }
    }

    #[test]
    fn cookies_are_told_from_others_semaphores() {
        let rows = parse(TEXT).unwrap();
        let cookie = Row {
            key: 0x0d4d_517d,
            semaphore: 3,
            used: 1_763_916_000,
            set: 1_763_915_999,
        };
        assert_eq!(rows, [cookie]);
        assert_eq!(parse("key\n").unwrap(), []);
        parse("key\n223170941 3\n").unwrap_err();
    }

    #[test]
    fn one_that_was_not_there_or_was_changed_is_not_stale() {
        let now = cookie();
        let is_stale = |before: &[Cookie]| now.is_left(before, |_| false);
        assert!(is_stale(&[now]));
        assert!(!is_stale(&[]));
        let mut others = [now; 5];
        others[0].value = 2;
        others[1].row.used -= 1;
        others[2].row.set -= 1;
        others[3].row.semaphore += 1;
        others[4].last_user = 8;
        assert!(!is_stale(&others));
    }

    #[test]
    fn one_of_a_living_program_is_not_stale() {
        let now = cookie();
        assert!(!now.is_left(&[now], |pid| pid == 7));
        assert!(now.is_left(&[now], |pid| pid == 8));
        let awaited = Cookie {
            is_awaited: true,
            ..now
        };
        assert!(!awaited.is_left(&[awaited], |_| false));
        assert!(is_alive(process::id().cast_signed()));
        // A process that is not visible here.
        assert!(!is_alive(0));
    }

    #[test]
    fn the_kernel_tells_of_a_cookie() {
        let key = (MAGIC << SHIFT) | (process::id() & 0xffff);
        let id = new_semaphore(key.cast_signed()).unwrap();
        semaphore(id, Some(1)).unwrap();
        let own = || {
            let all = Cookie::all().unwrap();
            all.into_iter().find(|cookie| cookie.row.semaphore == id)
        };
        let found = own().unwrap();
        assert_eq!((found.row.key, found.value), (key, 1));
        assert_eq!(found.last_user, process::id().cast_signed());
        assert!(!found.is_awaited && !found.is_idle(&[found]));
        found.remove().unwrap();
        assert_eq!(own(), None);
        // Another process may have removed it first.
        found.remove().unwrap();
    }
}
