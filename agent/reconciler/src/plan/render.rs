//! A plan as text.

use std::fmt::Write;

use anstyle::Style;
use drumlin_crd::{ObjectKey, Quantity};

use super::{Action, Plan, PlannedChange, shown};
use crate::{
    age::age,
    colours::{GREEN, RED, YELLOW},
    count::{counted, elsewhere},
    status::{FileProblem, ignored},
};

impl Plan {
    /// The plan for people, with colours: whoever prints it removes them where they do not belong.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "node {}   {}   {}, {}",
            self.node,
            self.directory,
            counted(self.files, "file"),
            counted(self.objects, "object")
        );
        if let Some(why) = &self.agent_unreachable {
            let _ = writeln!(
                text,
                "The agent does not answer ({why}): planned from the state files alone; drift, classes and room were not checked."
            );
        }
        if let Some(why) = &self.unavailable {
            let _ = writeln!(text, "SourceUnavailable: {why}; no object is changed");
        }
        let mut lines: Vec<Line> = self.changes.iter().map(Line::of).collect();
        lines.extend(self.problems.iter().map(Line::of_problem));
        lines.extend(self.shortages.iter().map(|shortage| Line {
            sign: '!',
            style: RED,
            word: "capacity",
            object: format!(
                "class {}",
                if shortage.class.is_empty() {
                    "(default)"
                } else {
                    &shortage.class
                }
            ),
            detail: format!(
                "needs {}, but {} are available",
                Quantity::from_bytes(shortage.needed_bytes),
                Quantity::from_bytes(shortage.available_bytes)
            ),
            more: String::new(),
        }));
        write_lines(&mut text, &lines);
        text.push_str(&ignored(&self.ignored_files));
        for one in &self.unreadable {
            let _ = writeln!(text, "UNREADABLE {one}; its object is not planned");
        }
        if self.elsewhere > 0 {
            text.push_str(&elsewhere(self.elsewhere));
        }
        text.push_str(&self.summary());
        text
    }

    fn summary(&self) -> String {
        let changes = self.count(|action| {
            !matches!(
                action,
                Action::Create | Action::Destroy | Action::Blocked | Action::Waits | Action::Orphan
            )
        });
        let creates = self.count(|action| action == Action::Create);
        let destroys = self.count(|action| action == Action::Destroy);
        let blocked = self.count(|action| action == Action::Blocked) + self.problems.len();
        let waiting = self.count(|action| action == Action::Waits);
        let orphans = self.count(|action| action == Action::Orphan);
        if [changes, creates, destroys, blocked, waiting] == [0; 5] && self.unavailable.is_none() {
            let kept = match orphans {
                0 => String::new(),
                1 => "; 1 orphan stays as it is".to_owned(),
                orphans => format!("; {orphans} orphans stay as they are"),
            };
            return match self.objects {
                1 => format!("Nothing to do: 1 object is as its manifest asks{kept}.\n"),
                objects => {
                    format!("Nothing to do: {objects} objects are as their manifests ask{kept}.\n")
                }
            };
        }
        format!(
            "Plan: {creates} create, {changes} change, {destroys} destroy, {blocked} blocked, {waiting} waiting, {orphans} orphan\n"
        )
    }
}

const PLAIN: Style = Style::new();

/// A line of a plan.
struct Line {
    sign: char,
    style: Style,
    word: &'static str,
    object: String,
    detail: String,
    more: String,
}

impl Line {
    fn of(change: &PlannedChange) -> Self {
        let (sign, style, word) = match change.action {
            Action::Create => ('+', GREEN, "create"),
            Action::Grow => ('~', YELLOW, "grow"),
            Action::Members => ('~', YELLOW, "members"),
            Action::Mount => ('~', YELLOW, "mount"),
            Action::Adopt => ('~', YELLOW, "adopt"),
            Action::Update => ('~', YELLOW, "update"),
            Action::Release => ('~', YELLOW, "release"),
            Action::Destroy => ('-', RED, "destroy"),
            Action::Blocked => ('!', RED, "blocked"),
            Action::Waits => ('.', PLAIN, "waits"),
            Action::Orphan => ('?', PLAIN, "orphan"),
        };
        let size = change
            .bytes
            .map(|bytes| Quantity::from_bytes(bytes).to_string());
        let age = change.since.as_deref().and_then(age);
        let place = match (&change.file, change.line, &change.schedule) {
            (Some(file), Some(line), _) => format!("({file}:{line})"),
            (_, _, Some(schedule)) => format!("(of schedule {schedule})"),
            _ => String::new(),
        };
        let key = ObjectKey {
            kind: change.kind.clone(),
            namespace: change.namespace.clone(),
            name: change.name.clone(),
        };
        let object = shown(&key);
        let (detail, more) = match change.action {
            Action::Orphan => {
                let mut words: Vec<String> = size.into_iter().collect();
                words.push(format!(
                    "in no manifest for {}; {}",
                    age.unwrap_or_default(),
                    change.detail
                ));
                let file = change.file.as_deref().unwrap_or_default();
                (words.join(", "), format!("(last in {file})"))
            }
            Action::Destroy | Action::Release => {
                let mut words: Vec<String> = size.into_iter().collect();
                words.extend(age.map(|age| format!("made {age} ago")));
                words.extend((!change.detail.is_empty()).then(|| change.detail.clone()));
                (
                    words.join(", "),
                    format!("{} {place}", change.rpcs.join(" ")),
                )
            }
            Action::Blocked | Action::Waits => {
                let reason = change.reason.as_deref().unwrap_or_default();
                (format!("{reason}: {}", change.detail), place)
            }
            _ => (change.detail.clone(), change.rpcs.join(" ")),
        };
        Self {
            sign,
            style,
            word,
            object,
            detail,
            more,
        }
    }

    fn of_problem(one: &FileProblem) -> Self {
        let FileProblem { file, problem } = one;
        let place = format!("{file}:{}:{}", problem.line, problem.column);
        let (object, more) = match &problem.object {
            Some(key) => (shown(key), format!("({place})")),
            None => (place, String::new()),
        };
        Self {
            sign: '!',
            style: RED,
            word: "blocked",
            object,
            detail: problem.message.clone(),
            more,
        }
    }
}

/// Longer details do not widen the column for all lines.
const WIDEST: usize = 48;

fn write_lines(text: &mut String, lines: &[Line]) {
    let width = |of: fn(&Line) -> &str| {
        let lengths = lines.iter().map(|line| of(line).chars().count());
        lengths
            .filter(|length| *length <= WIDEST)
            .max()
            .unwrap_or(0)
    };
    let (objects, details) = (width(|line| &line.object), width(|line| &line.detail));
    for Line {
        sign,
        style,
        word,
        object,
        detail,
        more,
    } in lines
    {
        let line = format!("{word:<8} {object:objects$}  {detail:details$}  {more}");
        let _ = writeln!(text, "{style}{sign}{style:#} {}", line.trim_end());
    }
}
