//! Ten simulated years of schedules, against a model that knows neither cron nor the code beside it: it lists the times
//! that a calendar has, day by day, and looks through the list.

use drumlin_crd::{Retention, SnapshotScheduleSpec, cron::time_zone};
use k8s_openapi::jiff::{
    SignedDuration, Timestamp, ToSpan,
    civil::{Date, date},
    tz::{AmbiguousOffset, TimeZone},
};

use super::{
    Clock, Timing,
    slots::tests::{spec, timing},
    superfluous,
};

/// A schedule, as text and as what the text means.
struct Example {
    text: &'static str,
    zone: &'static str,
    hours: &'static [i8],
    minutes: &'static [i8],
    /// Whether it takes place on a day.
    is_on: fn(Date) -> bool,
    /// True if it has one time a day: daylight saving time moves it, and does not repeat it.
    is_single: bool,
}

const EVERY_SIX: &[i8] = &[0, 6, 12, 18];
const ALL: &[i8] = &[
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23,
];

fn examples() -> Vec<Example> {
    let example = |text, zone, (hours, minutes), is_on| Example {
        text,
        zone,
        hours,
        minutes,
        is_on,
        is_single: false,
    };
    let single = |text, zone, (hours, minutes), is_on| Example {
        is_single: true,
        ..example(text, zone, (hours, minutes), is_on)
    };
    vec![
        single("30 2 * * *", "Europe/Berlin", (&[2], &[30]), |_| true),
        single("0 0 * * *", "America/Sao_Paulo", (&[0], &[0]), |_| true),
        single("15 2 * * 0", "Australia/Lord_Howe", (&[2], &[15]), |day| {
            day.weekday().to_sunday_zero_offset() == 0
        }),
        single("0 3 1 */3 *", "America/New_York", (&[3], &[0]), |day| {
            day.day() == 1 && day.month() % 3 == 1
        }),
        example("0 */6 * * *", "Asia/Kathmandu", (EVERY_SIX, &[0]), |_| true),
        example(
            "*/30 1-2 * 3,10 *",
            "Europe/London",
            (&[1, 2], &[0, 30]),
            |day| matches!(day.month(), 3 | 10),
        ),
        // Days of the month and of the week: either.
        example("0 */6 13 * 5", "UTC", (EVERY_SIX, &[0]), |day| {
            day.day() == 13 || day.weekday().to_sunday_zero_offset() == 5
        }),
        example("0 * * 3,11 *", "America/New_York", (ALL, &[0]), |day| {
            matches!(day.month(), 3 | 11)
        }),
    ]
}

/// All slots from the first to the last day.
fn calendar(example: &Example, first: Date, last: Date) -> Vec<Timestamp> {
    let zone = time_zone(example.zone).unwrap();
    let mut slots = Vec::new();
    let mut day = first;
    while day <= last {
        if (example.is_on)(day) {
            for hour in example.hours {
                for minute in example.minutes {
                    let time = day.at(*hour, *minute, 0, 0);
                    let found = zone.to_ambiguous_zoned(time);
                    let earlier = || found.clone().earlier().unwrap().timestamp();
                    let later = || found.clone().later().unwrap().timestamp();
                    match found.offset() {
                        AmbiguousOffset::Unambiguous { .. } => slots.push(earlier()),
                        AmbiguousOffset::Fold { .. } if example.is_single => slots.push(earlier()),
                        AmbiguousOffset::Fold { .. } => slots.extend([earlier(), later()]),
                        // The clock goes forward between the two readings.
                        AmbiguousOffset::Gap { .. } if example.is_single => {
                            slots.push(end_of_gap(&zone, earlier(), later()));
                        }
                        AmbiguousOffset::Gap { .. } => {}
                    }
                }
            }
        }
        day = day.tomorrow().unwrap();
    }
    slots.sort();
    slots.dedup();
    slots
}

/// The instant at which the clock is put forward, between two others.
fn end_of_gap(zone: &TimeZone, earlier: Timestamp, later: Timestamp) -> Timestamp {
    let (mut at, last) = (earlier.min(later), earlier.max(later));
    let before = zone.to_offset(at);
    while zone.to_offset(at) == before {
        assert!(at <= last);
        at += 60.seconds();
    }
    at
}

