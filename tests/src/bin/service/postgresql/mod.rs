//! `docs/src/postgresql.md`, with the files of `examples/postgresql` as they are: a cluster on a group of volumes, a snapshot
//! by the schedule while it writes, a reboot, and the copy beside it.

mod database;
mod restored;

use std::{
    fs,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use drumlin_tests::{
    programs::{run, workspace},
    storage::{lvm, mounts_below},
};
use serde_json::Value;

use self::database::{LIVE, acknowledged, beside, goes_on, make_tables, start_writer};
use crate::{
    REBOOT, say, step,
    unit::{
        self, End, UNITS, answers, main_pid, property, replaced, restart_until, systemctl, until,
    },
};

/// The cluster's unit.
const UNIT: &str = "postgresql@15-main";
/// What the next boot has to know.
const TAKEN: &str = "/var/lib/taken";

/// The snapshot that the schedule took, the last transaction that was there before it for certain, and the last one that can
/// be in it.
#[derive(Debug)]
struct Taken {
    name: String,
    before: u64,
    after: u64,
}

impl Taken {
    fn keep(&self) {
        let line = format!("{} {} {}", self.name, self.before, self.after);
        fs::write(TAKEN, line).unwrap();
        run("sync", &["-f", TAKEN]);
    }

    fn read(line: &str) -> Self {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap();
        Self {
            name: word().to_owned(),
            before: word().parse().unwrap(),
            after: word().parse().unwrap(),
        }
    }
}

/// What each boot does.
pub(crate) async fn run_example() -> ExitCode {
    if let Ok(line) = fs::read_to_string(TAKEN) {
        let taken = Taken::read(&line);
        step("rebooted", rebooted()).await;
        step("restored", restored::restore(&taken)).await;
        step("switched", restored::switch(&taken)).await;
        step("thrown away", restored::throw_away()).await;
        systemctl(&["stop", "writer"]);
        let failed = systemctl(&["--failed", "--no-legend", "--plain", "--no-pager"]);
        assert_eq!(failed, "");
        lvm("vgchange", &["--monitor", "n"]);
        return ExitCode::SUCCESS;
    }
    install();
    step("cluster made", make_cluster()).await;
    start_writer();
    step("snapshot", taken()).await.keep();
    goes_on(20).await;
    ExitCode::from(REBOOT)
}

/// The command, and the answer of `drumlin`.
fn drumlin(words: &[&str]) -> String {
    run("/usr/bin/drumlin", words)
}

/// Waits until objects are ready.
fn wait_for(objects: &[&str]) {
    drumlin(&[&["wait", "--timeout", "2m"], objects].concat());
}

/// An object of the example as it is on record.
fn object(kind: &str, name: &str) -> Value {
    let name = format!("postgresql/{name}");
    serde_json::from_str(&drumlin(&["get", kind, &name, "-o", "json"])).unwrap()
}

fn install() {
    lvm("vgcreate", &["vg0", "/dev/ubdb"]);
    unit::install("postgresql", "");
    let example = workspace().join("examples/postgresql");
    let drop_ins = format!("{UNITS}/postgresql@.service.d");
    fs::create_dir_all(&drop_ins).unwrap();
    for (file, to) in [
        ("mounts.conf", drop_ins.as_str()),
        ("restore/postgresql-copy.service", UNITS),
    ] {
        let file = example.join(file);
        run("install", &["-m", "644", "-t", to, &file.to_string_lossy()]);
    }
    systemctl(&["daemon-reload"]);
}

async fn make_cluster() {
    systemctl(&["enable", "--now", "drumlin"]);
    answers().await;
    systemctl(&["start", "drumlin-mounts.target"]);
    let mounts = ["/var/lib/postgresql", "/var/lib/postgresql-wal"];
    for mount in mounts {
        assert!(mounts_below(mount).contains(&mount.to_owned()), "{mount}");
    }
    let owner = ["-d", "-o", "postgres", "-g", "postgres"];
    run("install", &[&owner[..], &mounts].concat());
    // Each of a thousand files by itself takes minutes on a disk that others use; nothing is lost here.
    let unsynced = ["15", "main", "--start", "--", "--no-sync"];
    run("pg_createcluster", &unsynced);
    assert_eq!(property(UNIT, "ActiveState"), "active");
    let wal = fs::read_link("/var/lib/postgresql/15/main/pg_wal").unwrap();
    assert_eq!(wal.to_str(), Some("/var/lib/postgresql-wal/15/main"));
    for name in [
        "/var/lib/postgresql/15/main",
        "/var/lib/postgresql-wal/15/main",
    ] {
        let mode = run("stat", &["-c", "%a %U", name]);
        assert_eq!(mode.trim(), "700 postgres", "{name}");
    }
    make_tables();
    wait_for(&["dvg/postgresql/main", "dsched/postgresql/hourly"]);
}

/// The full hour comes, and the agent is killed while it holds the server: the next one takes the snapshot of that hour.
async fn taken() -> Taken {
    goes_on(20).await;
    restart_until("quiesce.held", End::Killed).await;
    let killed = main_pid();
    let before = acknowledged();
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let hour = (now + Duration::from_secs(10)).as_secs() / 3600 * 3600 + 3600;
    run("date", &["-s", &format!("@{}", hour - 1)]);
    replaced(killed).await;
    goes_on(1).await;
    let name = until("the schedule takes no snapshot", async || {
        let schedule = object("dsched", "hourly");
        let name = schedule["status"]["lastSnapshotName"].as_str()?;
        Some(name.to_owned())
    })
    .await;
    wait_for(&[&format!("dgsnap/postgresql/{name}")]);
    let after = LIVE.last();
    let hour = run(
        "date",
        &["-u", "-d", &format!("@{hour}"), "+%Y%m%dt%H%M%Sz"],
    );
    assert_eq!(name, format!("hourly-{}", hour.trim()));
    let found = object("dgsnap", &name);
    let time = found["status"]["creationTime"].as_str().unwrap();
    // The reboot sets the clock right: the times of the rows are looked at now.
    let (earlier, later) = until("nothing is written later", async || beside(time)).await;
    say(&format!(
        "{name}: {before} to {after}, by the clock {earlier} to {later}"
    ));
    Taken {
        name,
        before: before.max(earlier),
        after: after.min(later - 1),
    }
}

/// What was acknowledged is there: the server ended before its mounts, and started after them.
async fn rebooted() {
    answers().await;
    assert_eq!(property(UNIT, "ActiveState"), "active");
    let time = |unit: &str, name: &str| property(unit, name).parse::<u64>().unwrap();
    let mounted = time("drumlin-mounts.target", "ActiveEnterTimestampMonotonic");
    let started = time(UNIT, "ExecMainStartTimestampMonotonic");
    assert!(0 < mounted && mounted < started, "{mounted} {started}");
    let log = fs::read_to_string("/var/log/postgresql/postgresql-15-main.log").unwrap();
    assert_eq!(
        log.matches("database system is shut down").count(),
        1,
        "{log}"
    );
    assert_eq!(
        log.matches("database system was shut down at").count(),
        2,
        "{log}"
    );
    assert!(!log.contains("was interrupted"), "{log}");
    let (last, acknowledged) = (LIVE.last(), acknowledged());
    assert!(
        last >= acknowledged,
        "{acknowledged} were acknowledged, {last} are there"
    );
    start_writer();
    goes_on(20).await;
}
