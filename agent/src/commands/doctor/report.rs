//! The findings as text for people, and as data for programs.

use std::{fmt::Write, io::IsTerminal};

use serde::{Deserialize, Serialize};

use super::{check::Severity, finding::Finding};

/// All findings, the worst first. Its form for programs is documented in `docs/src/doctor.md`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// The name of this node, if it is known.
    node: Option<String>,
    /// The process that holds the state directory, if there is one.
    agent: Option<AgentProcess>,
    /// Whether there is one could not be determined.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    agent_unknown: bool,
    /// The number of errors.
    errors: usize,
    /// The number of warnings.
    warnings: usize,
    /// The findings.
    findings: Vec<Finding>,
}

/// A running agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgentProcess {
    /// Its process id; 0 if it is in another container.
    pub(super) pid: u32,
    /// What it was started with.
    pub(super) command: String,
}

/// Whether the text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    /// With escape sequences of a terminal.
    Ansi,
    /// Plain.
    None,
}

impl Colour {
    /// Colours on a terminal, unless `NO_COLOR` is set to anything (<https://no-color.org>).
    pub(super) fn of_output() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if std::io::stdout().is_terminal() && !refused {
            Self::Ansi
        } else {
            Self::None
        }
    }

    fn paint(self, severity: Severity, word: &str) -> String {
        let code = match (self, severity) {
            (Self::None, _) => return word.to_owned(),
            (Self::Ansi, Severity::Error) => 31,
            (Self::Ansi, Severity::Warning) => 33,
            (Self::Ansi, Severity::Info) => 36,
        };
        format!("\x1b[{code}m{word}\x1b[0m")
    }
}

impl Report {
    /// A report of these findings.
    pub(super) fn new(
        node: Option<String>,
        agent: Option<AgentProcess>,
        mut findings: Vec<Finding>,
    ) -> Self {
        findings.sort_by(|one, other| {
            let by_severity = other.severity.cmp(&one.severity);
            by_severity.then_with(|| (one.check, &one.object).cmp(&(other.check, &other.object)))
        });
        findings.dedup();
        let count = |severity| {
            let found = findings.iter().filter(|one| one.severity == severity);
            found.count()
        };
        Self {
            node,
            agent,
            agent_unknown: false,
            errors: count(Severity::Error),
            warnings: count(Severity::Warning),
            findings,
        }
    }

    /// The report of all parts.
    pub(super) fn of_parts(parts: impl Iterator<Item = Self>) -> Self {
        let (mut node, mut agent, mut findings) = (None, None, Vec::new());
        let mut agent_unknown = false;
        for part in parts {
            node = node.or(part.node);
            agent = agent.or(part.agent);
            agent_unknown |= part.agent_unknown;
            findings.extend(part.findings);
        }
        Self {
            agent_unknown: agent_unknown && agent.is_none(),
            ..Self::new(node, agent, findings)
        }
    }

    /// The same, where it could not be determined whether an agent runs.
    pub(super) fn of_unknown_agent(self) -> Self {
        Self {
            agent_unknown: true,
            ..self
        }
    }

    /// The exit code: 2 with errors, 1 with warnings, else 0.
    pub(super) fn exit_code(&self) -> u8 {
        match (self.errors, self.warnings) {
            (0, 0) => 0,
            (0, _) => 1,
            _ => 2,
        }
    }

    /// As text: a line for each finding, and below it what is wrong and what mends it.
    pub(super) fn text(&self, colour: Colour) -> String {
        let mut text = String::new();
        let words = self.findings.iter().map(|one| one.check.word().len());
        let width = words.max().unwrap_or(0);
        for one in &self.findings {
            let word = format!("{:8}", one.severity.word().to_uppercase());
            let _ = writeln!(
                text,
                "{} {:width$}  {}",
                colour.paint(one.severity, &word),
                one.check.word(),
                escaped(&one.object)
            );
            let _ = writeln!(text, "         {}", escaped(&one.message));
            for (what, detail) in [
                ("since", &one.since),
                ("run", &one.command),
                ("do", &one.advice),
            ] {
                if let Some(detail) = detail {
                    let _ = writeln!(text, "         {what}: {}", escaped(detail));
                }
            }
        }
        if !self.findings.is_empty() {
            text.push('\n');
        }
        text.push_str(&self.summary());
        text
    }

