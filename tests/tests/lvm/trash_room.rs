//! Room that is made by the trash of a class over LVM: nothing is destroyed in vain.

use std::fs::OpenOptions;
use std::io::Write;

use drumlin_tests::{
    agent::{Agent, Volumes},
    does_not_apply,
    requests::{create, delete, delete_snapshot, raw, snapshot},
    storage::{Scratch, lvm},
};
use tonic::Code;

use crate::{
    groups::over,
    helpers::{bytes_of, ok, refused, volume},
    trash::in_trash,
};

/// Writes so many mebibytes to a volume of its size.
async fn filled(agent: &Agent, name: &str, mebibytes: usize) -> String {
    let id = volume(agent, name, i64::try_from(mebibytes).unwrap(), &raw()).await;
    let mut device = OpenOptions::new()
        .write(true)
        .open(bytes_of(agent, &id))
        .unwrap();
    for _ in 0..mebibytes {
        device.write_all(&vec![7; 1 << 20]).unwrap();
    }
    device.sync_all().unwrap();
    id
}

pub(crate) async fn names(agent: &Agent) -> Vec<String> {
    let all = in_trash(agent).await.into_iter();
    let mut names: Vec<String> = all.map(|trashed| trashed.name).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_pool_that_is_full_gets_only_what_nobody_else_has() {
    if Volumes::asked() != Volumes::Thin {
        return does_not_apply!("it is of thin pools");
    }
    let scratch = Scratch::new();
    let group = scratch.volume_group(300);
    lvm("lvcreate", &["-L", "200M", "-T", &format!("{group}/pool")]);
    let class = format!(
        "thin: {{volumeGroup: {group}, pool: pool, overcommit: 10, dataLimit: 90%}}, trash: {{keep: 7d}}"
    );
    let agent = over(scratch, &class).await;
    let mut controller = agent.controller();
    let shared = filled(&agent, "shared", 90).await;
    let taken = controller.create_snapshot(snapshot("s", &shared)).await;
    let taken = ok(taken).snapshot.unwrap().snapshot_id;
    let own = filled(&agent, "own", 60).await;
    ok(controller.delete_volume(delete(&shared)).await);
    filled(&agent, "rest", 36).await;
    // The only one there has its blocks together with its snapshot.
    for name in ["a", "b"] {
        let refusal = controller.create_volume(create(name, 50, &raw())).await;
        refused(refusal, Code::ResourceExhausted);
    }
    assert_eq!(names(&agent).await, ["shared"]);
    // Another one frees enough, and the oldest nothing: it stays.
    ok(controller.delete_volume(delete(&own)).await);
    ok(controller.create_volume(create("c", 50, &raw())).await);
    assert_eq!(names(&agent).await, ["shared"]);
    filled(&agent, "more", 60).await;
    ok(controller.delete_snapshot(delete_snapshot(&taken)).await);
    ok(controller.create_volume(create("d", 50, &raw())).await);
    assert_eq!(names(&agent).await, [""; 0]);
}

#[tokio::test]
async fn a_promise_of_a_pool_and_the_extents_of_a_group_are_given_up_by_the_oldest() {
    let scratch = Scratch::new();
    let group = scratch.volume_group(200);
    // What fits beside one of the two, and not beside both.
    let (class, next) = match Volumes::asked() {
        Volumes::Thin => {
            lvm("lvcreate", &["-L", "300M", "-T", &format!("{group}/pool")]);
            (format!("thin: {{volumeGroup: {group}, pool: pool}}"), 180)
        }
        Volumes::Linear => (format!("thick: {{volumeGroup: {group}}}"), 280),
        Volumes::Raid1 => return does_not_apply!("as of linear volumes"),
    };
    let agent = over(scratch, &format!("{class}, trash: {{keep: 7d}}")).await;
    for name in ["old", "recent"] {
        let id = volume(&agent, name, 100, &raw()).await;
        // One that was never used leaves nothing.
        bytes_of(&agent, &id);
        ok(agent.controller().delete_volume(delete(&id)).await);
    }
    let both = names(&agent).await;
    assert_eq!(both, ["old", "recent"]);
    // All of it would not be enough.
    let mut controller = agent.controller();
    let refusal = controller.create_volume(create("huge", 2000, &raw())).await;
    refused(refusal, Code::ResourceExhausted);
    assert_eq!(names(&agent).await, both);
    volume(&agent, "next", next, &raw()).await;
    assert_eq!(names(&agent).await, ["recent"]);
}
