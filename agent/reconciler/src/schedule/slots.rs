//! Which slot of a schedule is due, which were missed, and when the next one is.

use drumlin_crd::{
    ObjectKey, SnapshotScheduleSpec,
    cron::{Cron, time_zone},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp, tz::TimeZone};
use sha2::{Digest, Sha256};

/// How far the clock may go back before it is suspect.
const SET_BACK: SignedDuration = SignedDuration::from_hours(1);
/// So many slots may pass without a run before the clock is suspect.
const SLOTS_AHEAD: u32 = 10;
/// Maximum number of missed slots that are counted at once: a minute-wise schedule of a host that was off for years.
const COUNTED: u32 = 1000;

/// The times of a schedule.
#[derive(Debug, Clone)]
pub(crate) struct Timing {
    cron: Cron,
    pub(crate) zone: TimeZone,
    /// The fixed delay of this schedule.
    delay: SignedDuration,
    /// How late a snapshot may be.
    deadline: SignedDuration,
}

/// Whether the clock agrees with the last run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    Steady,
    /// It is more than an hour before the last run: it was set back, or was ahead before.
    Behind,
    /// More slots have passed since the last run than a host is usually off.
    Ahead,
}

/// What a schedule has to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Slots up to this time are done with once `due` has run.
    pub(crate) done: Timestamp,
    /// The slot before `due`: slots up to it are done with even if `due` has to wait.
    pub(crate) before: Timestamp,
    /// The slot that is to run now.
    pub(crate) due: Option<Timestamp>,
    /// Until when it may begin.
    pub(crate) expires: Timestamp,
    /// Number of slots that have passed without a run.
    pub(crate) missed: u32,
    /// When the next slot is to run; none if the calendar ends before.
    pub(crate) next: Option<Timestamp>,
    pub(crate) clock: Clock,
}

impl Timing {
    /// The times of a schedule; `None` if its expression or its time zone cannot be read.
    pub(crate) fn of(key: &ObjectKey, spec: &SnapshotScheduleSpec) -> Option<Self> {
        let seconds = |seconds: u32| SignedDuration::from_secs(i64::from(seconds));
        Some(Self {
            cron: spec.schedule.parse().ok()?,
            zone: time_zone(&spec.time_zone)?,
            delay: seconds(delay(key, spec.jitter_seconds)),
            deadline: seconds(spec.starting_deadline_seconds),
        })
    }

    /// The time up to which slots are due now.
    pub(crate) fn reached(&self, now: Timestamp) -> Timestamp {
        now.saturating_sub(self.delay).unwrap_or(now)
    }

    /// Until when a slot may run.
    pub(crate) fn expires(&self, slot: Timestamp) -> Timestamp {
        let late = self.delay.saturating_add(self.deadline);
        slot.saturating_add(late).unwrap_or(Timestamp::MAX)
    }

    /// What is to be done now, after the slots up to `done`. Of several slots that have passed only the last one runs.
    pub(crate) fn plan(&self, done: Timestamp, now: Timestamp) -> Plan {
        let reached = self.reached(now);
        let mut plan = Plan {
            done,
            before: done,
            due: None,
            expires: now,
            missed: 0,
            next: None,
            clock: Clock::Steady,
        };
        if now.saturating_add(SET_BACK).unwrap_or(now) < done {
            // Nothing would run until the former time is reached again.
            plan.done = reached;
            plan.clock = Clock::Behind;
        } else if let Some(last) = self.cron.last(reached, &self.zone).filter(|it| *it > done) {
            let (passed, before) = self.passed(done, last);
            if passed > SLOTS_AHEAD {
                plan.clock = Clock::Ahead;
            }
            plan.done = last;
            plan.before = before;
            plan.expires = self.expires(last);
            if now <= plan.expires {
                plan.due = Some(last);
                plan.missed = passed - 1;
            } else {
                plan.missed = passed;
            }
        }
        let next = self.cron.next(plan.done.max(reached), &self.zone);
        plan.next = next.and_then(|slot| slot.saturating_add(self.delay).ok());
        plan
    }

    /// The number of slots after `done`, up to and with `last`, which is one; and the one before that.
    fn passed(&self, done: Timestamp, last: Timestamp) -> (u32, Timestamp) {
        let mut passed = 1;
        let mut slot = done;
        while passed < COUNTED {
            match self.cron.next(slot, &self.zone) {
                Some(next) if next < last => slot = next,
                _ => return (passed, slot),
            }
            passed += 1;
        }
        let before = last.saturating_sub(SignedDuration::from_secs(1));
        (passed, before.unwrap_or(last))
    }
}

/// The fixed delay of a schedule in seconds, up to `most`: from its name, so that a restart changes nothing.
fn delay(key: &ObjectKey, most: u32) -> u32 {
    let hash = Sha256::digest(format!("{}/{}", key.namespace, key.name));
    let mut number = [0; 8];
    number
        .iter_mut()
        .zip(hash)
        .for_each(|(to, from)| *to = from);
    let delay = u64::from_be_bytes(number) % (u64::from(most) + 1);
    u32::try_from(delay).unwrap_or(most)
}

