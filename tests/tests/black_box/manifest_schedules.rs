//! Snapshots at regular times. But for one test, a minute of theirs takes a second: the agent has a clock of its own.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::{eventually, write},
    programs::{drumlin, program},
    sources,
};
use serde_json::Value;

use crate::{
    foreign_helpers::{done, fails},
    helpers::{get, put, text},
    host::{Host, absent, annotated, group, object, small, volume},
    timed::{Timed, are_ready, schedule},
};

#[tokio::test]
async fn a_plan_names_the_snapshots_that_another_retention_destroys() {
    let timed = Timed::with_volume("retention: {keepLast: 5}").await;
    eventually(|| timed.children(), |children| are_ready(children, 3)).await;
    let agent = &timed.host.agent;
    let other = agent.scratch.directory("other");
    let changed = schedule("retention: {keepLast: 1}");
    write(&other.join("v.yaml"), &small("v"));
    write(&other.join("s.yaml"), &changed);
    let planned = |words: &[&str]| {
        let mut plan = program(drumlin());
        plan.envs(agent.options().environment.clone());
        plan.arg("plan").args(words);
        plan.args(["--manifests", &text(other.clone())]);
        plan.args(["--state-dir", &text(agent.path("state"))]);
        plan.args(["--endpoint", &text(agent.socket())]);
        let planned = plan.output().unwrap();
        assert_eq!(planned.status.code(), Some(2), "{planned:?}");
        planned.stdout
    };
    let people = String::from_utf8(planned(&[])).unwrap();
    assert!(people.contains("(of schedule s)"), "{people}");
    assert!(!people.contains(":0)"), "{people}");
    let planned: Value = serde_json::from_slice(&planned(&["-o", "json"])).unwrap();
    let lines = planned["changes"].as_array().unwrap();
    let of = |action: &'static str| lines.iter().filter(move |line| line["action"] == *action);
    let update = of("update").next().unwrap()["detail"].as_str().unwrap();
    let kept = "keeps keepLast 1 in place of keepLast 5";
    assert!(update.contains(kept), "{update}");
    let destroyed: Vec<&Value> = of("destroy").collect();
    assert!(destroyed.len() >= 2, "{planned:#}");
    for line in &destroyed {
        assert_eq!(line["kind"], "Snapshot");
        assert_eq!(line["rpcs"], serde_json::json!(["DeleteSnapshot"]));
        assert_eq!(line["bytes"], 16 << 20);
        assert!(line["since"].is_string(), "{line}");
        assert_eq!(line["schedule"], "s");
        assert!(line["file"].is_null() && line["line"].is_null(), "{line}");
    }
    timed.host.write("s.yaml", &[changed]);
    timed.host.until("s", &["True", "RetentionChanged"]).await;
    for line in &destroyed {
        let name = line["name"].as_str().unwrap();
        eventually(|| timed.host.find("Snapshot", name), Option::is_none).await;
        let event = timed.host.last_event(&format!("Snapshot/{name}"));
        assert_eq!(event["reason"], "Deleted");
        let why = "no longer kept by the retention of SnapshotSchedule s";
        assert_eq!(event["message"], why);
    }
}

#[tokio::test]
async fn a_manifest_that_is_cut_off_destroys_no_snapshot() {
    let timed = Timed::with_volume("retention: {keepLast: 4}").await;
    eventually(|| timed.children(), |children| are_ready(children, 4)).await;
    let names = |children: Vec<Value>| -> BTreeSet<String> {
        let name = |child: &Value| child["metadata"]["name"].as_str().unwrap().to_owned();
        children.iter().map(name).collect()
    };
    // Without the last line of the file.
    timed.host.write("s.yaml", &[schedule("")]);
    timed.taken(1).await;
    let before = names(timed.children());
    timed.taken(20).await;
    let after = names(timed.children());
    assert!(after.is_superset(&before), "{before:?} {after:?}");
    assert!(after.len() >= 20, "{after:?}");
    // Put back in time, another number deletes nothing.
    timed
        .host
        .write("s.yaml", &[schedule("retention: {keepLast: 2}")]);
    timed.host.until("s", &["True", "RetentionChanged"]).await;
    timed
        .host
        .write("s.yaml", &[schedule("retention: {keepLast: 100}")]);
    timed.taken(20).await;
    assert!(names(timed.children()).is_superset(&after));
}

