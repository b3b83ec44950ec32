//! A program that runs until the test ends.

use std::{
    ffi::OsStr,
    fs::File,
    path::PathBuf,
    process::{Child, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{programs::program, storage::Scratch};

/// A program that runs until this is dropped; what it prints is kept.
#[derive(Debug)]
pub struct Daemon {
    name: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    child: Child,
    scratch: Scratch,
}

impl Daemon {
    /// Starts a program.
    pub fn start(
        name: impl AsRef<OsStr>,
        arguments: &[String],
        environment: &[(&str, &str)],
    ) -> Self {
        let scratch = Scratch::new();
        let environment = environment.iter();
        let environment: Vec<_> = environment
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let name = PathBuf::from(name.as_ref());
        Self {
            child: start(&name, arguments, &environment, &scratch),
            name,
            arguments: arguments.to_vec(),
            environment,
            scratch,
        }
    }

    /// Kills it, if it still runs, and starts it again.
    pub fn restart(&mut self) {
        self.kill();
        self.child = start(
            &self.name,
            &self.arguments,
            &self.environment,
            &self.scratch,
        );
    }

    /// The same, with a variable of its environment set to another value.
    pub fn restart_with(&mut self, name: &str, value: &str) {
        self.environment.retain(|(other, _)| other != name);
        self.environment.push((name.to_owned(), value.to_owned()));
        self.restart();
    }

    /// Kills it, if it runs.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it has printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(log(&self.scratch)).expect("the log can be read")
    }

    /// Ends it in order.
    pub fn stop(&mut self) {
        kill(Pid::from_raw(self.pid()), Signal::SIGTERM).expect("it can be signalled");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{}", self.log());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

fn log(scratch: &Scratch) -> PathBuf {
    scratch.path().join("log")
}

fn start(
    name: &PathBuf,
    arguments: &[String],
    environment: &[(String, String)],
    scratch: &Scratch,
) -> Child {
    let output = File::options()
        .create(true)
        .append(true)
        .open(log(scratch))
        .expect("a log can be written");
    let errors = output.try_clone().expect("it can be written twice");
    program(name)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(errors))
        .spawn()
        .unwrap_or_else(|error| panic!("{} cannot be started: {error}", name.display()))
}