/// Returns true if a snapshot is of a time that has not come yet.
pub(crate) fn is_of_the_future(slot: Timestamp, now: Timestamp) -> bool {
    slot > now.saturating_add(SET_BACK).unwrap_or(now)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::schedule) fn timing(spec: &SnapshotScheduleSpec) -> Timing {
        Timing::of(&key("pg"), spec).unwrap()
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey {
            kind: "SnapshotSchedule".to_owned(),
            namespace: "db".to_owned(),
            name: name.to_owned(),
        }
    }

    /// Without a delay, and a deadline of an hour.
    pub(in crate::schedule) fn spec(schedule: &str, zone: &str) -> SnapshotScheduleSpec {
        let spec = serde_json::json!({
            "target": {"volumeName": "v"},
            "schedule": schedule,
            "timeZone": zone,
            "jitterSeconds": 0,
        });
        serde_json::from_value(spec).unwrap()
    }

    fn at(text: &str) -> Timestamp {
        format!("2026-11-27T{text}Z").parse().unwrap()
    }

    #[test]
    fn the_last_slot_that_passed_runs_and_the_ones_before_are_missed() {
        let timing = timing(&spec("@hourly", "UTC"));
        let plan = timing.plan(at("09:00:00"), at("12:59:59"));
        assert_eq!(plan.due, Some(at("12:00:00")));
        assert_eq!((plan.missed, plan.clock), (2, Clock::Steady));
        assert_eq!(plan.before, at("11:00:00"));
        assert_eq!(plan.next, Some(at("13:00:00")));
        assert_eq!(plan.expires, at("13:00:00"));
        // Once it has run, nothing is due until the next one.
        let plan = timing.plan(plan.done, at("12:59:59.9"));
        assert_eq!((plan.due, plan.missed), (None, 0));
        let plan = timing.plan(plan.done, at("13:00:00"));
        assert_eq!(plan.due, Some(at("13:00:00")));
    }

    #[test]
    fn a_slot_later_than_its_deadline_is_missed() {
        let mut spec = spec("0 9 * * *", "UTC");
        spec.starting_deadline_seconds = 600;
        let timing = timing(&spec);
        let plan = timing.plan(at("08:00:00"), at("09:10:00"));
        assert_eq!(plan.due, Some(at("09:00:00")));
        let plan = timing.plan(at("08:00:00"), at("09:10:01"));
        assert_eq!((plan.due, plan.missed), (None, 1));
        assert_eq!(plan.done, at("09:00:00"));
    }

    #[test]
    fn schedules_of_one_time_run_at_times_of_their_own() {
        let mut spec = spec("@hourly", "UTC");
        spec.jitter_seconds = 300;
        let delays: Vec<u32> = (0..1000)
            .map(|number| delay(&key(&format!("s-{number}")), 300))
            .collect();
        assert!(delays.iter().all(|delay| *delay <= 300));
        // In any tenth of the time, about as many as in the others.
        for tenth in 0..10 {
            let within = |delay: &&u32| **delay / 31 == tenth;
            let count = delays.iter().filter(within).count();
            assert!((50..200).contains(&count), "{tenth}: {count}");
        }
        let timing = timing(&spec);
        let begins = at("12:00:00") + timing.delay;
        assert_eq!(delay(&key("pg"), 300), delay(&key("pg"), 300));
        let early = begins - SignedDuration::from_secs(1);
        assert_eq!(timing.plan(at("11:00:00"), early).due, None);
        let plan = timing.plan(at("11:00:00"), begins);
        assert_eq!(plan.due, Some(at("12:00:00")));
        // The deadline begins with the delay.
        assert_eq!(plan.expires, begins + SignedDuration::from_hours(1));
    }

    #[test]
    fn a_clock_that_was_set_back_or_far_ahead_is_suspect() {
        let timing = timing(&spec("@hourly", "UTC"));
        let plan = timing.plan(at("12:00:00"), at("11:00:00"));
        assert_eq!((plan.clock, plan.due), (Clock::Steady, None));
        let plan = timing.plan(at("12:00:00"), at("10:59:59"));
        assert_eq!((plan.clock, plan.due), (Clock::Behind, None));
        // It runs again from now on, not only after the former time.
        let plan = timing.plan(plan.done, at("11:00:00"));
        assert_eq!(plan.due, Some(at("11:00:00")));
        let plan = timing.plan(at("01:00:00"), at("11:00:00"));
        assert_eq!((plan.clock, plan.missed), (Clock::Steady, 9));
        let plan = timing.plan(at("01:00:00"), at("12:00:00"));
        assert_eq!((plan.clock, plan.missed), (Clock::Ahead, 10));
    }

    #[test]
    fn years_without_a_run_take_no_time_to_count() {
        let timing = timing(&spec("* * * * *", "Europe/Berlin"));
        let begin = std::time::Instant::now();
        let plan = timing.plan(Timestamp::UNIX_EPOCH, at("12:00:00"));
        assert_eq!((plan.due, plan.missed), (Some(at("12:00:00")), 999));
        assert!(begin.elapsed().as_secs() < 5);
    }
}
