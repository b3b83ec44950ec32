//! What ends in the trash of a class over LVM by itself: by its age, and because the class is too full.

use std::{fs::OpenOptions, io::Write, time::Duration};

use drumlin_proto::drumlin::v1::DestroyTrashedVolumeRequest;
use drumlin_tests::{
    agent::{Agent, Volumes, eventually},
    does_not_apply,
    programs::run,
    requests::{delete, delete_snapshot, raw, snapshot},
    storage::{Scratch, lvm},
};

use crate::{
    encryption::setup::has_bytes,
    groups,
    helpers::{bytes_of, ok, volume},
    place::Place,
    trash::{in_trash, undelete},
    trash_clock::{agent_with, restart_in, until_log},
    trash_room::names,
};

/// What is written to a volume of this name.
fn words(name: &str) -> String {
    format!("the data of volume {name} is here;")
}

/// A volume of its words.
async fn written(agent: &Agent, name: &str, mebibytes: usize) -> String {
    let id = volume(agent, name, i64::try_from(mebibytes).unwrap(), &raw()).await;
    let mut device = OpenOptions::new()
        .write(true)
        .open(bytes_of(agent, &id))
        .unwrap();
    let words = words(name);
    let mebibyte = words.repeat((1 << 20) / words.len());
    for _ in 0..mebibytes {
        device.write_all(mebibyte.as_bytes()).unwrap();
    }
    device.sync_all().unwrap();
    id
}

/// One that is in the trash.
async fn thrown_away(agent: &Agent, name: &str, mebibytes: usize) -> String {
    let id = written(agent, name, mebibytes).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
    id
}

/// Whether the data of a volume is on a disk.
fn is_on_a_disk(agent: &Agent, name: &str) -> bool {
    run("sync", &[]);
    let mut disks = ["disk-a", "disk-b"].into_iter();
    disks.any(|disk| has_bytes(&agent.path(disk), &words(name)))
}

/// The logical volumes in the trash.
fn trashed(agent: &Agent) -> usize {
    let names = groups::names(agent).into_iter();
    names.filter(|name| name.starts_with("dl-d-")).count()
}

fn destroyed(agent: &Agent) -> usize {
    let log = agent.log();
    log.matches("volume in the trash destroyed").count()
}

/// Longer than some looks at the trash.
async fn looks_pass() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn what_is_older_than_its_class_keeps_it_is_destroyed_and_nothing_else() {
    let scratch = Scratch::new();
    let config = Place::Lvm.config(&scratch, ", trash: {keep: 30d}");
    let mut agent = agent_with(scratch, config).await;
    thrown_away(&agent, "old", 12).await;
    restart_in(&mut agent, 20.0).await;
    let recent = thrown_away(&agent, "recent", 12).await;
    let both = in_trash(&agent).await;
    restart_in(&mut agent, 20.0).await;
    assert_eq!(in_trash(&agent).await, both);
    assert_eq!((both.len(), trashed(&agent)), (2, 2));
    assert!(is_on_a_disk(&agent, "old"));

    restart_in(&mut agent, 45.0).await;
    until_log(&agent, "volume in the trash destroyed").await;
    assert_eq!(names(&agent).await, ["recent"]);
    looks_pass().await;
    let left = in_trash(&agent).await;
    assert_eq!((left.len(), trashed(&agent), destroyed(&agent)), (1, 1, 1));
    // A thick volume is wiped; blocks of a pool are zeros for the next one, and may stay on its disks.
    if Volumes::asked() != Volumes::Thin {
        assert!(!is_on_a_disk(&agent, "old"));
    }
    assert!(is_on_a_disk(&agent, "recent"));
    let back = ok(undelete(&agent, &left[0].trash_id, "").await).volume_id;
    assert_eq!(back, recent);
    assert!(has_bytes(&bytes_of(&agent, &back), &words("recent")));
}

/// The storage of a class with room for three volumes of so many mebibytes below 75 %.
fn for_three(scratch: &Scratch) -> Option<(String, usize)> {
    let group = scratch.volume_group(150);
    match Volumes::asked() {
        Volumes::Thin => {
            lvm("lvcreate", &["-L", "200M", "-T", &format!("{group}/pool")]);
            Some((format!("thin: {{volumeGroup: {group}, pool: pool}}"), 40))
        }
        Volumes::Linear => Some((format!("thick: {{volumeGroup: {group}}}"), 60)),
        Volumes::Raid1 => None,
    }
}

/// An agent of such a class that may be filled by half.
async fn filled_by_half(scratch: Scratch, class: &str) -> Agent {
    let class = format!("{class}, trash: {{keep: 30d, maxFill: 50%}}");
    agent_with(scratch, format!("classes: [{{name: default, {class}}}]\n")).await
}