#[tokio::test]
async fn a_snapshot_is_taken_within_a_real_minute_and_has_what_was_written_before() {
    let host = Host::start().await;
    let mount = format!("fsType: ext4\nmount: {{path: {}}}", host.path("v"));
    host.write("v.yaml", &[volume("v", "16Mi", &mount)]);
    host.until("v", &["True"]).await;
    put(&host.path("v"), "file", b"written before");
    host.write("s.yaml", &[schedule("retention: {keepLast: 1}")]);
    let deadline = Instant::now() + Duration::from_mins(2);
    let status = loop {
        let status = host.find("SnapshotSchedule", "s").unwrap_or_default()["status"].clone();
        if status["kept"] == 1 {
            break status;
        }
        assert!(
            Instant::now() < deadline,
            "{status:#}\n{}",
            host.agent.log()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let name = status["lastSnapshotName"].as_str().unwrap();
    let slot = status["lastScheduleTime"].as_str().unwrap();
    let digits = |text: &str| -> String { text.chars().filter(char::is_ascii_digit).collect() };
    assert_eq!(digits(name), digits(slot));
    assert!(slot.ends_with(":00Z"), "{slot}");
    host.until("s", &["True", "Scheduled", "1 snapshot,"]).await;
    let spec = format!(
        "source: {{snapshotName: {name}}}\nmount: {{path: {}}}",
        host.path("r")
    );
    host.write("r.yaml", &[volume("r", "16Mi", &spec)]);
    host.until("r", &["True"]).await;
    assert_eq!(get(&host.path("r"), "file"), b"written before");
}

#[tokio::test]
async fn as_many_snapshots_are_kept_as_the_schedule_says_and_commands_show_whose_they_are() {
    let timed = Timed::with_volume("retention: {keepLast: 2}").await;
    timed.taken(4).await;
    timed
        .host
        .until("s", &["True", "Scheduled", "2 snapshots"])
        .await;
    // Until the next slot, two: of the one that is being deleted the record may still be there.
    let there = || {
        let children = timed.children();
        children.len()
    };
    eventually(there, |count| *count == 2).await;
    let child = timed.children().pop().unwrap();
    assert_eq!(child["metadata"]["labels"]["drumlin.dev/schedule"], "s");
    assert!(child["metadata"]["ownerReferences"].is_null());
    let state = text(timed.host.agent.path("state"));
    let wide = ["get", "dsnap", "-o", "wide", "--state-dir", &state];
    let wide = String::from_utf8(timed.host.agent.command(&wide).stdout).unwrap();
    assert!(wide.contains("schedule s"), "{wide}");
    let name = child["metadata"]["name"].as_str().unwrap();
    let described = ["describe", "dsnap", name, "--state-dir", &state];
    let described = timed.host.agent.command(&described).stdout;
    let described = String::from_utf8(described).unwrap();
    assert!(
        described.contains("From:         schedule s\n"),
        "{described}"
    );
    assert!(!described.contains(":0\n"), "{described}");
    let one = ["get", "dsched", "s", "-o", "json", "--state-dir", &state];
    let one: Value = serde_json::from_slice(&timed.host.agent.command(&one).stdout).unwrap();
    assert_eq!(one["kind"], "SnapshotSchedule");
    // On a busy machine a snapshot takes longer than a minute of this clock.
    assert!(one["status"]["missed"].is_u64(), "{one:#}");
    assert!(one["status"]["nextTime"].is_string());
    let snapshots = timed.host.counts().await.1;
    assert!((2..=3).contains(&snapshots), "{snapshots}");
}

#[tokio::test]
async fn a_suspended_schedule_takes_none_deletes_none_and_makes_up_for_none() {
    let timed = Timed::with_volume("retention: {keepLast: 3}").await;
    timed.taken(3).await;
    timed.host.write(
        "s.yaml",
        &[schedule("suspend: true, retention: {keepLast: 1}")],
    );
    timed.host.until("s", &["True", "Suspended"]).await;
    let before = eventually(|| timed.children(), |children| are_ready(children, 3)).await;
    let missed = timed.status()["missed"].as_u64().unwrap();
    assert!(timed.status()["nextTime"].is_null());
    // Of these slots none is served, later neither.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(timed.children(), before);
    timed
        .host
        .write("s.yaml", &[schedule("retention: {keepLast: 1}")]);
    timed
        .host
        .until("s", &["True", "Scheduled", "1 snapshot,"])
        .await;
    let after = timed.status()["missed"].as_u64().unwrap();
    assert!(after < missed + 9, "{missed} {after}");
}

#[tokio::test]
async fn what_is_wrong_with_a_schedule_is_told_with_file_line_and_field() {
    let host = Host::start().await;
    host.write("v.yaml", &[small("v")]);
    host.until("v", &["True"]).await;
    let wrong = "apiVersion: drumlin.dev/v1alpha1
kind: SnapshotSchedule
metadata: {name: s}
spec:
  target: {volumeName: v}
  schedule: 0 24 * * *
  timeZone: Europe/Bonn
  retention: {keepLast: 0}
";
    host.write("s.yaml", &[wrong.to_owned()]);
    let is_told = |(table, _): &(String, i32)| table.contains("INVALID");
    let (table, _) = eventually(|| host.agent.status(), is_told).await;
    for wanted in [
        "s.yaml:6:",
        "spec.schedule: hour: \"24\" is not 0 to 23",
        "s.yaml:7:",
        "spec.timeZone: \"Europe/Bonn\" is not a time zone",
        "s.yaml:8:",
        "spec.retention.keepLast: must be 1 to 1000",
    ] {
        assert!(table.contains(wanted), "{wanted}\n{table}");
    }
    let path = text(host.manifests.join("s.yaml"));
    let output = host.agent.command(&["validate", &path]);
    assert!(!output.status.success());
}

#[tokio::test]
async fn a_schedule_that_ends_leaves_its_snapshots_and_each_can_be_deleted_by_a_manifest() {
    let timed = Timed::with_volume("retention: {keepLast: 2}").await;
    timed.taken(2).await;
    timed
        .host
        .write("s.yaml", &[absent(&schedule("retention: {keepLast: 2}"))]);
    timed
        .host
        .until("s", &["Deleted", "those it took are kept"])
        .await;
    let children = eventually(|| timed.children(), |children| are_ready(children, 2)).await;
    let names: Vec<&str> = children
        .iter()
        .map(|child| child["metadata"]["name"].as_str().unwrap())
        .collect();
    fs::remove_file(timed.host.manifests.join("s.yaml")).unwrap();
    eventually(|| timed.host.find("SnapshotSchedule", "s"), Option::is_none).await;
    // They are no orphans.
    assert_eq!(
        timed.host.agent.status().1,
        0,
        "{:?}",
        timed.host.agent.status()
    );
    assert_eq!(timed.host.counts().await.1, children.len());
    let tombstone = object("Snapshot", names[0], "", "source: {volumeName: v}");
    timed.host.write("one.yaml", &[absent(&tombstone)]);
    timed.host.until(names[0], &["Deleted"]).await;
    assert_eq!(timed.host.counts().await.1, children.len() - 1);
    fs::remove_file(timed.host.manifests.join("one.yaml")).unwrap();
    eventually(|| timed.host.find("Snapshot", names[0]), Option::is_none).await;
    timed.host.until(names[1], &["True", "SnapshotReady"]).await;
}

#[tokio::test]
async fn a_snapshot_that_has_a_manifest_is_kept_whatever_the_retention_says() {
    let timed = Timed::with_volume("retention: {keepLast: 1}").await;
    timed.taken(1).await;
    timed.host.write(
        "s.yaml",
        &[annotated(
            &schedule("retention: {keepLast: 1}"),
            "drumlin.dev/paused: \"true\"",
        )],
    );
    let settled = || timed.children();
    let is_one =
        |children: &Vec<Value>| children.len() == 1 && children[0]["status"]["readyToUse"] == true;
    let children = eventually(settled, is_one).await;
    let name = children[0]["metadata"]["name"].as_str().unwrap();
    let own = object("Snapshot", name, "", "source: {volumeName: v}");
    timed.host.write("own.yaml", &[own]);
    timed
        .host
        .write("s.yaml", &[schedule("retention: {keepLast: 1}")]);
    timed.taken(3).await;
    timed.host.until(name, &["True", "SnapshotReady"]).await;
    timed
        .host
        .until("s", &["True", "Scheduled", "1 snapshot,"])
        .await;
}

#[tokio::test]
async fn a_target_that_is_away_is_waited_for() {
    let timed = Timed::start().await;
    timed
        .host
        .write("s.yaml", &[schedule("startingDeadlineSeconds: 60")]);
    timed
        .host
        .until(
            "s",
            &["False", "DependencyNotFound", "Volume v does not exist"],
        )
        .await;
    let missed = || timed.status()["missed"].as_u64().unwrap_or(0);
    eventually(missed, |missed| *missed > 1).await;
    assert!(timed.children().is_empty());
    timed.host.write("v.yaml", &[small("v")]);
    timed
        .host
        .until("s", &["True", "Scheduled", "1 snapshot,"])
        .await;
    // It goes, with its snapshots or without them, and comes back.
    timed.host.write("v.yaml", &[absent(&small("v"))]);
    timed
        .host
        .until(
            "s",
            &["False", "DependencyNotFound", "Volume v is being deleted"],
        )
        .await;
    timed.host.write("v.yaml", &[small("v")]);
    timed.host.until("s", &["True", "Scheduled"]).await;
    timed.taken(1).await;
}

#[tokio::test]
async fn a_group_without_enough_members_fails_its_runs_until_it_has_them() {
    let timed = Timed::start().await;
    let with = |least: u32| {
        group("g", "a b").replace("members:", &format!("minMembers: {least}, members:"))
    };
    timed.host.write("g.yaml", &[with(3)]);
    timed.host.write("v.yaml", &[small("a"), small("b")]);
    let grouped = schedule("retention: {keepLast: 2}").replace("volumeName: v", "groupName: g");
    timed.host.write("s.yaml", &[grouped]);
    timed
        .host
        .until(
            "s",
            &["False", "SnapshotFailed", "group g, which is not ready"],
        )
        .await;
    let missed = || timed.status()["missed"].as_u64().unwrap_or(0);
    eventually(missed, |missed| *missed > 1).await;
    timed.host.write("g.yaml", &[with(2)]);
    timed
        .host
        .until("s", &["True", "Scheduled", "2 snapshots"])
        .await;
    // Of the failed runs nothing is left.
    let (table, code) = eventually(|| timed.host.agent.status(), |(_, code)| *code == 0).await;
    assert_eq!(code, 0, "{table}");
    assert!(
        table
            .lines()
            .filter(|line| line.starts_with("GroupSnapshot"))
            .count()
            <= 3,
        "{table}"
    );
}

#[tokio::test]
async fn snapshots_are_found_again_after_the_state_was_lost() {
    let mut timed = Timed::with_volume("retention: {keepLast: 3}").await;
    timed
        .host
        .until("s", &["True", "Scheduled", "3 snapshots"])
        .await;
    timed.host.write(
        "s.yaml",
        &[schedule("suspend: true, retention: {keepLast: 3}")],
    );
    timed.host.until("s", &["True", "Suspended"]).await;
    let names = |children: Vec<Value>| -> Vec<String> {
        let names = children
            .iter()
            .map(|child| child["metadata"]["name"].to_string());
        names.collect()
    };
    let settled = eventually(|| timed.children(), |children| are_ready(children, 3)).await;
    let before = names(settled);
    timed.host.agent.kill();
    fs::remove_dir_all(timed.host.agent.path("state/reconciler")).unwrap();
    timed.restart().await;
    let is_there = |children: &Vec<Value>| children.len() == before.len() && are_ready(children, 3);
    let after = eventually(|| timed.children(), is_there).await;
    assert_eq!(names(after), before);
    assert_eq!(timed.host.counts().await.1, before.len());
    // They are pruned as before.
    timed
        .host
        .write("s.yaml", &[schedule("retention: {keepLast: 2}")]);
    timed.taken(2).await;
    timed.host.until("s", &["True", "2 snapshots"]).await;
    let count = || timed.children().len();
    eventually(count, |count| *count == 2).await;
}

/// What brings a reconciler to this point, besides a slot that is due.
fn towards(timed: &Timed, point: &str) {
    match point {
        "schedule.ended" => {
            let ended = absent(&schedule("retention: {keepLast: 2}"));
            timed.host.write("s.yaml", &[ended]);
        }
        // A volume that goes leaves a run that nothing comes of.
        "schedule.run.failed" => {
            timed.host.write("w.yaml", &[group("g", "a b")]);
            let grouped =
                schedule("retention: {keepLast: 2}").replace("volumeName: v", "groupName: g");
            timed
                .host
                .write("s.yaml", &[grouped.replace("name: s", "name: t")]);
        }
        _ => {}
    }
}

#[tokio::test]
async fn a_schedule_that_is_killed_between_two_steps_has_one_snapshot_a_slot() {
    let points = sources::reconciler_points();
    let points = points.iter().filter(|point| point.starts_with("schedule."));
    let points: Vec<&String> = points.collect();
    assert!(points.len() > 5, "{points:?}");
    for point in points {
        let mut timed = Timed::with_volume("retention: {keepLast: 2}").await;
        timed.taken(1).await;
        let lead = |timed: &Timed| towards(timed, point);
        timed.restart_until_killed(point, lead).await;
        timed
            .host
            .write("s.yaml", &[schedule("retention: {keepLast: 2}")]);
        timed.restart().await;
        timed.taken(3).await;
        // Where the schedule had ended, its retention is new, and deletes nothing for a while.
        let deadline = Instant::now() + Duration::from_secs(90);
        while timed.children().len() > 3 {
            assert!(Instant::now() < deadline, "{point}: {:#?}", timed.status());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        timed
            .host
            .until("s", &["True", "Scheduled", " 2 snapshots"])
            .await;
        timed.host.write(
            "s.yaml",
            &[schedule("suspend: true, retention: {keepLast: 2}")],
        );
        timed.host.until("s", &["True", "Suspended"]).await;
        let children = eventually(|| timed.children(), |children| children.len() <= 3).await;
        let handles: BTreeSet<String> = children
            .iter()
            .map(|child| child["status"]["snapshotHandle"].to_string())
            .collect();
        assert_eq!(handles.len(), children.len(), "{point}: {children:#?}");
        let taken = || async { timed.host.counts().await.1 };
        let deadline = Instant::now() + Duration::from_secs(20);
        while taken().await != timed.children().len() {
            assert!(Instant::now() < deadline, "{point}: {children:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn a_snapshot_of_a_schedule_is_deleted_by_its_name() {
    let timed = Timed::with_volume("retention: {keepLast: 5}").await;
    timed.taken(1).await;
    let child = timed.children().remove(0);
    let name = child["metadata"]["name"].as_str().unwrap();
    let agent = &timed.host.agent;
    // It is nobody else's: it has a schedule in place of a manifest.
    let handle = child["status"]["snapshotHandle"].as_str().unwrap();
    for (command, words) in [("adopt", [handle, "other"]), ("handover", ["dsnap", name])] {
        let refused = fails(agent, command, &words);
        assert!(refused.contains("which schedule s has taken"), "{refused}");
    }
    done(agent, "delete", &["dsnap", name, "--yes"]);
    eventually(|| timed.host.find("Snapshot", name), Option::is_none).await;
    // The next ones are taken all the same.
    timed.taken(1).await;
    assert!(timed.host.find("Snapshot", name).is_none());
}
