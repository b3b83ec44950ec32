//! A second signal: the process ends where it stands, and the next one finishes what was begun.

use std::fs;

use drumlin_tests::{
    agent::{Agent, Options, eventually},
    requests::{create, raw, snapshot},
    storage::{Kind, Scratch},
};
use nix::sys::signal::Signal;

use crate::helpers::{ok, text};

/// The names in a directory.
fn names(path: &std::path::Path) -> Vec<String> {
    fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[tokio::test]
async fn a_second_signal_ends_it_in_the_middle_of_a_change_that_a_repeat_finishes() {
    let scratch = Scratch::new();
    // Without reflinks, so that a snapshot takes far longer than two signals do.
    let images = scratch.file_system("images", Kind::Ext4, 700);
    let options = Options {
        config: Some(format!(
            "classes:\n- {{name: a, default: true, directory: {{path: {}}}}}\n",
            text(images.clone())
        )),
        ..Options::default()
    };
    let mut agent = Agent::with(scratch, options).await;
    let new = create("v", 192, &raw());
    let id = ok(agent.controller().create_volume(new).await)
        .volume
        .unwrap()
        .volume_id;
    let image = images
        .join("volumes")
        .join(id.rsplit('/').next().unwrap())
        .join("image");
    fs::write(&image, vec![7; 192 << 20]).unwrap();

    let snapshots = images.join("snapshots");
    let mut controller = agent.controller();
    let request = snapshot("s", &id);
    let taking = tokio::spawn(async move { controller.create_snapshot(request).await });
    eventually(|| names(&snapshots), |names| !names.is_empty()).await;
    agent.signal(Signal::SIGTERM);
    agent.signal(Signal::SIGINT);
    assert_eq!(agent.wait().await.code(), Some(1));
    assert!(taking.await.unwrap().is_err(), "the caller is told");
    let left = names(&snapshots);
    assert!(
        left.iter().all(|name| name.starts_with('.')),
        "it did not wait for the copy: {left:?}"
    );

    agent.restart().await;
    let answer = agent.controller().create_snapshot(snapshot("s", &id)).await;
    assert!(ok(answer).snapshot.unwrap().ready_to_use);
    let left = names(&snapshots);
    assert_eq!(left.len(), 1, "one snapshot and no remains: {left:?}");
    let copy = fs::read(snapshots.join(&left[0]).join("image")).unwrap();
    assert!(copy == fs::read(&image).unwrap(), "it has all the bytes");
}