/// Checks that the log warns of a volume in the trash before it says that this was destroyed.
fn was_told(agent: &Agent, trash_id: &str) {
    let log = agent.log();
    let of_it: Vec<&str> = log.lines().filter(|line| line.contains(trash_id)).collect();
    let told = |words: &str| of_it.iter().position(|line| line.contains(words));
    let warned = told("class fuller than its trash.maxFill");
    let destroyed = told("volume in the trash destroyed");
    assert!(warned.is_some() && warned < destroyed, "{of_it:#?}");
}

#[tokio::test]
async fn a_class_that_is_too_full_gives_up_the_oldest_of_its_trash_after_it_was_told() {
    let scratch = Scratch::new();
    let Some((class, size)) = for_three(&scratch) else {
        return does_not_apply!("as of linear volumes");
    };
    let mut agent = filled_by_half(scratch, &class).await;
    thrown_away(&agent, "old", size).await;
    let old = in_trash(&agent).await.remove(0).trash_id;
    thrown_away(&agent, "recent", size).await;
    // A restart begins with a warning, too.
    agent.kill();
    agent.restart().await;
    looks_pass().await;
    assert_eq!(names(&agent).await, ["old", "recent"]);

    written(&agent, "live", size).await;
    until_log(&agent, "volume in the trash destroyed").await;
    was_told(&agent, &old);
    looks_pass().await;
    assert_eq!(names(&agent).await, ["recent"]);
    assert_eq!((trashed(&agent), destroyed(&agent)), (1, 1));
}

/// A snapshot binds a thick volume alone.
#[tokio::test]
async fn what_has_snapshots_stays_and_is_not_in_the_way_of_what_goes() {
    let scratch = Scratch::new();
    let group = scratch.volume_group(150);
    let class = format!("thick: {{volumeGroup: {group}, snapshotSize: 10%}}");
    let mut agent = filled_by_half(scratch, &class).await;
    let bound = written(&agent, "bound", 50).await;
    let mut controller = agent.controller();
    let taken = controller.create_snapshot(snapshot("s", &bound)).await;
    let taken = ok(taken).snapshot.unwrap().snapshot_id;
    ok(controller.delete_volume(delete(&bound)).await);
    thrown_away(&agent, "free", 50).await;
    written(&agent, "live", 60).await;
    eventually(|| destroyed(&agent), |destroyed| *destroyed == 1).await;
    assert_eq!(names(&agent).await, ["bound"]);
    // Nor is it destroyed by its age. Each start says so once, and not each look.
    let told = |agent: &Agent| agent.log().matches("volume stays in the trash").count();
    assert_eq!(told(&agent), 1);
    restart_in(&mut agent, 60.0).await;
    eventually(|| told(&agent), |told| *told == 2).await;
    looks_pass().await;
    assert_eq!(names(&agent).await, ["bound"]);
    assert_eq!(told(&agent), 2);
    let mut controller = agent.controller();
    ok(controller.delete_snapshot(delete_snapshot(&taken)).await);
    eventually(|| destroyed(&agent), |destroyed| *destroyed == 2).await;
    assert_eq!(names(&agent).await, [""; 0]);
    assert_eq!(trashed(&agent), 0);
}

#[tokio::test]
async fn what_is_being_wiped_makes_room_and_nothing_goes_in_vain_meanwhile() {
    let scratch = Scratch::new();
    let group = scratch.volume_group(150);
    let class = format!("thick: {{volumeGroup: {group}}}, trash: {{keep: 30d, maxFill: 75%}}");
    let config = format!("classes: [{{name: default, {class}}}]\n");
    let mut agent = agent_with(scratch, config).await;
    thrown_away(&agent, "gone", 130).await;
    let trash_id = in_trash(&agent).await.remove(0).trash_id;
    thrown_away(&agent, "kept", 40).await;
    // Each part of a wipe takes a second longer.
    let pausing = agent.options().clone().pausing_at("thick.wipe.step");
    agent.kill();
    agent.restart_with(pausing).await;
    let mut client = agent.trash();
    let request = DestroyTrashedVolumeRequest { trash_id };
    let destroying = tokio::spawn(async move { client.destroy_trashed_volume(request).await });
    while names(&agent).await != ["kept"] {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let filler = ["-q", "-y", "-W", "n", "-n", "filler", "-L", "70M", &group];
    lvm("lvcreate", &filler);
    assert!(!destroying.is_finished(), "it is still wiped");
    ok(destroying.await.unwrap());
    looks_pass().await;
    assert_eq!(names(&agent).await, ["kept"]);
    let log = agent.log();
    assert!(
        !log.contains("class fuller than its trash.maxFill"),
        "{log}"
    );
}
