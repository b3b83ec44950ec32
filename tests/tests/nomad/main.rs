//! The driver as a CSI plugin of a real Nomad, in the lab (`tests/lab/nomad/run`): the examples, jobs that write, snapshots, and
//! what is deleted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking, and are read more than they are run"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use drumlin_tests::{
    programs::{self, drumlin, printed, within, workspace},
    storage::Scratch,
};
use serde_json::Value;

/// Nomad asks a new plugin, and looks whether a job goes on, every few seconds.
const PATIENCE: Duration = Duration::from_secs(90);
const PLUGIN: &str = "drumlin-node-a";

/// Nomad of the lab with the plugin of the examples.
struct Nomad {
    scratch: Scratch,
}

fn until(what: &str, holds: impl Fn() -> bool) {
    programs::until(what, PATIENCE, holds);
}

fn example(name: &str) -> PathBuf {
    workspace().join("examples/nomad").join(name)
}

/// The text with another part; it must have that.
fn replaced(text: &str, part: &str, other: &str) -> String {
    assert!(text.contains(part), "{part}: {text}");
    text.replace(part, other)
}

/// A program that ends within two minutes, whatever becomes of it.
fn asked(words: &[&str]) -> Output {
    let output = within(120, "nomad").args(words).output();
    output.expect("tests/lab/nomad/run is the runner of this test")
}

/// What it prints, which must succeed.
#[track_caller]
fn nomad(words: &[&str]) -> String {
    printed(&asked(words), words)
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&nomad(words)).unwrap()
}

/// A job that counts upwards in a file on a volume, each number when the one before is on the disk.
fn counter(name: &str, volume: &str) -> String {
    let script = "n=$(/bin/busybox tail -n 1 /data/numbers 2>/dev/null || echo 0); while n=$((n + 1)) && echo $n >> /data/numbers && /bin/busybox sync /data/numbers; do /bin/busybox usleep 50000; done";
    format!(
        r#"
job "{name}" {{
  group "counter" {{
    volume "data" {{
      type            = "csi"
      source          = "{volume}"
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
    }}
    task "counter" {{
      driver = "exec"
      config {{
        command = "/bin/busybox"
        args    = ["sh", "-c", {script:?}]
      }}
      volume_mount {{
        volume      = "data"
        destination = "/data"
      }}
      resources {{
        cpu    = 50
        memory = 64
      }}
    }}
  }}
}}
"#
    )
}

/// The numbers in the file of a job: all from one on, in their order.
fn count(job: &str) -> usize {
    let words = [
        "alloc",
        "exec",
        "-job",
        job,
        "/bin/busybox",
        "cat",
        "/data/numbers",
    ];
    let output = asked(&words);
    if !output.status.success() {
        return 0;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    // The last line may be half-written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let numbers: Vec<usize> = whole
        .lines()
        .map(|line| line.trim().parse().unwrap())
        .collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len()), "{numbers:?}");
    numbers.len()
}

/// What a job has in its first moments: what it has found, and what it wrote since then.
fn first_count(job: &str) -> usize {
    until("the job runs", || count(job) > 0);
    count(job)
}

fn goes_on(job: &str) -> usize {
    let before = count(job);
    until("the job writes", || count(job) > before);
    before
}

impl Nomad {
    /// Starts the plugin of the example without Docker, with the binary under test and a state of its own.
    fn with_plugin() -> Self {
        let scratch = Scratch::new();
        let state = scratch.directory("state");
        let job = fs::read_to_string(example("plugin-raw-exec.nomad.hcl")).unwrap();
        let job = replaced(&job, "/usr/bin/drumlin", &drumlin().to_string_lossy());
        let job = replaced(&job, "/var/lib/drumlin", &state.to_string_lossy());
        let nomad = Self { scratch };
        nomad.run("plugin", &job);
        nomad.until_healthy();
        nomad
    }

    fn run(&self, name: &str, job: &str) {
        let path = self.scratch.path().join(name).with_extension("nomad.hcl");
        fs::write(&path, job).unwrap();
        nomad(&["job", "run", "-detach", &path.to_string_lossy()]);
    }

