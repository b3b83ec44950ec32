//! The Debian package where systemd runs: installed, upgraded, removed and purged while a volume is in use.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use drumlin_tests::{
    packages::{VERSIONS, path},
    programs::{output, run},
    storage::mounts_below,
};

use crate::{
    say, step,
    unit::{MANIFESTS, answers, main_pid, property, replaced, systemctl, until},
};

/// A volume of the configuration that the package has.
const MANIFEST: &str = "apiVersion: drumlin.dev/v1alpha1
kind: Volume
metadata: {name: kept}
spec: {capacity: 32Mi, fsType: ext4, mount: {path: /srv/kept}, deletionPolicy: Retain}
";

/// Runs all steps.
pub(crate) async fn run_all(packages: &Path) {
    let [old, new] = VERSIONS;
    let install = |version| {
        let package = path(packages, version, "deb");
        run("dpkg", &["--install", &package.to_string_lossy()]);
    };
    install(old);
    step("installed", installed()).await;
    let mut writer = File::create("/srv/kept/written").unwrap();
    let mount = the_mount();

    let former = main_pid();
    install(new);
    step("upgraded", replaced(former)).await;
    writer.write_all(b"through an upgrade").unwrap();
    writer.sync_all().unwrap();
    assert_eq!(the_mount(), mount, "it was mounted anew");
    assert_eq!(property("drumlin", "NRestarts"), "0");

    // What an administrator has stopped and disabled, an upgrade does not start.
    systemctl(&["disable", "--now", "drumlin"]);
    install(old);
    assert_eq!(property("drumlin", "ActiveState"), "inactive");
    assert_eq!(property("drumlin", "UnitFileState"), "disabled");
    systemctl(&["enable", "--now", "drumlin"]);
    answers().await;

    run("dpkg", &["--remove", "drumlin"]);
    step("removed", without_the_package(&mount)).await;
    let said = run("dpkg", &["--purge", "drumlin"]);
    assert!(!said.contains("error"), "{said}");
    step("purged", without_the_package(&mount)).await;
    writer.write_all(b", and without the package").unwrap();
    drop(writer);
    run("umount", &["/srv/kept"]);

    // Its data was never touched.
    install(new);
    installed().await;
    let written = fs::read("/srv/kept/written").unwrap();
    assert_eq!(written, b"through an upgrade, and without the package");
    let failed = systemctl(&["--failed", "--no-legend", "--plain", "--no-pager"]);
    assert_eq!(failed, "");
}

/// It runs, starts with the host, and has the volume mounted.
async fn installed() {
    answers().await;
    assert_eq!(property("drumlin", "ActiveState"), "active");
    assert_eq!(property("drumlin", "UnitFileState"), "enabled");
    fs::write(Path::new(MANIFESTS).join("kept.yaml"), MANIFEST).unwrap();
    let mut told = String::new();
    until("the volume is not mounted", async || {
        let status = output("/usr/bin/drumlin", &["status"]);
        let text = String::from_utf8_lossy(&status.stdout).into_owned();
        if text != told {
            say(&text);
            told = text;
        }
        (!mounts_below("/srv").is_empty() && status.status.success()).then_some(())
    })
    .await;
}

/// The service has ended, and the volume is as it was.
async fn without_the_package(mount: &str) {
    until("the service goes on", async || {
        let state = property("drumlin", "ActiveState");
        (state == "inactive").then_some(())
    })
    .await;
    assert!(!Path::new("/usr/bin/drumlin").exists());
    assert_eq!(the_mount(), mount);
    let written = fs::read("/srv/kept/written").unwrap();
    assert_eq!(written, b"through an upgrade");
}

/// The mount of the volume, by its number, which another one has not.
fn the_mount() -> String {
    let shown = run("findmnt", &["-rno", "ID,SOURCE", "/srv/kept"]);
    shown.trim().to_owned()
}
