//! Group snapshots of volumes that are written all the time, taken and deleted until the lights go out.

use std::{fs, path::Path, thread, time::Duration};

use drumlin_proto::csi::v1::VolumeCapability;
use drumlin_tests::{
    agent::Agent,
    requests::{
        create, create_group_snapshot, delete_group_snapshot, mounted, publish, raw, stage,
        unpublish, unstage,
    },
    sequence::{Place, RING, Writer},
};
use tonic::Code;

use crate::{Witness, agent, group_journal::Record, journal::Journal};

/// The members, each with its file system, if it has one, and its size in mebibytes. The first writer writes to all of them
/// in turn, the second one to those without a file system, which nothing freezes.
pub(crate) const MEMBERS: [(&str, &str, i64); 4] = [
    ("e", "ext4", 32),
    ("x", "xfs", 300),
    ("a", "", 16),
    ("b", "", 16),
];
/// The file of the first writer.
pub(crate) const RING_FILE: &str = "ring";
/// The second writer's blocks begin here.
const SECOND: u64 = 4 << 20;
/// So many group snapshots live side by side before the oldest is deleted.
pub(crate) const KEPT: usize = 2;

/// What a class of thick volumes has, so that no copy of theirs overflows.
pub(crate) const ROOM: &str = ", snapshotSize: 100%";

/// A member that is staged and published.
pub(crate) struct Used {
    pub(crate) id: String,
    staging: String,
    pub(crate) target: String,
}

pub(crate) fn capability(fs_type: &str) -> VolumeCapability {
    if fs_type.is_empty() {
        raw()
    } else {
        mounted(fs_type)
    }
}

/// All members in their order; the first time they are made.
pub(crate) async fn use_all(agent: &Agent) -> Vec<Used> {
    let (mut controller, mut node) = (agent.controller(), agent.node());
    let mut all = Vec::new();
    for (name, fs_type, mebibytes) in MEMBERS {
        let capability = capability(fs_type);
        let request = create(name, mebibytes, &capability);
        let made = controller.create_volume(request).await.unwrap();
        let id = made.into_inner().volume.unwrap().volume_id;
        let staging = agent.scratch.directory(&format!("staging/{name}"));
        let target = agent.scratch.directory("targets").join(name);
        let [staging, target] = [staging, target].map(|path| path.to_string_lossy().into_owned());
        let request = stage(&id, &staging, &capability);
        node.node_stage_volume(request).await.unwrap();
        let request = publish(&id, (&staging, &target), &capability);
        node.node_publish_volume(request).await.unwrap();
        all.push(Used {
            id,
            staging,
            target,
        });
    }
    all
}

pub(crate) async fn leave_all(agent: &Agent, all: &[Used]) {
    let mut node = agent.node();
    for used in all {
        let request = unpublish(&used.id, &used.target);
        node.node_unpublish_volume(request).await.unwrap();
        let request = unstage(&used.id, &used.staging);
        node.node_unstage_volume(request).await.unwrap();
    }
}

/// Where each writer writes, in volumes of which these are the devices and the directories.
pub(crate) fn places<P: AsRef<Path>>(roots: &[P]) -> [Vec<Place>; 2] {
    let [mut first, mut second] = [Vec::new(), Vec::new()];
    for ((_, fs_type, _), root) in MEMBERS.iter().zip(roots) {
        let path = root.as_ref();
        let place = |path: &Path, offset| Place {
            path: path.to_owned(),
            offset,
        };
        if fs_type.is_empty() {
            first.push(place(path, 0));
            second.push(place(path, SECOND));
        } else {
            first.push(place(&path.join(RING_FILE), 0));
        }
    }
    [first, second]
}

/// Makes the files that are written in, where they are not whole.
fn make_rings(places: &[Place]) {
    for place in places {
        let whole = u64::try_from(RING).unwrap();
        let length = fs::metadata(&place.path).map_or(0, |metadata| metadata.len());
        let is_device = place.path.exists() && !place.path.is_file();
        if !is_device && length != whole {
            fs::write(&place.path, vec![0; RING]).unwrap();
            fs::File::open(&place.path).unwrap().sync_all().unwrap();
        }
    }
}

/// Says in the journal that the agent has come to the point where it stops.
fn tell_when_stopped(pid: i32, file: &str) {
    let mut journal = Journal::open(file);
    thread::spawn(move || {
        loop {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat.rsplit(") ").next().unwrap_or_default();
            if state.starts_with('T') {
                journal.note("stopped", "agent");
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    });
}

pub(crate) async fn load(file: &str) {
    let known = Record::read(file);
    let agent = agent(ROOM).await;
    let _witness = Witness(&agent);
    tell_when_stopped(agent.pid(), file);
    let mut groups = agent.group_controller();
    let used = use_all(&agent).await;
    let targets: Vec<&str> = used.iter().map(|used| used.target.as_str()).collect();
    let places = places(&targets);
    for places in &places {
        make_rings(places);
    }
    let run = known.run + 1;
    let mut journal = Journal::open(file);
    journal.note("life", &run.to_string());
    // Each has a number of its own, beside the run's.
    let writers = [0, 1].map(|index| Writer::start(2 * run + index, &places_of(&places, index)));
    let writers = writers.map(Result::unwrap);
    let acknowledged = || {
        let counts = writers.each_ref().map(Writer::acknowledged);
        format!("{run} {} {}", counts[0], counts[1])
    };
    let mut living = Vec::new();
    for number in known.next.. {
        let name = format!("g{number}");
        journal.note("asking", &format!("{name} {}", acknowledged()));
        let request =
            create_group_snapshot(&name, used.iter().map(|used| used.id.clone()).collect());
        let taken = loop {
            match groups.create_volume_group_snapshot(request.clone()).await {
                Ok(answer) => break answer.into_inner().group_snapshot.unwrap(),
                // On a machine that is busy they may not all be held in time.
                Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
            }
        };
        journal.note("taken", &format!("{name} {}", acknowledged()));
        living.push((name, taken));
        if living.len() > KEPT {
            let (name, taken) = living.remove(0);
            journal.note("forgetting", &name);
            groups
                .delete_volume_group_snapshot(delete_group_snapshot(&taken))
                .await
                .unwrap();
            journal.note("forgotten", &name);
        }
        for writer in &writers {
            writer.goes_on(3);
        }
    }
}

fn places_of(places: &[Vec<Place>; 2], index: u64) -> Vec<Place> {
    places[usize::try_from(index).unwrap()].clone()
}
