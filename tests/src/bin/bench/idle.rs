//! What a process has done, and what an agent does in a minute in which nobody asks anything.

use std::{fs, time::Duration};

use drumlin_tests::agent::Agent;

use crate::measure::Table;

/// What a process has done so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    /// Time on a processor, in ticks, of all its threads, those that have ended too.
    pub(crate) ticks: u64,
    /// Bytes that it had written to storage; the wakes of its own threads are calls that write, too, but go nowhere.
    written: u64,
    /// Page faults of children that have ended: none without a child.
    children: u64,
}

pub(crate) fn done(pid: i32) -> Done {
    let process = format!("/proc/{pid}");
    let io = fs::read_to_string(format!("{process}/io")).unwrap();
    let written = io
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "))
        .unwrap();
    let stat = fs::read_to_string(format!("{process}/stat")).unwrap();
    let behind: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    // As proc(5) numbers the fields; the third is the first behind the name.
    let field = |number: usize| behind[number - 3].parse::<u64>().unwrap();
    Done {
        ticks: field(14) + field(15),
        written: written.parse().unwrap(),
        children: field(11),
    }
}

/// A tick is 10 ms wherever Linux shows it to programs.
pub(crate) fn millis(ticks: u64) -> f64 {
    ticks as f64 * 10.0
}

/// What an agent does in a minute in which nobody asks anything.
pub(crate) async fn minute(table: &mut Table, agent: &Agent, what: &str) {
    let before = done(agent.pid());
    tokio::time::sleep(Duration::from_mins(1)).await;
    let after = done(agent.pid());
    table.most(
        &format!("{what}, 60 s: processor time"),
        millis(after.ticks - before.ticks),
        50.0,
        "ms",
    );
    table.most(
        &format!("{what}, 60 s: written"),
        (after.written - before.written) as f64,
        0.0,
        "bytes",
    );
    table.most(
        &format!("{what}, 60 s: programs started"),
        (after.children - before.children) as f64,
        0.0,
        "",
    );
}
