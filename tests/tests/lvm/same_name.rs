//! Another group with the name of a class's own: the disks of another machine, or a copy.

use drumlin_proto::csi::v1::{ListVolumesRequest, ProbeRequest};
use drumlin_tests::{
    agent::Agent,
    requests::{create, delete, raw},
    storage::lvm,
};
use tonic::Code;

use crate::{
    groups::{group, thick},
    kit::{ok, refused, volume},
};

/// A disk with a group of this name that has seen more changes than the agent's own.
fn plug_in(agent: &Agent, name: &str) -> String {
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
fn rename(disk: &str, name: &str) {
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
