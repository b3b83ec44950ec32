//! The thaw watchdog: writers go on whoever dies, or stops, while they are held, and nothing half-made is seen afterwards.

use std::time::{Duration, Instant};

use drumlin_proto::csi::v1::{
    CreateVolumeGroupSnapshotRequest, ListSnapshotsRequest, VolumeGroupSnapshot,
};
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE, Volumes, is_over_lvm, is_thorough},
    programs::programs_of,
    requests::delete_group_snapshot,
    sequence::{Writer, disk_takes},
    state::{State, assert_pool_is_known},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::{
    group_consistency::Load,
    group_snapshots::{take, together},
    helpers::{ok, refused},
    interruption::{seed, times},
};

/// All that a writer may be held after the window was left: the watchdog's second, and some for a machine that is busy.
const SOON: Duration = Duration::from_secs(4);

/// All that the removal of an interrupted group snapshot may take: over thick volumes gibibytes are wiped, on a disk that
/// is busy with all else, too.
const REMOVAL: Duration = Duration::from_mins(6);

/// The agent's thaw watchdog, if one runs.
fn watchdog_of(agent: &Agent) -> Option<Pid> {
    let programs = programs_of(agent.pid()).into_iter();
    let mut watchdogs = programs.filter(|pid| words_of(*pid).ends_with(b"\0thaw-watchdog\0"));
    watchdogs.next().map(Pid::from_raw)
}

/// What a process was started with.
fn words_of(pid: i32) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

pub(crate) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn is_stopped(agent: &Agent) -> Option<()> {
    agent.is_stopped().then_some(())
}

/// Waits until the agent has come to where it stops in this call. A call that ends without that says why.
pub(crate) async fn until_stopped<T: std::fmt::Debug>(agent: &Agent, call: &mut JoinHandle<T>) {
    eventually("the agent does not stop", || {
        is_stopped(agent).or_else(|| call.is_finished().then_some(()))
    })
    .await;
    if is_stopped(agent).is_none() {
        let answer = call.await;
        panic!("it did not come to where it stops: {answer:?}");
    }
}

type Answer =
    Result<tonic::Response<drumlin_proto::csi::v1::CreateVolumeGroupSnapshotResponse>, Status>;

/// Volumes with writers. Over thick volumes there is no btrfs: its store is a gibibyte, which the lab takes minutes to wipe
/// after each kill.
async fn load() -> Load {
    if is_over_lvm() && Volumes::asked() != Volumes::Thin {
        return Load::with(&[]).await;
    }
    Load::new().await
}

/// Volumes with writers, and an agent that stops, or dies, when it comes to `point`.
pub(crate) async fn load_until(point: &str, how: &str) -> Load {
    let mut load = load().await;
    restart_until(&mut load, point, how, None).await;
    load
}

/// The same where writers may wait far longer than [`SOON`]: all members are held in time on a busy machine, too, and
/// writers that go on soon do so because somebody died.
async fn patient_load_until(point: &str, how: &str) -> Load {
    let mut load = load().await;
    let config = load.agent.options().config.clone();
    let config = config.expect("a file that names the class");
    let patient = config.replacen("}}", ", longestFreeze: 60}}", 1);
    assert_ne!(patient, config);
    restart_until(&mut load, point, how, Some(patient)).await;
    load
}

async fn restart_until(load: &mut Load, point: &str, how: &str, config: Option<String>) {
    load.agent.kill();
    let options = Options {
        config,
        ..Options::default()
    };
    load.agent
        .restart_with(options.failing_at(point, how))
        .await;
}

/// Asks for a group snapshot, which will not be answered at once.
fn begin(load: &Load) -> JoinHandle<Answer> {
    let (mut groups, request) = (load.agent.group_controller(), together("g", &load.ids()));
    tokio::spawn(async move { groups.create_volume_group_snapshot(request).await })
}

fn all_go_on(load: &Load) {
    let (begun, before) = (Instant::now(), disk_takes());
    for writer in &load.writers {
        let came = writer.comes_on(3);
        came.unwrap_or_else(|why| panic!("{why}\n{}", load.agent.log()));
    }
    let took = begun.elapsed();
    // A disk that is busy with something else is not what holds them.
    let disk = disk_takes().max(before);
    assert!(took < SOON || took < 20 * disk, "{took:?}");
}

