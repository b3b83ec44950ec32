//! No function is longer than can be read at once, none takes a `bool`, which says nothing where it is called, and `mod.rs`
//! has none.

use std::path::PathBuf;

use drumlin_tests::{
    programs::workspace,
    sources::{files, read},
};

const LONGEST: usize = 80;

/// The name of the function that begins in this line.
fn begun(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    let qualifiers = [
        "pub ",
        "pub(crate) ",
        "pub(super) ",
        "const ",
        "async ",
        "unsafe ",
        "extern \"C\" ",
    ];
    while let Some(behind) = qualifiers.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = behind;
    }
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let name = rest.strip_prefix("fn ")?;
    name.split(|letter| !is_name(letter)).next()
}

/// The functions of a formatted source, with their lines from `fn` to the closing brace, which rustfmt puts below the
/// first letter of the first line. A function without a body has none.
fn lengths(source: &str) -> Vec<(&str, usize)> {
    let lines: Vec<_> = source.lines().collect();
    let functions = lines.iter().enumerate().filter_map(|(at, line)| {
        let name = begun(line)?;
        let margin = line.len() - line.trim_start().len();
        let mut outermost = lines[at..].iter().enumerate().filter(|(_, line)| {
            let is_indented = line.len() - line.trim_start().len() > margin;
            !is_indented && line.ends_with(['}', ';'])
        });
        let (before, last) = outermost.next()?;
        last.ends_with('}').then_some((name, before + 1))
    });
    functions.collect()
}

#[test]
fn no_function_is_longer_than_can_be_read_at_once() {
    let folders = [
        "agent",
        "crd",
        "proto",
        "tests/fuzz/fuzz_targets",
        "tests/fuzz/targets",
        "tests/protocol",
        "tests/src",
        "tests/tests",
    ];
    let mut count = 0;
    let mut found = Vec::new();
    for path in folders.iter().flat_map(|folder| files(folder, ".rs")) {
        let source = read(&path);
        let lengths = lengths(&source);
        count += lengths.len();
        let path = path.strip_prefix(workspace()).unwrap().display();
        let too_long = lengths.iter().filter(|(_, lines)| *lines > LONGEST);
        found.extend(too_long.map(|(name, lines)| format!("{path}: {name} has {lines} lines")));
    }
    assert!(count > 1000, "{count} functions");
    assert!(found.is_empty(), "{found:#?}");
}

/// The functions of a formatted source with a parameter that is a `bool`.
fn with_bool(source: &str) -> Vec<&str> {
    let lines: Vec<_> = source.lines().collect();
    let functions = lines.iter().enumerate().filter_map(|(at, line)| {
        let name = begun(line)?;
        let is_last = |line: &&str| line.ends_with(['{', ';', '}']);
        let count = lines[at..].iter().position(is_last)? + 1;
        let head = lines[at..at + count].concat();
        let parameters = head.split("->").next()?;
        parameters.contains(": bool").then_some(name)
    });
    functions.collect()
}

#[test]
fn no_function_takes_a_bool() {
    /// These are given what they assert, or what a wire or a parser has as a `bool`.
    const MAY: [&str; 5] = ["access", "request", "that", "unless_changed", "visit_bool"];
    let mut found = Vec::new();
    for path in ["agent", "crd"]
        .iter()
        .flat_map(|folder| files(folder, ".rs"))
    {
        let source = read(&path);
        let named = with_bool(&source)
            .into_iter()
            .filter(|name| !MAY.contains(name));
        found.extend(named.map(|name| format!("{}: {name}", path.display())));
    }
    assert!(found.is_empty(), "an enum says what is meant: {found:#?}");
    let source = "fn short(one: u8, is: bool) {}\nfn long(\n    is: bool,\n) -> u8 {\n}\nfn gives() -> bool {\n}\n";
    assert_eq!(with_bool(source), ["short", "long"]);
}

#[test]
fn a_function_ends_at_its_closing_brace() {
    let source = "\
fn short() {}
trait Named {
    fn name(
        &self,
    ) -> String;
    async fn inner(&self) {
        let text = \"{\";

    }
}
pub(crate) const unsafe fn outer<T>()
where
    T: Copy,
{
    if true {
    }
}
";
    assert_eq!(lengths(source), [("short", 1), ("inner", 4), ("outer", 7)]);
}

#[test]
fn what_declares_modules_has_no_logic() {
    let folders = ["agent", "crd", "proto"];
    let files = folders.iter().flat_map(|folder| files(folder, ".rs"));
    let declarations: Vec<_> = files.filter(|path| path.ends_with("mod.rs")).collect();
    assert!(declarations.len() > 20, "{declarations:?}");
    let has_logic = |path: &&PathBuf| read(path).lines().any(|line| begun(line).is_some());
    let wrong: Vec<_> = declarations.iter().filter(has_logic).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
