//! The conformance table: what the specifications ask for, what is tested, what is not met and why.
//!
//!   conformance table      prints it, as Markdown
//!   conformance --mutate N|all SEED?
//!                          runs N tests of the table, each beside an agent that violates what it shows, and fails when
//!                          one does not notice; all with N = all
//!   conformance ran LOG…   reads what tests/run printed, and fails when a test that the table names did not pass
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is a program for a terminal"
)]

use std::{env, fs, process::ExitCode};

use std::{
    sync::Mutex,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use drumlin_tests::conformance::{
    Ran, Text, Totals,
    mutate::{self, Outcome, Trial},
    texts, unmet,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.as_slice() {
        [word] if word == "table" => table(&texts()),
        [word, logs @ ..] if word == "ran" && !logs.is_empty() => return ran(&texts(), logs),
        [word, rest @ ..] if word == "--mutate" => {
            let Some((count, seed)) = count_and_seed(rest) else {
                eprintln!("conformance --mutate N|all [SEED]");
                return ExitCode::from(2);
            };
            return mutate(&texts(), count, seed);
        }
        _ => {
            eprintln!(
                "conformance table | conformance --mutate N|all [SEED] | conformance ran LOG…"
            );
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
    println!(
        "conformance: {} tests have nothing to do where they ran, and are not counted there",
        ran.idle()
    );
    for name in &missing {
        eprintln!("conformance: {name} did not pass");
    }
    if !missing.is_empty() {
        return ExitCode::FAILURE;
    }
    println!("conformance: every test that the table names has passed");
    ExitCode::SUCCESS
}

/// How many trials, and the seed that chooses them: the time if there is none.
fn count_and_seed(arguments: &[String]) -> Option<(usize, u64)> {
    let (count, seed) = match arguments {
        [count] => (count, None),
        [count, seed] => (count, Some(seed.parse().ok()?)),
        _ => return None,
    };
    let count = if count == "all" {
        usize::MAX
    } else {
        count.parse().ok()?
    };
    let now = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.unwrap_or_default().as_secs()
    };
    Some((count, seed.unwrap_or_else(now)))
}

/// Runs trials, one for each processor at a time.
fn mutate(texts: &[Text], count: usize, seed: u64) -> ExitCode {
    let all = mutate::trials(texts);
    let total = all.len();
    let drawn = mutate::drawn(all, count, seed);
    println!(
        "conformance: {} of {total} mutations, seed {seed}",
        drawn.len()
    );
    let binary = mutate::build();
    // Built before the first mutation is in the environment.
    drumlin_tests::programs::drumlin();
    let left = Mutex::new(drawn.iter());
    let missed: Mutex<Vec<&Trial<'_>>> = Mutex::default();
    let next = || left.lock().ok().and_then(|mut left| left.next());
    let work = || {
        while let Some(trial) = next() {
            let (outcome, printed) = mutate::attempt(&binary, trial);
            match outcome {
                Outcome::Noticed => println!("noticed  {trial}"),
                Outcome::Missed => {
                    println!("MISSED   {trial}\n{printed}");
                    if let Ok(mut missed) = missed.lock() {
                        missed.push(trial);
                    }
                }
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    let missed = missed.into_inner().unwrap_or_default();
    for trial in &missed {
        eprintln!("conformance: not noticed: {trial}");
    }
    println!(
        "conformance: {} of {} violations were noticed",
        drawn.len() - missed.len(),
        drawn.len()
    );
    if missed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