/// Nothing is left, and the same request again is answered with one moment.
async fn the_repeat_is_whole(load: &Load) -> VolumeGroupSnapshot {
    let request = ListSnapshotsRequest::default();
    let list = ok(load.agent.controller().list_snapshots(request).await);
    assert_eq!(list.entries, [], "half a group snapshot is seen");
    // What an agent that died has left is being removed by the next one.
    let deadline = Instant::now() + REMOVAL;
    let taken = loop {
        let request = together("g", &load.ids());
        let mut groups = load.agent.group_controller();
        match groups.create_volume_group_snapshot(request).await {
            Ok(answer) => break answer.into_inner().group_snapshot.unwrap(),
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
        assert!(Instant::now() < deadline, "it is never ended");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    load.judge_taken(&taken).unwrap();
    all_go_on(load);
    assert_eq!(State::of(load.agent.scratch.path()).frozen, [""; 0]);
    taken
}

async fn restart(load: &mut Load) {
    load.agent.kill();
    load.agent.restart_with(Options::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_go_on_without_an_agent_that_died_while_they_were_held() {
    let points = [
        "quiesce.held",
        "quiesce.copied",
        "quiesce.first-held",
        "quiesce.first-copied",
    ];
    // The lab is slow: there some on each change.
    let some = if is_over_lvm() && !is_thorough() {
        2
    } else {
        4
    };
    for point in &points[..some] {
        let mut load = patient_load_until(point, "kill").await;
        let call = begin(&load);
        load.agent.wait_until_killed().await;
        // Nobody has started another one.
        all_go_on(&load);
        assert!(call.await.unwrap().is_err());
        // The watchdog says so when all go on.
        eventually("the thaw watchdog does not tell of it", || {
            let log = load.agent.log();
            log.contains("the agent died while").then_some(())
        })
        .await;
        restart(&mut load).await;
        let taken = the_repeat_is_whole(&load).await;
        let mut groups = load.agent.group_controller();
        ok(groups
            .delete_volume_group_snapshot(delete_group_snapshot(&taken))
            .await);
        load.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_go_on_while_an_agent_is_stopped_and_what_it_was_making_is_undone() {
    let mut load = load_until("quiesce.held", "stop").await;
    let mut call = begin(&load);
    until_stopped(&load.agent, &mut call).await;
    all_go_on(&load);
    load.agent.signal(Signal::SIGCONT);
    let message = refused(call.await.unwrap(), Code::Aborted);
    assert!(message.contains("freeze barrier exceeded"), "{message}");
    the_repeat_is_whole(&load).await;
    restart(&mut load).await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_watchdog_an_agent_lets_writers_go_on_itself_and_makes_nothing() {
    let load = load_until("quiesce.held", "stop").await;
    let mut call = begin(&load);
    until_stopped(&load.agent, &mut call).await;
    kill(watchdog_of(&load.agent).unwrap(), Signal::SIGKILL).unwrap();
    load.agent.signal(Signal::SIGCONT);
    refused(call.await.unwrap(), Code::Aborted);
    all_go_on(&load);
    the_repeat_is_whole(&load).await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_both_are_killed_the_next_start_lets_writers_go_on() {
    let mut load = patient_load_until("quiesce.first-copied", "stop").await;
    let mut call = begin(&load);
    until_stopped(&load.agent, &mut call).await;
    // The watchdog first: it would see the end of the other one.
    kill(watchdog_of(&load.agent).unwrap(), Signal::SIGKILL).unwrap();
    load.agent.kill();
    assert!(call.await.unwrap().is_err());
    let held: Vec<u64> = load.writers.iter().map(Writer::acknowledged).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let now: Vec<u64> = load.writers.iter().map(Writer::acknowledged).collect();
    assert_eq!(now, held, "nobody lets them go on yet");
    restart(&mut load).await;
    all_go_on(&load);
    the_repeat_is_whole(&load).await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watchdog_that_cannot_be_had_is_an_error_before_anybody_is_held() {
    let mut load = load_until("create-group-snapshot.prepared", "stop").await;
    let mut call = begin(&load);
    until_stopped(&load.agent, &mut call).await;
    let watchdog = eventually("there is no thaw watchdog", || watchdog_of(&load.agent)).await;
    kill(watchdog, Signal::SIGKILL).unwrap();
    load.agent.signal(Signal::SIGCONT);
    let message = refused(call.await.unwrap(), Code::Aborted);
    assert!(message.contains("thaw watchdog"), "{message}");
    the_repeat_is_whole(&load).await;
    restart(&mut load).await;
    load.end().await;
}

/// Asks until it is answered, starting the agent again when it is gone.
async fn insist<T>(
    load: &mut Load,
    call: impl AsyncFn(&Agent) -> Result<tonic::Response<T>, Status>,
) -> T {
    let deadline = Instant::now() + REMOVAL;
    loop {
        match call(&load.agent).await {
            Ok(answer) => return answer.into_inner(),
            Err(status) => {
                assert!(Instant::now() < deadline, "{status}\n{}", load.agent.log());
                if load.agent.has_ended() {
                    load.agent.restart_with(Options::default()).await;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// Who dies.
#[derive(Clone, Copy, PartialEq)]
enum Victims {
    /// The agent alone and its watchdog alone, in turns.
    One,
    /// The agent with all that it has started.
    All,
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_instants_one_point_in_time_is_made_and_writers_go_on() {
    killed_at_random(Load::new().await, times(), Victims::One).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_with_all_that_it_has_started_one_point_in_time_is_made_and_writers_go_on() {
    // Without a btrfs: who resumes its device thaws it, LVM's programs do, and Linux has it read-only from then on when
    // they are killed while they do. The agent itself does that by a process that outlives it.
    killed_at_random(Load::with(&[]).await, times() / 2, Victims::All).await;
}

async fn killed_at_random(mut load: Load, times: usize, victims: Victims) {
    let request = together("first", &load.ids());
    let begun = Instant::now();
    let taken = take(&load.agent, "first", &load.ids()).await;
    let length = begun.elapsed();
    let mut groups = load.agent.group_controller();
    ok(groups
        .delete_volume_group_snapshot(delete_group_snapshot(&taken))
        .await);
    let (mut random, mut kills) = (seed(), 0);
    for round in 0..times {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let part = f64::from(u32::try_from(random % 1000).unwrap()) / 1000.0;
        let request = CreateVolumeGroupSnapshotRequest {
            name: format!("g{round}"),
            ..request.clone()
        };
        let (mut groups, asked) = (load.agent.group_controller(), request.clone());
        let call = tokio::spawn(async move { groups.create_volume_group_snapshot(asked).await });
        tokio::time::sleep(length.mul_f64(part)).await;
        let agent = Pid::from_raw(load.agent.pid());
        let programs = programs_of(load.agent.pid()).into_iter();
        let programs = programs.map(Pid::from_raw);
        let victims: Vec<Pid> = match victims {
            Victims::All => programs.chain([agent]).collect(),
            Victims::One if round % 2 == 0 => vec![agent],
            Victims::One => watchdog_of(&load.agent).into_iter().collect(),
        };
        for victim in victims {
            kills += usize::from(kill(victim, Signal::SIGKILL).is_ok());
        }
        let _ = call.await.unwrap();
        let taken = insist(&mut load, async |agent: &Agent| {
            agent
                .group_controller()
                .create_volume_group_snapshot(request.clone())
                .await
        })
        .await
        .group_snapshot
        .unwrap();
        let why = format!("round {round}, {part} of {length:?}\n{}", load.agent.log());
        load.judge_taken(&taken)
            .unwrap_or_else(|wrong| panic!("{wrong}: {why}"));
        all_go_on(&load);
        let request = delete_group_snapshot(&taken);
        insist(&mut load, async |agent: &Agent| {
            agent
                .group_controller()
                .delete_volume_group_snapshot(request.clone())
                .await
        })
        .await;
        // It looks at each device of the group, too.
        assert_eq!(
            State::of(load.agent.scratch.path()).frozen,
            [""; 0],
            "{why}"
        );
        let list = ok(load
            .agent
            .controller()
            .list_snapshots(ListSnapshotsRequest::default())
            .await);
        assert_eq!(list.entries, [], "{why}");
    }
    assert!(
        kills > times / 2,
        "only {kills} of {times} kills met anybody"
    );
    if is_over_lvm() && Volumes::asked() == Volumes::Thin {
        let group = load.agent.scratch.group().unwrap();
        assert_pool_is_known(&group, "pool");
    }
    load.end().await;
}
