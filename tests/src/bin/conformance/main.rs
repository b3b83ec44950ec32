//! The conformance table: what the specifications ask for, what is tested, what is not met and why.
//!
//!   conformance table      prints it, as Markdown
//!   conformance ran LOG…   reads what tests/run printed, and fails when a test that the table names did not pass
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is a program for a terminal"
)]

use std::{env, fs, process::ExitCode};

use drumlin_tests::conformance::{Ran, Text, Totals, texts, unmet};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.as_slice() {
        [word] if word == "table" => table(&texts()),
        [word, logs @ ..] if word == "ran" && !logs.is_empty() => return ran(&texts(), logs),
        _ => {
            eprintln!("conformance table | conformance ran LOG…");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn table(texts: &[Text]) {
    println!("{}", Totals::HEAD);
    for text in texts {
        println!("{}", Totals::of(text));
    }
    for text in texts {
        let lines = unmet(text);
        if !lines.is_empty() {
            println!("\n{}, not met:\n\n{}", text.text, lines.join("\n"));
        }
    }
}

/// Looks for every test of the table in what the runner printed.
fn ran(texts: &[Text], logs: &[String]) -> ExitCode {
    let mut output = String::new();
    for log in logs {
        match fs::read(log) {
            Ok(bytes) => output.push_str(&String::from_utf8_lossy(&bytes)),
            Err(error) => {
                eprintln!("{log}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let ran = Ran::read(&output);
    let statements = || texts.iter().flat_map(|text| &text.statements);
    let mut missing = Vec::new();
    for name in statements().flat_map(|one| &one.tests) {
        if !ran.has(name) {
            missing.push(name.clone());
        }
    }
    for name in statements().flat_map(|one| &one.everywhere) {
        for over in ran.lacks(name) {
            missing.push(format!("{name} over {over}"));
        }
    }
    missing.sort();
    missing.dedup();
    for name in &missing {
        eprintln!("conformance: {name} did not pass");
    }
    if !missing.is_empty() {
        return ExitCode::FAILURE;
    }
    println!("conformance: every test that the table names has passed");
    ExitCode::SUCCESS
}
