//! The agent as a service of a whole host, by the units of `packaging/systemd`, with `examples/database-host`.
//!
//! `service` is run by each boot of `tests/lab/host/run`. In the first it starts, grows, kills and stops what the unit
//! runs, and has the machine rebooted while mounts are in use; in the second it looks at what is there. `service short`
//! kills it once only; `service postgresql` does what docs/src/postgresql.md says instead, and `service packaged DIRECTORY`
//! installs, upgrades and removes the packages that are there.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod credential;
mod limited;
mod monitored;
mod packaged;
mod postgresql;
mod rebooted;
mod started;
mod unit;
mod volume;

use std::{future::Future, path::Path, process::ExitCode, time::Instant};

use drumlin_tests::programs::output;

/// Asks the lab for a reboot.
const REBOOT: u8 = 194;

#[tokio::main]
async fn main() -> ExitCode {
    let first_program = std::fs::read_to_string("/proc/1/comm").unwrap();
    assert!(
        std::env::var_os("DRUMLIN_LAB").is_some() && first_program == "systemd\n",
        "this runs in tests/lab/host/run alone: it makes a service of its machine and reboots it"
    );
    let _witness = Witness;
    let form = std::env::args().nth(1).unwrap_or_default();
    if form == "packaged" {
        let packages = std::env::args().nth(2).unwrap();
        packaged::run_all(Path::new(&packages)).await;
        return ExitCode::SUCCESS;
    }
    if form == "postgresql" {
        return postgresql::run_example().await;
    }
    if Path::new(rebooted::ASKED).exists() {
        step("rebooted", rebooted::check()).await;
        return ExitCode::SUCCESS;
    }
    started::install();
    let monitored = step("started", started::start()).await;
    let kills: &[&str] = if form == "short" {
        &["all"]
    } else {
        &["main", "all"]
    };
    step("used", started::use_it(kills)).await;
    step("monitored", monitored.check()).await;
    step("limited", limited::check()).await;
    step("credential", credential::check()).await;
    step("reboot", rebooted::prepare()).await;
    ExitCode::from(REBOOT)
}

#[expect(clippy::print_stdout, reason = "who runs it sees how far it came")]
fn say(text: &str) {
    println!("service: {text}");
}

async fn step<T>(name: &str, done: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let answer = done.await;
    say(&format!("{name}: {:?}", begun.elapsed()));
    answer
}

/// Says what the service has said, when something is not as it must be.
struct Witness;

impl Drop for Witness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let words = "-b --no-pager -n 100 -o short-precise";
            let words: Vec<&str> = words.split(' ').collect();
            let journal = output("journalctl", &words);
            say(&String::from_utf8_lossy(&journal.stdout));
            // The lab powers off without stopping services, and dmeventd ignores signals while it monitors something.
            output("vgchange", &["--monitor", "n"]);
        }
    }
}
