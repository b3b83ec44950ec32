//! The trash of a class: what CSI deletes goes there, until its time is over or its room is needed.

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use drumlin_host::Disk;
use drumlin_tests::{
    agent::{Agent, eventually, write},
    programs::run,
    requests::{
        create, create_group_snapshot, delete, delete_snapshot, expand, mounted, raw, snapshot,
    },
    storage::{Kind, Scratch},
};
use tonic::Code;

use crate::{
    helpers::{bytes_of, ok, refused, text, volume},
    trash::{content, in_trash, undelete, used},
    trash_clock::{agent_with, in_days, restart_in, until_log},
};

fn config(path: &Path, trash: &str) -> String {
    let path = path.display();
    format!("classes:\n- {{name: default, directory: {{path: {path}}}, trash: {trash}}}\n")
}

async fn delete_volume(agent: &Agent, id: &str) {
    ok(agent.controller().delete_volume(delete(id)).await);
}

/// When the only volume in the trash was deleted by its record, in days from now.
async fn days_to_deletion(agent: &Agent) -> i64 {
    let trashed = in_trash(agent).await.remove(0);
    let seconds = trashed.deletion_time.unwrap().seconds;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (seconds - i64::try_from(now.as_secs()).unwrap()) / 86_400
}

/// Waits until that is so many days, at least.
async fn until_deleted(agent: &Agent, days: i64) {
    while days_to_deletion(agent).await < days {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn what_csi_deletes_is_kept_for_the_time_of_its_class_and_no_longer() {
    let scratch = Scratch::new();
    let directory = scratch.directory("images");
    let mut agent = agent_with(scratch, config(&directory, "{keep: 30d}")).await;
    let id = used(&agent, "v", b"deleted by mistake").await;
    delete_volume(&agent, &id).await;
    delete_volume(&agent, &id).await;
    let trashed = in_trash(&agent).await;
    assert_eq!(trashed.len(), 1);
    // One that never held data leaves nothing.
    let blank = volume(&agent, "blank", 16, &mounted("ext4")).await;
    delete_volume(&agent, &blank).await;
    assert_eq!(in_trash(&agent).await.len(), 1);
    ok(undelete(&agent, &trashed[0].trash_id, "").await);
    assert_eq!(content(&agent, "v", &id).await, b"deleted by mistake");
    delete_volume(&agent, &id).await;
    // A clock that jumps while it runs destroys nothing.
    write(&agent.path("clock"), &in_days(20.0));
    until_deleted(&agent, 19).await;
    restart_in(&mut agent, 45.0).await;
    // Longer than it is in doubt of its clock.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(in_trash(&agent).await.len(), 1);
    restart_in(&mut agent, 60.0).await;
    until_log(&agent, "volume in the trash destroyed").await;
    assert!(in_trash(&agent).await.is_empty());
}

#[tokio::test]
async fn a_trash_comes_with_a_changed_configuration_and_leaves_with_it() {
    let scratch = Scratch::new();
    let directory = scratch.directory("images");
    let agent = agent_with(scratch, config(&directory, "{keep: 1d}")).await;
    let config_of = |trash: &str| write(&agent.path("config.yaml"), &config(&directory, trash));
    let id = used(&agent, "v", b"v").await;
    delete_volume(&agent, &id).await;
    config_of("{keep: 8d}");
    loop {
        let kept = in_trash(&agent).await.remove(0);
        let days = kept.expiration_time.unwrap().seconds - kept.deletion_time.unwrap().seconds;
        if days == 8 * 86_400 {
            break;
        }
        assert_eq!(days, 86_400);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let path = directory.display();
    let none = format!("classes:\n- {{name: default, directory: {{path: {path}}}}}\n");
    write(&agent.path("config.yaml"), &none);
    // What is in the trash stays, and at some time nothing is added any more.
    let mut kept = 1;
    loop {
        let id = used(&agent, "w", b"w").await;
        delete_volume(&agent, &id).await;
        let now = in_trash(&agent).await.len();
        if now == kept {
            break;
        }
        assert_eq!(now, kept + 1);
        kept = now;
    }
}

#[tokio::test]
async fn a_class_fuller_than_it_may_be_gives_the_oldest_up_after_a_warning() {
    let scratch = Scratch::new();
    let directory = scratch.file_system("images", Kind::Xfs, 400);
    let agent = agent_with(scratch, config(&directory, "{keep: 30d, maxFill: 50%}")).await;
    let mut ids = Vec::new();
    for name in ["old", "new"] {
        let id = used(&agent, name, b"data").await;
        delete_volume(&agent, &id).await;
        ids.extend(
            in_trash(&agent)
                .await
                .into_iter()
                .filter(|one| one.name == name),
        );
    }
    let path = text(directory.join("filler"));
    let (size, kept) = ("250M", ids[1].trash_id.clone());
    run("fallocate", &["-l", size, &path]);
    let left = eventually(
        || agent.log(),
        |log| log.contains("volume in the trash destroyed"),
    );
    let log = left.await;
    let warning = log.find("class fuller than its trash.maxFill").unwrap();
    assert!(warning < log.find("volume in the trash destroyed").unwrap());
    let line = log[warning..].lines().next().unwrap();
    let told = log[..warning].lines().last().unwrap().to_owned() + line;
    assert!(told.contains(&ids[0].trash_id), "{told}");
    std::fs::remove_file(&path).unwrap();
    // It may have gone, too, before there was room.
    let rest = in_trash(&agent).await;
    assert!(rest.iter().all(|one| one.trash_id == kept), "{rest:?}");
}

/// An agent whose class allocates all that is promised, and has little.
async fn with_little_room() -> Agent {
    let scratch = Scratch::new();
    let directory = scratch.file_system("images", Kind::Ext4, 100);
    let thick = format!(
        "classes:\n- {{name: default, directory: {{path: {}, allocation: thick}}, trash: {{keep: 30d}}}}\n",
        directory.display()
    );
    agent_with(scratch, thick).await
}

#[tokio::test]
async fn room_that_is_needed_is_taken_from_the_trash_unless_that_is_in_vain() {
    let agent = with_little_room().await;
    for name in ["a", "b", "c"] {
        let id = volume(&agent, name, 20, &raw()).await;
        delete_volume(&agent, &id).await;
    }
    let oldest = in_trash(&agent).await;
    let oldest = oldest.into_iter().find(|one| one.name == "a").unwrap();
    let request = create("huge", 500, &raw());
    refused(
        agent.controller().create_volume(request).await,
        Code::ResourceExhausted,
    );
    assert_eq!(in_trash(&agent).await.len(), 3);
    let id = volume(&agent, "large", 35, &raw()).await;
    let rest = in_trash(&agent).await;
    assert!(!rest.is_empty() && rest.len() < 3, "{rest:?}");
    assert!(rest.iter().all(|one| one.trash_id != oldest.trash_id));
    let log = agent.log();
    assert!(log.contains("room is needed"), "{log}");
    // Growth, too.
    ok(agent
        .controller()
        .controller_expand_volume(expand(&id, 70))
        .await);
    assert!(in_trash(&agent).await.len() < rest.len());
}

#[tokio::test]
async fn a_group_snapshot_takes_room_from_the_trash() {
    let agent = with_little_room().await;
    for name in ["a", "b"] {
        let id = volume(&agent, name, 20, &raw()).await;
        delete_volume(&agent, &id).await;
    }
    let id = volume(&agent, "v", 35, &raw()).await;
    assert_eq!(in_trash(&agent).await.len(), 2);
    let mut groups = agent.group_controller();
    let request = create_group_snapshot("g", vec![id]);
    ok(groups.create_volume_group_snapshot(request).await);
    let rest = in_trash(&agent).await;
    assert!(rest.iter().all(|one| one.name != "a"), "{rest:?}");
    let log = agent.log();
    assert!(log.contains("room is needed"), "{log}");
}

#[tokio::test]
async fn what_is_thrown_away_by_a_clock_that_is_behind_stays_for_its_time() {
    let scratch = Scratch::new();
    let directory = scratch.directory("images");
    let agent = agent_with(scratch, config(&directory, "{keep: 7d}")).await;
    // It stands still where it is set, and is right in 31 days.
    let days = |days: f64| write(&agent.path("clock"), &in_days(days));
    days(10.0);
    until_log(&agent, "the clock has jumped").await;
    let id = used(&agent, "v", b"v").await;
    delete_volume(&agent, &id).await;
    assert!((9..=10).contains(&days_to_deletion(&agent).await));
    days(31.0);
    until_deleted(&agent, 29).await;
    // Longer than it is in doubt of its clock.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(in_trash(&agent).await.len(), 1);
}

#[tokio::test]
async fn what_shares_its_blocks_is_not_destroyed_for_room_that_would_not_come() {
    let scratch = Scratch::new();
    let directory = scratch.file_system("images", Kind::Xfs, 400);
    let agent = agent_with(scratch, config(&directory, "{keep: 30d}")).await;
    let id = volume(&agent, "shared", 120, &raw()).await;
    std::fs::write(bytes_of(&agent, &id), vec![7; 120 << 20]).unwrap();
    let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
    let taken = ok(taken).snapshot.unwrap().snapshot_id;
    delete_volume(&agent, &id).await;
    let available = || Disk::of(&directory).unwrap().available;
    run(
        "fallocate",
        &[
            "-l",
            &(available() - (40 << 20)).to_string(),
            &text(directory.join("filler")),
        ],
    );
    let create = |name: &str| create(name, 100, &raw());
    for name in ["a", "b"] {
        let refusal = agent.controller().create_volume(create(name)).await;
        refused(refusal, Code::ResourceExhausted);
        assert_eq!(in_trash(&agent).await.len(), 1);
    }
    // Its blocks are its own once its snapshot is gone.
    ok(agent
        .controller()
        .delete_snapshot(delete_snapshot(&taken))
        .await);
    // xfs frees the blocks of what was deleted a moment later.
    while let Err(status) = agent.controller().create_volume(create("c")).await {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(in_trash(&agent).await.is_empty());
}

#[tokio::test]
async fn on_a_full_disk_what_is_oldest_makes_room_for_what_is_thrown_away() {
    let scratch = Scratch::new();
    let directory = scratch.file_system("images", Kind::Ext4, 200);
    let agent = agent_with(scratch, config(&directory, "{keep: 30d}")).await;
    let old = used(&agent, "old", b"old").await;
    let new = used(&agent, "new", b"new").await;
    delete_volume(&agent, &old).await;
    let filler = text(directory.join("filler"));
    // To the last block, also of those that only root may use.
    let fill = format!("dd if=/dev/zero bs=1k status=none >> {filler}; sync -f {filler}; ");
    let line = format!("{}true", fill.repeat(3));
    run("sh", &["-c", &line]);
    delete_volume(&agent, &new).await;
    let left = in_trash(&agent).await;
    let names: Vec<&str> = left.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["new"]);
}
