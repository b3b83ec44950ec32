//! The reconciler killed between any two of its steps: what the manifests say comes about all the same.

use std::time::{Duration, Instant};

use drumlin_tests::{
    agent::{Agent, Options, eventually, write},
    requests::delete,
    state::State,
    storage::Scratch,
};

use crate::kit::{points, text};

/// Files that are written, and words that status must show then.
type Step = (Vec<(&'static str, String)>, Vec<&'static str>);

/// What is said to the reconciler, a step at a time, each with what status must show then.
fn story(root: &str) -> Vec<Step> {
    let volume = |name: &str, annotation: &str, spec: &str| {
        format!(
            "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {{name: {name}, annotations: {{{annotation}}}}}\nspec: {{{spec}}}\n"
        )
    };
    let snapshot = |annotation: &str| {
        format!(
            "apiVersion: drumlin.dev/v1alpha1\nkind: Snapshot\nmetadata: {{name: s, annotations: {{{annotation}}}}}\nspec: {{source: {{volumeName: v}}}}\n"
        )
    };
    let absent = "drumlin.dev/state: absent";
    let at = |path: &str| {
        format!("fsType: xfs, deletionPolicy: Delete, mount: {{path: {root}/targets/{path}}}")
    };
    let restored = |annotation: &str| {
        volume(
            "r",
            annotation,
            &format!("capacity: 400Mi, source: {{snapshotName: s}}, {}", at("r")),
        )
    };
    vec![
        (
            vec![(
                "v.yaml",
                volume("v", "", &format!("capacity: 300Mi, {}", at("one"))),
            )],
            vec!["Published"],
        ),
        (
            vec![("s.yaml", snapshot("")), ("r.yaml", restored(""))],
            vec!["SnapshotReady", "400Mi at"],
        ),
        (
            vec![(
                "v.yaml",
                volume("v", "", &format!("capacity: 350Mi, {}", at("two"))),
            )],
            vec!["350Mi at", "two"],
        ),
        (
            vec![("k.yaml", volume("k", "", "capacity: 16Mi, fsType: ext4"))],
            vec!["not mounted"],
        ),
        (
            vec![(
                "k.yaml",
                volume("k", absent, "capacity: 16Mi, fsType: ext4"),
            )],
            vec!["Released"],
        ),
        (
            vec![(
                "v.yaml",
                volume(
                    "v",
                    "",
                    "capacity: 350Mi, fsType: xfs, deletionPolicy: Delete",
                ),
            )],
            vec!["350Mi, not mounted"],
        ),
        (
            vec![
                ("s.yaml", snapshot(absent)),
                ("r.yaml", restored(absent)),
                (
                    "v.yaml",
                    volume(
                        "v",
                        absent,
                        "capacity: 350Mi, fsType: xfs, deletionPolicy: Delete",
                    ),
                ),
            ],
            vec![
                "Volume    default    v     False  -         -      Deleted",
                "Volume    default    r     False  -         -      Deleted",
            ],
        ),
    ]
}

/// The state without the names of snapshots, which are new ones each time.
fn nameless(state: &State) -> String {
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
        if parent == "snapshots" {
            text = text.replace(&name, "SNAPSHOT");
        }
    }
    let mut parts = text.split("snap-");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + "snap-" + part.get(32..).unwrap_or_default()
    })
}

/// How a story is told: to an agent with these arguments, and from which step on it may be killed.
struct Telling {
    arguments: &'static [&'static str],
    story: fn(&str) -> Vec<Step>,
}

const EVERYTHING: Telling = Telling {
    arguments: &[],
    story,
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
        let at = |more: &str| format!(", mount: {{path: {root}/targets/v{more}}}");
        vec![
            (vec![("v.yaml", volume(&at("")))], vec!["32Mi at"]),
            (
                vec![(
                    "v.yaml",
                    volume(&at(", readOnly: true, options: [noatime]")),
                )],
                vec!["32Mi at"],
            ),
            (vec![("v.yaml", volume(""))], vec!["32Mi, not mounted"]),
        ]
    },
};

async fn told(telling: &Telling, point: Option<&str>) -> (Vec<String>, usize) {
    let scratch = Scratch::new();
    let manifests = scratch.directory("manifests");
    scratch.directory("targets");
    let options = |point: Option<&str>| Options {
        arguments: ["--manifests".to_owned(), text(manifests.clone())]
            .into_iter()
            .chain(
                telling
                    .arguments
                    .iter()
                    .map(|&argument| argument.to_owned()),
            )
            .collect(),
        environment: point
            .map(|point| ("DRUMLIN_FAIL".to_owned(), point.to_owned()))
            .into_iter()
            .collect(),
        ..Options::default()
    };
    let root = text(scratch.path().to_owned());
    let mut agent = Agent::with(scratch, options(point)).await;
    let (mut states, mut kills) = (Vec::new(), 0);
    for (files, words) in (telling.story)(&root) {
        for (file, manifest) in files {
            write(&manifests.join(file), &manifest);
        }
        let deadline = Instant::now() + drumlin_tests::agent::PATIENCE;
        loop {
            let (table, _) = agent.status();
            if words.iter().all(|word| table.contains(word)) && !agent.has_ended() {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{words:?} {point:?}\n{table}\n{}",
                agent.log()
            );
            if agent.has_ended() {
                kills += 1;
                agent.restart_with(options(None)).await;
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
    (states, kills)
}

#[tokio::test]
async fn a_reconciler_that_is_killed_between_any_two_steps_goes_on_where_it_was() {
    let (wanted, _) = told(&EVERYTHING, None).await;
    let points = points(
        "agent/reconciler/src",
        &[".save(\"", ".point(\"", ".fail)(\""],
    );
    assert!(points.len() > 20, "{points:?}");
    for point in points {
        // These need a volume that is gone, or an agent that wants volumes published: see the tests below.
        if ["volume.lost", "volume.recreate", "volume.attach.called"].contains(&point.as_str()) {
            continue;
        }
        let (states, kills) = told(&EVERYTHING, Some(&point)).await;
        assert!(kills > 0, "nothing comes to {point}");
        for (step, (found, wanted)) in states.iter().zip(&wanted).enumerate() {
            assert_eq!(found, wanted, "step {step}, killed at {point}");
        }
    }
}

#[tokio::test]
async fn a_reconciler_whose_agent_wants_volumes_published_goes_on_too() {
    let (wanted, _) = told(&ATTACHED, None).await;
    for point in [
        "volume.attach.called",
        "volume.stage.called",
        "volume.unstage.called",
        "volume.mount.intended",
    ] {
        let (states, kills) = told(&ATTACHED, Some(point)).await;
        assert!(kills > 0, "nothing comes to {point}");
        assert_eq!(states, wanted, "killed at {point}");
    }
}

#[tokio::test]
async fn a_loss_is_remembered_across_a_kill_and_so_is_its_end() {
    for point in ["volume.lost", "volume.recreate"] {
        let scratch = Scratch::new();
        let manifests = scratch.directory("manifests");
        let options = |point: Option<&str>| Options {
            arguments: vec!["--manifests".to_owned(), text(manifests.clone())],
            environment: point
                .map(|point| ("DRUMLIN_FAIL".to_owned(), point.to_owned()))
                .into_iter()
                .collect(),
            ..Options::default()
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
