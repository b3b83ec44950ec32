//! Copies of thick volumes: they go on without their caller, hold up nobody, and survive the agent's end.

use std::{fs::File, os::unix::fs::FileExt, time::Duration};

use drumlin_proto::csi::v1::{CreateVolumeRequest, ListVolumesRequest};
use drumlin_tests::{
    agent::{Agent, Options, Volumes, eventually},
    programs::{output, run},
    requests::{create, delete, delete_snapshot, from_snapshot, from_volume, raw, snapshot},
    storage::{Scratch, lvm},
};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::{
    groups::{group, name_of, stop_at},
    helpers::{bytes_of, mount, ok, refused, unmount, volume},
    thaw_watchdog,
};

const MEBIBYTES: i64 = 768;

/// An agent over thick volumes, with one that is full of bytes, each mebibyte another one.
async fn with_source() -> (Agent, String) {
    let scratch = Scratch::new();
    let options = Options {
        config: Some(Volumes::Linear.classes(&scratch)),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let id = volume(&agent, "source", MEBIBYTES, &raw()).await;
    let device = File::options()
        .write(true)
        .open(bytes_of(&agent, &id))
        .unwrap();
    for place in 0..u64::try_from(MEBIBYTES).unwrap() {
        device
            .write_all_at(&vec![byte(place); 1 << 20], place << 20)
            .unwrap();
    }
    device.sync_all().unwrap();
    (agent, id)
}

fn byte(place: u64) -> u8 {
    u8::try_from(place % 250).unwrap() + 1
}

fn clone_of(id: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        volume_content_source: from_volume(id),
        ..create("copy", MEBIBYTES + 8, &raw())
    }
}

fn check(agent: &Agent, id: &str) {
    let device = File::open(bytes_of(agent, id)).unwrap();
    let mut bytes = vec![0; 4096];
    for place in 0..u64::try_from(MEBIBYTES).unwrap() {
        let at = (place << 20) + place * 512;
        device.read_exact_at(&mut bytes, at).unwrap();
        let wanted = [byte(at >> 20), byte((at + 4095) >> 20)];
        assert_eq!([bytes[0], bytes[4095]], wanted, "mebibyte {place}");
    }
    device
        .read_exact_at(&mut bytes, u64::try_from(MEBIBYTES + 4).unwrap() << 20)
        .unwrap();
    assert_eq!(bytes, vec![0; 4096], "what is behind the copy is nothing");
}

