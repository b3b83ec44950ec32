//! Programs of the host, and our own.

use std::{
    fmt::Debug,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// A program that is about to be started, without anything to read.
#[expect(
    clippy::disallowed_methods,
    reason = "tests start what they test and look at what programs say"
)]
pub fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null());
    command
}

/// Runs a program to its end.
pub fn output(name: &str, arguments: &[&str]) -> Output {
    let output = program(name).args(arguments).output();
    output.unwrap_or_else(|error| panic!("{name} cannot be started: {error}"))
}

/// A program that is ended after so many seconds; its status is 124 then. What waits without end, such as `kubectl delete`,
/// would end the whole run and not one test.
pub fn within(seconds: u32, name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = program("timeout");
    command
        .args(["--kill-after=5", &seconds.to_string()])
        .arg(name);
    command
}

/// Runs a program that must succeed, and returns what it printed.
#[track_caller]
pub fn run(name: &str, arguments: &[&str]) -> String {
    printed(&output(name, arguments), (name, arguments))
}

/// What a program printed, which must have succeeded; `asked` says what it was asked for.
#[track_caller]
pub fn printed(output: &Output, asked: impl Debug) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    assert!(status.success(), "{asked:?}: {status}: {text}{complaint}");
    text
}

/// What a program complained of, which must have failed with exit code 1.
#[track_caller]
pub fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until something holds, which programs are asked for: not more often than they can answer.
#[track_caller]
pub fn until(what: &str, patience: Duration, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < patience, "never came to be so: {what}");
        thread::sleep(Duration::from_millis(300));
    }
}

static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// Has this process test another binary; to be called before anything else.
pub fn use_binary(path: PathBuf) {
    let _ = BINARY.set(path);
}

/// The binary under test: `DRUMLIN_BIN`, or the one that is built here, with its fail points.
pub fn drumlin() -> PathBuf {
    BINARY
        .get_or_init(|| {
            if let Some(binary) = std::env::var_os("DRUMLIN_BIN") {
                return binary.into();
            }
            let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
            run(
                &cargo,
                &["build", "--quiet", "--locked", "--package", "drumlin"],
            );
            target().join("debug/drumlin")
        })
        .clone()
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).unwrap_or(here)
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// The programs that a process has started and that still run.
pub fn programs_of(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|children| {
            let children = children.split_whitespace();
            children
                .filter_map(|child| child.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The state of a process that is there, as its letter in `/proc`.
pub fn process_state(pid: i32) -> Option<char> {
    state_in(Path::new(&format!("/proc/{pid}/stat")))
}

/// The letter in a file of `/proc` that says what a process, or a thread, is doing.
fn state_in(stat: &Path) -> Option<char> {
    let stat = std::fs::read_to_string(stat).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// How many threads of a process wait in the kernel for a disk.
pub fn waiting(pid: i32) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let threads = threads.flatten().flatten();
    let states = threads.filter_map(|thread| state_in(&thread.path().join("stat")));
    states.filter(|state| *state == 'D').count()
}