const FIRST: Date = date(2026, 1, 1);
const LAST: Date = date(2035, 12, 31);

#[test]
fn the_slots_of_ten_years_are_those_of_the_calendar() {
    for example in examples() {
        let slots = calendar(&example, FIRST, LAST);
        let timing = timing(&spec(example.text, example.zone));
        let mut at = slots[0] - SignedDuration::from_secs(1);
        for (number, slot) in slots.iter().enumerate() {
            let plan = timing.plan(at, at);
            assert_eq!(plan.next, Some(*slot), "{} after {at}", example.text);
            // In between, the slot before is the last one.
            if let Some(next) = slots.get(number + 1) {
                let between =
                    *slot + SignedDuration::from_secs((next.as_second() - slot.as_second()) / 2);
                let plan = timing.plan(at, between);
                assert_eq!(plan.done, *slot, "{} at {between}", example.text);
            }
            at = *slot;
        }
    }
}

/// Numbers that look like random ones, the same in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What a host goes through.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// It runs until the next slot, and wakes then.
    Runs,
    /// It is off for so many minutes.
    Off(i64),
    /// The schedule is suspended for so many minutes.
    Suspended(i64),
    /// Its clock jumps by so many minutes.
    Jumps(i64),
}

/// What came about: the slots that ran, and the number of those that were missed.
#[derive(Debug, Default, PartialEq)]
struct History {
    runs: Vec<(Timestamp, Timestamp)>,
    missed: u32,
}

/// The history by the code under test, one pass at a time.
struct Scheduler {
    timing: Timing,
    done: Timestamp,
    history: History,
}

impl Scheduler {
    fn pass(&mut self, now: Timestamp) -> (Option<Timestamp>, Clock) {
        let plan = self.timing.plan(self.done, now);
        self.done = plan.done;
        self.history.missed += plan.missed;
        if let Some(slot) = plan.due {
            self.history.runs.push((slot, now));
        }
        (plan.next, plan.clock)
    }
}

/// The same by the list of slots.
struct Model<'a> {
    slots: &'a [Timestamp],
    deadline: SignedDuration,
    delay: SignedDuration,
    /// Slots up to this one are over.
    over: Timestamp,
    history: History,
}

impl Model<'_> {
    fn pass(&mut self, now: Timestamp) {
        if now < self.over - SignedDuration::from_hours(1) {
            self.over = now - self.delay;
            return;
        }
        let first = self.slots.partition_point(|slot| *slot <= self.over);
        let passed: Vec<&Timestamp> = self.slots[first..]
            .iter()
            .take_while(|slot| **slot + self.delay <= now)
            .collect();
        let Some((last, before)) = passed.split_last() else {
            return;
        };
        self.over = **last;
        self.history.missed += u32::try_from(before.len()).unwrap();
        if **last + self.delay + self.deadline < now {
            self.history.missed += 1;
        } else {
            self.history.runs.push((**last, now));
        }
    }
}

fn event(chance: &mut Chance) -> Event {
    let minutes = |chance: &mut Chance, bound| i64::try_from(chance.below(bound)).unwrap() + 1;
    match chance.below(40) {
        0 | 1 => Event::Off(minutes(chance, 30)),
        2 => Event::Off(minutes(chance, 60 * 24 * 20)),
        3 => Event::Suspended(minutes(chance, 60 * 24 * 30)),
        4 => Event::Jumps(minutes(chance, 60 * 24 * 4)),
        5 => Event::Jumps(-minutes(chance, 60 * 24 * 4)),
        6 => Event::Jumps(-minutes(chance, 59)),
        _ => Event::Runs,
    }
}

