//! `drumlin explain`: what the documents say of a reason, a gRPC code or a message.

use std::ops::RangeInclusive;

use anyhow::bail;
use drumlin_crd::yaml::nearest;
use drumlin_reconciler::reason_of;
use tonic::Code;

use super::print::print;

const PAGES: [&str; 2] = [
    include_str!("../../../docs/src/conditions.md"),
    include_str!("../../../docs/src/troubleshooting.md"),
];

/// All gRPC codes but OK, by their numbers.
const CODES: RangeInclusive<i32> = 1..=16;

/// Prints each entry about `what`.
///
/// # Errors
/// When there is none.
pub(crate) fn run(what: &str) -> anyhow::Result<()> {
    let found = find(what);
    if found.is_empty() {
        let near = nearest(what, reasons());
        let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
        bail!(
            "no condition, gRPC code or message is known as {what:?}{hint}; known reasons: {}",
            reasons().join(", ")
        );
    }
    print(&format!("{}\n", found.join("\n\n")));
    Ok(())
}

/// The entries about `what`: a heading of that name first, else each whose message and `what` have one in the other.
fn find(what: &str) -> Vec<String> {
    let plain = |text: &str| text.replace('_', "").to_lowercase();
    let code = CODES
        .map(Code::from)
        .find(|code| plain(&format!("{code:?}")) == plain(what))
        .map_or(what, |code| reason_of(code));
    let named = |(heading, _): &(&str, &str)| plain(heading) == plain(code);
    let entries = || PAGES.into_iter().flat_map(entries);
    let mut found: Vec<_> = entries().filter(named).collect();
    if found.is_empty() {
        found = entries()
            .filter(|(heading, _)| speaks_of(heading, what))
            .collect();
    }
    found
        .into_iter()
        .map(|(heading, text)| format!("{heading}\n\n{}", without_links(text.trim())))
        .collect()
}

/// The text of a page without the targets of its links, which nobody follows on a terminal.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, words, behind)) = first_link(rest) {
        plain.push_str(before);
        plain.push_str(words);
        rest = behind;
    }
    plain.push_str(rest);
    plain
}

/// What is before the first link of a text, its words, and what is behind it.
fn first_link(text: &str) -> Option<(&str, &str, &str)> {
    let (head, tail) = text.split_once("](")?;
    let (before, words) = head.rsplit_once('[')?;
    let (_, behind) = tail.split_once(')')?;
    Some((before, words, behind))
}

/// Whether a message is the one of a heading, in which `…` stands for what varies.
fn speaks_of(heading: &str, message: &str) -> bool {
    let mut rest = message;
    let mut parts = heading
        .split('…')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let is_it = parts.all(|part| {
        rest.split_once(part)
            .map(|(_, behind)| rest = behind)
            .is_some()
    });
    is_it && heading.contains(' ') || message.contains(' ') && heading.contains(message)
}

/// The third-level headings of a page, without marks, and what is below each.
fn entries(page: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let sections = page.split("\n### ").skip(1);
    sections.filter_map(|section| {
        let (heading, text) = section.split_once('\n')?;
        let text = text.split("\n## ").next().unwrap_or(text);
        Some((heading.trim_matches('`'), text))
    })
}

fn reasons() -> Vec<&'static str> {
    let [conditions, _] = PAGES;
    entries(conditions)
        .map(|(heading, _)| heading)
        .filter(|heading| !heading.contains(' '))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_a_code_and_a_message_have_their_entry() {
        for (what, heading) in [
            ("MembersPending", "MembersPending"),
            ("memberspending", "MembersPending"),
            ("ABORTED", "OperationPending"),
            ("FailedPrecondition", "FailedPrecondition"),
            (
                "directory /srv/a cannot be read; create it, or mount the file system",
                "directory … cannot be read",
            ),
            (
                "loop devices are missing; load them with `modprobe loop`",
                "loop devices are missing",
            ),
        ] {
            let found = find(what);
            assert!(
                found.iter().any(|entry| entry.starts_with(heading)),
                "{what}: {found:?}"
            );
        }
        assert!(find("NoSuchReason").is_empty());
        assert_eq!(nearest("MountPendng", reasons()), Some("MountPending"));
        assert!(find("a").is_empty());
    }

    #[test]
    fn links_are_their_words() {
        for (text, plain) in [
            ("see [`A`](#a) and [b c](d.md#e).", "see `A` and b c."),
            ("a [b] (c) [d", "a [b] (c) [d"),
        ] {
            assert_eq!(without_links(text), plain);
        }
        for reason in reasons() {
            assert!(!find(reason).concat().contains("]("), "{reason}");
        }
    }

    #[test]
    fn every_code_leads_to_a_reason_that_has_an_entry() {
        for code in CODES.map(Code::from) {
            let found = find(&format!("{code:?}"));
            assert_eq!(found.len(), 1, "{code:?}: {}", reason_of(code));
        }
    }
}
