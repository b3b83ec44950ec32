//! Links between documents lead somewhere.

use std::{collections::BTreeSet, path::Path};

use drumlin_tests::{
    programs::workspace,
    sources::{files, read},
};

/// The lines that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            return false;
        }
        !is_code
    })
}

/// The anchor that a heading gets, as the forges and mdBook make it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim().to_lowercase();
    let kept = heading
        .chars()
        .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter_map(|line| {
        let heading = line.trim_start_matches('#');
        (heading.len() < line.len()).then_some(heading)
    });
    headings.map(anchor).collect()
}

/// What the links of a line lead to, but for those that are quoted as code; code may be the text of a link.
fn targets(line: &str) -> Vec<String> {
    let plain: String = line.split('`').step_by(2).collect();
    let behind = plain.split("](").skip(1);
    let targets = behind.filter_map(|rest| rest.split(')').next());
    targets.map(str::to_owned).collect()
}

fn dead(page: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, wanted) = target.split_once('#').unwrap_or((target, ""));
    let file = match path {
        "" => page.to_owned(),
        path => page.parent()?.join(path),
    };
    if !file.exists() {
        return Some(format!(
            "{}: {target}: there is no such file",
            page.display()
        ));
    }
    let book = workspace().join("docs/src").canonicalize().ok()?;
    let leaves = page.starts_with(&book) && !file.canonicalize().ok()?.starts_with(&book);
    if leaves {
        return Some(format!(
            "{}: {target}: leads out of the book",
            page.display()
        ));
    }
    let is_there = wanted.is_empty() || anchors(&read(&file)).contains(wanted);
    (!is_there).then(|| format!("{}: {target}: there is no such heading", page.display()))
}

#[test]
fn every_link_leads_somewhere() {
    let mut pages = files("docs/src", ".md");
    pages.extend(files("tests/conformance", ".md"));
    let others = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "tests/README.md",
    ];
    pages.extend(others.iter().map(|name| workspace().join(name)));
    let mut links = 0;
    let mut lost = Vec::new();
    for page in &pages {
        let text = read(page);
        for target in prose(&text).flat_map(targets) {
            links += 1;
            lost.extend(dead(page, &target));
        }
    }
    assert!(links > 100, "{links} links");
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
fn an_anchor_is_what_the_forges_make_of_a_heading() {
    for (heading, wanted) in [
        (" What is kept", "what-is-kept"),
        (" `directory … cannot be read`", "directory--cannot-be-read"),
        (
            "# 001 An image appears by one rename",
            "001-an-image-appears-by-one-rename",
        ),
    ] {
        assert_eq!(anchor(heading.trim_start_matches('#')), wanted);
    }
}