/// The volumes of the group with their tags, the source left out.
fn volumes(agent: &Agent) -> Vec<String> {
    let group = agent.scratch.group().unwrap();
    let listed = lvm("lvs", &["--noheadings", "-o", "lv_name,lv_tags", &group]);
    let lines = listed
        .lines()
        .filter(|line| !line.contains("l.name=source"));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// Waits until a copy is on its way; the id that it will have.
async fn under_way(agent: &Agent) -> String {
    let found = eventually(
        || volumes(agent),
        |found| found.iter().any(|line| line.contains("drumlin.copied=")),
    )
    .await;
    let line = found
        .iter()
        .find(|line| line.contains("drumlin.copied="))
        .unwrap();
    let key = line.split(' ').next().unwrap().trim_start_matches("dl-v-");
    format!("node-a/default/{key}")
}

async fn snapshot_of(agent: &Agent, source: &str) -> String {
    let taken = agent
        .controller()
        .create_snapshot(snapshot("s", source))
        .await;
    ok(taken).snapshot.unwrap().snapshot_id
}

/// A volume's device that takes nothing until this is dropped: who writes to it waits, and nobody else does.
struct Held(String);

impl Held {
    fn new(agent: &Agent, id: &str) -> Self {
        // Device-mapper's names have each dash of a part twice.
        let parts = [group(agent), name_of(id)].map(|part| part.replace('-', "--"));
        let device = parts.join("-");
        run("dmsetup", &["suspend", "--nolockfs", "--noflush", &device]);
        Self(device)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        output("dmsetup", &["resume", &self.0]);
    }
}

/// Ends the agent in the middle of a copy; the id that the copy will have.
async fn interrupted(agent: &mut Agent, request: CreateVolumeRequest) -> String {
    let mut controller = agent.controller();
    let call = tokio::spawn(async move { controller.create_volume(request).await });
    let id = under_way(agent).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    agent.signal(Signal::SIGTERM);
    let status = agent.wait().await;
    assert!(status.success(), "it ends in time, and well: {status}");
    assert!(call.await.unwrap().is_err());
    id
}

#[tokio::test]
async fn a_copy_goes_on_without_its_caller_and_holds_up_nobody() {
    let (mut agent, source) = with_source().await;
    stop_at(&mut agent, "thick.copy.step").await;
    let mut controller = agent.controller();
    let request = clone_of(&source);
    let mut call = tokio::spawn(async move { controller.create_volume(request).await });
    thaw_watchdog::until_stopped(&agent, &mut call).await;
    let copy = under_way(&agent).await;
    call.abort();
    // It must not be done before all of this is.
    let held = Held::new(&agent, &copy);
    agent.signal(Signal::SIGCONT);
    // It says how far it is to whoever wants something else of it, and nobody sees it.
    let deleted = agent.controller().delete_volume(delete(&copy)).await;
    let message = refused(deleted, Code::Aborted);
    assert!(message.contains(" % of "), "{message}");
    let list = ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    assert_eq!(list.entries.len(), 1);
    // Its source can be used meanwhile, and written; but not deleted.
    let at = mount(&agent, "source", &source, &raw()).await;
    let device = File::options().write(true).open(&at.1).unwrap();
    device
        .write_all_at(&vec![0xff; 1 << 20], 700 << 20)
        .unwrap();
    device.sync_all().unwrap();
    drop(device);
    unmount(&agent, &source, &at).await;
    let deleted = agent.controller().delete_volume(delete(&source)).await;
    let message = refused(deleted, Code::FailedPrecondition);
    assert!(message.contains("is being copied"), "{message}");
    drop(held);
    // The repeat joins it, and has its moment.
    let made = loop {
        match agent.controller().create_volume(clone_of(&source)).await {
            Ok(answer) => break answer.into_inner().volume.unwrap().volume_id,
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{}", status.message()),
        }
    };
    assert_eq!(made, copy);
    assert_eq!(
        agent.log().matches("volume created").count(),
        2,
        "made once"
    );
    check(&agent, &made);
    assert_eq!(volumes(&agent).len(), 1, "what held the moment is gone");
}

#[tokio::test]
async fn a_copy_goes_on_where_it_was_when_the_agent_comes_back() {
    let (mut agent, source) = with_source().await;
    let taken = snapshot_of(&agent, &source).await;
    let request = CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken),
        ..clone_of(&source)
    };
    let copy = interrupted(&mut agent, request.clone()).await;
    let left = volumes(&agent);
    let noted = left
        .iter()
        .filter_map(|line| line.split("drumlin.copied=").nth(1));
    let noted: u64 = noted
        .filter_map(|rest| rest.split(',').next()?.parse::<u64>().ok())
        .sum();
    assert!(noted > 0, "how far it is was noted: {left:?}");
    agent.restart().await;
    let device = bytes_of(&agent, &copy);
    // Where it has been already it does not go again.
    File::options()
        .write(true)
        .open(&device)
        .unwrap()
        .write_all_at(b"a mark", 0)
        .unwrap();
    let made = ok(agent.controller().create_volume(request).await);
    let made = made.volume.unwrap().volume_id;
    let mut bytes = [0; 6];
    let device = File::options()
        .read(true)
        .write(true)
        .open(&device)
        .unwrap();
    device.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"a mark");
    device.write_all_at(&[byte(0); 6], 0).unwrap();
    drop(device);
    check(&agent, &made);
}

#[tokio::test]
async fn what_was_never_finished_goes_with_its_source_or_by_its_id() {
    let (mut agent, source) = with_source().await;
    let taken = snapshot_of(&agent, &source).await;
    let id = interrupted(&mut agent, clone_of(&source)).await;
    agent.restart().await;
    assert_eq!(
        volumes(&agent).len(),
        3,
        "the snapshot, the copy, what holds its moment"
    );
    ok(agent.controller().delete_volume(delete(&id)).await);
    assert_eq!(volumes(&agent).len(), 1, "by its id");
    let restore = CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken),
        ..clone_of(&source)
    };
    interrupted(&mut agent, restore).await;
    agent.restart().await;
    let request = delete_snapshot(&taken);
    ok(agent.controller().delete_snapshot(request).await);
    assert_eq!(volumes(&agent), Vec::<String>::new(), "with its snapshot");
    interrupted(&mut agent, clone_of(&source)).await;
    agent.restart().await;
    ok(agent.controller().delete_volume(delete(&source)).await);
    assert_eq!(volumes(&agent), Vec::<String>::new(), "with its source");
}

#[tokio::test]
async fn a_deletion_that_was_interrupted_is_ended_by_the_next_start() {
    let scratch = Scratch::new();
    let group = scratch.volume_group(200);
    let options = || Options {
        config: Some(format!(
            "classes: [{{name: default, thick: {{volumeGroup: {group}}}}}]\n"
        )),
        ..Options::default()
    };
    let failing = options().killed_at("thick.remove.marked");
    let mut agent = Agent::with(scratch, failing).await;
    let id = volume(&agent, "v", 64, &raw()).await;
    agent
        .controller()
        .delete_volume(delete(&id))
        .await
        .unwrap_err();
    let there = || lvm("lvs", &["--noheadings", "-o", "lv_tags", &group]);
    assert!(there().contains("drumlin.deleting"), "{}", there());
    agent.restart_with(options()).await;
    // Its bytes may be gone already.
    let list = agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await;
    assert_eq!(ok(list).entries, []);
    eventually(there, |there| there.trim().is_empty()).await;
}
