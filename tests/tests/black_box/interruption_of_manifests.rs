//! The reconciler killed between any two of its steps: what the manifests say comes about all the same.

use std::time::{Duration, Instant};

use drumlin_proto::volumegroup::{ListVolumeGroupsRequest, VolumeGroup};
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE, eventually, is_thorough, write},
    requests::{delete, delete_group},
    sources,
    state::State,
    storage::Scratch,
};

use crate::{
    helpers::text,
    subject::{ending_at, killed_at},
};

/// Files that are written, and words that status must show then.
type Step = (Vec<(&'static str, String)>, Vec<&'static str>);

/// What is said to the reconciler, a step at a time, each with what status must show then.
fn story(root: &str) -> Vec<Step> {
    let absent = "drumlin.dev/state: absent";
    let at = |path: &str| {
        format!("fsType: xfs, deletionPolicy: Delete, mount: {{path: {root}/targets/{path}}}")
    };
    let restored = |annotation: &str| {
        let spec = format!("capacity: 400Mi, source: {{snapshotName: s}}, {}", at("r"));
        volume_file("r", annotation, &spec)
    };
    let unmounted = "capacity: 350Mi, fsType: xfs, deletionPolicy: Delete";
    vec![
        (
            vec![(
                "v.yaml",
                volume_file("v", "", &format!("capacity: 300Mi, {}", at("one"))),
            )],
            vec!["Published"],
        ),
        (
            vec![("s.yaml", snapshot_file("")), ("r.yaml", restored(""))],
            vec!["SnapshotReady", "400Mi at"],
        ),
        (
            vec![(
                "v.yaml",
                volume_file("v", "", &format!("capacity: 350Mi, {}", at("two"))),
            )],
            vec!["350Mi at", "two"],
        ),
        (
            vec![(
                "k.yaml",
                volume_file("k", "", "capacity: 16Mi, fsType: ext4"),
            )],
            vec!["not mounted"],
        ),
        (
            vec![(
                "k.yaml",
                volume_file("k", absent, "capacity: 16Mi, fsType: ext4"),
            )],
            vec!["Released"],
        ),
        (
            vec![("v.yaml", volume_file("v", "", unmounted))],
            vec!["350Mi, not mounted"],
        ),
        (
            vec![
                ("s.yaml", snapshot_file(absent)),
                ("r.yaml", restored(absent)),
                ("v.yaml", volume_file("v", absent, unmounted)),
            ],
            vec![
                "Volume    default    v     False  -         -      Deleted",
                "Volume    default    r     False  -         -      Deleted",
                "Snapshot  default    s     False  -         -      Deleted",
            ],
        ),
    ]
}

fn volume_file(name: &str, annotation: &str, spec: &str) -> String {
    format!(
        "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {{name: {name}, annotations: {{{annotation}}}}}\nspec: {{{spec}}}\n"
    )
}

/// A snapshot of `v`.
fn snapshot_file(annotation: &str) -> String {
    format!(
        "apiVersion: drumlin.dev/v1alpha1\nkind: Snapshot\nmetadata: {{name: s, annotations: {{{annotation}}}}}\nspec: {{source: {{volumeName: v}}}}\n"
    )
}

/// Two volumes in a group, a snapshot of both, a volume made from it, one that leaves the group, and the end of all.
fn story_of_a_group(_: &str) -> Vec<Step> {
    let object = |kind: &str, name: &str, annotation: &str, spec: &str| {
        format!(
            "apiVersion: drumlin.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}, annotations: {{{annotation}}}}}\nspec: {{{spec}, deletionPolicy: Delete}}\n"
        )
    };
    let volume = |name: &str, annotation: &str| {
        let source = if name == "r" {
            ", source: {groupSnapshot: {name: s, member: b}}"
        } else {
            ""
        };
        object(
            "Volume",
            name,
            annotation,
            &format!("capacity: 16Mi{source}"),
        )
    };
    let group = |members: &str, annotation: &str| {
        let members = members.split(' ');
        let members: Vec<String> = members
            .map(|name| format!("{{kind: Volume, name: {name}}}"))
            .collect();
        let spec = format!("members: [{}]", members.join(", "));
        object("VolumeGroup", "g", annotation, &spec)
    };
    let snapshot = |annotation: &str| object("GroupSnapshot", "s", annotation, "groupName: g");
    let absent = "drumlin.dev/state: absent";
    vec![
        (
            vec![
                ("g.yaml", group("a b", "")),
                ("a.yaml", volume("a", "")),
                ("b.yaml", volume("b", "")),
            ],
            vec!["2 of 2 members"],
        ),
        (
            vec![("s.yaml", snapshot("")), ("r.yaml", volume("r", ""))],
            vec!["2 members of g", "r     True"],
        ),
        (vec![("g.yaml", group("a", ""))], vec!["1 of 1 members"]),
        (
            vec![("g.yaml", group("a", absent))],
            vec!["VolumeGroup    default    g     False  -         -      Deleted"],
        ),
        (
            vec![
                ("a.yaml", volume("a", absent)),
                ("b.yaml", volume("b", absent)),
                ("r.yaml", volume("r", absent)),
                ("s.yaml", snapshot(absent)),
            ],
            vec![
                "Volume         default    a     False  -         -      Deleted",
                "Volume         default    b     False  -         -      Deleted",
                "Volume         default    r     False  -         -      Deleted",
                "GroupSnapshot  default    s     False  -         -      Deleted",
            ],
        ),
    ]
}

/// The state without the names of snapshots, which are new ones each time, a line each.
fn nameless(state: &State) -> Vec<String> {
    let mut text = format!("{state:#?}");
    for path in state.files.keys() {
        let mut parts = path
            .components()
            .rev()
            .map(|part| part.as_os_str().to_string_lossy().into_owned());
        let (name, parent) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        if parent == "snapshots" || parent == "group-snapshots" {
            text = text.replace(&name, "SNAPSHOT");
        }
    }
    let mut parts = text.split("snap-");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |text, part| {
        text + "snap-" + part.get(32..).unwrap_or_default()
    });
    // In the order of their names until now.
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// How a story is told: to an agent with these arguments, and from which step on it may be killed.
struct Telling {
    arguments: &'static [&'static str],
    story: fn(&str) -> Vec<Step>,
}

