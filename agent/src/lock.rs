//! One agent per state directory.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

/// Timeout for what a killed agent had just begun: a program of it has the lock until it has become that program.
const PATIENCE: Duration = Duration::from_secs(1);

/// Lock on a state directory. The kernel releases it when the process ends for any reason.
#[derive(Debug)]
pub(crate) struct StateLock {
    _file: Flock<File>,
}

impl StateLock {
    /// Creates `directory` if it is missing, and locks it.
    ///
    /// # Errors
    /// The error names the pid of the agent that holds the lock.
    pub(crate) fn take(directory: &Path) -> anyhow::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("could not create state directory {}", directory.display()))?;
        let path = directory.join("LOCK");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("could not open {}", path.display()))?;
        let mut holder = String::new();
        // Read before locking: the holder of the lock wrote its pid.
        let _ = file.read_to_string(&mut holder);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(mut file) => {
                    file.set_len(0)
                        .and_then(|()| file.rewind())
                        .and_then(|()| writeln!(file, "{}", std::process::id()))
                        .with_context(|| format!("could not write {}", path.display()))?;
                    return Ok(Self { _file: file });
                }
                Err((held, Errno::EWOULDBLOCK)) if Instant::now() < deadline => {
                    file = held;
                    thread::sleep(Duration::from_millis(10));
                }
                Err((_, Errno::EWOULDBLOCK)) => bail!(
                    "state directory {} is in use by another agent, pid {}; stop that agent first, or choose another --state-dir",
                    directory.display(),
                    holder.trim()
                ),
                Err((_, errno)) => {
                    return Err(errno)
                        .with_context(|| format!("could not lock {}", path.display()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_refused_with_the_pid_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let first = StateLock::take(&state).unwrap();
        let error = StateLock::take(&state).unwrap_err().to_string();
        assert!(
            error.contains(&format!("pid {}", std::process::id())),
            "{error}"
        );
        drop(first);
        StateLock::take(&state).unwrap();
    }
}