    fn until_healthy(&self) {
        until("the plugin is healthy", || {
            let output = asked(&["plugin", "status", "-json", PLUGIN]);
            let plugin: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            plugin["ControllersHealthy"] == 1 && plugin["NodesHealthy"] == 1
        });
        assert!(self.agent() > 0);
    }

    /// The process of the agent.
    fn agent(&self) -> i32 {
        let state = format!(
            "--state-dir={}",
            self.scratch.path().join("state").display()
        );
        let is_agent = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words.next().is_some_and(|word| word.ends_with(b"drumlin"))
                && words.any(|word| word == state.as_bytes())
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(is_agent).unwrap_or(0)
    }

    /// The names in a directory of the class.
    fn images(&self, of: &str) -> Vec<String> {
        let directory = self.scratch.path().join("state/images").join(of);
        let all = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names: Vec<_> = all
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }
}

/// Stops a job, and waits until its volume is not claimed any more.
fn stop(job: &str, volume: &str) {
    nomad(&["job", "stop", "-purge", "-detach", job]);
    until("the volume is let go", || {
        let volume = json(&["volume", "status", "-json", volume]);
        let is_claimed = |claims: &Value| claims.as_object().is_some_and(|all| !all.is_empty());
        !is_claimed(&volume["WriteAllocs"]) && !is_claimed(&volume["ReadAllocs"])
    });
}

impl Drop for Nomad {
    fn drop(&mut self) {
        asked(&["job", "stop", "-purge", PLUGIN]);
    }
}

/// The example of a volume, from a snapshot.
fn copy_of(snapshot: &str) -> String {
    let text = fs::read_to_string(example("volume.hcl")).unwrap();
    let text = replaced(&text, "= \"data\"", "= \"copy\"");
    format!("snapshot_id = \"{snapshot}\"\n{text}")
}

#[test]
fn jobs_keep_what_they_wrote_through_kills_and_snapshots_and_what_is_deleted_is_gone() {
    let lab = Nomad::with_plugin();
    nomad(&["volume", "create", &example("volume.hcl").to_string_lossy()]);
    assert_eq!(lab.images("volumes").len(), 1);
    lab.run("writer", &counter("writer", "data"));
    goes_on("writer");

    // Nomad starts it again, and the job never knows.
    let before = lab.agent();
    kill(before);
    goes_on("writer");
    until("another agent runs", || ![0, before].contains(&lab.agent()));
    lab.until_healthy();

    let written = goes_on("writer");
    nomad(&["volume", "snapshot", "create", "data", "moment"]);
    let listed = nomad(&["volume", "snapshot", "list", "-plugin", PLUGIN, "-verbose"]);
    let is_snapshot = |word: &&str| word.starts_with("node-a/");
    let snapshot = listed
        .split_whitespace()
        .find(is_snapshot)
        .unwrap()
        .to_owned();
    let hcl = lab.scratch.path().join("copy.hcl");
    fs::write(&hcl, copy_of(&snapshot)).unwrap();
    nomad(&["volume", "create", &hcl.to_string_lossy()]);
    lab.run("reader", &counter("reader", "copy"));
    let copied = first_count("reader");
    assert!(copied >= written, "{copied} of {written}");

    // Another allocation has what the former one wrote.
    stop("writer", "data");
    let refused = asked(&["volume", "delete", "copy"]);
    assert!(!refused.status.success(), "it is in use");
    lab.run("writer", &counter("writer", "data"));
    let found = first_count("writer");
    assert!(found >= written, "{found} of {written}");

    stop("writer", "data");
    stop("reader", "copy");
    nomad(&["volume", "snapshot", "delete", PLUGIN, &snapshot]);
    for volume in ["copy", "data"] {
        nomad(&["volume", "delete", volume]);
    }
    assert_eq!(lab.images("volumes"), Vec::<String>::new());
    assert_eq!(lab.images("snapshots"), Vec::<String>::new());
    assert!(is_unmounted(lab.scratch.path()));
}

fn kill(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}

/// No file system of a volume is mounted: they are in images below a directory.
fn is_unmounted(directory: &Path) -> bool {
    let attached = programs::run("losetup", &["--list", "--noheadings", "-O", "BACK-FILE"]);
    !attached.contains(&*directory.to_string_lossy())
}
