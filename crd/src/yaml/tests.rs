//! A row of the table of strictness a test, and the places of errors.

use super::*;
use proptest::prelude::*;
use serde::Deserialize;
use std::{collections::BTreeMap, fmt::Write, time::Instant};

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Thing {
    name: String,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
    #[serde(default)]
    inner: Option<Box<Thing>>,
}

fn read(text: &str) -> Result<Thing, YamlError> {
    from_str(text)
}

/// Line, column and message of what is wrong.
fn wrong(text: &str) -> (usize, usize, String) {
    let YamlError {
        line,
        column,
        message,
    } = read(text).unwrap_err();
    (line, column, message)
}

#[test]
fn an_unknown_field_is_an_error_with_its_path_line_and_column() {
    let (line, column, message) = wrong("name: a\nnmae: b\n");
    assert_eq!((line, column), (2, 1));
    assert!(
        message.starts_with("nmae: unknown field `nmae`, expected one of"),
        "{message}"
    );
    let (line, column, message) = wrong("name: a\ninner: {name: b,\n  nmae: c}\n");
    assert_eq!((line, column), (3, 3));
    assert!(
        message.starts_with("inner.nmae: unknown field"),
        "{message}"
    );
}

#[test]
fn a_missing_field_is_named_with_the_place_of_what_lacks_it() {
    let (line, _, message) = wrong("name: a\ninner:\n  parameters: {}\n");
    assert_eq!((line, message.as_str()), (2, "inner: missing field `name`"));
}

#[test]
fn a_key_that_stands_twice_is_an_error_with_its_line_and_column() {
    for (text, line, column) in [
        ("name: a\nname: b\n", 2, 1),
        ("name: a\nparameters:\n  x: one\n  x: two\n", 4, 3),
        ("name: a\nparameters: {x: one, \"x\": two}\n", 2, 22),
        // Free maps keep the last of two without a word where reading is not strict.
        ("{\"name\": \"a\",\n \"name\": \"b\"}", 2, 2),
    ] {
        let (found, at, message) = wrong(text);
        assert!(message.contains("duplicate key"), "{message}");
        assert_eq!((found, at), (line, column), "{text}");
    }
}

#[test]
fn words_stay_words() {
    for word in [
        "n", "yes", "on", "No", "010", "1_000", "010x", "0b1_", "1.2.3",
    ] {
        assert_eq!(read(&format!("name: {word}\n")).unwrap().name, word);
    }
}

#[test]
fn what_is_no_text_is_refused_where_text_is_wanted() {
    for value in [
        "1", "true", "1.5", "[a]", "{a: b}", "~", "", "0x10", ".inf", "1e3",
    ] {
        let (line, column, message) = wrong(&format!("parameters:\n  a: b\nname: {value}\n"));
        assert_eq!((line, column), (3, 1));
        assert!(message.starts_with("name: invalid type"), "{message}");
        assert_eq!(read(&format!("name: \"{value}\"\n")).unwrap().name, value);
    }
    let (line, column, message) = wrong("name: a\nparameters:\n  stripes: 2\n");
    assert_eq!((line, column), (3, 3));
    assert!(
        message.starts_with("parameters.stripes: invalid type"),
        "{message}"
    );
    assert!(
        wrong("name: a\nparameters: {1: a}\n")
            .2
            .contains("a string as key")
    );
}

#[test]
fn what_kubectl_takes_for_something_else_is_told_with_its_place() {
    let words = |text: &str| {
        let told = parse(text).unwrap().ambiguous.into_iter();
        told.map(|(place, word)| (place.line, place.column, word))
            .collect::<Vec<_>>()
    };
    assert_eq!(words("a: yes\n"), [(1, 4, "yes".to_owned())]);
    assert_eq!(words("# ä ö\nb:\n  - on\n"), [(3, 5, "on".to_owned())]);
    assert_eq!(words("on: x\n"), [(1, 1, "on".to_owned())]);
    for word in [
        "n", "Off", "010", "-0755", "1_000", "0b1_0", "0x_10", "1_0.5", "1_0e3",
    ] {
        assert_eq!(words(&format!("a: {word}\n")).len(), 1, "{word}");
        for fine in [
            format!("a: \"{word}\"\n"),
            format!("'{word}': a\n"),
            format!("a: |-\n  {word}\n"),
        ] {
            assert_eq!(words(&fine), [], "{fine}");
        }
    }
    for word in [
        "data",
        "none",
        "1.2.3",
        "10Gi",
        "0b2",
        "_1",
        "-",
        "2026-01-01",
        "1-2",
        "true",
        "12",
    ] {
        assert_eq!(words(&format!("a: [{word}, x]\n")), [], "{word}");
    }
}

