//! Directory classes: half-made images, damage, and the file system below.

use std::fs;

use drumlin_tests::{
    agent::{Agent, Options},
    doctor::Diagnosis,
    programs::run,
    requests::{create, mounted, raw},
    storage::{Kind, Scratch},
};
use nix::sys::signal::Signal;

use crate::helpers::{home, mount, text, two_classes, volume};

#[tokio::test]
async fn an_image_that_was_begun_is_half_made_until_an_agent_starts() {
    let mut agent = Agent::start().await;
    agent.kill();
    let options = Options::default().killed_at("directory.create.filled");
    agent.restart_with(options).await;
    let mut controller = agent.controller();
    controller
        .create_volume(create("v", 16, &raw()))
        .await
        .unwrap_err();
    agent.wait_until_killed().await;
    Diagnosis::of(&agent).finds("half-made-image", "/.making-");
    agent.restart_with(Options::default()).await;
    volume(&agent, "v", 16, &raw()).await;
    Diagnosis::of(&agent).lacks("half-made-image");
}

#[tokio::test]
async fn records_and_images_that_are_damaged_are_told() {
    let mut agent = Agent::start().await;
    let first = volume(&agent, "first", 16, &raw()).await;
    let second = volume(&agent, "second", 16, &raw()).await;
    agent.kill();
    let found = Diagnosis::of(&agent);
    found.lacks("unreadable-record");
    found.lacks("damaged-image");
    let (record, image) = (
        home(&agent, &first).join("record.json"),
        home(&agent, &second).join("image"),
    );
    let before = fs::read(&record).unwrap();
    for wrong in [Some("{"), None] {
        match wrong {
            Some(text) => fs::write(&record, text).unwrap(),
            None => fs::remove_file(&record).unwrap(),
        }
        Diagnosis::of(&agent).finds("unreadable-record", &text(home(&agent, &first)));
    }
    fs::write(&record, before).unwrap();
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.set_len(4096).unwrap();
    let found = Diagnosis::of(&agent);
    found.lacks("unreadable-record");
    found.finds("damaged-image", &text(image.clone()));
    file.set_len(16 << 20).unwrap();
    Diagnosis::of(&agent).lacks("damaged-image");
    fs::remove_file(&image).unwrap();
    Diagnosis::of(&agent).finds("damaged-image", &text(image));
}

#[tokio::test]
async fn a_directory_with_another_one_mounted_over_it_is_replaced() {
    let mut agent = two_classes().await;
    let ext4 = mounted("ext4");
    let id = volume(&agent, "v", 32, &ext4).await;
    mount(&agent, "v", &id, &ext4).await;
    Diagnosis::of(&agent).lacks("directory-replaced");
    let path = text(agent.path("a"));
    // By what the agent has open until it looks again, as a Probe has it do; and without it by what the loop device has.
    agent.signal(Signal::SIGSTOP);
    run("mount", &["-t", "tmpfs", "none", &path]);
    let of_agent = Diagnosis::until(&agent, "directory-replaced", &path);
    let of_agent = of_agent.text("directory-replaced", &path, "message");
    agent.signal(Signal::SIGCONT);
    agent.kill();
    let of_device = Diagnosis::until(&agent, "directory-replaced", &path);
    let of_device = of_device.text("directory-replaced", &path, "message");
    run("umount", &[&path]);
    assert!(
        of_agent.contains("the agent has another directory"),
        "{of_agent}"
    );
    assert!(of_device.contains("/dev/loop"), "{of_device}");
    Diagnosis::of(&agent).lacks("directory-replaced");
}

#[tokio::test]
async fn a_file_system_that_is_full_overcommitted_or_read_only_is_told() {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", Kind::Ext4, 64);
    let agent = Agent::with(scratch, Options::of_directory(&images)).await;
    let found = Diagnosis::of(&agent);
    let path = text(images.clone());
    let message = found.text("no-reflinks", &path, "message");
    assert!(message.contains("ext4"), "{message}");
    for check in ["overcommitted", "low-space", "directory-read-only"] {
        found.lacks(check);
    }
    for name in ["a", "b"] {
        volume(&agent, name, 40, &raw()).await;
    }
    Diagnosis::of(&agent).finds("overcommitted", &path);
    let filler = images.join("filler");
    let left = run("df", &["--output=avail", "--block-size=1M", &path]);
    let left: u32 = left.lines().last().unwrap().trim().parse().unwrap();
    let most = format!("{}M", left - 2);
    run("fallocate", &["-l", &most, &text(filler.clone())]);
    let message = Diagnosis::of(&agent).text("low-space", &path, "message");
    assert!(message.contains("% of the file system"), "{message}");
    fs::remove_file(filler).unwrap();
    Diagnosis::of(&agent).lacks("low-space");
    run("mount", &["-o", "remount,ro", &path]);
    Diagnosis::of(&agent).mend("directory-read-only", &path);
    Diagnosis::of(&agent).lacks("directory-read-only");
}
