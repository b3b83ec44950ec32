//! What is in a file, and when.

use std::path::Path;

use drumlin_crd::read;
use tempfile::TempDir;

use super::*;
use crate::{
    Hooks,
    record::{Body, Of},
    store::{self, Store},
};

fn shared(state: &Path) -> Shared {
    let store = Store::open(state).unwrap();
    // As after the first list of all classes.
    store.marker().has_seen_all();
    Shared::new(store, state.to_owned(), Hooks::default()).unwrap()
}

fn volume(name: &str) -> Record {
    let text = format!(
        "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {{name: {name}}}\nspec: {{capacity: 1Gi}}\n"
    );
    let object = read(&text).unwrap().documents.remove(0).object;
    Record::new(&object, "a.yaml", 1)
}

fn with_handle(mut record: Record) -> Record {
    let Body::Volume(Of { status, .. }) = &mut record.body else {
        panic!("no volume");
    };
    status.volume_handle = Some("a-handle".to_owned());
    record
}

/// What another process finds in the file of an object.
fn written(state: &TempDir, record: &Record) -> Option<Record> {
    store::find(&state.path().join(store::DIRECTORY), &record.key()).unwrap()
}

fn marker(state: &TempDir) -> bool {
    Store::dry_run(state.path()).marker().is_new()
}

#[tokio::test]
async fn the_record_of_a_new_object_may_be_lost_until_all_is_written() {
    let state = tempfile::tempdir().unwrap();
    let shared = shared(state.path());
    let new = volume("new");
    assert!(!marker(&state));
    shared.put_ingested(&new).unwrap();
    assert!(marker(&state), "the next process is told");
    assert_eq!(written(&state, &new), Some(new.clone()), "for who reads it");
    let intended = with_handle(new.clone());
    shared.remember(&intended).unwrap();
    assert_eq!(shared.record(&new.key()), Some(intended));
    assert_eq!(written(&state, &new), Some(new.clone()), "in memory alone");

    let made = with_handle(new);
    shared.save_behind(&made).unwrap();
    shared.write_due().unwrap();
    assert_eq!(
        written(&state, &made),
        Some(made.clone()),
        "for who reads it"
    );
    assert!(marker(&state), "a power cut may take it");
    shared.write_all().unwrap();
    assert!(!marker(&state));
    assert_eq!(written(&state, &made), Some(made));
}

#[tokio::test]
async fn what_is_durable_is_never_replaced_by_what_is_not() {
    let state = tempfile::tempdir().unwrap();
    let shared = shared(state.path());
    let new = volume("new");
    shared.put_ingested(&new).unwrap();
    let key = new.key();
    assert!(shared.behind.is_fresh(&key));
    let made = with_handle(new);
    shared.save(&made).unwrap();
    assert!(!shared.behind.is_fresh(&key), "a step relies on it");
    shared.write_unsynced(&key).unwrap();
    shared.remember(&made).unwrap();
    assert!(!shared.behind.is_fresh(&key));
    // An object of the same name has had a record: what is in its file is not to come again.
    let again = volume("new");
    shared.put_ingested(&again).unwrap();
    assert!(!shared.behind.is_fresh(&key));
    assert_eq!(written(&state, &again), Some(again));
}

#[tokio::test]
async fn an_object_that_is_gone_before_it_was_written_leaves_nothing() {
    let state = tempfile::tempdir().unwrap();
    let shared = shared(state.path());
    let new = volume("new");
    shared.put_ingested(&new).unwrap();
    shared.forget(&new.key()).unwrap();
    shared.write_all().unwrap();
    assert_eq!(written(&state, &new), None);
    assert!(!marker(&state));
}

#[tokio::test(start_paused = true)]
async fn new_records_are_synced_when_it_is_quiet_and_in_ten_seconds_at_the_latest() {
    let state = tempfile::tempdir().unwrap();
    let shared = shared(state.path());
    let first = volume("first").key();
    shared.put_ingested(&volume("first")).unwrap();
    let running = shared.keep_writing();
    tokio::pin!(running);
    let begun = Instant::now();
    // Something is always new.
    for number in 0..300 {
        if !shared.behind.is_fresh(&first) {
            break;
        }
        shared.put_ingested(&volume(&format!("v{number}"))).unwrap();
        let pause = Duration::from_millis(50);
        assert!(timeout(pause, &mut running).await.is_err());
    }
    let durable = begun.elapsed();
    assert!(
        durable > QUIET * 2 && durable < LONGEST + QUIET,
        "{durable:?}"
    );
    shared.put_ingested(&volume("last")).unwrap();
    assert!(marker(&state));
    assert!(timeout(QUIET * 3, &mut running).await.is_err());
    assert!(!marker(&state), "all are when it is quiet");
}

#[test]
fn what_cannot_be_written_stays_due_and_the_marker_with_it() {
    let state = tempfile::tempdir().unwrap();
    let shared = shared(state.path());
    let new = volume("new");
    shared.put_ingested(&new).unwrap();
    std::fs::remove_dir_all(state.path().join("reconciler/objects/Volume")).unwrap();
    // A file where the directory of its kind belongs.
    let kind = state.path().join("reconciler/objects/Volume");
    std::fs::write(&kind, "").unwrap();
    assert!(shared.write_all().is_err());
    assert!(marker(&state) && shared.behind.is_fresh(&new.key()));
    std::fs::remove_file(&kind).unwrap();
    shared.write_all().unwrap();
    assert_eq!(written(&state, &new), Some(new));
    assert!(!marker(&state));
}
