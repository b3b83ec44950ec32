//! Files and crates that the documents name are there, and depend on each other as they say.

use std::{collections::BTreeMap, fs};

use drumlin_tests::{
    programs::workspace,
    sources::{files, read},
};

/// Folders whose files the documents name.
const FOLDERS: [&str; 7] = [
    "agent",
    "crd",
    "docs",
    "examples",
    "manifests",
    "proto",
    "tests",
];

/// What a line has in backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Whether a word names a file or folder of the sources: not of a host, and not a pattern.
fn is_source(word: &str) -> bool {
    let is_plain = word
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || "_-./".contains(letter));
    let is_file = [".rs", ".proto", ".toml"]
        .iter()
        .any(|ending| word.ends_with(ending));
    let is_folder = FOLDERS
        .iter()
        .any(|folder| word.starts_with(&format!("{folder}/")));
    is_plain && !word.starts_with(['/', '.']) && word.contains('/') && (is_file || is_folder)
}

#[test]
fn every_source_that_the_documents_name_is_there() {
    let home = workspace();
    let all: Vec<String> = FOLDERS
        .iter()
        .flat_map(|folder| files(folder, ""))
        .map(|path| format!("/{}", path.strip_prefix(&home).unwrap().display()))
        .collect();
    let mut named = 0;
    let mut lost = Vec::new();
    for page in files("docs/src", ".md") {
        let text = read(&page);
        for word in text.lines().flat_map(quoted).filter(|word| is_source(word)) {
            named += 1;
            let wanted = format!("/{}", word.trim_end_matches('/'));
            let is_there = all
                .iter()
                .any(|path| path.ends_with(&wanted) || path.contains(&format!("{wanted}/")));
            if !is_there {
                lost.push(format!("{}: {word}", page.display()));
            }
        }
    }
    assert!(named > 100, "{named}");
    assert!(lost.is_empty(), "{lost:#?}");
}

/// The items that stand in parentheses, or behind a colon, after a source file: the file, as it is written, and the item.
fn items_beside_sources(line: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let words: Vec<&str> = line.split('`').collect();
    let mut file = None;
    for (at, word) in words.iter().enumerate() {
        if at % 2 == 1 {
            if word.split('.').next_back() == Some("rs") {
                file = Some(*word).filter(|path| !path.contains(['<', '*', '…']));
            } else if let Some(file) = file
                && word
                    .chars()
                    .all(|letter| letter.is_alphanumeric() || "_:".contains(letter))
            {
                found.push((file, word.rsplit("::").next().unwrap_or(word)));
            }
        } else if !(word.starts_with(" (")
            || word.starts_with(", then")
            || [", ", ": "].contains(word))
        {
            // What follows is not in the parentheses behind the file.
            file = None;
        }
    }
    found
}

/// Whether a source declares something of this name.
fn declares(source: &str, name: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    [
        "fn ", "struct ", "enum ", "trait ", "const ", "static ", "type ", "mod ",
    ]
    .iter()
    .any(|word| {
        let wanted = format!("{word}{name}");
        let mut places = source.match_indices(&wanted);
        places.any(|(at, _)| !source[at + wanted.len()..].starts_with(is_part))
    })
}

#[test]
fn what_the_documents_name_beside_a_source_is_in_it() {
    let home = workspace();
    let folders = ["agent", "crd", "proto", "tests"];
    let sources: Vec<_> = folders
        .iter()
        .flat_map(|folder| files(folder, ".rs"))
        .collect();
    let mut named = 0;
    let mut lost = Vec::new();
    for page in ["architecture", "contributing", "interruptions"] {
        let text = read(format!("docs/src/{page}.md"));
        for (file, item) in text.lines().flat_map(items_beside_sources) {
            named += 1;
            let wanted = format!("/{file}");
            let mut places = sources.iter().filter(|path| {
                let path = format!("/{}", path.strip_prefix(&home).unwrap().display());
                path.ends_with(&wanted)
            });
            if !places.any(|path| declares(&read(path), item)) {
                lost.push(format!("{page}: {file}: {item}"));
            }
        }
    }
    assert!(named >= 25, "{named}");
    assert!(lost.is_empty(), "{lost:#?}");
}

/// The crates of the workspace, each with those of ours that it is built on.
fn crates() -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for folder in [
        "proto",
        "crd",
        "agent",
        "agent/host",
        "agent/lvm",
        "agent/core",
        "agent/reconciler",
        "agent/cluster",
        "tests",
    ] {
        let manifest = read(format!("{folder}/Cargo.toml"));
        let name = manifest
            .lines()
            .find_map(|line| line.strip_prefix("name = "));
        let name = name.unwrap().trim_matches('"').to_owned();
        let section = manifest
            .split("\n[dependencies]\n")
            .nth(1)
            .unwrap_or_default();
        let section = section.split("\n[").next().unwrap_or_default();
        let ours = section.lines().filter(|line| line.starts_with("drumlin-"));
        let mut ours: Vec<String> = ours
            .filter_map(|line| line.split(['.', ' ']).next().map(str::to_owned))
            .collect();
        ours.sort();
        found.insert(name, ours);
    }
    found
}

/// The picture of the crates: who is built on whom.
fn picture() -> String {
    let lines = crates().into_iter().map(|(name, ours)| {
        let ours = if ours.is_empty() {
            "nothing of ours".to_owned()
        } else {
            ours.join(", ")
        };
        format!("{name:<18} -> {ours}\n")
    });
    lines.collect()
}

/// `DRUMLIN_UPDATE=1` draws it anew.
#[test]
fn the_picture_of_the_crates_is_drawn_from_their_manifests() {
    const BEGIN: &str = "<!-- drawn by a test from the manifests of the crates -->\n```text\n";
    let path = workspace().join("docs/src/architecture.md");
    let page = read(&path);
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (drawn, after) = rest.split_once("```\n").unwrap();
    let picture = picture();
    if std::env::var_os("DRUMLIN_UPDATE").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{picture}```\n{after}")).unwrap();
    } else {
        assert_eq!(
            drawn, picture,
            "run DRUMLIN_UPDATE=1 cargo test -p drumlin-tests --test docs"
        );
    }
}

#[test]
fn crates_depend_on_each_other_in_one_direction() {
    let crates = crates();
    let is_on = |one: &str, other: &str| crates[one].iter().any(|name| name == other);
    for (one, other) in [
        ("drumlin-reconciler", "drumlin-core"),
        ("drumlin-core", "drumlin-proto"),
        ("drumlin-core", "drumlin-crd"),
        ("drumlin-lvm", "drumlin-core"),
        ("drumlin-lvm", "drumlin-proto"),
        ("drumlin-cluster", "drumlin-core"),
        ("drumlin-reconciler", "drumlin-cluster"),
    ] {
        assert!(!is_on(one, other), "{one} must not be built on {other}");
    }
    assert!(is_on("drumlin-core", "drumlin-lvm"));
    assert_eq!(crates["drumlin-lvm"], ["drumlin-host"]);
    assert_eq!(crates["drumlin-host"], [""; 0]);
}
