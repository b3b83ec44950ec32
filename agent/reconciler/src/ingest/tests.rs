//! Whatever happens to manifest files, a missing manifest destroys nothing.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use tempfile::TempDir;

use super::*;
use crate::record::{Body, Of};
use drumlin_crd::ObjectKey;

use crate::{
    Hooks,
    client::Client,
    source::{directory::Directory, trust::Trust},
    state::Shared,
    store::Store,
};

/// An engine that does not run: nothing is called, and the records show what would be.
fn engine(directory: &TempDir) -> Engine {
    let store = Store::open(&directory.path().join("state")).unwrap();
    let shared = Shared::new(store, directory.path().join("state"), Hooks::default()).unwrap();
    let client = Client::new(Path::new("/tmp/nobody-answers-here.sock")).unwrap();
    Engine::new(Arc::new(shared), client)
}

fn write(directory: &TempDir, text: &str) {
    let path = directory.path().join("m/a.yaml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}

/// Marks the objects as created, as a first pass would: an object without resources is removed without a trace.
fn begin_all(engine: &Engine) {
    for key in engine.shared.keys() {
        let mut record = engine.shared.record(&key).unwrap();
        let Body::Volume(Of { status, .. }) = &mut record.body else {
            panic!("{key} is no volume");
        };
        status.volume_handle = Some(key.name.clone());
        engine.shared.save(&record).unwrap();
    }
}

fn manifest() -> String {
    ["a", "b", "c"]
        .map(|name| {
            format!(
                "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata:\n  name: {name}\nspec:\n  capacity: 20Gi\n  deletionPolicy: Delete\n  mount:\n    path: /srv/{name}\n"
            )
        })
        .join("---\n")
}

#[tokio::test]
async fn no_proper_prefix_of_a_manifest_destroys_anything() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("m")).unwrap();
    let engine = engine(&directory);
    let mut source = Directory::new(directory.path().join("m"), Trust::new(&[]));
    let mut catalog = Catalog::default();
    let whole = manifest();
    write(&directory, &whole);
    catalog.apply(&engine, "m", source.scan()).unwrap();
    assert_eq!(engine.shared.keys().len(), 3);
    begin_all(&engine);
    let mut orphaned = 0;
    for end in 0..whole.len() {
        write(&directory, whole.get(..end).unwrap());
        catalog.apply(&engine, "m", source.scan()).unwrap();
        for name in ["a", "b", "c"] {
            let key = ObjectKey {
                kind: "Volume".into(),
                namespace: "default".into(),
                name: name.into(),
            };
            let record = engine
                .shared
                .record(&key)
                .unwrap_or_else(|| panic!("{key} is gone at {end}"));
            assert!(!record.is_absent(), "{key} would be destroyed at {end}");
            orphaned += usize::from(record.drumlin.orphan_since.is_some());
        }
    }
    assert!(
        orphaned > 0,
        "some prefixes lack a document, and that must be seen"
    );
    write(&directory, &whole);
    catalog.apply(&engine, "m", source.scan()).unwrap();
    for key in engine.shared.keys() {
        assert_eq!(
            engine.shared.record(&key).unwrap().drumlin.orphan_since,
            None
        );
    }
}

#[tokio::test]
async fn what_was_never_begun_leaves_without_a_trace_and_binds_nobody() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("m")).unwrap();
    let engine = engine(&directory);
    let mut source = Directory::new(directory.path().join("m"), Trust::new(&[]));
    let mut catalog = Catalog::default();
    let volume = |name: &str, capacity: &str| {
        manifest()
            .split("---\n")
            .next()
            .unwrap()
            .replace("name: a", &format!("name: {name}"))
            .replace("20Gi", capacity)
    };
    write(&directory, &volume("a", "20Gi"));
    catalog.apply(&engine, "m", source.scan()).unwrap();
    // It may shrink: nothing was created yet.
    write(&directory, &volume("a", "10Gi"));
    catalog.apply(&engine, "m", source.scan()).unwrap();
    assert!(catalog.shown.as_ref().unwrap().problems.is_empty());
    begin_all(&engine);
    write(&directory, &volume("a", "5Gi"));
    catalog.apply(&engine, "m", source.scan()).unwrap();
    assert!(!catalog.shown.as_ref().unwrap().problems.is_empty());
    write(
        &directory,
        &format!("{}---\n{}", volume("a", "10Gi"), volume("b", "1Gi")),
    );
    catalog.apply(&engine, "m", source.scan()).unwrap();
    assert_eq!(engine.shared.keys().len(), 2);
    write(&directory, &volume("a", "10Gi"));
    catalog.apply(&engine, "m", source.scan()).unwrap();
    assert_eq!(engine.shared.keys().len(), 1);
}

#[tokio::test]
async fn an_unchanged_directory_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("m")).unwrap();
    let engine = engine(&directory);
    let mut source = Directory::new(directory.path().join("m"), Trust::new(&[]));
    let mut catalog = Catalog::default();
    write(&directory, &manifest());
    catalog.apply(&engine, "m", source.scan()).unwrap();
    engine.shared.write_all().unwrap();
    let state = directory.path().join("state/reconciler");
    let times = || {
        let mut times = Vec::new();
        for path in ["source.json", "objects/Volume/default/a.json"] {
            times.push(fs::metadata(state.join(path)).unwrap().modified().unwrap());
        }
        times
    };
    let before = times();
    for _ in 0..3 {
        catalog.apply(&engine, "m", source.scan()).unwrap();
        engine.shared.write_all().unwrap();
    }
    assert_eq!(times(), before);
}
