//! The copy beside the original: restored, looked at, and thrown away.

use std::fs;

use drumlin_proto::csi::v1::ListVolumesRequest;
use drumlin_tests::{
    programs::{run, workspace},
    storage::mounts_below,
};

use super::{
    Taken,
    database::{COPY, LIVE, goes_on},
    drumlin, object,
};
use crate::{
    say,
    unit::{MANIFESTS, main_pid, replaced, systemctl, until},
    volume::controller,
};

/// Both volumes of the copy.
const VOLUMES: [&str; 2] = ["dv/postgresql/data-copy", "dv/postgresql/wal-copy"];

/// The copy has what had been committed when the snapshot was taken, whole, while the original writes on.
pub(super) async fn restore(taken: &Taken) {
    let template = workspace().join("examples/postgresql/restore/copy.yaml.in");
    let words = format!(
        "sed 's/SNAPSHOT/{}/' {} > {MANIFESTS}/copy.yaml",
        taken.name,
        template.display()
    );
    run("sh", &["-c", &words]);
    let killed = main_pid();
    systemctl(&["kill", "-s", "KILL", "drumlin"]);
    drumlin(&[&["wait"], &VOLUMES[..], &["--timeout", "2m"]].concat());
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
    // Checksums of all that it reads are checked.
    let dump = "runuser -u postgres -- pg_dumpall -h /run/postgresql-copy -p 5433 > /dev/null";
    run("sh", &["-c", dump]);

    // What is written to one is not in the other.
    COPY.ask("UPDATE counter SET n = n + 1000000");
    goes_on(50).await;
    assert!(LIVE.last() > taken.after);
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
    drumlin(
        &[
            &["wait"],
            &VOLUMES[..],
            &["--for", "delete", "--timeout", "2m"],
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
    goes_on(50).await;
    LIVE.last();
}
