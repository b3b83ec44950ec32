//! Killed between any two steps, and at random instants: the same calls again end where one uninterrupted run ends.
//!
//! The points are read from the sources, so none can be forgotten: one that no call comes to fails its test.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::VolumeCapability;
use drumlin_tests::{
    agent::{Volumes, is_over_lvm, is_thorough},
    programs::programs_of,
    requests::{mounted, raw},
    sources,
};

use crate::{
    foreign_helpers,
    life::{Seen, life, short_life},
    rollback_kills,
    subject::Subject,
    trash, unstaged_kills,
};

#[track_caller]
fn assert_same(found: &[Seen], wanted: &[Seen], why: &str, log: &str) {
    for ((step, found), (_, wanted)) in found.iter().zip(wanted) {
        assert_eq!(found, wanted, "after {step}, killed at {why}\n{log}");
        assert!(found.frozen.is_empty());
    }
    assert_eq!(found.len(), wanted.len());
}

#[tokio::test]
async fn killed_at_each_step_of_each_call_it_ends_where_an_uninterrupted_run_ends() {
    // A raw volume has a step of its own. btrfs has the most: a copy gets an identity of its own.
    let mut wanted = Vec::new();
    for (capability, mebibytes) in [(raw(), 16), (mounted("btrfs"), 256)] {
        let mut subject = Subject::start(None).await;
        let states = life(&mut subject, &capability, mebibytes).await;
        wanted.push((capability, mebibytes, states));
    }
    let mut points = sources::agent_points();
    assert!(points.len() > 30, "{points:?}");
    let others: &[&str] = match Volumes::asked() {
        _ if !is_over_lvm() => &["lvm.", "thick.", "thin."],
        Volumes::Thin => &["directory.", "thick."],
        Volumes::Linear | Volumes::Raid1 => &["directory.", "thin."],
    };
    points.retain(|point| !others.iter().any(|other| point.starts_with(other)));
    // What is not CSI's, of old dialects, or of a node of another name, has tests of its own.
    let is_own = |point: &str| {
        rollback_kills::is_own(point)
            || unstaged_kills::is_own(point)
            || trash::is_own(point)
            || foreign_helpers::is_own(point)
            || point.starts_with("mount-root.")
            || point.starts_with("adopting.")
            || point.starts_with("encrypted.")
    };
    points.retain(|point| !point.starts_with("lvm.pool.") && !is_own(point));
    if !is_thorough() {
        return killed_at_each_in_few_lives(points.into_iter().collect(), &wanted).await;
    }
    for point in points {
        let mut kills = 0;
        for (capability, mebibytes, wanted) in &wanted {
            let mut subject = Subject::start(Some(&point)).await;
            let states = life(&mut subject, capability, *mebibytes).await;
            kills += subject.kills;
            assert_same(&states, wanted, &point, &subject.agent.log());
            // The lab is slow; there, one life that comes to the point is enough.
            if kills > 0 && is_over_lvm() {
                break;
            }
        }
        assert!(kills > 0, "no call comes to {point}");
    }
}

/// An uninterrupted life: of a volume of this kind, with so many mebibytes, and the state after each call.
type Undisturbed = (VolumeCapability, i64, Vec<Seen>);

/// A life for each point takes long: one is killed at each point that it comes to, and after each kill the call is repeated
/// to the next point. What a repeat does not come to any more is met in another life.
async fn killed_at_each_in_few_lives(mut points: Vec<String>, wanted: &[Undisturbed]) {
    while !points.is_empty() {
        let before = points.len();
        for (capability, mebibytes, wanted) in wanted {
            let mut subject = Subject::start_among(points.clone()).await;
            let states = life(&mut subject, capability, *mebibytes).await;
            let why = subject.met.join(", ");
            assert_same(&states, wanted, &why, &subject.agent.log());
            points.clone_from(&subject.armed);
        }
        assert!(points.len() < before, "no call comes to {points:?}");
    }
}

