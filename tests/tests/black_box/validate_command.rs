//! `drumlin validate`: what it finds, for people and for programs.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
};

use drumlin_tests::{
    agent::{eventually, write},
    programs::{drumlin, program},
    storage::Scratch,
};
use serde_json::{Value, json};

use crate::{
    describe_and_events::documented_keys,
    helpers::text,
    host::{Host, small},
};

/// What it prints, and its exit code.
fn validated(words: &[&str]) -> (String, Option<i32>) {
    let output = program(drumlin())
        .arg("validate")
        .args(words)
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    (
        String::from_utf8(output.stdout).unwrap(),
        output.status.code(),
    )
}

#[test]
fn programs_get_all_problems_with_their_places() {
    let scratch = Scratch::new();
    let (full, empty) = (scratch.directory("full"), scratch.directory("empty"));
    let wrong = small("wrong").replace("16Mi", "16XB");
    write(
        &full.join("a.yaml"),
        &[small("data"), small("log")].join("---\n"),
    );
    write(&full.join("b.yaml"), &small("data"));
    write(&full.join("c.yaml"), &wrong);
    fs::write(full.join("d.yaml"), b"\xff\xfe").unwrap();
    let (full, empty) = (text(full), text(empty));
    let (printed, code) = validated(&[&full, &empty, "-o", "json"]);
    let json: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(code, Some(4));
    assert_eq!(
        documented_keys(&json),
        [
            "files",
            "ignoredDocuments",
            "ignoredFiles",
            "objects",
            "problems",
            "warnings"
        ]
    );
    assert_eq!((&json["files"], &json["objects"]), (&json!(4), &json!(3)));
    let problems = json["problems"].as_array().unwrap();
    let found: Vec<(String, [u64; 2])> = problems
        .iter()
        .map(|problem| {
            let file = problem["file"].as_str().unwrap().to_owned();
            (
                file,
                ["line", "column"].map(|at| problem[at].as_u64().unwrap()),
            )
        })
        .collect();
    let line = wrong
        .lines()
        .position(|line| line.contains("16XB"))
        .unwrap();
    let line = u64::try_from(line).unwrap() + 1;
    assert_eq!(
        found,
        [
            (format!("{full}/b.yaml"), [1, 1]),
            (format!("{full}/c.yaml"), [line, 3]),
            (format!("{full}/d.yaml"), [1, 1]),
            // Of the whole directory.
            (empty.clone(), [0, 0]),
        ]
    );
    let data = json!({"kind": "Volume", "namespace": "default", "name": "data"});
    assert_eq!(problems[0]["object"], data);
    assert_eq!(
        problems[0]["message"],
        format!("duplicate object Volume/default/data, first defined at {full}/a.yaml:1")
    );
    for problem in problems {
        documented_keys(problem);
    }

    let (printed, code) = validated(&[&full, &empty, "-o", "yaml"]);
    let yaml: Value = serde_yaml::from_str(&printed).unwrap();
    assert_eq!((yaml, code), (json, Some(4)));
    let (people, code) = validated(&[&full, &empty]);
    assert_eq!(code, Some(4));
    for (file, [line, column]) in &found[..3] {
        let place = format!("{file}:{line}:{column}: ");
        assert!(people.contains(&place), "{place}: {people}");
    }
    assert!(people.contains("  capacity: 16XB\n"), "the line: {people}");
    assert!(
        people.contains(&format!("{empty}: contains no manifests")),
        "{people}"
    );
}

#[test]
fn programs_get_the_numbers_of_what_is_valid() {
    let scratch = Scratch::new();
    let file = scratch.path().join("a.yaml");
    write(&file, &small("data"));
    let file = text(file);
    let (printed, code) = validated(&[&file, "-o", "json"]);
    let json: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        json,
        json!({"files": 1, "objects": 1, "problems": [], "warnings": [], "ignoredFiles": [], "ignoredDocuments": 0})
    );
    assert_eq!(code, Some(0));
    let people = validated(&[&file]);
    assert_eq!(people, ("1 file, 1 object: valid\n".to_owned(), Some(0)));
}

#[test]
fn a_misspelt_annotation_is_shown_where_it_stands() {
    let scratch = Scratch::new();
    let file = scratch.path().join("a.yaml");
    let annotations =
        "metadata:\n  annotations:\n    drumlin.dev/pause: \"true\"\n    drumlin.dev/state: gone\n";
    write(&file, &small("data").replace("metadata:\n", annotations));
    let file = text(file);
    let (people, code) = validated(&[&file]);
    assert_eq!(code, Some(4));
    for part in [
        format!("{file}:5:5: "),
        "; did you mean drumlin.dev/paused?".to_owned(),
        "  5 |     drumlin.dev/pause: \"true\"\n    |     ^^^^^^^^^^^^^^^^^\n".to_owned(),
        format!("{file}:6:5: "),
        "\"gone\" is not allowed; use \"absent\"".to_owned(),
        "  6 |     drumlin.dev/state: gone\n    |     ^^^^^^^^^^^^^^^^^".to_owned(),
    ] {
        assert!(people.contains(&part), "{part}: {people}");
    }
}

