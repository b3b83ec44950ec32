//! What `drumlin doctor` says of an agent's host.

use std::{process::Output, time::Instant};

use serde_json::Value;

use crate::{
    agent::{Agent, PATIENCE},
    programs::{drumlin, program},
};

/// What one run of `drumlin doctor` found.
#[derive(Debug)]
pub struct Diagnosis {
    /// Its whole answer.
    pub report: Value,
    /// Its exit code.
    pub code: i32,
}

/// What names an agent to `drumlin doctor`.
pub fn arguments(agent: &Agent) -> Vec<String> {
    let path = |name: &str| agent.path(name).to_string_lossy().into_owned();
    let mut words = vec![
        format!("--state-dir={}", path("state")),
        format!("--endpoint={}", agent.socket().display()),
    ];
    // A running agent is asked what it was started with.
    if agent.pid() == 0 {
        words.push(format!(
            "--node={}",
            agent.options().node.as_deref().unwrap_or("node-a")
        ));
        if agent.options().config.is_some() {
            words.push(format!("--config={}", path("config.yaml")));
        }
    }
    words
}

impl Diagnosis {
    /// Runs it for an agent, whether that runs or not.
    pub fn of(agent: &Agent) -> Self {
        Self::with(agent, &[])
    }

    /// The same, with more arguments.
    pub fn with(agent: &Agent, more: &[&str]) -> Self {
        let mut command = program(drumlin());
        command.arg("doctor").args(arguments(agent)).args(more);
        Self::parse(
            &command
                .args(["-o", "json"])
                .output()
                .expect("the binary can be started"),
        )
    }

    /// Makes only the checks of one part, in one process: in the lab each takes a second.
    pub fn of_part(agent: &Agent, part: &str) -> Self {
        let mut command = program(drumlin());
        command.arg("doctor").args(arguments(agent));
        let output = command.arg(format!("--part={part}")).output();
        Self::parse(&output.expect("the binary can be started"))
    }

    /// Runs it where a shell has prepared the mounts, in a mount namespace of its own.
    pub fn where_mounts_are(agent: &Agent, preparation: &str) -> Self {
        let line = format!("{preparation}\nexec \"$@\"");
        let mut command = program("unshare");
        command.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            &line,
            "sh",
        ]);
        command.arg(drumlin()).arg("doctor").args(arguments(agent));
        Self::parse(
            &command
                .args(["-o", "json"])
                .output()
                .expect("unshare can be started"),
        )
    }

    /// Runs it until it has this finding: whoever looks at a device for a moment uses it then.
    ///
    /// # Panics
    /// When it never has.
    #[track_caller]
    pub fn until(agent: &Agent, check: &str, part: &str) -> Self {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = Self::of(agent);
            let mut all = found.all(check).into_iter();
            let is_it =
                |one: &Value| text_of(one, "object").is_some_and(|text| text.contains(part));
            if all.any(is_it) || Instant::now() >= deadline {
                found.finds(check, part);
                return found;
            }
        }
    }

    fn parse(output: &Output) -> Self {
        let report = serde_json::from_slice(&output.stdout);
        Self {
            report: report.unwrap_or_else(|error| panic!("{error}: {output:?}")),
            code: output.status.code().unwrap_or(-1),
        }
    }

    /// All findings of a check.
    pub fn all(&self, check: &str) -> Vec<&Value> {
        let findings = list_of(&self.report, "findings");
        findings
            .filter(|one| text_of(one, "check") == Some(check))
            .collect()
    }

    /// The finding of a check about an object with `part` in its name.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn finds(&self, check: &str, part: &str) -> &Value {
        let mut all = self.all(check).into_iter();
        let found =
            all.find(|one| text_of(one, "object").is_some_and(|object| object.contains(part)));
        found.unwrap_or_else(|| panic!("no {check} about {part}: {:#}", self.report))
    }

    /// A text of a finding, such as its message.
    #[track_caller]
    pub fn text(&self, check: &str, part: &str, field: &str) -> String {
        let text = text_of(self.finds(check, part), field).map(str::to_owned);
        text.unwrap_or_else(|| panic!("{check} has no {field}: {:#}", self.report))
    }

    /// Checks that a check has found nothing, and that every part was looked at.
    ///
    /// # Panics
    /// When it has, or when one was not.
    #[track_caller]
    pub fn lacks(&self, check: &str) {
        let is_late = |one: &&&Value| {
            text_of(one, "message").is_some_and(|why| why.contains("not done within"))
        };
        let not_checked = self.all("not-checked");
        let late = not_checked.iter().find(is_late);
        assert!(late.is_none(), "{late:#?}");
        assert!(self.all(check).is_empty(), "{check}: {:#}", self.report);
    }

    /// Runs the command of a finding, which must succeed.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn mend(&self, check: &str, part: &str) {
        let command = self.text(check, part, "command");
        let mended = program("sh").args(["-c", &command]).output();
        let mended = mended.expect("a shell can be started");
        assert!(mended.status.success(), "{command}: {mended:?}");
    }
}

/// A text in an object.
fn text_of<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object.get(field)?.as_str()
}

/// A list in an object.
fn list_of<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    let list = object.get(field).and_then(Value::as_array);
    list.into_iter().flatten()
}
