//! Programs run in a clean environment, and end or continue with their callers as they should.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{Kind, exec::Program};

#[tokio::test]
async fn the_environment_is_empty_but_for_path_and_locale() {
    let output = Program::reading("env").run().await.unwrap();
    let mut lines = std::str::from_utf8(&output.stdout)
        .unwrap()
        .lines()
        .collect::<Vec<_>>();
    lines.sort_unstable();
    let wanted = [
        "LC_ALL=C",
        "LVM_SUPPRESS_FD_WARNINGS=1",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
    ];
    assert_eq!(lines, wanted);
}

#[tokio::test]
async fn a_failure_names_program_arguments_status_and_complaint() {
    let error = Program::reading("ls")
        .arg("/no such place")
        .run()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Command);
    let text = error.to_string();
    assert!(
        text.contains("`ls /no such place` failed (exit status: 2)"),
        "{text}"
    );
    assert!(text.contains("No such file or directory"), "{text}");
}

/// As LVM does when several disks of a group are missing.
#[tokio::test]
async fn why_it_failed_is_not_lost_behind_warnings() {
    let script =
        "for n in 1 2 3 4 5; do echo \"  WARNING: $n\"; done; echo \"  The cause\"; exit 5";
    let program = Program::reading("sh").args(["-c", &format!("({script}) >&2")]);
    let text = program.run().await.unwrap_err().to_string();
    assert!(
        text.contains("(exit status: 5): The cause; WARNING: 1;"),
        "{text}"
    );
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let error = Program::reading("no-such-program").run().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Precondition);
    assert!(error.to_string().contains("no-such-program"));
}

#[tokio::test]
async fn input_reaches_the_program_and_no_debug_output() {
    let program = Program::reading("cat").stdin("a secret");
    assert!(!format!("{program:?}").contains("secret"));
    assert_eq!(program.run().await.unwrap().stdout, b"a secret");
}

#[tokio::test]
async fn more_output_than_the_limit_is_an_error_and_not_a_hang() {
    let error = Program::reading("head")
        .args(["-c", "20000000", "/dev/zero"])
        .run()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("printed more than"), "{error}");
}

/// Starts `script`, which creates a file `began`, and then drops its caller.
async fn abandon(shell: Program, directory: &Path, rest: &str) {
    let began = directory.join("began");
    let script = format!("cd {}; : > began; {rest}", directory.display());
    let run = shell.args(["-c", &script]).run();
    let seen = async {
        while !began.exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        _ = run => panic!("the program ended before it was abandoned"),
        () = seen => {}
    }
}

#[tokio::test]
async fn a_reading_program_is_killed_with_all_its_children() {
    let directory = tempfile::tempdir().unwrap();
    abandon(
        Program::reading("sh"),
        directory.path(),
        "sleep 600 & echo $! > child.new; mv child.new child; wait",
    )
    .await;
    let child = directory.path().join("child");
    // The shell may have been killed before it started anything: then there is no child to check.
    if let Ok(pid) = fs::read_to_string(&child) {
        let state = PathBuf::from("/proc").join(pid.trim()).join("stat");
        let deadline = Instant::now() + Duration::from_secs(10);
        // Once killed, it is gone, or a zombie of its adoptive parent.
        while fs::read_to_string(&state).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < deadline, "process {pid} still runs");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test]
async fn a_changing_program_outlives_its_caller() {
    let directory = tempfile::tempdir().unwrap();
    let gate = directory.path().join("gate");
    abandon(
        Program::changing("sh"),
        directory.path(),
        "until [ -e gate ]; do sleep 0.01; done; : > ended",
    )
    .await;
    fs::write(gate, "").unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !directory.path().join("ended").exists() {
        assert!(Instant::now() < deadline, "the program was killed");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
