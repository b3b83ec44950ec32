//! Whether a test that is named `binary::module::function` is in the sources.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::programs::workspace;

/// Where the sources of the binaries are that tests are in.
const ROOTS: [(&str, &str); 12] = [
    ("black_box", "tests/tests/black_box"),
    ("conformance", "tests/tests/conformance"),
    ("debug", "proto/tests/debug.rs"),
    ("drumlin", "agent/src"),
    ("drumlin_core", "agent/core/src"),
    ("drumlin_host", "agent/host/src"),
    ("drumlin_lvm", "agent/lvm/src"),
    ("kubernetes", "tests/tests/kubernetes"),
    ("lvm", "tests/tests/lvm"),
    ("power", "tests/tests/power"),
    ("sanity", "tests/tests/sanity"),
    ("wire", "proto/tests/wire.rs"),
];

/// What keeps a named test from being found.
///
/// # Errors
/// Says what is missing.
pub fn find(name: &str) -> Result<(), String> {
    let (source, path, function) = source_of(name)?;
    if is_test(&source, function) {
        return Ok(());
    }
    Err(format!("{name}: {} has no such test", path.display()))
}

/// Whether a named test may say that it does not apply where it runs.
///
/// # Errors
/// Says what keeps the test from being found.
pub fn may_not_apply(name: &str) -> Result<bool, String> {
    let (source, _, function) = source_of(name)?;
    Ok(body_of(&source, function).is_some_and(|body| body.contains("does_not_apply!")))
}

/// What is within a function that begins at the margin.
fn body_of<'a>(source: &'a str, function: &str) -> Option<&'a str> {
    let (_, rest) = source.split_once(&format!("fn {function}("))?;
    rest.split("\n}\n").next()
}

/// The source that a named test is in, its path, and the name of the function.
fn source_of(name: &str) -> Result<(String, PathBuf, &str), String> {
    let words: Vec<&str> = name.split("::").collect();
    let [binary, modules @ .., function] = words.as_slice() else {
        return Err(format!("{name} is not binary::module::function"));
    };
    let root = ROOTS.iter().find(|(root, _)| root == binary);
    let (_, root) = root.ok_or_else(|| format!("{name}: no tests are in {binary}"))?;
    let (path, inner) = file(&workspace().join(root), modules)
        .ok_or_else(|| format!("{name}: its module has no file"))?;
    let source = fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
    let lost = inner
        .iter()
        .find(|module| !source.contains(&format!("mod {module}")));
    if let Some(module) = lost {
        return Err(format!("{name}: {} has no module {module}", path.display()));
    }
    Ok((source, path, function))
}

/// The file of a module, and the modules within that.
fn file<'a>(root: &Path, modules: &'a [&'a str]) -> Option<(PathBuf, &'a [&'a str])> {
    if root.is_file() {
        return Some((root.to_owned(), modules));
    }
    (0..=modules.len()).rev().find_map(|taken| {
        let (outer, inner) = modules.split_at(taken);
        let path = outer
            .iter()
            .fold(root.to_owned(), |path, module| path.join(module));
        let mut files = vec![
            path.with_extension("rs"),
            path.join("mod.rs"),
            path.join("main.rs"),
        ];
        // What runs over LVM as well is included from there.
        if let Ok(shared) = path.strip_prefix(workspace().join("tests/tests/lvm")) {
            let shared = workspace().join("tests/tests/black_box").join(shared);
            files.push(shared.with_extension("rs"));
        }
        let found = files.into_iter().find(|path| path.is_file());
        found.map(|path| (path, inner))
    })
}

/// Whether a source has a test of this name: with the attribute, or as a line of a table of tests.
fn is_test(source: &str, function: &str) -> bool {
    let is_macro = source.contains("macro_rules!");
    let heads = [format!("fn {function}("), format!("async fn {function}(")];
    let rows = [format!("{function}: "), format!("{function},")];
    let mut has_attribute = false;
    for line in source.lines().map(str::trim_start) {
        if has_attribute && heads.iter().any(|head| line.starts_with(head)) {
            return true;
        }
        if is_macro && rows.iter().any(|row| line.starts_with(row)) {
            return true;
        }
        has_attribute = line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_within_a_test_ends_with_it() {
        let source = "fn one() {\n    two();\n}\n\nfn two() {\n    three();\n}\n";
        assert_eq!(body_of(source, "one"), Some(") {\n    two();"));
        assert_eq!(body_of(source, "two"), Some(") {\n    three();"));
        assert_eq!(body_of(source, "three"), None);
    }

    #[test]
    fn a_test_is_told_from_a_function_and_from_nothing() {
        let source = "#[tokio::test]\nasync fn one() {\n}\nfn two() {}\n";
        assert!(is_test(source, "one"));
        assert!(!is_test(source, "two") && !is_test(source, "on"));
        let table = "macro_rules! t {}\nt! {\n    three: 3;\n}\nt!(\n    four,\n);\n";
        assert!(is_test(table, "three") && is_test(table, "four") && !is_test(table, "five"));
    }
}
