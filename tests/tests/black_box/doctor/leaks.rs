//! Loop devices and mounts that are left.

use std::fs;

use drumlin_tests::{
    agent::Agent,
    doctor::Diagnosis,
    programs::run,
    requests::{mounted, raw},
};

use crate::helpers::{home, mount, text, unmount, volume};

/// Attaches a loop device to an image by hand.
fn attach(image: &str) -> String {
    run("losetup", &["--find", "--show", image])
        .trim()
        .to_owned()
}

#[tokio::test]
async fn loop_devices_that_nothing_uses_are_leaked_and_several_are_too_many() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 16, &mounted("ext4")).await;
    let image = text(home(&agent, &id).join("image"));
    Diagnosis::of(&agent).lacks("leaked-loop-device");
    let first = attach(&image);
    let found = Diagnosis::until(&agent, "leaked-loop-device", &first);
    found.lacks("duplicate-loop-device");
    let second = attach(&image);
    let found = Diagnosis::of(&agent);
    let message = found.text("duplicate-loop-device", &image, "message");
    assert!(
        message.contains(&first) && message.contains(&second),
        "{message}"
    );
    found.mend("duplicate-loop-device", &image);
    let found = Diagnosis::until(&agent, "leaked-loop-device", "/dev/loop");
    found.lacks("duplicate-loop-device");
    let left = found.text("leaked-loop-device", "/dev/loop", "object");
    assert!([first, second].contains(&left), "{left}");
    found.mend("leaked-loop-device", &left);
    Diagnosis::of(&agent).lacks("leaked-loop-device");
}

#[tokio::test]
async fn devices_that_volumes_use_are_not_leaked() {
    let agent = Agent::start().await;
    let ext4 = mounted("ext4");
    for (name, capability) in [("fs", &ext4), ("raw", &raw())] {
        let id = volume(&agent, name, 32, capability).await;
        let at = mount(&agent, name, &id, capability).await;
        let found = Diagnosis::of(&agent);
        for check in [
            "leaked-loop-device",
            "duplicate-loop-device",
            "leaked-mount",
            "hidden-mount",
        ] {
            found.lacks(check);
        }
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test]
async fn mounts_and_devices_of_an_image_that_is_gone_are_leaked() {
    let mut agent = Agent::start().await;
    let ext4 = mounted("ext4");
    let id = volume(&agent, "v", 32, &ext4).await;
    let (staging, target) = mount(&agent, "v", &id, &ext4).await;
    agent.kill();
    fs::remove_dir_all(home(&agent, &id)).unwrap();
    let found = Diagnosis::of(&agent);
    assert_eq!(found.code, 2);
    let message = found.text("leaked-loop-device", "/dev/loop", "message");
    assert!(message.contains(&format!("mount {staging}")), "{message}");
    // Mended as the report has it.
    for at in [&target, &staging] {
        found.mend("leaked-mount", at);
    }
    let found_then = Diagnosis::of(&agent);
    found_then.lacks("leaked-mount");
    found_then.mend("leaked-loop-device", "/dev/loop");
    Diagnosis::of(&agent).lacks("leaked-loop-device");
}

#[tokio::test]
async fn a_mount_with_another_one_over_it_or_above_it_is_hidden() {
    let agent = Agent::start().await;
    let ext4 = mounted("ext4");
    let id = volume(&agent, "v", 32, &ext4).await;
    let at = mount(&agent, "v", &id, &ext4).await;
    Diagnosis::of(&agent).lacks("hidden-mount");
    let above = text(agent.path("targets"));
    for over in [&at.1, &above] {
        run("mount", &["-t", "tmpfs", "none", over]);
        let found = Diagnosis::of(&agent);
        assert_eq!(
            found.text("hidden-mount", &at.1, "command"),
            format!("umount {over}")
        );
        found.mend("hidden-mount", &at.1);
        Diagnosis::of(&agent).lacks("hidden-mount");
    }
}
