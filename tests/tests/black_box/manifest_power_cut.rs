//! What became of a new object survives a power cut, though its record is not synced before its volume is made: the volume
//! itself tells whose it is.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
};

use drumlin_tests::{
    agent::{Options, eventually},
    storage::{Kind, Scratch},
};
use serde_json::Value;

use crate::{
    helpers::{bytes_of, text},
    host::{Host, absent, small},
    power_cut::disk_after_a_cut,
};

const BYTES: &[u8] = b"written to a volume whose record is not on the disk";
const RECORD: &str = "state/reconciler/objects/Volume/default/v.json";

/// A host with its state directory, and the images in it, on a disk of their own.
async fn host_on(kind: Kind, options: Options) -> Host {
    let scratch = Scratch::new();
    scratch.file_system("state", kind, 512);
    Host::over(scratch, options).await
}

/// The disk of a host after a cut at this moment, which has no record of its volume, as `is_empty` or none.
fn cut(host: &Host, is_empty: bool) -> Scratch {
    let disk = disk_after_a_cut(&host.agent, "state");
    let record = disk.path().join(RECORD);
    assert_eq!(
        fs::read(&record).unwrap_or_default(),
        b"",
        "nothing was to be synced"
    );
    assert!(disk.path().join("state/reconciler/new.json").exists());
    if is_empty {
        // A cut at another moment leaves the name without the content.
        fs::create_dir_all(record.parent().unwrap()).unwrap();
        fs::write(&record, "").unwrap();
    }
    disk
}

fn handle(host: &Host) -> Value {
    host.object("Volume", "v")["status"]["volumeHandle"].clone()
}

/// Ends in the only volume that there is.
async fn has_its_volume(host: &Host) -> String {
    host.write("v.yaml", &[small("v")]);
    host.until("v", &["True"]).await;
    assert_eq!(host.counts().await.0, 1);
    let log = host.agent.log();
    assert!(log.contains("recovered from existing resources"), "{log}");
    let found = || handle(host).as_str().map(str::to_owned);
    eventually(found, Option::is_some).await.unwrap()
}

async fn a_volume_that_was_made_is_found_by_its_owner(kind: Kind) {
    let host = host_on(kind, Options::default().stopped_at("volume.create.called")).await;
    host.write("v.yaml", &[small("v")]);
    host.until_stopped().await;
    for is_empty in [false, true] {
        let after = Host::over(cut(&host, is_empty), Options::default()).await;
        has_its_volume(&after).await;
    }
    // A manifest that is gone since destroys nothing, and one that asks for it destroys the volume.
    let after = Host::over(cut(&host, false), Options::default()).await;
    let (socket, state) = (
        format!("unix://{}", text(after.agent.socket())),
        text(after.agent.path("state")),
    );
    let words = ["kept", "--endpoint", &socket, "--state-dir", &state];
    let kept = || String::from_utf8(after.agent.command(&words).stdout).unwrap();
    eventually(kept, |kept| kept.contains("Left")).await;
    assert_eq!(after.counts().await.0, 1);
    after.write("v.yaml", &[absent(&small("v"))]);
    after.until("v", &["Deleted"]).await;
    assert_eq!(after.counts().await.0, 0);
}

#[tokio::test]
async fn a_volume_that_was_made_is_found_by_its_owner_on_ext4() {
    a_volume_that_was_made_is_found_by_its_owner(Kind::Ext4).await;
}

#[tokio::test]
async fn a_volume_that_was_made_is_found_by_its_owner_on_xfs() {
    a_volume_that_was_made_is_found_by_its_owner(Kind::Xfs).await;
}

async fn a_ready_volume_keeps_its_bytes(kind: Kind) {
    let host = host_on(kind, Options::default()).await;
    host.write("v.yaml", &[small("v")]);
    host.until("v", &["True"]).await;
    let id = handle(&host).as_str().unwrap().to_owned();
    let path = bytes_of(&host.agent, &id);
    let image = OpenOptions::new().write(true).open(path).unwrap();
    image.write_all_at(BYTES, 0).unwrap();
    image.sync_data().unwrap();
    let after = Host::over(disk_after_a_cut(&host.agent, "state"), Options::default()).await;
    after.write("v.yaml", &[small("v")]);
    after.until("v", &["True"]).await;
    assert_eq!(handle(&after), id);
    let kept = fs::read(bytes_of(&after.agent, &id)).unwrap();
    assert!(kept.starts_with(BYTES), "{kind:?}");
    assert_eq!(after.counts().await.0, 1);

    // In a moment of quiet its record is durable.
    let marker = host.agent.path("state/reconciler/new.json");
    eventually(|| marker.exists(), |exists| !exists).await;
    let disk = disk_after_a_cut(&host.agent, "state");
    let record: Value =
        serde_json::from_slice(&fs::read(disk.path().join(RECORD)).unwrap()).unwrap();
    assert_eq!(record["status"]["volumeHandle"], *id);
}

#[tokio::test]
async fn a_ready_volume_keeps_its_bytes_on_ext4() {
    a_ready_volume_keeps_its_bytes(Kind::Ext4).await;
}

#[tokio::test]
async fn a_ready_volume_keeps_its_bytes_on_xfs() {
    a_ready_volume_keeps_its_bytes(Kind::Xfs).await;
}

#[tokio::test]
async fn killed_in_its_creation_a_volume_follows_a_manifest_that_was_edited_since() {
    for point in [
        "volume.create.intended",
        "directory.create.filled",
        "directory.create.renamed",
        "volume.create.called",
    ] {
        let options = Options::default().killed_at(point);
        let mut host = Host::with(options).await;
        host.write("v.yaml", &[small("v")]);
        eventually(|| host.agent.has_ended(), |ended| *ended).await;
        host.write("v.yaml", &[small("v").replace("16Mi", "32Mi")]);
        host.restart(None).await;
        host.until("v", &["True", "32Mi"]).await;
        assert_eq!(host.counts().await.0, 1, "{point}");
    }
}
