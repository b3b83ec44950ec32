//! What a command prints on a terminal.

use crate::programs::{drumlin, program};

/// Variables by which a user, or a log of continuous integration, chooses colours.
const CHOICES: [&str; 4] = ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"];

/// What the binary prints on a terminal that shows colours; `environment` can refuse them.
///
/// # Panics
/// When it cannot be started.
pub fn on_terminal(words: &[&str], environment: &[(&str, &str)]) -> String {
    let line = format!("{} {}", drumlin().display(), words.join(" "));
    let mut command = program("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    for name in CHOICES {
        command.env_remove(name);
    }
    command.env("TERM", "xterm");
    command.envs(environment.iter().copied());
    let output = command.output().expect("script can be started");
    String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n")
}
