//! The units, as systemd of Debian 12 judges them.

use crate::{
    packages::{VERSIONS, package},
    root::Root,
};

/// Tenths of the exposure that systemd may find: the agent mounts for everybody, which most of what it asks for would undo.
const EXPOSURE: [(&str, &str); 2] = [("drumlin.service", "59"), ("drumlin-mounts.service", "16")];

#[test]
fn systemd_finds_nothing_wrong_with_the_units_and_no_more_exposure_than_before() {
    let root = Root::with(&package(VERSIONS[0], "deb"));
    let file = format!("/packages/{}/drumlin.deb", VERSIONS[0]);
    root.run(&["dpkg", "--install", &file]);
    // A service that uses the mounts, as the documentation says.
    let mounts = std::fs::read_to_string(
        drumlin_tests::programs::workspace().join("examples/database-host/mounts.conf"),
    );
    root.write(
        "/etc/systemd/system/database.service",
        "[Service]\nExecStart=/bin/true\n",
    );
    root.write(
        "/etc/systemd/system/database.service.d/mounts.conf",
        &mounts.unwrap(),
    );
    for unit in [
        "drumlin.service",
        "drumlin-mounts.service",
        "drumlin-mounts.target",
        "database.service",
    ] {
        let said = root.run(&["systemd-analyze", "verify", "--man=no", unit]);
        assert_eq!(said, "", "{unit}");
    }
    for (unit, threshold) in EXPOSURE {
        let threshold = format!("--threshold={threshold}");
        let path = format!("/usr/lib/systemd/system/{unit}");
        let words = [
            "systemd-analyze",
            "security",
            "--offline=true",
            "--no-pager",
        ];
        root.run(&[&words[..], &[&threshold, &path]].concat());
    }
}

#[test]
fn nothing_in_the_unit_gives_the_agent_mounts_of_its_own() {
    let unit = drumlin_tests::sources::read("packaging/systemd/drumlin.service");
    let set = unit.lines().filter(|line| !line.starts_with('#'));
    let keys: Vec<&str> = set
        .filter_map(|line| Some(line.split_once('=')?.0))
        .collect();
    for key in [
        "PrivateTmp",
        "PrivateDevices",
        "PrivateMounts",
        "PrivateIPC",
        "PrivateUsers",
        "PrivateNetwork",
        "ProtectSystem",
        "ProtectHome",
        "ProtectProc",
        "ProcSubset",
        "ProtectKernelTunables",
        "ProtectKernelModules",
        "ProtectKernelLogs",
        "ProtectControlGroups",
        "ProtectHostname",
        "ProtectClock",
        "DeviceAllow",
        "DevicePolicy",
        "ReadWritePaths",
        "ReadOnlyPaths",
        "InaccessiblePaths",
        "TemporaryFileSystem",
        "BindPaths",
        "RootDirectory",
        "MountFlags",
        "DynamicUser",
        "RestrictSUIDSGID",
    ] {
        assert!(!keys.contains(&key), "{key}");
    }
    assert!(keys.contains(&"NoNewPrivileges"), "{keys:?}");
}
