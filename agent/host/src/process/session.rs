//! Interactive programs: a process that reads commands line by line, and so starts up, allocates memory and reads its
//! settings only once.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    process::{Child, ChildStdin},
};

use crate::exec;
use crate::{Error, Kind, Result, blocking_at_once, trace};

/// Timeout for a program to report the first unknown command.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of bytes kept from the end of its output.
const KEPT: usize = 64 << 10;

/// A running program that reads commands.
///
/// Each command is followed by an unknown one; when the program reports that, it has completed the command. It ends
/// when this value is dropped, after its last command.
#[derive(Debug)]
pub struct Session {
    name: &'static str,
    child: Child,
    stdin: ChildStdin,
    output: pipe::Receiver,
    complaint: Complaint,
    asked: u64,
}

/// The error message of a program for an unknown command, before and after its name: `No such command 'x'`.
pub type Complaint = (&'static str, &'static str);

impl Session {
    /// Starts a program.
    ///
    /// # Errors
    /// `Precondition` when it is not installed, `Command` when it does not behave like such a program.
    pub async fn start(
        name: &'static str,
        environment: &[(&str, &str)],
        complaint: Complaint,
    ) -> Result<Self> {
        let span = trace::program(name);
        let failed = move |error| Error::io(format!("could not start {name}"), error);
        let (output, complained) = exec::own_pipe().map_err(failed)?;
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let environment: Vec<(String, String)> = environment.iter().map(own).collect();
        // The program is read from its disk before this returns.
        let start = blocking_at_once(move || {
            let mut command = exec::command(name)?;
            command
                .envs(environment)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(complained);
            exec::spawn(command).map_err(failed)
        });
        let mut child = start.await?;
        let stdin = child.stdin.take();
        let mut session = Self {
            name,
            child,
            stdin: stdin.ok_or_else(|| {
                Error::new(
                    Kind::Bug,
                    "the standard input of a program was not captured",
                )
            })?,
            output,
            complaint,
            asked: 0,
        };
        tracing::debug!(program = name, "interactive program started");
        let answer = tokio::time::timeout(PATIENCE, session.carry_out("")).await;
        answer.map_err(|_| {
            Error::new(
                Kind::Command,
                format!("{name} did not report the end of a command"),
            )
        })??;
        drop(span);
        Ok(session)
    }

    /// Runs one command line and waits for its end, successful or not; returns the error output.
    ///
    /// # Errors
    /// `Command` when the program has ended; then the command may have been carried out, or part of it.
    pub async fn carry_out(&mut self, line: &str) -> Result<String> {
        self.asked += 1;
        let unknown = format!("unknown-{}", self.asked);
        let started = Instant::now();
        let input = format!("{line}\n{unknown}\n");
        let write = self.stdin.write_all(input.as_bytes());
        // The name alone is not enough: a program may echo its input.
        let (before, after) = self.complaint;
        let complaint = format!("{before}{unknown}{after}");
        let read = read_until(&mut self.output, complaint.as_bytes());
        let (written, said) = tokio::join!(write, read);
        let said = written.and(said).map_err(|error| {
            let ended = self.child.try_wait().ok().flatten();
            let status =
                ended.map_or_else(String::new, |status: ExitStatus| format!(" ({status})"));
            Error::new(
                Kind::Command,
                format!("{} ended unexpectedly{status}", self.name),
            )
            .because(error)
        })?;
        let said = String::from_utf8_lossy(&said);
        let end = said.rfind(&complaint).unwrap_or(said.len());
        // The line of that error message does not belong to the command.
        let said = said.get(..end).unwrap_or_default();
        let said = said
            .rfind('\n')
            .map_or("", |end| said.get(..end).unwrap_or_default());
        if !line.is_empty() {
            tracing::debug!(
                program = self.name,
                command = line,
                elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
                said,
                "command completed"
            );
        }
        Ok(said.to_owned())
    }

    /// Returns true if it has not ended, as far as is known.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it, and waits for the exit.
    pub async fn end(self) {
        let Self {
            name,
            mut child,
            stdin,
            ..
        } = self;
        drop(stdin);
        let status = child.wait().await.ok();
        tracing::debug!(
            program = name,
            status = status.and_then(|status| status.code()),
            "interactive program ended"
        );
    }
}

/// Reads until this text appears, and returns the last output.
async fn read_until(from: &mut pipe::Receiver, what: &[u8]) -> io::Result<Vec<u8>> {
    let mut said: Vec<u8> = Vec::new();
    loop {
        let before = said.len();
        if from.read_buf(&mut said).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // It may arrive in two parts.
        let from = before.saturating_sub(what.len());
        let new = said.get(from..).unwrap_or_default();
        if new.windows(what.len()).any(|window| window == what) {
            return Ok(said);
        }
        if said.len() > KEPT {
            said.drain(..said.len() - KEPT / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn begin() -> Session {
        Session::start("bash", &[], (": ", ": command not found"))
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn it_waits_until_commands_are_carried_out() {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path().join("made");
        let mut session = begin().await;
        for round in 0..3 {
            let made = format!("sleep 0.05; echo {round} > {}", at.display());
            assert_eq!(session.carry_out(&made).await.unwrap(), "");
            let text = std::fs::read_to_string(&at).unwrap();
            assert_eq!(text, format!("{round}\n"));
        }
        let said = session.carry_out("echo a >&2; echo b; echo c >&2").await;
        assert_eq!(said.unwrap(), "a\nc");
        // More than a pipe holds, in both directions.
        let much = format!(
            "for n in {{1..200}}; do echo $n {0} >&2; done # {0}{0}",
            "x".repeat(60_000)
        );
        assert!(session.carry_out(&much).await.unwrap().len() <= KEPT + (64 << 10));
        let pid = session.child.id().unwrap();
        session.end().await;
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[tokio::test]
    async fn one_that_ends_early_is_told_of() {
        let mut session = begin().await;
        let error = session.carry_out("exit 3").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Command);
        assert!(error.to_string().contains("bash ended"), "{error}");
        session.carry_out("").await.unwrap_err();
        session.child.wait().await.unwrap();
        assert!(!session.is_running());
    }

    #[tokio::test]
    async fn it_does_what_it_was_told_when_nobody_waits_any_more() {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path().join("made");
        let mut session = begin().await;
        // Its output has no reader any more when it is written.
        let slow = format!("sleep 2; echo word; echo word >&2; echo > {}", at.display());
        let soon = Duration::from_millis(50);
        let given_up = tokio::time::timeout(soon, session.carry_out(&slow)).await;
        assert!(given_up.is_err());
        drop(session);
        for _ in 0..1000 {
            if at.exists() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("it was ended before it was done");
    }

    #[tokio::test]
    async fn a_program_of_another_kind_is_refused() {
        let error = Session::start("true", &[], ("'", "'")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Command);
        Session::start("no-such-program", &[], ("'", "'"))
            .await
            .unwrap_err();
    }
}
