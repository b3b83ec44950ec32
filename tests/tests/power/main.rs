//! The power is cut: the machine of the lab is killed in the middle of changes and booted again on the same disks.
//!
//! Runs outside of the lab, which it starts and kills. `POWER_CUTS` says how often in each test (default 4, and 3 of those
//! with group snapshots).
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use drumlin_tests::programs::{drumlin, program, workspace};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tempfile::TempDir;

/// Where the agent stops while it takes or deletes a group snapshot, each at one of the first few times that it comes there.
/// The first ones are within the time in which writers are held.
const STOPS: [&str; 14] = [
    "quiesce.held:2",
    "create-group-snapshot.kept:2",
    "quiesce.first-copied:3",
    "create-group-snapshot.taken:1",
    "quiesce.copied:2",
    "quiesce.released:3",
    "quiesce.first-held:2",
    "create-group-snapshot.prepared:3",
    "lvm.group-snapshot.made:6",
    "create-group-snapshot.complete:2",
    "quiesce.armed:1",
    "create-group-snapshot.begun:2",
    "quiesce.prepared:2",
    "end-group-snapshot.member:2",
];

/// Disks that survive their machine, with a volume group on them.
struct Lab {
    directory: TempDir,
    volumes: &'static str,
    size: &'static str,
}

impl Lab {
    /// One whose disks have a size, and whose group a pool that is made so.
    fn new(volumes: &'static str, size: &'static str, pool: &str) -> Self {
        let lab = Self {
            directory: tempfile::tempdir_in("/var/tmp").unwrap(),
            volumes,
            size,
        };
        let make = format!("vgcreate -q -s 1M power /dev/ubdb /dev/ubdc {pool}");
        lab.run(&["sh", "-c", &make], "the group");
        lab
    }

    fn machine(&self, command: &[&str]) -> Command {
        let mut machine = program(workspace().join("tests/lab/vm/run"));
        machine
            .args(["-d", self.size, "-d", self.size, "-t", "600", "-k"])
            .arg(self.directory.path())
            .arg("--")
            .args(command)
            .env("DRUMLIN_VOLUMES", self.volumes)
            .env("DRUMLIN_BIN", drumlin());
        machine
    }

    fn run(&self, command: &[&str], what: &str) {
        let output = self.machine(command).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what}: {text}\n{complaint}");
    }

    /// A file outside of the machine.
    fn journal(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    /// Does one of the things that a volume group can go through.
    fn power(&self, command: &str) -> Command {
        let power = env!("CARGO_BIN_EXE_power");
        self.machine(&[power, command, self.journal().to_str().unwrap()])
    }

    fn check(&self, command: &str, cut: u32) {
        let journal = self.journal();
        let power = env!("CARGO_BIN_EXE_power");
        let command = [power, command, journal.to_str().unwrap()];
        self.run(&command, &format!("{}, after cut {cut}", self.volumes));
    }

    /// So many lines of the journal begin with a word, or with any.
    fn lines(&self, word: &str) -> usize {
        let journal = fs::read_to_string(self.journal()).unwrap_or_default();
        let mut lines: Vec<&str> = journal.lines().collect();
        lines.retain(|line| line.starts_with(word));
        lines.len()
    }

    /// Starts a machine and cuts its power some time after a new line was begun with a word; how many there are then.
    fn cut(&self, mut load: Command, (word, after): (&str, Duration)) -> usize {
        let begun = self.lines(word);
        let mut load = load
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_mins(5);
        while self.lines(word) == begun {
            assert!(load.try_wait().unwrap().is_none(), "the load ended");
            assert!(Instant::now() < deadline, "{word} never comes");
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(after);
        let group = Pid::from_raw(load.id().try_into().unwrap());
        killpg(group, Signal::SIGKILL).unwrap();
        load.wait().unwrap();
        self.lines(word) - begun
    }
}

/// How often, unless `POWER_CUTS` says otherwise.
fn cuts(usual: u32) -> u32 {
    let asked = std::env::var("POWER_CUTS").ok();
    asked.map_or(usual, |cuts| cuts.parse().unwrap())
}

/// Another moment for each.
fn moment(cut: u32) -> Duration {
    Duration::from_millis(u64::from(cut * 367 % 3000))
}

#[test]
fn thin_volumes_survive_every_cut() {
    let pool = "&& lvcreate -q -L 900M -T power/pool";
    what_was_acknowledged_survives("thin", pool);
}

#[test]
fn thick_volumes_survive_every_cut() {
    what_was_acknowledged_survives("linear", "");
}

#[test]
fn mirrored_volumes_survive_every_cut() {
    what_was_acknowledged_survives("raid1", "");
}

fn what_was_acknowledged_survives(volumes: &'static str, pool: &str) {
    let lab = Lab::new(volumes, "512M", pool);
    let (cuts, mut changes) = (cuts(4), 0);
    for cut in 0..cuts {
        // From the middle of its first change on.
        changes += lab.cut(lab.power("load"), ("", moment(cut)));
        lab.check("check", cut);
    }
    // The first ones come soon.
    let each = if cuts < 10 { 0 } else { 4 };
    assert!(
        changes > usize::try_from(cuts).unwrap() * each,
        "only {changes} changes in {cuts} cuts"
    );
}

#[test]
fn group_snapshots_of_thin_volumes_survive_every_cut_whole_or_not_at_all() {
    group_snapshots_survive_whole("thin", "&& lvcreate -q -L 1900M -T power/pool");
}

#[test]
fn group_snapshots_of_thick_volumes_survive_every_cut_whole_or_not_at_all() {
    group_snapshots_survive_whole("linear", "");
}

fn group_snapshots_survive_whole(volumes: &'static str, pool: &str) {
    let lab = Lab::new(volumes, "2G", pool);
    let (cuts, mut stops, mut half) = (cuts(3), STOPS.iter().cycle(), 0);
    let (mut taken, mut within) = (0, 0);
    for cut in 0..cuts {
        let mut load = lab.power("load-groups");
        // Two of three where it was stopped on its way, before the thaw watchdog lets everybody go; the others at any moment.
        let stop = (cut % 3 != 2).then(|| stops.next().unwrap());
        let until = match stop {
            Some(stop) => {
                load.env("DRUMLIN_FAIL", stop)
                    .env("DRUMLIN_FAIL_BY", "stop");
                within += 1;
                ("stopped", Duration::ZERO)
            }
            None => ("taken", moment(cut)),
        };
        let begun = lab.lines("taken");
        lab.cut(load, until);
        taken += lab.lines("taken") - begun;
        lab.check("check-groups", cut);
        half += lab.lines("half");
    }
    let figures = format!("{cuts} cuts of {taken} group snapshots, {within} stopped, {half} half");
    // Some of the points are behind all changes, and a random cut is seldom within.
    assert!(taken > 0 && half * 2 >= within, "{figures}");
    report(volumes, &figures);
}

#[expect(clippy::print_stderr, reason = "who counts them reads it")]
fn report(volumes: &str, figures: &str) {
    eprintln!("{volumes}: {figures}");
}
