//! The conformance table says what is so: its tests exist, its totals are those of the page on compatibility.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{collections::BTreeSet, fs};

use drumlin_tests::{
    conformance::{Totals, sources, texts},
    programs::workspace,
};

fn file(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap()
}

#[test]
fn every_statement_has_a_test_that_exists_or_a_reason() {
    let mut mistakes = BTreeSet::new();
    for text in texts() {
        for statement in &text.statements {
            if let Some(mistake) = statement.mistake() {
                let (place, says) = (statement.place(), &statement.says);
                mistakes.insert(format!("{}, {place}: {says}: {mistake}", text.text));
            }
            mistakes.extend(
                statement
                    .named()
                    .filter_map(|name| sources::find(name).err()),
            );
        }
    }
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

#[test]
fn what_is_shown_everywhere_is_in_the_tests_over_logical_volumes() {
    let lvm = file("tests/tests/lvm/main.rs");
    for text in texts() {
        for name in text.statements.iter().flat_map(|one| &one.everywhere) {
            let module = name.split("::").nth(1).unwrap();
            let included = format!("#[path = \"../black_box/{module}.rs\"]");
            assert!(
                name.starts_with("black_box::") && lvm.contains(&included),
                "{name}"
            );
        }
    }
}

#[test]
fn what_is_shown_everywhere_applies_everywhere() {
    let mut idle = BTreeSet::new();
    for text in texts() {
        for name in text.statements.iter().flat_map(|one| &one.everywhere) {
            if sources::may_not_apply(name).unwrap() {
                idle.insert(name.clone());
            }
        }
    }
    assert!(idle.is_empty(), "{idle:#?}");
}

/// A test that returns before its end would count as passed where it did nothing.
#[test]
fn a_test_that_has_nothing_to_do_says_so() {
    for directory in [
        "black_box",
        "lvm",
        "power",
        "systemd",
        "sanity",
        "kubernetes",
    ] {
        let directory = workspace().join("tests/tests").join(directory);
        for file in fs::read_dir(directory).unwrap() {
            let path = file.unwrap().path();
            let Ok(source) = fs::read_to_string(&path) else {
                continue;
            };
            let tests = source.split("#[tokio::test").chain(source.split("#[test]"));
            for test in tests.skip(1) {
                let body = test.split("\n}\n").next().unwrap_or_default();
                let begin: Vec<&str> = body.lines().skip(1).take(8).map(str::trim).collect();
                assert!(
                    !begin.contains(&"return;"),
                    "{}: {begin:#?}",
                    path.display()
                );
            }
        }
    }
}

/// The parts of names that `tests/run` leaves out by this list.
fn left_out(run: &str, list: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for begin in [format!("\n{list}=("), format!("\n{list}+=(")] {
        for rest in run.split(&begin).skip(1) {
            let mut words = rest.split(')').next().unwrap().split_whitespace();
            while words.any(|word| word == "--skip") {
                parts.push(words.next().unwrap().to_owned());
            }
        }
    }
    assert!(!parts.is_empty(), "tests/run has no list {list}");
    parts
}

#[test]
fn what_is_shown_everywhere_is_not_left_out_over_linear_volumes() {
    let parts = left_out(&file("tests/run"), "same");
    for text in texts() {
        for name in text.statements.iter().flat_map(|one| &one.everywhere) {
            for part in &parts {
                assert!(!name.contains(part), "tests/run leaves out {name}");
            }
        }
    }
}

/// A run of everything notices it too, at its end.
#[test]
fn what_the_table_names_is_not_left_out_on_each_change() {
    let run = file("tests/run");
    let mut left = Vec::new();
    for (binary, lists) in [
        ("lvm", &["seldom", "above", "sanity"][..]),
        ("sanity", &["sanity_of_images"]),
        ("systemd", &["services"]),
    ] {
        let parts = lists.iter().flat_map(|list| left_out(&run, list));
        left.extend(parts.map(|part| (binary, part)));
    }
    let mut mistakes = BTreeSet::new();
    for name in texts()
        .iter()
        .flat_map(|text| &text.statements)
        .flat_map(|one| &one.tests)
    {
        let (binary, test) = name.split_once("::").unwrap();
        let by = left
            .iter()
            .find(|(of, part)| *of == binary && test.contains(part));
        mistakes.extend(by.map(|(_, part)| format!("{name}, by --skip {part}")));
    }
    assert!(mistakes.is_empty(), "tests/run leaves out {mistakes:#?}");
}

#[test]
fn the_page_on_compatibility_has_the_totals() {
    let page = file("docs/src/compatibility.md");
    assert!(page.contains(Totals::HEAD));
    for text in texts() {
        let line = Totals::of(&text).to_string();
        assert!(page.contains(&line), "it lacks {line}");
    }
}

#[test]
fn every_call_that_is_served_has_its_codes_written_down() {
    let codes = file("tests/conformance/CODES.md");
    for (package, proto) in [
        ("csi", "proto/csi/csi.proto"),
        ("csi.v0", "proto/csi/v0/csi.proto"),
        ("csi.v1", "proto/csi/v1/csi.proto"),
        ("volumegroup", "proto/volumegroup/volumegroup.proto"),
        ("identity", "proto/identity/identity.proto"),
        ("reclaimspace", "proto/reclaimspace/reclaimspace.proto"),
        ("drumlin.v1", "proto/drumlin/v1/drumlin.proto"),
    ] {
        let heading = format!("\n## `{package}`");
        let (_, section) = codes
            .split_once(&heading)
            .unwrap_or_else(|| panic!("{heading}"));
        let section = section.split("\n## ").next().unwrap();
        let proto = file(proto);
        let calls = proto
            .lines()
            .filter_map(|line| line.trim().strip_prefix("rpc "));
        for call in calls {
            let call = call.split(['(', ' ']).next().unwrap();
            assert!(section.contains(&format!("`{call}`")), "{package}: {call}");
        }
    }
}

#[test]
fn the_documents_have_what_the_specifications_want_documented() {
    for (what, page, part) in [
        (
            "which secrets are wanted",
            "compatibility",
            "No call needs a secret",
        ),
        (
            "what Probe looks at",
            "compatibility",
            "Probe looks at every class",
        ),
        (
            "which topologies there are",
            "compatibility",
            "Topologies have one key",
        ),
        (
            "capabilities beyond CAP_SYS_ADMIN",
            "compatibility",
            "CAP_SYS_RESOURCE",
        ),
        ("what it sees of the host", "lvm", "/run/lock/lvm"),
        ("how much memory it takes", "performance", "resident memory"),
    ] {
        let text = file(&format!("docs/src/{page}.md"));
        assert!(text.contains(part), "{page}: {what}: {part}");
    }
}

#[test]
fn every_variable_of_the_container_image_has_a_value() {
    let recipe = file("Dockerfile");
    let (_, image) = recipe.rsplit_once("\nFROM ").unwrap();
    assert!(image.contains("\nENTRYPOINT [\"drumlin\"]"), "{image}");
    let variables = image
        .lines()
        .filter_map(|line| line.strip_prefix("ENV "))
        .flat_map(str::split_whitespace);
    for variable in variables {
        let value = variable.split_once('=').map(|(_, value)| value);
        assert!(value.is_some_and(|value| !value.is_empty()), "{variable}");
    }
    // A container that gets no variable has its arguments and the defaults of the agent.
    let argument = image.lines().find(|line| line.starts_with("ARG "));
    assert_eq!(argument, None, "the last stage of the image takes it");
}
