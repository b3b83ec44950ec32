//! Copies of raw volumes that somebody has: of one point in time, or refused with nothing left.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::PathBuf,
};

use drumlin_proto::csi::v1::CreateVolumeRequest;
use drumlin_tests::{
    agent::{Agent, Options},
    requests::{create, from_volume, raw, snapshot},
    sequence::{Place, RING, Writer, check, ring},
    state::State,
    storage::Kind,
};
use nix::sys::{
    signal::Signal,
    stat::{major, minor},
};
use tonic::{Code, Status};

use crate::{
    group_snapshots::on,
    helpers::{bytes_of, mount, unmount, volume},
    thaw_watchdog::{eventually, is_stopped},
};

/// A volume that takes some time to be copied.
const MEBIBYTES: i64 = 64;

/// Where the writer writes in it, in turns: a copy comes to one long after the other.
const RINGS: [u64; 2] = [0, 60 << 20];

/// The id of a snapshot, once it is ready.
async fn take(agent: &Agent, name: &str, id: &str) -> Result<String, Status> {
    let answer = agent.controller().create_snapshot(snapshot(name, id)).await;
    let taken = answer?.into_inner().snapshot.unwrap();
    assert!(taken.ready_to_use);
    Ok(taken.snapshot_id)
}

/// The id of a clone.
async fn clone(agent: &Agent, name: &str, id: &str) -> Result<String, Status> {
    let request = CreateVolumeRequest {
        volume_content_source: from_volume(id),
        ..create(name, MEBIBYTES, &raw())
    };
    let made = agent.controller().create_volume(request).await?;
    Ok(made.into_inner().volume.unwrap().volume_id)
}

/// A volume with data all over, published, and somebody who writes to it.
async fn in_use(agent: &Agent) -> (String, (String, String), Writer) {
    let id = volume(agent, "used", MEBIBYTES, &raw()).await;
    let at = mount(agent, "used", &id, &raw()).await;
    let device = File::options().write(true).open(&at.1).unwrap();
    let length = usize::try_from(MEBIBYTES << 20).unwrap();
    // Nothing of a writer's is in it.
    device.write_all_at(&vec![7; length], 0).unwrap();
    device.sync_all().unwrap();
    let place = |offset| Place {
        path: PathBuf::from(&at.1),
        offset,
    };
    let writer = Writer::start(1, &RINGS.map(place)).unwrap();
    writer.goes_on(20);
    (id, at, writer)
}

/// How many blocks of the writer's are in a copy, none left out.
fn blocks_in(agent: &Agent, copy: &str) -> u64 {
    let copy = bytes_of(agent, copy);
    let rings = RINGS.map(|offset| ring(&copy, offset, RING).unwrap());
    check(1, RINGS.len(), &rings).unwrap()
}

/// All names in the directory of the images.
fn images(agent: &Agent) -> BTreeSet<PathBuf> {
    let kinds = ["volumes", "snapshots"].map(|kind| agent.path("images").join(kind));
    let entries = kinds.iter().flat_map(|kind| fs::read_dir(kind).unwrap());
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Directories that cannot share the blocks of a volume with a copy.
const WITHOUT_REFLINKS: [(Kind, &str); 2] = [(Kind::Ext4, ""), (Kind::Xfs, ", allocation: thick")];

fn is_refused(status: &Status) {
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    for word in ["raw block device", "stop its writers", "reflinks"] {
        assert!(status.message().contains(word), "{}", status.message());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_in_which_its_raw_user_writes_is_refused_and_nothing_is_left() {
    for (storage, more) in WITHOUT_REFLINKS {
        let mut agent = on(storage, 1 << 10, more).await;
        let (id, at, writer) = in_use(&agent).await;
        let before = (State::of(agent.scratch.path()), images(&agent));
        for is_snapshot in [true, false] {
            let options = Options::default().stopped_at("directory.copy.still");
            agent.kill();
            agent.restart_with(options).await;
            let copying = async {
                if is_snapshot {
                    take(&agent, "s", &id).await
                } else {
                    clone(&agent, "c", &id).await
                }
            };
            let writing = async {
                eventually("the agent does not stop", || is_stopped(&agent)).await;
                writer.goes_on(3);
                agent.signal(Signal::SIGCONT);
            };
            let (copied, ()) = tokio::join!(copying, writing);
            is_refused(&copied.expect_err("nobody held the writer"));
            let after = (State::of(agent.scratch.path()), images(&agent));
            assert_eq!(after, before);
        }
        writer.stop().unwrap();
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_copy_that_is_ready_is_torn_and_one_is_made_when_the_raw_user_rests() {
    for (storage, more) in WITHOUT_REFLINKS {
        let agent = on(storage, 2 << 10, more).await;
        let (id, at, writer) = in_use(&agent).await;
        for number in 0..5 {
            let before = writer.acknowledged();
            let names = [format!("s{number}"), format!("c{number}")];
            let copies = [
                take(&agent, &names[0], &id).await,
                clone(&agent, &names[1], &id).await,
            ];
            let after = writer.acknowledged() + 1;
            for copy in copies {
                match copy {
                    // A writer that waits for its disk meanwhile writes nothing.
                    Ok(copy) => assert!((before..=after).contains(&blocks_in(&agent, &copy))),
                    Err(status) => is_refused(&status),
                }
            }
        }
        // Somebody has it open who writes nothing: there is nobody to hold.
        let open = File::options().write(true).open(&at.1).unwrap();
        let written = writer.acknowledged();
        writer.stop().unwrap();
        for copy in [take(&agent, "s", &id).await, clone(&agent, "c", &id).await] {
            let blocks = blocks_in(&agent, &copy.unwrap());
            assert!((written..=written + 1).contains(&blocks), "{blocks}");
        }
        drop(open);
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_share_blocks_are_of_one_point_in_time_while_a_raw_user_writes() {
    let agent = on(Kind::Xfs, 1 << 10, "").await;
    let (id, at, writer) = in_use(&agent).await;
    for number in 0..5 {
        let before = writer.acknowledged();
        let names = [format!("s{number}"), format!("c{number}")];
        let copies = [
            take(&agent, &names[0], &id).await,
            clone(&agent, &names[1], &id).await,
        ];
        let after = writer.acknowledged() + 1;
        for copy in copies {
            let blocks = blocks_in(&agent, &copy.unwrap());
            assert!(
                (before..=after).contains(&blocks),
                "{before} {blocks} {after}"
            );
        }
    }
    writer.stop().unwrap();
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn a_raw_volume_whose_writes_nobody_counts_is_refused_with_the_cure() {
    let agent = on(Kind::Ext4, 1 << 10, "").await;
    let id = volume(&agent, "v", 16, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    let number = fs::metadata(&at.1).unwrap().rdev();
    let (major, minor) = (major(number), minor(number));
    let counts = format!("/sys/dev/block/{major}:{minor}/queue/iostats");
    fs::write(&counts, "0").unwrap();
    let status = take(&agent, "s", &id).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(
        status.message().contains("queue/iostats"),
        "{}",
        status.message()
    );
    fs::write(&counts, "1").unwrap();
    take(&agent, "s", &id).await.unwrap();
    // What was set stays with the number of the device, which shows another image later, and is not said of that.
    fs::write(&counts, "0").unwrap();
    unmount(&agent, &id, &at).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    take(&agent, "t", &id).await.unwrap();
    unmount(&agent, &id, &at).await;
    fs::write(&counts, "1").unwrap();
}
