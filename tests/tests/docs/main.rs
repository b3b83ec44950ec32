//! The documents: short where they should be, linked, and complete beside the code; and its words.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod commands;
mod functions;
mod links;
mod paths;
mod words;

use drumlin_tests::{
    programs::workspace,
    sources::{agent_points, files, quoted_behind, read, reconciler_points},
};

#[test]
fn the_readme_is_read_in_a_few_minutes() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 150, "{lines} lines");
}

#[test]
fn the_summary_lists_every_page() {
    let home = workspace().join("docs/src");
    let summary = read("docs/src/SUMMARY.md");
    for page in files("docs/src", ".md") {
        let name = page.strip_prefix(&home).unwrap().to_str().unwrap();
        let is_listed = summary.contains(&format!("]({name})"));
        assert!(name == "SUMMARY.md" || is_listed, "{name}");
    }
}

#[test]
fn every_reason_of_a_condition_is_explained() {
    let calls = [
        "waiting(",
        "stalled(",
        "ready(",
        "reason: ",
        "State::Reconciling, ",
        "State::Stalled, ",
    ];
    let reasons = quoted_behind(&["agent/reconciler/src"], &calls);
    let is_reason = |word: &&String| {
        word.starts_with(|first: char| first.is_ascii_uppercase())
            && word.chars().all(|letter| letter.is_ascii_alphabetic())
    };
    let conditions = read("docs/src/conditions.md");
    // Those of events that the controller writes about the cluster are no conditions.
    let events = ["PolicyInForce", "PolicyNotInForce"];
    let mut reasons: Vec<&String> = reasons.iter().filter(is_reason).collect();
    reasons.retain(|reason| !events.contains(&reason.as_str()));
    assert!(reasons.len() > 20, "{reasons:?}");
    for reason in reasons {
        let is_explained = conditions.contains(&format!("\n### {reason}\n"));
        assert!(
            is_explained,
            "{reason} has no heading in docs/src/conditions.md"
        );
    }
}

/// What a source has between its comments and before its unit tests, with the lines of a literal as one and `…` for what
/// varies.
fn messages(source: &str) -> String {
    let code = source.split("\n#[cfg(test)]\nmod tests {").next();
    let lines = code.unwrap_or_default().lines();
    let code: Vec<_> = lines
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    let code = code.join("\n");
    let mut lines = code.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    without_placeholders(&lines.fold(first, |text, line| text + line.trim_start()))
}

/// Those of a format string, which have neither blanks nor quotes between their braces.
fn without_placeholders(text: &str) -> String {
    let mut pieces = text.split('{');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| match piece.split_once('}') {
        Some((name, rest)) if !name.contains([' ', '\n', '"']) => text + "…" + rest,
        _ => text + "{" + piece,
    })
}

/// The parts of a heading that every message about it has; those of a word or two are no proof.
fn constant_parts(heading: &str) -> impl Iterator<Item = &str> {
    let is_edge = |letter: char| letter == ' ' || letter.is_ascii_punctuation();
    let parts = heading
        .split('…')
        .map(move |part| part.trim_matches(is_edge));
    parts.filter(|part| part.chars().count() >= 12)
}

#[test]
fn every_message_of_the_troubleshooting_page_is_in_the_code() {
    let sources = ["agent", "crd/src"];
    let sources = sources.iter().flat_map(|folder| files(folder, ".rs"));
    let code: String = sources.map(|path| messages(&read(path))).collect();
    let page = read("docs/src/troubleshooting.md");
    let headings = page
        .lines()
        .filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    let parts: Vec<_> = headings.flat_map(constant_parts).collect();
    assert!(parts.len() > 20, "{parts:?}");
    for part in parts {
        assert!(
            code.contains(part),
            "{part:?} is a heading of docs/src/troubleshooting.md, and no message has it"
        );
    }
}

#[test]
fn a_message_is_read_as_it_is_printed() {
    let source = "// no message\nformat!(\"volume {} has \\\n    {size:?} bytes\", id)\n#[cfg(test)]\nmod tests {\n\"old\"}";
    assert_eq!(messages(source), "format!(\"volume … has … bytes\", id)");
    let parts: Vec<_> = constant_parts("`volume …, which is away`").collect();
    assert_eq!(parts, ["which is away"]);
}

#[test]
fn what_a_kill_leaves_is_said_for_every_step() {
    let (agents, reconcilers) = (agent_points(), reconciler_points());
    let points: Vec<_> = agents.union(&reconcilers).collect();
    assert!(points.len() > 100, "{points:?}");
    let page = read("docs/src/interruptions.md");
    for point in points {
        let is_there = page.contains(&format!("`{point}`"));
        assert!(is_there, "{point} is not in docs/src/interruptions.md");
    }
}

#[test]
fn every_variable_of_the_tests_is_documented() {
    let page = read("docs/src/testing.md");
    let mut names = quoted_behind(
        &["tests/src", "tests/tests"],
        &["number(", "var(", "var_os("],
    );
    names.retain(|name| name.starts_with("DRUMLIN_") || name == "POWER_CUTS");
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        assert!(
            page.contains(&format!("`{name}")),
            "{name} is not in docs/src/testing.md"
        );
    }
}
