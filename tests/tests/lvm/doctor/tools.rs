//! LVM itself: its version, and settings that hide disks or extend nothing.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use drumlin_tests::{agent::Agent, doctor::Diagnosis, programs::run};

use crate::{
    groups::{group, thin},
    helpers::text,
};

/// The settings of this host, which are those of the lab; removed when this is dropped.
struct Settings;

impl Settings {
    fn new(text: &str) -> Self {
        fs::create_dir_all("/etc/lvm").unwrap();
        assert!(!Path::new("/etc/lvm/lvmlocal.conf").exists());
        fs::write("/etc/lvm/lvmlocal.conf", text).unwrap();
        Self
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        let _ = fs::remove_file("/etc/lvm/lvmlocal.conf");
    }
}

/// As if LVM had this version.
fn with_version(agent: &Agent, version: &str) -> Diagnosis {
    let (real, fake) = (text(agent.path("lvm-real")), text(agent.path("lvm-fake")));
    let installed = run("sh", &["-c", "realpath \"$(command -v lvm)\""]);
    fs::copy(installed.trim(), &real).unwrap();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" != version ] || {{ echo '  LVM version:     {version}(2) (2020-08-09)'; exit 0; }}\nexec {real} \"$@\"\n"
    );
    fs::write(&fake, script).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    Diagnosis::where_mounts_are(agent, &format!("mount --bind {fake} {}", installed.trim()))
}

#[tokio::test]
async fn settings_and_versions_of_lvm_are_told() {
    let mut agent = thin(64, &["-L", "32M"], "overcommit: 10").await;
    let group = group(&agent);
    agent.kill();
    let found = Diagnosis::of_part(&agent, "lvm");
    found.lacks("hidden-disk");
    found.lacks("old-lvm");
    found.finds("no-autoextend", &format!("{group}/pool"));
    let image = text(agent.path("disk-b"));
    let disk = run(
        "losetup",
        &["--noheadings", "--output", "NAME", "--associated", &image],
    );
    let disk = disk.trim();
    let settings = Settings::new(&format!(
        "devices {{ global_filter = [\"r|^{disk}$|\"] }}\nactivation {{ thin_pool_autoextend_threshold = 70 }}\n"
    ));
    let found = Diagnosis::of_part(&agent, "lvm");
    found.finds("hidden-disk", disk);
    found.lacks("no-autoextend");
    drop(settings);
    Diagnosis::of_part(&agent, "lvm").lacks("hidden-disk");
    let message = with_version(&agent, "2.03.10").text("old-lvm", "lvm", "message");
    assert!(message.contains("2.03.11 or newer"), "{message}");
    let found = with_version(&agent, "2.03.20");
    found.lacks("old-lvm");
    found.finds("untested-lvm", "lvm");
    with_version(&agent, "2.03.16").lacks("untested-lvm");
    let advice = with_version(&agent, "2.03.11").text("known-fault", "lvm", "advice");
    assert_eq!(advice, "update it to LVM 2.03.16 or newer");
    let found = with_version(&agent, "2.03.16").all("known-fault").len();
    assert_eq!(found, 0);
}
