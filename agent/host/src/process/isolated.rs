//! This program once more, for work that a disk may block forever: a blocked system call keeps a process from ending, and
//! so only a process that nobody waits for may make it.

use std::{
    ffi::OsString,
    io::{self, BufRead, BufReader},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ran {
    /// The first line that it printed.
    Line(String),
    /// It ended, and had printed no line.
    Nothing,
    /// It printed no line in time. It was killed, and ends when the kernel lets it.
    Silent,
}

/// Runs this program with `arguments` until it has printed one line, or for so long at most. It has the environment of
/// this process, and nothing to read.
///
/// # Errors
/// When it cannot be started.
#[expect(
    clippy::disallowed_methods,
    reason = "nobody may wait for it: it can be blocked in the kernel"
)]
pub fn run(arguments: &[OsString], patience: Duration) -> io::Result<Ran> {
    let mut child = Command::new("/proc/self/exe")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        let _ = sender.send(read.map(|_| line));
    });
    let ran = match receiver.recv_timeout(patience) {
        Ok(line) => match line? {
            line if line.ends_with('\n') => Ran::Line(line),
            _ => Ran::Nothing,
        },
        Err(_) => Ran::Silent,
    };
    // Harmless where it has ended; and it is not waited for, since it can be blocked after its line, too.
    let _ = child.kill();
    let _ = child.try_wait();
    Ok(ran)
}
