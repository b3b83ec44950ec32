//! Two servers, and a writer whose transactions change two tables each and can be told apart.

use std::fs;

use drumlin_tests::programs::run;

use crate::unit::until;

/// The numbers that were acknowledged, a line each.
const ACKNOWLEDGED: &str = "/var/lib/writer/acknowledged";
/// What the writer's rows are in: `counter` has one row, which each transaction changes, and `journal` gets one more.
const TABLES: &str = "CREATE TABLE counter (n bigint NOT NULL); INSERT INTO counter VALUES (0); \
    CREATE TABLE journal (n bigint PRIMARY KEY, at timestamptz NOT NULL)";
/// One transaction, which returns its number.
const WRITE: &str = "WITH next AS (UPDATE counter SET n = n + 1 RETURNING n) \
    INSERT INTO journal SELECT n, clock_timestamp() FROM next RETURNING n; SELECT pg_sleep(0.005);";

/// A server: how `psql` finds it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Server(&'static [&'static str]);

/// The cluster of the host.
pub(super) const LIVE: Server = Server(&[]);
/// The one on the restored copy.
pub(super) const COPY: Server = Server(&["-h", "/run/postgresql-copy", "-p", "5433"]);

impl Server {
    /// What it answers, without its last newline.
    pub(super) fn ask(self, statement: &str) -> String {
        let psql = ["-u", "postgres", "--", "psql", "-XqAt"];
        let words = [
            &psql[..],
            self.0,
            &["-v", "ON_ERROR_STOP=1", "-c", statement],
        ]
        .concat();
        run("runuser", &words).trim_end().to_owned()
    }

    /// The last number that is in it, when both tables agree that it is, and all before it are there, too.
    pub(super) fn last(self) -> u64 {
        let found = self.ask(
            "SELECT (SELECT n FROM counter), count(*), coalesce(min(n), 1), coalesce(max(n), 0) FROM journal",
        );
        let numbers: Vec<u64> = found.split('|').map(|word| word.parse().unwrap()).collect();
        let last = numbers[0];
        assert_eq!(numbers, [last, last, 1, last], "counter, rows, first, last");
        last
    }
}

/// Makes the tables, and the directory of what is acknowledged.
pub(super) fn make_tables() {
    LIVE.ask(TABLES);
    let directory = ACKNOWLEDGED.rsplit_once('/').unwrap().0;
    run("install", &["-d", "-o", "postgres", directory]);
}

/// A writer that writes until the server ends, or it is stopped as the unit `writer`.
pub(super) fn start_writer() {
    let line = format!("yes '{WRITE}' | stdbuf -oL psql -XqAt >> {ACKNOWLEDGED}");
    run(
        "systemd-run",
        &[
            "-qG", "-u", "writer", "--uid", "postgres", "sh", "-c", &line,
        ],
    );
}

/// The last number that was acknowledged.
pub(super) fn acknowledged() -> u64 {
    let text = fs::read_to_string(ACKNOWLEDGED).unwrap_or_default();
    // The last line may not be whole yet.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut lines = whole.lines().rev().filter(|line| !line.is_empty());
    lines.next().map_or(0, |line| line.parse().unwrap())
}

/// Waits until so many more transactions were acknowledged.
pub(super) async fn goes_on(transactions: u64) {
    let at = acknowledged() + transactions;
    until("the writer is stuck", async || {
        (acknowledged() >= at).then_some(())
    })
    .await;
}

/// The last transaction that began a second before a time, and the first one that began a second after it, if there is one.
pub(super) fn beside(time: &str) -> Option<(u64, u64)> {
    let found = LIVE.ask(&format!(
        "SELECT coalesce(max(n) FILTER (WHERE at < timestamptz '{time}' - interval '1 s'), 0), \
         min(n) FILTER (WHERE at > timestamptz '{time}' + interval '1 s') FROM journal"
    ));
    let (earlier, later) = found.split_once('|').unwrap();
    Some((earlier.parse().unwrap(), later.parse().ok()?))
}
