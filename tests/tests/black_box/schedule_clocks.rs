//! Schedules whose clock is wrong: nothing is deleted, and snapshots are taken all the while.

use drumlin_tests::agent::eventually;
use serde_json::Value;

use crate::{
    host::{absent, annotated, object, small},
    timed::{Timed, are_ready, schedule},
};

#[tokio::test]
async fn a_clock_that_is_ahead_between_two_runs_deletes_nothing_until_the_next_one() {
    let timed = Timed::start().await;
    let hourly = |kept: u32| {
        let more = format!("startingDeadlineSeconds: 600, retention: {{keepLast: {kept}}}");
        schedule(&more).replace("* * * * *", "0 * * * *")
    };
    // A pass that waits for a time of the former clock: the kernel would tell of the change.
    let hear = |kept: u32, turn: &str| {
        let asked = format!("drumlin.dev/reconcile-at: {turn}");
        timed
            .host
            .write("s.yaml", &[annotated(&hourly(kept), &asked)]);
    };
    timed.host.write("v.yaml", &[small("v")]);
    hear(5, "first");
    timed.host.until("s", &["Scheduled"]).await;
    for (count, turn) in [(1, "one"), (2, "two"), (3, "three")] {
        timed.to_minute(0.0, 1.0);
        hear(5, turn);
        let kept = || timed.status()["kept"].clone();
        eventually(kept, |kept| *kept == count).await;
    }
    // 21 slots pass, and the last one has passed its deadline.
    timed.to_minute(20.0, 30.0);
    hear(5, "ahead");
    timed.host.until("s", &["True", "ClockSuspect"]).await;
    hear(1, "fewer");
    let observed = || timed.host.find("SnapshotSchedule", "s").unwrap_or_default();
    let is_seen = |now: &Value| now["spec"]["retention"]["keepLast"] == 1;
    eventually(observed, is_seen).await;
    timed.host.until("s", &["True", "ClockSuspect"]).await;
    assert_eq!(timed.children().len(), 3);
    timed.to_minute(0.0, 1.0);
    hear(1, "next");
    eventually(|| timed.children(), |children| are_ready(children, 1)).await;
    timed.host.until("s", &["True", "Scheduled"]).await;
}

#[tokio::test]
async fn a_clock_that_was_ahead_stops_the_deletion_of_snapshots_but_not_the_snapshots() {
    let timed = Timed::with_volume("retention: {keepLast: 1}").await;
    timed.taken(2).await;
    // A day ahead: one catch-up run, and nothing is deleted after it.
    let day = |status: &Value| status["lastSnapshotName"].as_str().unwrap()[..10].to_owned();
    let today = day(&timed.status());
    timed.set_clock(24.0 * 3600.0);
    let ahead = eventually(
        || timed.status(),
        |status| status["missed"].as_u64().unwrap_or(0) >= 999 && day(status) != today,
    )
    .await;
    let wrong = ahead["lastSnapshotName"].as_str().unwrap().to_owned();
    // And back again. A pass that began before waits for a time of tomorrow: the kernel would tell of the change.
    timed.set_clock(-24.0 * 3600.0);
    let told = annotated(
        &schedule("retention: {keepLast: 1}"),
        "drumlin.dev/reconcile-at: back",
    );
    timed.host.write("s.yaml", &[told]);
    timed
        .host
        .until("s", &["False", "ClockSuspect", "in the future"])
        .await;
    timed.taken(3).await;
    let kept = timed.status()["kept"].as_u64().unwrap();
    assert!(kept >= 4, "{kept}");
    let future: Vec<String> = timed
        .children()
        .iter()
        .map(|child| child["metadata"]["name"].as_str().unwrap().to_owned())
        .filter(|name| *name >= wrong)
        .collect();
    let tombstones: Vec<String> = future
        .iter()
        .map(|name| absent(&object("Snapshot", name, "", "source: {volumeName: v}")))
        .collect();
    timed.host.write("future.yaml", &tombstones);
    timed
        .host
        .until("s", &["True", "Scheduled", "1 snapshot,"])
        .await;
}
