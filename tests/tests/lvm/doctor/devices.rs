//! Devices of a group in the kernel.

use std::{fs, path::Path};

use drumlin_tests::{programs::run, requests::raw, storage::lvm};

use super::look;
use crate::{
    groups::{group, thin},
    helpers::{bytes_of, volume},
};

#[tokio::test]
async fn devices_that_are_suspended_half_built_or_orphans_are_told() {
    let agent = thin(200, &["-L", "300M"], "overcommit: 10").await;
    let group = group(&agent);
    let id = volume(&agent, "v", 16, &raw()).await;
    let device = bytes_of(&agent, &id);
    let name = run(
        "dmsetup",
        &[
            "info",
            "-c",
            "--noheadings",
            "-o",
            "name",
            &device.to_string_lossy(),
        ],
    );
    let name = name.trim();
    let checks = ["suspended-device", "half-built-device", "orphan-device"];
    let found = look(&agent);
    for check in checks {
        found.lacks(check);
    }
    run("dmsetup", &["suspend", name]);
    let found = look(&agent);
    let command = found.text("suspended-device", name, "command");
    run("dmsetup", &["resume", name]);
    assert_eq!(command, format!("dmsetup resume {name}"));
    run("dmsetup", &["suspend", name]);
    found.mend("suspended-device", name);
    look(&agent).lacks("suspended-device");

    let table = run("dmsetup", &["table", name]);
    run("dmsetup", &["load", name, "--table", table.trim()]);
    look(&agent).finds("half-built-device", name);
    run("dmsetup", &["clear", name]);
    look(&agent).lacks("half-built-device");

    let uuid = lvm("vgs", &["--noheadings", "-o", "vg_uuid", &group]);
    let uuid = format!("LVM-{}{}", uuid.trim().replace('-', ""), "x".repeat(32));
    let table = format!("0 8 linear {} 0", agent.scratch.disk("below", 8));
    let orphan = format!("{}-orphan", group.replace('-', "--"));
    run(
        "dmsetup",
        &["create", &orphan, "--uuid", &uuid, "--table", &table],
    );
    let link = Path::new("/dev").join(&group).join("gone");
    std::os::unix::fs::symlink("/dev/mapper/no-such-device", &link).unwrap();
    let found = look(&agent);
    found.mend("orphan-device", &orphan);
    found.mend("orphan-device", &link.to_string_lossy());
    look(&agent).lacks("orphan-device");
    assert!(fs::symlink_metadata(&link).is_err());
}