#[test]
fn files_of_a_directory_that_are_ignored_are_named() {
    let scratch = Scratch::new();
    let directory = scratch.directory("manifests");
    for name in ["a.yaml", "b.YAML", "c d.yaml", "e.yml.txt", ".f.yaml.swp"] {
        write(&directory.join(name), &small("data"));
    }
    write(
        &scratch.directory("manifests/sub").join("g.yaml"),
        &small("g"),
    );
    let directory = text(directory);
    let ignored = ["b.YAML", "c d.yaml", "e.yml.txt", "sub/"];
    let ignored = ignored.map(|name| format!("{directory}/{name}"));
    let (people, code) = validated(&[&directory]);
    let named: Vec<&str> = people
        .lines()
        .filter_map(|line| line.strip_prefix("IGNORED "))
        .collect();
    assert_eq!((named.len(), code), (4, Some(0)), "{people}");
    for (line, name) in named.iter().zip(&ignored) {
        assert!(line.starts_with(name), "{line}");
    }
    let (printed, _) = validated(&[&directory, "-o", "json"]);
    let json: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(json["ignoredFiles"], json!(ignored));
}

#[test]
fn a_mistyped_group_is_wrong_and_documents_of_other_groups_are_counted() {
    let scratch = Scratch::new();
    let path = scratch.path().join("a.yaml");
    let file = text(path.clone());
    let of = |version: &str| small("data").replace("drumlin.dev/v1alpha1", version);
    for version in [
        "drumlim.dev/v1alpha1",
        "Drumlin.dev/v1alpha1",
        "drumlin.io/v1",
        "drumlin/v1alpha1",
        "drumlni.dev",
    ] {
        write(&path, &[of(version), small("log")].join("---\n"));
        let (people, code) = validated(&[&file]);
        assert!(
            people.starts_with(&format!("{file}:1:1: apiVersion: \"{version}\" is unknown"))
                && people.contains("did you mean drumlin.dev/v1alpha1?"),
            "{people}"
        );
        assert_eq!(code, Some(4), "{version}");
    }
    let others = [
        of("longhorn.io/v1beta2"),
        of("v1"),
        of("drumlim.dev/v1").replace("kind: Volume", "kind: Pod"),
        small("data"),
    ];
    write(&path, &others.join("---\n"));
    let (people, code) = validated(&[&file]);
    assert!(
        people.contains("IGNORED documents of other API groups: 3\n"),
        "{people}"
    );
    assert_eq!(code, Some(0));
    let (printed, _) = validated(&[&file, "-o", "json"]);
    let json: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        (&json["objects"], &json["ignoredDocuments"]),
        (&json!(1), &json!(3))
    );
}

/// Gives a file or directory this owner and mode.
fn own(path: &Path, user: u32, mode: u32) {
    chown(path, Some(user), None).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn what_the_reconciler_refuses_for_its_owner_or_mode_is_invalid_where_it_follows() {
    let host = Host::start().await;
    host.write("a.yaml", &[small("a")]);
    host.until("a", &["True"]).await;
    let file = host.manifests.join("a.yaml");
    let state = format!("--state-dir={}", text(host.agent.path("state")));
    let (file_name, directory) = (text(file.clone()), text(host.manifests.clone()));
    let valid = ("1 file, 1 object: valid\n".to_owned(), Some(0));
    for path in [&file_name, &directory] {
        assert_eq!(validated(&[path, &state]), valid);
    }
    let owned = "InsecurePermissions: owned by user 65534; change the owner to root";
    let writable = "InsecurePermissions: writable by its group or others (mode 664)";
    for (user, mode, why) in [(65534, 0o644, owned), (0, 0o664, writable)] {
        own(&file, user, mode);
        for path in [&file_name, &directory] {
            let (said, code) = validated(&[path, &state]);
            assert!(said.contains(&format!("{file_name}:1:1: {why}")), "{said}");
            assert_eq!(code, Some(4), "{said}");
        }
        // The same words.
        eventually(|| host.agent.status().0, |status| status.contains(why)).await;
    }
    own(&file, 65534, 0o644);
    let trusted = "--manifest-owner=65534";
    assert_eq!(validated(&[&directory, &state, trusted]), valid);
    own(&file, 0, 0o644);
    own(&host.manifests, 0, 0o775);
    let (said, code) = validated(&[&directory, &state]);
    let why = "InsecurePermissions: writable by its group or others (mode 775)";
    assert!(said.starts_with(&format!("{directory}: {why}")), "{said}");
    assert_eq!(code, Some(4));
    own(&host.manifests, 0, 0o755);
}

#[test]
fn elsewhere_owner_and_mode_are_a_warning() {
    let scratch = Scratch::new();
    let checkout = scratch.directory("checkout");
    for name in ["a", "b", "c"] {
        let path = checkout.join(format!("{name}.yaml"));
        write(&path, &small(name));
        own(&path, 0, 0o664);
    }
    let other = checkout.join("d.yaml");
    write(&other, &small("d"));
    own(&other, 65534, 0o644);
    let checkout = text(checkout);
    let (said, code) = validated(&[&checkout]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines.len(), code), (3, Some(0)), "{said}");
    assert_eq!(lines[0], "4 files, 4 objects: valid");
    let many = format!(
        "WARNING {checkout}/a.yaml and 2 other files: InsecurePermissions: writable by its group"
    );
    let one = format!("WARNING {checkout}/d.yaml: InsecurePermissions: owned by user 65534");
    assert!(lines[1].starts_with(&many), "{said}");
    assert!(lines[2].starts_with(&one), "{said}");
    let (printed, code) = validated(&[&checkout, "-o", "json"]);
    let json: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(json["warnings"].as_array().unwrap().len(), 4, "{json}");
    assert_eq!((&json["problems"], code), (&json!([]), Some(0)));
    // What no reconciler reads anywhere.
    let large = scratch.path().join("large.yaml");
    write(&large, &"#".repeat((1 << 20) + 1));
    let (said, code) = validated(&[&text(large)]);
    assert!(said.contains("more than the maximum of 1048576"), "{said}");
    assert_eq!(code, Some(4));
}
