//! The copy beside the original: restored, looked at, and thrown away.

use std::fs;

use drumlin_proto::csi::v1::ListVolumesRequest;
use drumlin_tests::{
    programs::{run, workspace},
    storage::mounts_below,
};

use super::{
    Taken, UNIT,
    database::{COPY, LIVE, Server, acknowledged, goes_on, start_writer},
    drumlin, object, wait_for,
};
use crate::{
    say,
    unit::{MANIFESTS, main_pid, replaced, systemctl, until},
    volume::controller,
};

/// Both volumes of the copy.
const VOLUMES: [&str; 2] = ["dv/postgresql/data-copy", "dv/postgresql/wal-copy"];

/// Writes the manifests of the copy.
fn write_copy(taken: &Taken) {
    let template = workspace().join("examples/postgresql/restore/copy.yaml.in");
    let words = format!(
        "sed 's/SNAPSHOT/{}/' {} > {MANIFESTS}/copy.yaml",
        taken.name,
        template.display()
    );
    run("sh", &["-c", &words]);
}

/// The copy has what had been committed when the snapshot was taken, whole, while the original writes on.
pub(super) async fn restore(taken: &Taken) {
    write_copy(taken);
    let killed = main_pid();
    systemctl(&["kill", "-s", "KILL", "drumlin"]);
    wait_for(&VOLUMES);
    replaced(killed).await;

    systemctl(&["start", "postgresql-copy"]);
    let journal = run("journalctl", &["-b", "--no-pager", "-u", "postgresql-copy"]);
    assert!(journal.contains("redo starts at"), "{journal}");
    let last = COPY.last();
    say(&format!("the copy has {last} transactions"));
    assert!(
        (taken.before..=taken.after).contains(&last),
        "{taken:?}, the copy has {last}"
    );
    // What is written to one is not in the other.
    COPY.ask("CREATE TABLE only_here ()");
    goes_on(20).await;
    assert!(LIVE.last() > taken.after);
    assert!(!has_table(LIVE));

    systemctl(&["stop", "postgresql-copy"]);
    let check = "/usr/lib/postgresql/15/bin/pg_checksums -D /srv/restore/postgresql/15/main";
    let check = format!("-u postgres -- {check}");
    let words: Vec<&str> = check.split(' ').collect();
    let checked = run("runuser", &words);
    assert!(checked.contains("Bad checksums:  0\n"), "{checked}");
}

fn has_table(server: Server) -> bool {
    server.ask("SELECT to_regclass('only_here') IS NOT NULL") == "t"
}

/// The cluster goes on with the copy, and then again with what it had before.
pub(super) async fn switch(taken: &Taken) {
    systemctl(&["stop", UNIT]);
    let acknowledged = acknowledged();
    for (script, file) in [
        ("s|/var/lib/|/srv/former/|", "1-volumes.yaml"),
        (
            "s|/srv/restore/|/var/lib/|; s/Policy: Delete/Policy: Retain/",
            "copy.yaml",
        ),
        ("s/, name: [a-z]*/&-copy/", "2-group.yaml"),
    ] {
        run("sed", &["-i", script, &format!("{MANIFESTS}/{file}")]);
    }
    start_again();
    wait_for(&["dvg/postgresql/main"]);
    let last = LIVE.last();
    assert!((taken.before..=taken.after).contains(&last), "{last}");
    assert!(has_table(LIVE));

    systemctl(&["stop", UNIT]);
    let manifests = workspace().join("examples/postgresql/manifests");
    for file in ["1-volumes.yaml", "2-group.yaml"] {
        let file = manifests.join(file);
        let words = ["-m", "644", "-t", MANIFESTS, &file.to_string_lossy()];
        run("install", &words);
    }
    write_copy(taken);
    start_again();
    assert!(LIVE.last() >= acknowledged, "{acknowledged}");
    assert!(!has_table(LIVE));
    start_writer();
    goes_on(20).await;
    systemctl(&["start", "postgresql-copy"]);
}

/// Starts the cluster on what manifests that were changed mount.
fn start_again() {
    systemctl(&["reload", "drumlin"]);
    drumlin(&["wait", "--mounts", "--timeout", "2m"]);
    systemctl(&["start", UNIT]);
}

/// A tombstone takes nothing away from a server that runs; when it has ended, the copy is destroyed, and nothing else.
pub(super) async fn throw_away() {
    let file = format!("{MANIFESTS}/copy.yaml");
    run("sed", &["-i", "s/#annotations/annotations/", &file]);
    until("the tombstone is not seen", async || {
        let found = object("dv", "data-copy");
        let ready = &found["status"]["conditions"][0];
        (ready["status"] == "False").then(|| say(&format!("in use: {ready}")))
    })
    .await;
    assert_eq!(COPY.ask("SELECT count(*) > 0 FROM journal"), "t");
    systemctl(&["stop", "postgresql-copy"]);
    // Otherwise it is tried again after twice the time that it was in use.
    let now = "s|state: absent|&, drumlin.dev/reconcile-at: now|";
    run("sed", &["-i", now, &file]);
    drumlin(
        &[
            &["wait"],
            &VOLUMES[..],
            &["--for", "delete", "--timeout", "5m"],
        ]
        .concat(),
    );
    fs::remove_file(file).unwrap();
    until("something is not ready", async || {
        let status = drumlin_tests::programs::output("/usr/bin/drumlin", &["status"]);
        status.status.success().then_some(())
    })
    .await;
    assert_eq!(mounts_below("/srv/restore"), [""; 0]);
    let listed = controller()
        .list_volumes(ListVolumesRequest::default())
        .await;
    let listed = listed.unwrap().into_inner().entries;
    assert_eq!(listed.len(), 2, "{listed:?}");
    goes_on(20).await;
    LIVE.last();
}