#[test]
fn ten_years_of_outages_suspensions_and_clock_jumps_are_as_in_the_model() {
    for (number, example) in examples().iter().enumerate() {
        // The clock may be ahead at the end.
        let slots = calendar(example, FIRST, LAST + 5.years());
        let settings = SnapshotScheduleSpec {
            jitter_seconds: 300,
            starting_deadline_seconds: 7200,
            ..spec(example.text, example.zone)
        };
        let timing = timing(&settings);
        let end = LAST
            .at(0, 0, 0, 0)
            .to_zoned(TimeZone::UTC)
            .unwrap()
            .timestamp();
        let mut now = FIRST
            .at(0, 0, 0, 0)
            .to_zoned(TimeZone::UTC)
            .unwrap()
            .timestamp();
        let delay = now.duration_since(timing.reached(now));
        let mut model = Model {
            slots: &slots,
            deadline: SignedDuration::from_secs(7200),
            delay,
            over: now - delay,
            history: History::default(),
        };
        let mut tested = Scheduler {
            timing,
            done: now - delay,
            history: History::default(),
        };
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15 + u64::try_from(number).unwrap());
        let mut steady = 0;
        while now < end {
            let (next, clock) = tested.pass(now);
            model.pass(now);
            assert_eq!(
                tested.history.runs.last(),
                model.history.runs.last(),
                "{}",
                example.text
            );
            assert_eq!(
                tested.history.missed, model.history.missed,
                "{} {now}",
                example.text
            );
            steady += u32::from(clock == Clock::Steady);
            match event(&mut chance) {
                Event::Runs => now = next.unwrap(),
                Event::Off(minutes) | Event::Jumps(minutes) => now += minutes.minutes(),
                Event::Suspended(minutes) => {
                    now += minutes.minutes();
                    // As the pass does that finds it suspended no more.
                    tested.done = tested.timing.reached(now);
                    model.over = now - delay;
                }
            }
        }
        assert!(tested.history.runs.len() > 20, "{}", example.text);
        assert!(steady > 20);
        each_slot_runs_in_time(&tested.history, &slots, delay);
    }
}

/// Nothing runs but a slot, not before its time and not after its deadline.
fn each_slot_runs_in_time(history: &History, slots: &[Timestamp], delay: SignedDuration) {
    for (slot, at) in &history.runs {
        assert!(slots.binary_search(slot).is_ok());
        let late = at.duration_since(*slot + delay);
        assert!(!late.is_negative() && late <= SignedDuration::from_secs(7200));
    }
}

/// What each rule keeps, said in words: the newest of each period, of the newest periods.
fn kept_by_words(ready: &[Timestamp], retention: &Retention, zone: &TimeZone) -> Vec<Timestamp> {
    let rules = [
        (retention.keep_last, "%s"),
        (retention.hourly, "%Y-%m-%d %H %z"),
        (retention.daily, "%Y-%m-%d"),
        (retention.weekly, "%G-%V"),
        (retention.monthly, "%Y-%m"),
        (retention.yearly, "%Y"),
    ];
    let mut kept = Vec::new();
    for (count, words) in rules {
        let label = |slot: &Timestamp| slot.to_zoned(zone.clone()).strftime(words).to_string();
        let mut labels: Vec<String> = ready.iter().map(label).collect();
        labels.reverse();
        labels.dedup();
        for wanted in labels.iter().take(usize::try_from(count).unwrap()) {
            let newest = ready.iter().rfind(|slot| label(slot) == *wanted);
            kept.extend(newest);
        }
    }
    kept.sort();
    kept.dedup();
    kept
}

#[test]
fn ten_years_of_pruning_keep_what_the_rules_say() {
    let example = Example {
        is_single: false,
        ..examples().remove(0)
    };
    let zone = time_zone(example.zone).unwrap();
    let mut chance = Chance(7);
    let slots = calendar(&example, FIRST, LAST);
    let retention = Retention {
        keep_last: 3,
        hourly: 5,
        daily: 7,
        weekly: 4,
        monthly: 12,
        yearly: 3,
    };
    let mut there: Vec<Timestamp> = Vec::new();
    let mut most = 0;
    for slot in slots {
        // Some were missed, and some failed.
        if chance.below(10) == 0 {
            continue;
        }
        there.push(slot);
        let ready: Vec<(Timestamp, Timestamp)> = there.iter().map(|slot| (*slot, *slot)).collect();
        let gone = superfluous(&ready, &retention, &zone);
        let wanted = kept_by_words(&there, &retention, &zone);
        there.retain(|slot| !gone.contains(slot));
        assert_eq!(there, wanted, "after {slot}");
        assert_eq!(there.last(), Some(&slot), "the newest is always kept");
        most = most.max(there.len());
    }
    assert!((20..=34).contains(&most), "{most}");
}