/// So long the last step may go on when the table shows its end already.
const LONGEST_TAIL: Duration = Duration::from_secs(5);

const EVERYTHING: Telling = Telling {
    arguments: &[],
    story,
};

const GROUPED: Telling = Telling {
    arguments: &[],
    story: story_of_a_group,
};

/// The agent wants volumes to be published to it, and a publication changes.
const ATTACHED: Telling = Telling {
    arguments: &["--attach"],
    story: |root| {
        let volume = |spec: &str| {
            format!(
                "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {{name: v}}\nspec: {{capacity: 32Mi{spec}}}\n"
            )
        };
        let at = |more: &str| format!(", mount: {{path: {root}/targets/{more}}}");
        vec![
            (vec![("v.yaml", volume(&at("one")))], vec!["32Mi at"]),
            (
                vec![(
                    "v.yaml",
                    volume(&at("two, readOnly: true, options: [noatime]")),
                )],
                // At the same path the table would show nothing new.
                vec!["32Mi at", "targets/two"],
            ),
            (vec![("v.yaml", volume(""))], vec!["32Mi, not mounted"]),
        ]
    },
};

/// What there was after each step, and the points that nothing came to.
struct Told {
    states: Vec<Vec<String>>,
    left: Vec<String>,
}

/// Tells a story to an agent that ends at each of these points that it comes to, once.
async fn told(telling: &Telling, points: &[&str]) -> Told {
    let scratch = Scratch::new();
    let manifests = scratch.directory("manifests");
    scratch.directory("targets");
    let more = telling.arguments.iter();
    let arguments = ["--manifests".to_owned(), text(manifests.clone())]
        .into_iter()
        .chain(more.map(|&argument| argument.to_owned()));
    let arguments: Vec<String> = arguments.collect();
    let options = |points: &[String]| Options {
        arguments: arguments.clone(),
        environment: ending_at(points),
        ..Options::default()
    };
    let mut left: Vec<String> = points.iter().map(|&point| point.to_owned()).collect();
    let root = text(scratch.path().to_owned());
    let mut agent = Agent::with(scratch, options(&left)).await;
    let mut states = Vec::new();
    let story = (telling.story)(&root);
    let last = story.len() - 1;
    for (step, (files, words)) in story.into_iter().enumerate() {
        for (file, manifest) in files {
            write(&manifests.join(file), &manifest);
        }
        let begun = Instant::now();
        let mut deadline = begun + PATIENCE;
        loop {
            let (table, _) = agent.status();
            // What the last step does may not be seen in the table.
            let is_awaited = step == last && !left.is_empty();
            let is_awaited = is_awaited && Instant::now() < begun + LONGEST_TAIL;
            let is_shown = words.iter().all(|word| table.contains(word));
            let has_ended = agent.has_ended();
            if is_shown && !is_awaited && !has_ended {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{words:?} {points:?}\n{table}\n{}",
                agent.log()
            );
            if has_ended {
                loop {
                    let before = left.len();
                    let met = killed_at(&agent.log());
                    left.retain(|point| !met.contains(point));
                    assert!(left.len() < before, "it ended by itself\n{}", agent.log());
                    if agent.try_restart_with(options(&left)).await {
                        break;
                    }
                }
                deadline = Instant::now() + PATIENCE;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let state = eventually(
            || State::of(agent.scratch.path()),
            |state| state.frozen.is_empty(),
        )
        .await;
        states.push(nameless(&state));
    }
    Told { states, left }
}

/// The points between the steps of groups and their snapshots, or all others.
fn points_of(groups: bool) -> Vec<String> {
    let points = sources::reconciler_points().into_iter();
    // Some only objects of an API server come to: see its tests.
    let is_served =
        |point: &String| point.starts_with("finalizer.") || point.starts_with("status.");
    // And some only those whose record is lost, whose node has another name, schedules, or orphans that are pruned: see their tests.
    let seldom = [
        "state-lost.",
        "owner.",
        "node-rename.",
        "schedule.",
        "ingest.pruned",
    ];
    let is_lost = |point: &String| seldom.iter().any(|one| point.starts_with(one));
    let is_elsewhere = |point: &String| is_served(point) || is_lost(point);
    let is_meant = |point: &String| point.starts_with("group") == groups && !is_elsewhere(point);
    points.filter(is_meant).collect()
}

/// Kills at each of these points but those that `skipped` names, which need more than the story tells: each in a life of its own
/// before a release, else in as few as come to all of them.
async fn kill_at_each(telling: &Telling, points: &[String], skipped: &[&str]) {
    let wanted = told(telling, &[]).await.states;
    let points = points.iter().map(String::as_str);
    let points: Vec<&str> = points.filter(|point| !skipped.contains(point)).collect();
    let lives = if is_thorough() { points.len() } else { 1 };
    for points in points.chunks(points.len().div_ceil(lives)) {
        let mut points = points.to_vec();
        while !points.is_empty() {
            let Told { states, left } = told(telling, &points).await;
            assert!(left.len() < points.len(), "nothing comes to {points:?}");
            points.retain(|point| left.iter().any(|other| other == point));
            assert_eq!(states.len(), wanted.len(), "all but {points:?}");
            for (step, (found, wanted)) in states.iter().zip(&wanted).enumerate() {
                assert_eq!(found, wanted, "step {step}, killed at all but {points:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_reconciler_that_is_killed_between_any_two_steps_goes_on_where_it_was() {
    let points = points_of(false);
    assert!(points.len() > 20, "{points:?}");
    // These need a volume that is gone, or an agent that wants volumes published: see the tests below.
    let skipped = ["volume.lost", "volume.recreate", "volume.attach.called"];
    kill_at_each(&EVERYTHING, &points, &skipped).await;
}

#[tokio::test]
async fn so_does_one_that_is_killed_between_two_steps_of_a_group_or_its_snapshot() {
    let points = points_of(true);
    assert!(points.len() > 12, "{points:?}");
    // This needs a group that is gone: see the test below.
    kill_at_each(&GROUPED, &points, &["group.lost"]).await;
}

#[tokio::test]
async fn a_reconciler_whose_agent_wants_volumes_published_goes_on_too() {
    let points = [
        "volume.attach.called",
        "volume.stage.called",
        "volume.unstage.called",
        "volume.mount.intended",
    ]
    .map(str::to_owned);
    kill_at_each(&ATTACHED, &points, &[]).await;
}

#[tokio::test]
async fn a_loss_is_remembered_across_a_kill_and_so_is_its_end() {
    for point in ["volume.lost", "volume.recreate"] {
        let scratch = Scratch::new();
        let manifests = scratch.directory("manifests");
        let options = |point: Option<&str>| {
            let plain = Options {
                arguments: vec!["--manifests".to_owned(), text(manifests.clone())],
                ..Options::default()
            };
            plain.perhaps_killed_at(point)
        };
        let manifest = |annotation: &str, capacity: &str| {
            format!(
                "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {{name: v, annotations: {{{annotation}}}}}\nspec: {{capacity: {capacity}}}\n"
            )
        };
        let file = manifests.join("v.yaml");
        write(&file, &manifest("", "16Mi"));
        let mut agent = Agent::with(scratch, options(Some(point))).await;
        eventually(|| agent.status().0, |table| table.contains("not mounted")).await;
        let list = agent
            .controller()
            .list_volumes(drumlin_proto::csi::v1::ListVolumesRequest::default())
            .await
            .unwrap();
        let id = list.into_inner().entries[0]
            .volume
            .clone()
            .unwrap()
            .volume_id;
        agent.controller().delete_volume(delete(&id)).await.unwrap();
        // It is missed when it shall grow.
        write(&file, &manifest("", "32Mi"));
        if point == "volume.lost" {
            agent.wait_until_killed().await;
            agent.restart_with(options(None)).await;
        }
        eventually(|| agent.status().0, |table| table.contains("VolumeLost")).await;
        write(
            &file,
            &manifest(&format!("drumlin.dev/recreate: {id}"), "32Mi"),
        );
        if point == "volume.recreate" {
            agent.wait_until_killed().await;
            agent.restart_with(options(None)).await;
        }
        eventually(
            || agent.status().0,
            |table| table.contains("32Mi, not mounted"),
        )
        .await;
    }
}

#[tokio::test]
async fn a_group_that_is_lost_is_made_again_also_across_a_kill() {
    let scratch = Scratch::new();
    let manifests = scratch.directory("manifests");
    let options = |point: Option<&str>| {
        let plain = Options {
            arguments: vec!["--manifests".to_owned(), text(manifests.clone())],
            ..Options::default()
        };
        plain.perhaps_killed_at(point)
    };
    let manifest = |at: &str| {
        format!(
            "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {{name: v}}\nspec: {{capacity: 16Mi}}\n---\napiVersion: drumlin.dev/v1alpha1\nkind: VolumeGroup\nmetadata: {{name: g, annotations: {{drumlin.dev/reconcile-at: \"{at}\"}}}}\nspec: {{members: [{{kind: Volume, name: v}}]}}\n"
        )
    };
    let file = manifests.join("g.yaml");
    write(&file, &manifest("1"));
    let mut agent = Agent::with(scratch, options(Some("group.lost"))).await;
    eventually(|| agent.status().0, |table| table.contains("1 of 1")).await;
    let [group] = groups(&agent).await.try_into().unwrap();
    let unlinked = delete_group(&group.volume_group_id);
    agent.groups().delete_volume_group(unlinked).await.unwrap();
    write(&file, &manifest("2"));
    agent.wait_until_killed().await;
    agent.restart_with(options(None)).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = groups(&agent).await;
        if now
            .first()
            .is_some_and(|found| found.volumes == group.volumes)
        {
            break;
        }
        assert!(Instant::now() < deadline, "{now:?}\n{}", agent.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    eventually(|| agent.status(), |(_, code)| *code == 0).await;
}

async fn groups(agent: &Agent) -> Vec<VolumeGroup> {
    let request = ListVolumeGroupsRequest::default();
    let listed = agent.groups().list_volume_groups(request).await.unwrap();
    let entries = listed.into_inner().entries.into_iter();
    entries.filter_map(|entry| entry.volume_group).collect()
}