/// A number that differs from run to run and is told when a run fails.
pub(crate) fn seed() -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    u64::from(now.subsec_nanos()) | 1
}

/// How many kills of each test meet a call: `DRUMLIN_KILLS`, else twelve, or three in the lab, which is slow.
pub(crate) fn times() -> usize {
    let asked = std::env::var("DRUMLIN_KILLS").ok();
    let usual = if is_over_lvm() { 3 } else { 12 };
    asked.map_or(usual, |times| times.parse().unwrap())
}

/// Who dies.
#[derive(Clone, Copy, PartialEq)]
enum Victims {
    Agent,
    AgentAndPrograms,
    Programs,
}

async fn killed_at_random(times: usize, victims: Victims) {
    let capability = mounted("ext4");
    let plain = |mut states: Vec<Seen>| {
        // Where a mounted ext4 may not be grown, the node's part of an expansion cannot be had.
        states.retain(|(step, _)| step != "expand at the node");
        states
    };
    let (mut wanted, mut length) = (Vec::new(), Duration::ZERO);
    // The first one finds nothing in any cache and takes longer than those that are to be met.
    for _ in 0..2 {
        let mut undisturbed = Subject::start(None).await;
        let begun = Instant::now();
        wanted = plain(short_life(&mut undisturbed, &capability).await);
        length = begun.elapsed();
    }
    let (mut random, mut kills, mut round) = (seed(), 0, 0);
    while kills < times {
        round += 1;
        assert!(
            round <= times * 5,
            "only {kills} of {round} kills met a call"
        );
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let after = length.mul_f64(f64::from(u32::try_from(random % 1000).unwrap()) / 1000.0);
        let into = Duration::from_millis((random >> 32) % 5);
        let mut subject = Subject::start(None).await;
        let pid = subject.agent.pid();
        let met = Arc::new(AtomicUsize::new(0));
        let programs_met = Arc::clone(&met);
        let killer = tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let programs = match victims {
                Victims::Agent => Vec::new(),
                Victims::AgentAndPrograms => programs_of(pid),
                Victims::Programs => running_programs(pid, into).await,
            };
            let agent = (victims != Victims::Programs).then_some(pid);
            if agent.is_none() {
                programs_met.store(usize::from(!programs.is_empty()), Ordering::Relaxed);
            }
            for pid in agent.into_iter().chain(programs) {
                let pid = nix::unistd::Pid::from_raw(pid);
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        });
        let begun = Instant::now();
        let states = plain(short_life(&mut subject, &capability).await);
        killer.abort();
        let was_met = subject.kills + met.load(Ordering::Relaxed);
        if was_met == 0 {
            length = length.min(match victims {
                // From then on none ran.
                Victims::Programs => after,
                // Undisturbed: where other work made the first ones slow, it tells how long a life takes.
                Victims::Agent | Victims::AgentAndPrograms => begun.elapsed(),
            });
        }
        kills += was_met;
        let why = format!("round {round}, {after:?}");
        assert_same(&states, &wanted, &why, &subject.agent.log());
    }
}

/// The programs that an agent runs, some time `into` them. They run for so little of a life that an instant of it hardly
/// ever meets one, unless the machine is busy.
async fn running_programs(agent: i32, into: Duration) -> Vec<i32> {
    loop {
        if !programs_of(agent).is_empty() {
            tokio::time::sleep(into).await;
            let programs = programs_of(agent);
            if !programs.is_empty() {
                return programs;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn killed_at_random_instants_it_ends_where_an_uninterrupted_run_ends() {
    killed_at_random(times(), Victims::Agent).await;
}

#[tokio::test]
async fn killed_with_its_programs_it_ends_there_too() {
    killed_at_random(times(), Victims::AgentAndPrograms).await;
}

/// A directory needs hardly any programs.
#[cfg(feature = "lab")]
mod in_lab {
    use super::*;

    #[tokio::test]
    async fn one_whose_programs_are_killed_ends_there_too() {
        killed_at_random(times(), Victims::Programs).await;
    }
}
