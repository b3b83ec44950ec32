//! Words that this project used before have a term in their place: `tests/words.txt` lists both.

use drumlin_tests::{
    programs::workspace,
    sources::{files, read},
};

/// A word that is used no more, as a whole word and in whatever case, and what to use.
fn retired() -> Vec<(String, String)> {
    let list = read("tests/words.txt");
    let entries = list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entries = entries.map(|line| line.split_once(" -> ").unwrap_or_else(|| panic!("{line}")));
    entries
        .map(|(word, term)| (word.trim().to_lowercase(), term.trim().to_owned()))
        .collect()
}

/// Whether a line has a word that is not a part of a longer one.
fn has(line: &str, word: &str) -> bool {
    let is_part = |letter: Option<char>| {
        letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
    };
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let behind = line[at + word.len()..].chars().next();
        !is_part(before) && !is_part(behind)
    })
}

#[test]
fn retired_words_are_not_used() {
    let retired = retired();
    let mut found = Vec::new();
    let folders = [
        "agent",
        "crd",
        "proto/src",
        "proto/drumlin",
        "docs/src",
        "manifests",
        "examples",
        "tests/src",
        "tests/tests",
    ];
    let mut texts: Vec<_> = folders
        .iter()
        .flat_map(|folder| [".rs", ".md", ".yaml", ".proto"].map(|ending| files(folder, ending)))
        .flatten()
        .collect();
    texts.push(workspace().join("README.md"));
    // Its own test names some.
    texts.retain(|path| !path.ends_with("docs/words.rs"));
    for path in texts {
        for (number, line) in read(&path).lines().enumerate() {
            let line = line.to_lowercase();
            for (word, term) in &retired {
                if has(&line, word) {
                    found.push(format!(
                        "{}:{}: {word}: use {term}",
                        path.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn whole_words_are_found_and_parts_are_not() {
    assert!(has("a give_back of it", "give_back"));
    assert!(has("lvm.give-back.made", "give-back"));
    assert!(!has("unguardedly", "guarded"));
    assert!(!has("is_undone_again", "is_undone"));
}
