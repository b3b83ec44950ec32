//! Kind `SnapshotSchedule`: makes snapshot objects at its times, and deletes those that its retention does not keep.
//!
//! A run is recorded before its snapshot object is made, and the name of the object is that of its slot: after a crash
//! between any two steps, the same object is made again, or found. Snapshots are deleted only after the last run was
//! successful, and by another retention than before only after a while: the file that has it may be half-written.

use drumlin_crd::{ObjectKey, Retention, SnapshotScheduleSpec, SnapshotScheduleStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{Halt, Pass, ready, stalled, waiting};
use crate::{
    count::counted,
    record::{AppliedRetention, Body, Of, Record, Run, Runs, State, Verdict},
    schedule::{Clock, Plan, Timing, child_name, is_of_the_future, superfluous},
};

/// Interval at which a snapshot object is looked for that was made and is not seen.
const LOOK: SignedDuration = SignedDuration::from_mins(1);
/// Time in which a retention that is new to snapshots that exist deletes none of them.
const SETTLES: SignedDuration = SignedDuration::from_mins(15);

/// What became of the snapshot of a run.
pub(super) enum Progress {
    /// It can be restored, and is of this point in time.
    Ready(Option<String>),
    /// The agent is working on it.
    Running,
    /// It is not seen yet.
    Unseen,
    /// It was not taken, and why; it may be later.
    Pending(String),
    /// It never will be taken, and why.
    Over(String),
}

impl Pass<'_> {
    /// Reconciles a schedule with its manifest and the clock.
    pub(crate) async fn schedule(&mut self) -> Result<Verdict, Halt> {
        if self.record.is_absent() {
            return self.end_schedule();
        }
        self.record.drumlin.destroyed = false;
        let (key, now) = (self.record.key(), self.shared.now());
        let Some(timing) = Timing::of(&key, self.timetable()) else {
            let spec = self.timetable();
            let message = format!(
                "schedule {:?} or time zone {:?} is not known to this agent",
                spec.schedule, spec.time_zone
            );
            return Err(stalled("InvalidArgument", message));
        };
        let status = self.progress();
        let done = status.last_schedule_time.as_deref().and_then(instant);
        let was_suspended = status.next_time.is_none();
        let mut plan = match done {
            Some(done) if !was_suspended => timing.plan(done, now),
            _ => timing.plan(timing.reached(now), now),
        };
        if done.is_none() {
            self.find_snapshots().await?;
        }
        if self.timetable().suspend {
            // The slots that pass meanwhile are neither missed nor made up for.
            let status = self.progress_mut();
            status.next_time = None;
            status
                .last_schedule_time
                .get_or_insert_with(|| plan.done.to_string());
            self.count_snapshots();
            // As what is in force again is new.
            self.runs().retention = None;
            return Ok(ready(
                "Suspended",
                "spec.suspend is true; no snapshot is taken and none is deleted".to_owned(),
            ));
        }
        if plan.due.is_none() {
            self.has_passed(&mut plan);
        }
        self.follow_run(&timing, now).await?;
        let outcome = self.run_if_due(&mut plan, now).await;
        self.set_next(&plan);
        outcome?;
        let is_suspect = self.prune(&timing, now).await?;
        self.count_snapshots();
        self.verdict(is_suspect)
    }

    pub(super) fn timetable(&self) -> &SnapshotScheduleSpec {
        match &self.record.body {
            Body::Schedule(Of { spec, .. }) => spec,
            _ => unreachable!("a schedule's pass has a schedule's record"),
        }
    }

    pub(super) fn progress(&self) -> &SnapshotScheduleStatus {
        match &self.record.body {
            Body::Schedule(Of { status, .. }) => status,
            _ => unreachable!("a schedule's pass has a schedule's record"),
        }
    }

    pub(super) fn progress_mut(&mut self) -> &mut SnapshotScheduleStatus {
        match &mut self.record.body {
            Body::Schedule(Of { status, .. }) => status,
            _ => unreachable!("a schedule's pass has a schedule's record"),
        }
    }

    fn runs(&mut self) -> &mut Runs {
        self.record.drumlin.runs.get_or_insert_default()
    }

    fn current_run(&self) -> Option<Run> {
        self.record.drumlin.runs.as_ref()?.current.clone()
    }

    /// It takes no more snapshots; those that it took stay.
    fn end_schedule(&mut self) -> Result<Verdict, Halt> {
        if self.is_to_be_destroyed() {
            *self.progress_mut() = SnapshotScheduleStatus::default();
            self.record.drumlin.runs = None;
            self.record.drumlin.destroyed = true;
            self.save("schedule.ended")?;
        }
        Ok(Verdict {
            state: State::Gone,
            reason: "Deleted",
            message: "takes no more snapshots; those it took are kept; its manifest can be removed"
                .to_owned(),
        })
    }

    /// Slots have passed in which nothing is to run.
    fn has_passed(&mut self, plan: &mut Plan) {
        if plan.clock == Clock::Behind {
            tracing::warn!(object = %self.record.key(), "clock was set back; snapshots are taken from now on");
        }
        // Also where the last of them has passed its deadline: it is the next run that shows whether the clock is right.
        if plan.clock == Clock::Ahead {
            self.runs().is_ahead = true;
        }
        let status = self.progress_mut();
        status.missed = status.missed.saturating_add(plan.missed);
        status.last_schedule_time = Some(plan.done.to_string());
        plan.missed = 0;
    }

    /// The snapshot of the current run: what became of it.
    async fn follow_run(&mut self, timing: &Timing, now: Timestamp) -> Result<(), Halt> {
        let Some(run) = self.current_run() else {
            return Ok(());
        };
        if !run.is_made {
            self.make_snapshot(&run).await?;
        }
        let expires = timing.expires(run.slot);
        match self.progress_of(&run).await? {
            Progress::Ready(time) => {
                if let Some(time) = time {
                    self.progress_mut().last_success_time = Some(time);
                }
                let runs = self.runs();
                runs.current = None;
                runs.failure = None;
                self.save("schedule.run.ready")?;
            }
            Progress::Over(why) => self.fail_run(why)?,
            Progress::Pending(why) if now > expires => {
                self.give_up(&run).await?;
                self.fail_run(why)?;
            }
            Progress::Pending(why) => {
                self.runs().failure = Some(why);
                self.wake_at(expires.saturating_add(SignedDuration::from_secs(1)).ok());
            }
            Progress::Unseen => self.wake_at(now.saturating_add(LOOK).ok()),
            Progress::Running => {}
        }
        Ok(())
    }

    /// The current run has no snapshot, and never will have one.
    fn fail_run(&mut self, why: String) -> Result<(), Halt> {
        let status = self.progress_mut();
        status.missed = status.missed.saturating_add(1);
        let runs = self.runs();
        runs.current = None;
        runs.failure = Some(why);
        self.save("schedule.run.failed")
    }

    /// Begins the slot that is due, if its target is there and no other run is in progress.
    async fn run_if_due(&mut self, plan: &mut Plan, now: Timestamp) -> Result<(), Halt> {
        let Some(slot) = plan.due else {
            return self.target_is_there();
        };
        if let Some(run) = self.current_run() {
            let Progress::Pending(why) = self.progress_of(&run).await? else {
                // One at a time.
                plan.missed = plan.missed.saturating_add(1);
                self.has_passed(plan);
                return Ok(());
            };
            self.give_up(&run).await?;
            self.fail_run(why)?;
        }
        if let Err(halt) = self.target_is_there() {
            // It may come before the deadline. The slots before are over.
            let status = self.progress_mut();
            status.missed = status.missed.saturating_add(plan.missed);
            status.last_schedule_time = Some(plan.before.to_string());
            self.wake_at(
                plan.expires
                    .saturating_add(SignedDuration::from_secs(1))
                    .ok(),
            );
            return Err(halt);
        }
        let child = self.child(slot);
        let found = self.shared.record(&child);
        if let Some(found) = found {
            let is_own = found.slot_for(&self.record).is_some();
            plan.missed = plan.missed.saturating_add(u32::from(!is_own));
            self.has_passed(plan);
            if !is_own {
                self.runs().failure = Some(format!(
                    "{child} exists, and was not taken by this schedule; rename it or the schedule"
                ));
            }
            return Ok(());
        }
        let name = child.name;
        let status = self.progress_mut();
        status.missed = status.missed.saturating_add(plan.missed);
        status.last_schedule_time = Some(slot.to_string());
        status.last_attempt_time = Some(now.to_string());
        status.last_snapshot_name = Some(name);
        let run = Run {
            slot,
            is_made: false,
        };
        let runs = self.runs();
        runs.current = Some(run.clone());
        runs.is_ahead = plan.clock == Clock::Ahead;
        self.save("schedule.run.intended")?;
        self.make_snapshot(&run).await
    }

    /// The snapshot of a slot.
    pub(super) fn child(&self, slot: Timestamp) -> ObjectKey {
        let key = self.record.key();
        let kind = match self.timetable().target.group_name {
            Some(_) => "GroupSnapshot",
            None => "Snapshot",
        };
        ObjectKey {
            kind: kind.to_owned(),
            name: child_name(&key.name, slot),
            namespace: key.namespace,
        }
    }

    fn target_is_there(&self) -> Result<(), Halt> {
        let target = &self.timetable().target;
        let (what, name) = match (&target.volume_name, &target.group_name) {
            (Some(name), _) => ("Volume", name),
            (None, Some(name)) => ("VolumeGroup", name),
            (None, None) => return self.claim_is_there(),
        };
        let missing = |why: &str| {
            waiting(
                "DependencyNotFound",
                format!("no snapshots are taken: {what} {name} {why}"),
            )
        };
        match self.sibling(what, name) {
            None => Err(missing("does not exist")),
            Some(target) if target.is_absent() => Err(missing("is being deleted")),
            Some(_) => Ok(()),
        }
    }

    fn claim_is_there(&self) -> Result<(), Halt> {
        if self.record.is_of_file() {
            return Err(stalled(
                "Unsupported",
                "spec.target.persistentVolumeClaimName: PersistentVolumeClaims exist only in a cluster; use volumeName"
                    .to_owned(),
            ));
        }
        let mut candidates = self.record.candidates().iter();
        if candidates.any(|candidate| candidate.volume_handle.is_some()) {
            return Ok(());
        }
        Err(waiting(
            "DependencyNotFound",
            "no snapshots are taken: the claim is not bound or was not resolved by a controller"
                .to_owned(),
        ))
    }

    /// The snapshots of this schedule, each with its slot, but for those that are being deleted.
    fn snapshots(&self) -> Vec<(Timestamp, Record)> {
        let of_it =
            |record: &Record| record.slot_for(&self.record).is_some() && !record.is_absent();
        let keys = self.shared.keys_of(of_it).into_iter();
        let found = keys.filter_map(|key| {
            let record = self.shared.record(&key)?;
            Some((record.slot_for(&self.record)?, record))
        });
        found.collect()
    }

    fn count_snapshots(&mut self) {
        let ready = self.snapshots();
        let count = ready.iter().filter(|(_, record)| record.is_ready()).count();
        self.progress_mut().kept = u32::try_from(count).unwrap_or(u32::MAX);
    }

    /// Deletes the snapshots that no rule keeps, if the last run was successful. Returns why that is not permitted yet.
    async fn prune(&mut self, timing: &Timing, now: Timestamp) -> Result<Suspicion, Halt> {
        let Some((retention, applies_from)) = self.applied_retention(now) else {
            return Ok(Suspicion::None);
        };
        let runs = self.record.drumlin.runs.clone().unwrap_or_default();
        if runs.current.is_some() || runs.failure.is_some() {
            return Ok(Suspicion::None);
        }
        let snapshots = self.snapshots();
        let early = snapshots
            .iter()
            .filter(|(slot, _)| is_of_the_future(*slot, now))
            .max_by_key(|(slot, _)| *slot);
        if let Some((slot, record)) = early {
            return Ok(Suspicion::Future(record.key(), *slot));
        }
        if runs.is_ahead {
            return Ok(Suspicion::Ahead);
        }
        let ready: Vec<(Timestamp, ObjectKey)> = snapshots
            .iter()
            .filter(|(_, record)| record.is_ready())
            .map(|(slot, record)| (*slot, record.key()))
            .collect();
        let superfluous = superfluous(&ready, &retention, &timing.zone);
        // A plan shows what will be deleted.
        if now < applies_from && !superfluous.is_empty() && !self.shared.is_dry_run() {
            self.wake_at(Some(applies_from));
            return Ok(Suspicion::Changed(superfluous.len(), applies_from));
        }
        for key in superfluous {
            self.delete_snapshot(&key).await?;
            tracing::info!(object = %self.record.key(), snapshot = %key, "snapshot deleted by its schedule");
        }
        Ok(Suspicion::None)
    }

    /// The retention of the manifest, and since when it deletes snapshots; none if it keeps all.
    fn applied_retention(&mut self, now: Timestamp) -> Option<(Retention, Timestamp)> {
        let (zone, rules) = (
            self.timetable().time_zone.clone(),
            self.timetable().retention.clone(),
        );
        let Some(rules) = rules else {
            if let Some(runs) = &mut self.record.drumlin.runs {
                runs.retention = None;
            }
            return None;
        };
        let latest = now.saturating_add(SETTLES).unwrap_or(Timestamp::MAX);
        let has_snapshots = !self.snapshots().is_empty();
        let known = self.runs().retention.take();
        let known = known.filter(|known| known.rules == rules && known.zone == zone);
        // Of a clock that was set back, none is later than that.
        let from = match known {
            Some(known) => known.from.min(latest),
            None if has_snapshots => latest,
            None => now,
        };
        self.runs().retention = Some(AppliedRetention {
            rules: rules.clone(),
            zone,
            from,
        });
        Some((rules, from))
    }

    fn set_next(&mut self, plan: &Plan) {
        self.wake_at(plan.next);
        self.progress_mut().next_time = plan.next.map(|next| next.to_string());
    }

    /// Has the next pass at this time, or earlier.
    fn wake_at(&mut self, time: Option<Timestamp>) {
        self.wake = self.wake.into_iter().chain(time).min();
    }

    fn verdict(&mut self, suspicion: Suspicion) -> Result<Verdict, Halt> {
        let status = self.progress();
        let kept = status.kept;
        if let Some(why) = self
            .record
            .drumlin
            .runs
            .as_ref()
            .and_then(|runs| runs.failure.as_ref())
        {
            return Err(Halt::Waiting(Verdict {
                state: State::Reconciling,
                reason: "SnapshotFailed",
                message: format!(
                    "{why}; {} kept, none is deleted",
                    match kept {
                        1 => "1 snapshot is".to_owned(),
                        kept => format!("{kept} snapshots are"),
                    }
                ),
            }));
        }
        let next = status.next_time.clone().unwrap_or_default();
        let message = format!("{}, the next one at {next}", counted(kept, "snapshot"));
        match suspicion {
            Suspicion::None => Ok(ready("Scheduled", message)),
            Suspicion::Ahead => Ok(ready(
                "ClockSuspect",
                format!(
                    "{message}; more than 10 slots passed before the last one, so none is deleted until the next one is ready"
                ),
            )),
            Suspicion::Changed(superfluous, from) => Ok(ready(
                "RetentionChanged",
                format!(
                    "{message}; the retention is new, and keeps {superfluous} of them no longer: they are deleted at {from}"
                ),
            )),
            Suspicion::Future(snapshot, slot) => Err(stalled(
                "ClockSuspect",
                format!(
                    "{snapshot} is of {slot}, which is in the future, so no snapshot is deleted; they are taken all the while; if the clock is right, delete that one"
                ),
            )),
        }
    }
}

/// Why snapshots are not deleted yet: by the clock, or because the retention is new.
enum Suspicion {
    None,
    /// The last run came after more slots than a host is usually off.
    Ahead,
    /// The retention is new, does not keep so many snapshots, and deletes them at this time.
    Changed(usize, Timestamp),
    /// A snapshot is of a time that has not come yet.
    Future(ObjectKey, Timestamp),
}

fn instant(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}
