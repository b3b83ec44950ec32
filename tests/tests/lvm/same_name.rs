//! Another group with the name of a class's own: the disks of another machine, or a copy.

use drumlin_proto::csi::v1::{ListVolumesRequest, ProbeRequest};
use drumlin_tests::{
    agent::Agent,
    programs::run,
    requests::{create, delete, raw},
    storage::lvm,
};
use tonic::Code;

use crate::{
    groups::{group, name_of, thick},
    helpers::{ok, refused, volume},
};

/// A disk with a group of this name that has seen more changes than the agent's own.
pub(crate) fn plug_in(agent: &Agent, name: &str) -> String {
    let disk = agent.scratch.disk(name, 64);
    let group = group(agent);
    // LVM makes none whose directory in /dev is there.
    lvm("vgchange", &["-an", &group]);
    lvm("vgcreate", &["--devices", &disk, &group, &disk]);
    for number in 0..8 {
        let tag = format!("t{number}");
        lvm("vgchange", &["--devices", &disk, "--addtag", &tag, &group]);
    }
    disk
}

/// Gives the group on this disk another name, as the message says.
pub(crate) fn rename(disk: &str, name: &str) {
    let uuid = lvm("vgs", &["--noheadings", "-o", "vg_uuid", "--devices", disk]);
    lvm("vgrename", &[uuid.trim(), name]);
}

async fn ids(agent: &Agent) -> Vec<String> {
    let request = ListVolumesRequest::default();
    let list = ok(agent.controller().list_volumes(request).await);
    let volumes = list.entries.into_iter().map(|entry| entry.volume.unwrap());
    volumes.map(|volume| volume.volume_id).collect()
}

#[tokio::test]
async fn two_groups_of_one_name_are_refused_until_one_is_renamed() {
    let mut agent = thick(100, "wipe: none").await;
    let group = group(&agent);
    let id = volume(&agent, "v", 4, &raw()).await;

    // One that is there when the agent starts.
    agent.kill();
    let disk = plug_in(&agent, "disk-c");
    agent.restart().await;
    let deleted = agent.controller().delete_volume(delete(&id)).await;
    let message = refused(deleted, Code::FailedPrecondition);
    assert!(
        message.contains(&disk) && message.contains("vgrename"),
        "{message}"
    );
    let request = ListVolumesRequest::default();
    let list = agent.controller().list_volumes(request).await;
    refused(list, Code::FailedPrecondition);
    let probe = agent.identity().probe(ProbeRequest {}).await;
    assert!(refused(probe, Code::FailedPrecondition).contains(&disk));
    rename(&disk, &format!("{group}-c"));
    assert_eq!(ids(&agent).await, [id.clone()]);

    // One that comes while it runs.
    let disk = plug_in(&agent, "disk-d");
    let made = agent
        .controller()
        .create_volume(create("w", 4, &raw()))
        .await;
    let message = refused(made, Code::FailedPrecondition);
    assert!(message.contains(&disk), "{message}");
    rename(&disk, &format!("{group}-d"));
    volume(&agent, "w", 4, &raw()).await;
    assert_eq!(ids(&agent).await.len(), 2);

    // One that takes its place: what is not there any more is not what was deleted.
    lvm("vgchange", &["-an", &group]);
    lvm("vgrename", &[&group, &format!("{group}-away")]);
    rename(&disk, &group);
    let deleted = agent.controller().delete_volume(delete(&id)).await;
    let message = refused(deleted, Code::FailedPrecondition);
    assert!(
        message.contains(&disk) && message.contains("restart the agent"),
        "{message}"
    );
    lvm("vgrename", &[&group, &format!("{group}-d")]);
    lvm("vgrename", &[&format!("{group}-away"), &group]);
    ok(agent.controller().delete_volume(delete(&id)).await);
    for other in ["c", "d"] {
        lvm("vgremove", &["-ff", "-y", &format!("{group}-{other}")]);
    }
}

/// A copy of one of the group's disks, plugged in beside it.
fn plug_in_copy(agent: &Agent, of: &str) -> String {
    let (from, to) = (agent.path(of), agent.path("copy"));
    run("sync", &[]);
    run(
        "cp",
        &[
            "--sparse=always",
            &from.to_string_lossy(),
            &to.to_string_lossy(),
        ],
    );
    let found = run("losetup", &["--find", "--show", &to.to_string_lossy()]);
    run("udevadm", &["settle"]);
    found.trim().to_owned()
}

#[tokio::test]
async fn with_a_copy_of_a_disk_nothing_is_changed_and_no_choice_is_guessed() {
    let mut agent = thick(100, "wipe: none").await;
    let id = volume(&agent, "v", 4, &raw()).await;
    lvm(
        "lvchange",
        &["-ay", &format!("{}/{}", group(&agent), name_of(&id))],
    );

    // The disk that is used is known.
    let copy = plug_in_copy(&agent, "disk-a");
    for _ in 0..2 {
        let made = agent
            .controller()
            .create_volume(create("w", 4, &raw()))
            .await;
        let message = refused(made, Code::FailedPrecondition);
        assert!(message.contains(&format!("{copy} duplicates")), "{message}");
        assert_eq!(ids(&agent).await, [id.clone()]);
    }

    // When nobody uses either, LVM takes the one that it saw first.
    agent.kill();
    lvm("vgchange", &["-an", &group(&agent)]);
    agent.restart().await;
    let request = ListVolumesRequest::default();
    let list = agent.controller().list_volumes(request).await;
    let message = refused(list, Code::FailedPrecondition);
    assert!(
        message.contains(&copy) && message.contains("lvmdevices"),
        "{message}"
    );
    let deleted = agent.controller().delete_volume(delete(&id)).await;
    refused(deleted, Code::FailedPrecondition);
    let probe = agent.identity().probe(ProbeRequest {}).await;
    refused(probe, Code::FailedPrecondition);

    run("losetup", &["--detach", &copy]);
    ok(agent.identity().probe(ProbeRequest {}).await);
    volume(&agent, "w", 4, &raw()).await;
    assert_eq!(ids(&agent).await.len(), 2);
}
