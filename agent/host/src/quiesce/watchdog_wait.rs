//! Waits for the thaw watchdogs that an agent has left behind, in the control group that they share with this process.

use std::{
    fs, io, process, thread,
    time::{Duration, Instant},
};

/// The argument that a thaw watchdog is started with, after the program.
const ARGUMENT: &[u8] = b"thaw-watchdog";
/// Interval of the looks: a watchdog needs some milliseconds to resume everything.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until all thaw watchdogs of this process's control group have ended, at most for `limit`; returns the process ids of
/// those that have not.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn wait_for_watchdogs(limit: Duration) -> io::Result<Vec<u32>> {
    let deadline = Instant::now() + limit;
    loop {
        let left = watchdogs()?;
        if left.is_empty() || Instant::now() >= deadline {
            return Ok(left);
        }
        thread::sleep(LOOK);
    }
}

/// The thaw watchdogs of this process's control group.
fn watchdogs() -> io::Result<Vec<u32>> {
    let own = fs::read("/proc/self/cgroup")?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // What cannot be read has ended.
        let read = |file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        if pid != process::id() && is_watchdog(&read("cmdline")) && read("cgroup") == own {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Returns true for the command line of a thaw watchdog: its words, each with a zero behind it.
fn is_watchdog(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == 0).skip(1);
    words.next() == Some(ARGUMENT) && words.next() == Some(&[]) && words.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thaw_watchdog_at_work_is_waited_for() {
        assert!(is_watchdog(b"/usr/bin/drumlin\0thaw-watchdog\0"));
        for other in [
            &b"/usr/bin/drumlin\0thaw-watchdog\0--wait\x005\0"[..],
            b"/usr/bin/drumlin\0agent\0",
            b"thaw-watchdog\0",
            b"",
        ] {
            assert!(!is_watchdog(other), "{other:?}");
        }
    }

    #[test]
    fn one_that_is_at_work_is_waited_for_until_the_limit_and_not_after_its_end() {
        let directory = tempfile::tempdir().unwrap();
        // A shell that reads a script of this name has the words of a watchdog; it ends with its input.
        fs::write(directory.path().join("thaw-watchdog"), "read line\n").unwrap();
        #[expect(clippy::disallowed_methods, reason = "it runs beside the test")]
        let mut shell = process::Command::new("sh");
        shell.arg("thaw-watchdog").current_dir(directory.path());
        let mut child = shell.stdin(process::Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        while !watchdogs().unwrap().contains(&child.id()) {
            thread::sleep(LOOK);
        }
        let left = wait_for_watchdogs(3 * LOOK).unwrap();
        assert!(left.contains(&child.id()), "{left:?}");
        assert!(begun.elapsed() >= 3 * LOOK);
        drop(child.stdin.take());
        child.wait().unwrap();
        let left = wait_for_watchdogs(Duration::ZERO).unwrap();
        assert!(!left.contains(&child.id()), "{left:?}");
    }
}
