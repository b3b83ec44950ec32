//! A class whose key systemd hands to the agent, as a file and encrypted for this host.

use std::{fs, os::unix::fs::PermissionsExt};

use drumlin_proto::csi::v1::CreateVolumeRequest;
use drumlin_tests::{
    programs::run,
    requests::{create, mounted},
    storage::mounts_below,
};
use tonic::Code;

use crate::{
    unit::{UNITS, answers, property, systemctl},
    volume::{Used, controller, make},
};

const CONFIG: &str = "/etc/drumlin/config.yaml";
const CLASS: &str = "
- {name: sealed, thick: {volumeGroup: vg1}, encryption: {type: luks2, key: {credential: disk-key}}}
";
const KEY: &str = "/etc/drumlin/disk.key";
const SEALED: &str = "/etc/drumlin/disk.cred";

/// Starts the agent again with this setting of its unit.
async fn restart_with(setting: &str) {
    let drop_ins = format!("{UNITS}/drumlin.service.d");
    fs::create_dir_all(&drop_ins).unwrap();
    let text = format!("[Service]\n{setting}\n");
    fs::write(format!("{drop_ins}/credential.conf"), text).unwrap();
    systemctl(&["daemon-reload"]);
    systemctl(&["restart", "drumlin"]);
    answers().await;
}

/// A new volume has no key, and the refusal says which one.
async fn is_refused() {
    let request = CreateVolumeRequest {
        parameters: [("class".to_owned(), "sealed".to_owned())].into(),
        ..create("sealed", 32, &mounted("ext4"))
    };
    let refused = controller().create_volume(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for word in ["class sealed", "credential disk-key", "LoadCredential="] {
        assert!(refused.message().contains(word), "{word}: {refused}");
    }
}

pub(crate) async fn check() {
    let before = fs::read_to_string(CONFIG).unwrap();
    fs::write(CONFIG, format!("{before}{CLASS}")).unwrap();
    systemctl(&["reload", "drumlin"]);
    is_refused().await;

    fs::write(KEY, [7; 64]).unwrap();
    fs::set_permissions(KEY, fs::Permissions::from_mode(0o600)).unwrap();
    let mounts = mounts_below("/mnt");
    restart_with(&format!("LoadCredential=disk-key:{KEY}")).await;
    let id = make("sealed", "sealed", 32, &mounted("ext4")).await;
    let used = Used::new(&id, "sealed", &mounted("ext4")).await;
    fs::write(used.path("words"), "sealed").unwrap();
    // A unit with credentials still mounts where everybody sees it.
    let seen = run("findmnt", &["--task", "1", "-rno", "TARGET"]);
    assert!(seen.lines().any(|line| line == used.target), "{seen}");
    used.leave().await;

    let words = ["encrypt", "--with-key=host", "--name=disk-key", KEY, SEALED];
    run("systemd-creds", &words);
    fs::remove_file(KEY).unwrap();
    restart_with(&format!("LoadCredentialEncrypted=disk-key:{SEALED}")).await;
    used.again().await;
    assert_eq!(fs::read(used.path("words")).unwrap(), b"sealed");
    used.delete().await;

    // As it was.
    fs::remove_dir_all(format!("{UNITS}/drumlin.service.d")).unwrap();
    fs::write(CONFIG, before).unwrap();
    systemctl(&["daemon-reload"]);
    systemctl(&["restart", "drumlin"]);
    answers().await;
    assert_eq!(property("drumlin", "ActiveState"), "active");
    assert_eq!(mounts_below("/mnt"), mounts);
}