#[test]
fn tabs_are_errors_that_say_so() {
    let (line, _, message) = wrong("name: a\nparameters:\n\tx: y\n");
    assert_eq!(line, 3);
    assert!(message.contains("tab"), "{message}");
}

#[test]
fn a_schedule_without_quotes_is_told_what_it_lacks() {
    let (line, _, message) = wrong("name: * * * * *\n");
    assert_eq!(line, 1);
    assert!(
        message.contains("quote a value that begins with *"),
        "{message}"
    );
}

#[test]
fn a_byte_order_mark_and_line_ends_of_other_systems_are_fine() {
    assert_eq!(
        read("\u{feff}name: a\r\nparameters:\r\n  x: y\r\n")
            .unwrap()
            .parameters["x"],
        "y"
    );
    assert_eq!(wrong("\u{feff}name: a\r\nnmae: b\r\n").0, 2);
}

#[test]
fn tags_are_refused() {
    assert_eq!(wrong("name: !secret a\n").0, 1);
    assert!(wrong("name: a\ninner: !x {name: b}\n").2.contains("tags"));
}

#[test]
fn an_alias_bomb_is_stopped_at_once() {
    let mut deep = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..12 {
        let alias = format!("*a{},", level - 1).repeat(10);
        writeln!(deep, "a{level}: &a{level} [{alias}]").unwrap();
    }
    // Few aliases of much: no count of the aliases alone would stop it.
    let wide = format!(
        "a: &a [{}]\nb: [{}]\n",
        "x,".repeat(100_000),
        "*a,".repeat(100_000)
    );
    let begin = Instant::now();
    for text in [deep, wide] {
        assert!(parse(&text).is_err());
    }
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
    assert!(parse(&format!("{}{}", "[".repeat(10_000), "]".repeat(10_000))).is_err());
    assert_eq!(
        read("name: &n a\ninner: {name: *n}\n")
            .unwrap()
            .inner
            .unwrap()
            .name,
        "a"
    );
}

#[test]
fn the_place_of_a_field_is_found_however_it_is_written() {
    let place = |text: &str, path: &str| {
        let path: Vec<String> = path.split_terminator('.').map(str::to_owned).collect();
        let Location { line, column } = Location::of(text, &path);
        (line, column)
    };
    let block = "# head\nspec:\n  text: |\n    mount:\n      path: 0\n  a:\n    path: 1\n  mount:\n    # why\n    path: 2\nlist:\n- name: x\n  path: 3\n- name: y\n  \"path\": 4\n";
    assert_eq!(place(block, ""), (2, 1));
    assert_eq!(place(block, "spec"), (2, 1));
    assert_eq!(place(block, "spec.mount.path"), (10, 5));
    assert_eq!(place(block, "list.1"), (14, 3));
    assert_eq!(place(block, "list.1.path"), (15, 3));
    assert_eq!(place(block, "spec.nothing"), (2, 1));
    assert_eq!(place(block, "list.7.name"), (11, 1));
    let flow = "{\"spec\": {\n  \"mount\": {\"a\": [1,\n  2], \"path\": 2}}}";
    assert_eq!(place(flow, "spec.mount.path"), (3, 7));
    assert_eq!(place(flow, "spec.mount.a.1"), (3, 3));
    assert_eq!(place("a: [b", "a"), (1, 1));
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[-a:{}\\[\\]&*!|>'\"%@#, \t\n0]{0,40}|.{0,40}") {
        let _ = read(&text);
        let _ = Location::of(&text, &["a".to_owned(), "0".to_owned()]);
    }
}