    fn summary(&self) -> String {
        let notes = self.findings.len() - self.errors - self.warnings;
        let number = |count: usize, one: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {one}s")),
        };
        let parts = [
            number(self.errors, "error"),
            number(self.warnings, "warning"),
            number(notes, "note"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let found = if parts.is_empty() {
            "no problems found".to_owned()
        } else {
            parts.join(", ")
        };
        match &self.agent {
            Some(agent) => format!(
                "{found}; agent: pid {} ({})\n",
                agent.pid,
                escaped(&agent.command)
            ),
            None if self.agent_unknown => {
                format!("{found}; whether an agent runs could not be determined\n")
            }
            None => format!("{found}; no agent runs\n"),
        }
    }
}

/// Names of files can have control characters, which must not reach a terminal.
fn escaped(text: &str) -> String {
    let escape = |letter: char| {
        if letter.is_control() {
            letter.escape_debug().to_string()
        } else {
            letter.to_string()
        }
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::check::Check;

    fn report() -> Report {
        let findings = vec![
            Finding::new(Check::NoReflinks, "default", "copies are whole"),
            Finding::new(Check::LeakedLoopDevice, "/dev/loop7", "is leaked")
                .command("losetup -d /dev/loop7"),
            Finding::new(Check::LeakedMount, "/mnt/\x1b[2J", "is leaked")
                .since(Some("2026-11-27T13:00:00Z".to_owned()))
                .advice("unmount it"),
        ];
        Report::new(Some("n".to_owned()), None, findings)
    }

    #[test]
    fn the_worst_comes_first_and_decides_the_exit_code() {
        let report = report();
        assert_eq!(report.exit_code(), 2);
        let text = report.text(Colour::None);
        assert_eq!(
            text,
            "ERROR    leaked-mount        /mnt/\\u{1b}[2J\n         is leaked\n         since: 2026-11-27T13:00:00Z\n         do: unmount it\n\
             WARNING  leaked-loop-device  /dev/loop7\n         is leaked\n         run: losetup -d /dev/loop7\n\
             INFO     no-reflinks         default\n         copies are whole\n\n1 error, 1 warning, 1 note; no agent runs\n"
        );
        let mut findings = report.findings;
        findings.remove(0);
        assert_eq!(Report::new(None, None, findings.clone()).exit_code(), 1);
        findings.remove(0);
        assert_eq!(Report::new(None, None, findings).exit_code(), 0);
        let nothing = Report::new(None, None, Vec::new()).text(Colour::None);
        assert_eq!(nothing, "no problems found; no agent runs\n");
    }

    #[test]
    fn colours_change_nothing_but_colours() {
        let report = report();
        let coloured = report.text(Colour::Ansi);
        assert!(coloured.contains("\x1b[31mERROR   \x1b[0m leaked-mount"));
        let plain = ["\x1b[31m", "\x1b[33m", "\x1b[36m", "\x1b[0m"]
            .iter()
            .fold(coloured, |text, code| text.replace(code, ""));
        assert_eq!(plain, report.text(Colour::None));
    }

    #[test]
    fn programs_get_what_is_documented() {
        let json = serde_json::json!(report());
        let mount = serde_json::json!({
            "severity": "error",
            "check": "leaked-mount",
            "object": "/mnt/\u{1b}[2J",
            "message": "is leaked",
            "since": "2026-11-27T13:00:00Z",
            "advice": "unmount it",
        });
        assert_eq!(json["findings"][0], mount);
        assert_eq!(json["findings"][1]["command"], "losetup -d /dev/loop7");
        assert_eq!((&json["errors"], &json["warnings"]), (&1.into(), &1.into()));
        assert_eq!(
            (&json["node"], &json["agent"]),
            (&"n".into(), &serde_json::Value::Null)
        );
    }
}
