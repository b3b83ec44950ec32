//! Whether the tests of the table would notice a violation: each runs beside an agent that is mutated so, and must fail.

use std::{
    fmt, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use super::{Statement, Text};
use crate::{
    programs::{program, run, workspace},
    random::Random,
};

/// How long a test may take beside a mutated agent: what waits in vain has failed.
const PATIENCE: Duration = Duration::from_mins(2);
/// The binary whose tests run beside a mutated agent.
const BINARY: &str = "black_box";

/// A violation of a statement, and the test that must notice it.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// The specification.
    pub text: &'a Text,
    /// What is violated.
    pub statement: &'a Statement,
    /// How.
    pub mutation: &'a str,
    /// The test, as `binary::module::function`.
    pub test: &'a str,
}

impl fmt::Display for Trial<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, place) = (&self.text.text, self.statement.place());
        write!(
            formatter,
            "{text}, {place}: {}: \"{}\", {}",
            self.statement.says, self.mutation, self.test
        )
    }
}

/// What became of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The test failed, as it must.
    Noticed,
    /// The test passed, or was not there.
    Missed,
}

/// All trials of the table.
pub fn trials(texts: &[Text]) -> Vec<Trial<'_>> {
    let mut trials = Vec::new();
    for text in texts {
        for statement in &text.statements {
            trials.extend(statement.mutations.iter().map(|(mutation, test)| Trial {
                text,
                statement,
                mutation,
                test,
            }));
        }
    }
    trials
}

/// As many of them, chosen by a seed; all if there are not more.
pub fn drawn(mut trials: Vec<Trial<'_>>, count: usize, seed: u64) -> Vec<Trial<'_>> {
    let mut random = Random::new(seed);
    // Fisher-Yates.
    for index in (1..trials.len()).rev() {
        let end = u64::try_from(index + 1).unwrap_or(u64::MAX);
        let other = usize::try_from(random.below(end)).unwrap_or_default();
        trials.swap(index, other);
    }
    trials.truncate(count);
    trials
}

/// Builds the tests, and returns where they are.
///
/// # Panics
/// When they cannot be built.
pub fn build() -> PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let printed = run(
        &cargo,
        &[
            "test",
            "--quiet",
            "--workspace",
            // As tests/run has built them: others would be built anew.
            "--features",
            "drumlin-lvm/lab,drumlin-core/lab,drumlin-tests/lab",
            "--locked",
            "--no-run",
            "--message-format=json",
        ],
    );
    let messages = printed
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut binaries = messages.filter_map(|message| {
        let is_it = message.pointer("/target/name")?.as_str()? == BINARY;
        let path = message.get("executable")?.as_str()?;
        is_it.then(|| PathBuf::from(path))
    });
    binaries
        .next()
        .unwrap_or_else(|| panic!("cargo built no {BINARY}"))
}

/// Runs one test beside a mutated agent, and returns what became of it and what it printed.
///
/// # Panics
/// When it cannot be started.
pub fn attempt(binary: &Path, trial: &Trial<'_>) -> (Outcome, String) {
    let name = trial.test.split_once("::").map_or("", |(_, name)| name);
    let log = tempfile::NamedTempFile::new();
    let log = log.unwrap_or_else(|error| panic!("no file for what is printed: {error}"));
    let writer = || log.reopen().map_or_else(|_| Stdio::null(), Stdio::from);
    let mut test = program(binary);
    test.args(["--exact", name, "--color", "never"])
        .current_dir(workspace().join("tests"))
        .env("DRUMLIN_MUTATE", trial.mutation)
        .stdout(writer())
        .stderr(writer())
        .process_group(0);
    let started = test.spawn();
    let mut test = started.unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
    let begun = Instant::now();
    let status = loop {
        match test.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
            _ => break None,
        }
    };
    // Whoever waits in vain is ended with all that it has started.
    if status.is_none() {
        let group = Pid::from_raw(i32::try_from(test.id()).unwrap_or_default());
        let _ = killpg(group, Signal::SIGKILL);
        let _ = test.wait();
    }
    let printed = fs::read(log.path()).unwrap_or_default();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let ran = printed.contains("running 1 test");
    let failed = status.is_none() || printed.contains("test result: FAILED. 0 passed; 1 failed");
    let outcome = if ran && failed {
        Outcome::Noticed
    } else {
        Outcome::Missed
    };
    (outcome, printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_chooses_the_same_trials_each_time_and_another_one_others() {
        let texts: Vec<Text> = serde_yaml::from_str(
            "[{text: t, statements: [{at: a, level: MUST, says: s, binds: plugin, \
             mutations: {a: x, b: x, c: x, d: x, e: x, f: x, g: x, h: x}}]}]",
        )
        .unwrap_or_default();
        let names = |seed| {
            let drawn = drawn(trials(&texts), 4, seed);
            drawn.iter().map(|trial| trial.mutation).collect::<Vec<_>>()
        };
        assert_eq!(names(1).len(), 4);
        assert_eq!(names(1), names(1));
        assert!((2..10).any(|seed| names(seed) != names(1)));
        assert_eq!(drawn(trials(&texts), 100, 1).len(), 8);
    }
}
