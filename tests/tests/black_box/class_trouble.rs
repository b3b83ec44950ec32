//! Classes that cannot be read, as those who watch the classes see them.

use std::fs;

use drumlin_proto::{csi::v1::ProbeRequest, drumlin::v1::DeviceClass};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::{run, waiting},
    requests::{create, expand, raw},
    storage::{Kind, Scratch},
};

use crate::{
    classes::{Watch, until_read},
    helpers::{ok, text, two_classes, volume},
    stalled_paths::Silent,
};

/// The classes of these names, and whether each is ready.
async fn ready(watch: &mut Watch) -> Vec<(String, bool)> {
    let classes = watch.next().await.unwrap().into_iter();
    classes.map(|class| (class.name, class.ready)).collect()
}

fn state(a: bool, b: bool) -> Vec<(String, bool)> {
    vec![("a".to_owned(), a), ("b".to_owned(), b)]
}

#[tokio::test]
async fn a_class_that_goes_away_and_comes_back_is_one_response_each() {
    let agent = two_classes().await;
    let mut watch = Watch::begin(&agent, 1).await;
    assert_eq!(ready(&mut watch).await, state(true, true));
    let (here, away) = (agent.path("b"), agent.path("away"));
    fs::rename(&here, &away).unwrap();
    agent.identity().probe(ProbeRequest {}).await.unwrap_err();
    let classes = watch.next().await.unwrap();
    let [a, b] = classes.as_slice() else {
        panic!("{classes:?}");
    };
    assert!(a.ready && a.available_bytes > 0 && a.default, "{a:?}");
    assert!(!b.ready && !b.default, "{b:?}");
    assert!(b.message.contains(here.to_str().unwrap()), "{}", b.message);
    assert_eq!((b.available_bytes, b.maximum_volume_bytes), (0, 0));
    assert_eq!((b.data_percent, b.metadata_percent), (-1, -1));
    // It is still away.
    agent.identity().probe(ProbeRequest {}).await.unwrap_err();
    watch.is_silent().await;
    fs::rename(&away, &here).unwrap();
    ok(agent.identity().probe(ProbeRequest {}).await);
    assert_eq!(ready(&mut watch).await, state(true, true));
    watch.is_silent().await;
}

#[tokio::test]
async fn a_class_that_comes_back_is_seen_without_any_call() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.directory("a"), scratch.directory("b"));
    let options = Options {
        config: Some(format!(
            "classes:\n- {{name: a, default: true, directory: {{path: {}}}}}\n- {{name: b, directory: {{path: {}}}}}\n",
            text(a),
            text(b)
        )),
        environment: vec![("DRUMLIN_TIME_LAPSE".to_owned(), "20".to_owned())],
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let (here, away) = (agent.path("b"), agent.path("away"));
    fs::rename(&here, &away).unwrap();
    let mut watch = Watch::begin(&agent, 1).await;
    assert_eq!(ready(&mut watch).await, state(true, false));
    fs::rename(&away, &here).unwrap();
    assert_eq!(ready(&mut watch).await, state(true, true));
}

#[tokio::test]
async fn a_class_that_does_not_answer_is_not_ready_beside_one_that_changes() {
    let agent = two_classes().await;
    let id = volume(&agent, "v", 16, &raw()).await;
    let silent = Silent::new(agent.scratch.directory("b"));
    let mut watch = Watch::begin(&agent, 1).await;
    let is_shown = |classes: &[DeviceClass]| {
        assert!(classes[0].ready && !classes[1].ready, "{classes:?}");
        assert!(classes[1].message.contains("answer"), "{classes:?}");
        classes[0].promised_bytes
    };
    assert_eq!(is_shown(&watch.next().await.unwrap()), 16 << 20);
    let mut controller = agent.controller();
    ok(controller.controller_expand_volume(expand(&id, 24)).await);
    // What is wrong with the other one may be known better first.
    while is_shown(&watch.next().await.unwrap()) < 24 << 20 {}
    assert!(waiting(agent.pid()) <= 2, "each reading waits for it");
    drop(silent);
}

#[tokio::test]
async fn what_others_write_is_seen_by_calls_that_come_anyway() {
    let scratch = Scratch::new();
    let path = scratch.file_system("only", Kind::Ext4, 512);
    let options = Options {
        arguments: vec!["--log-level=debug".to_owned()],
        // A minute becomes a second.
        environment: vec![("DRUMLIN_TIME_LAPSE".to_owned(), "60".to_owned())],
        ..Options::of_directory(&path)
    };
    let agent = Agent::with(scratch, options).await;
    let mut watch = Watch::begin(&agent, 1).await;
    let before = watch.class().await;
    let probe = || async {
        ok(agent.identity().probe(ProbeRequest {}).await);
    };
    // Less than one percent of the file system is no news.
    fs::write(path.join("little"), vec![1; 2 << 20]).unwrap();
    until_read(&agent, probe).await;
    watch.is_silent().await;
    fs::write(path.join("much"), vec![1; 64 << 20]).unwrap();
    until_read(&agent, probe).await;
    let after = watch.class().await;
    let less = before.available_bytes - after.available_bytes;
    assert!(less >= 66 << 20, "{less}");
    assert!(after.data_percent >= before.data_percent + 10, "{after:?}");
}

#[tokio::test]
async fn an_empty_directory_in_the_place_of_one_with_images_is_not_used() {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", Kind::Ext4, 100);
    let options = Options::of_directory(&images);
    let mut agent = Agent::with(scratch, options.clone()).await;
    let id = volume(&agent, "v", 16, &raw()).await;
    agent.kill();
    // A start of the host, at which the file system is not mounted.
    let device = run("findmnt", &["-no", "SOURCE", &text(images.clone())]);
    // The device stays.
    let held = fs::File::open(device.trim()).unwrap();
    run("umount", &[&text(images.clone())]);
    agent.restart_with(options.clone()).await;
    let refusal = agent
        .controller()
        .create_volume(create("v", 16, &raw()))
        .await;
    let message = refusal.unwrap_err().message().to_owned();
    assert!(message.contains("mount its file system"), "{message}");
    assert_eq!(fs::read_dir(&images).unwrap().count(), 0);
    // Mounted again it is used without a restart.
    run("mount", &[device.trim(), &text(images.clone())]);
    drop(held);
    assert_eq!(volume(&agent, "v", 16, &raw()).await, id);

    // What the agent made itself is not made again.
    let mut agent = Agent::start().await;
    let id = volume(&agent, "v", 16, &raw()).await;
    let (images, aside) = (agent.path("state/images"), agent.path("state/aside"));
    let plain = agent.options().clone();
    agent.kill();
    fs::rename(&images, &aside).unwrap();
    agent.restart_with(plain.clone()).await;
    let refusal = agent
        .controller()
        .create_volume(create("v", 16, &raw()))
        .await;
    let message = refusal.unwrap_err().message().to_owned();
    assert!(message.contains("move the images back"), "{message}");
    assert!(!images.exists());
    fs::rename(&aside, &images).unwrap();
    assert_eq!(volume(&agent, "v", 16, &raw()).await, id);
    // An administrator begins anew.
    agent.kill();
    fs::remove_dir_all(&images).unwrap();
    let note = message.rsplit(' ').next().unwrap();
    fs::remove_file(note).unwrap();
    agent.restart_with(plain).await;
    assert_eq!(volume(&agent, "v", 16, &raw()).await, id);
}
