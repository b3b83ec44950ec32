//! A reconciler in a process of its own.

use std::{
    fs::File,
    process::{Child, Stdio},
};

use drumlin_tests::{
    agent::Agent,
    programs::{drumlin, program},
};

pub(super) struct Reconciler(Child);

impl Reconciler {
    /// Starts one beside an agent, with these variables in its environment.
    pub(super) fn start(
        agent: &Agent,
        manifests: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let log = File::options()
            .create(true)
            .append(true)
            .open(agent.path("reconciler.log"));
        let mut command = program(drumlin());
        command
            .args(["reconcile", "--manifests", manifests])
            .args(["--endpoint", &agent.socket().to_string_lossy()])
            .args(["--state-dir", &agent.path("state").to_string_lossy()])
            .envs(environment)
            .stdin(Stdio::null())
            .stderr(log.unwrap());
        Self(command.spawn().unwrap())
    }

    pub(super) fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Reconciler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
