//! Which snapshots of a schedule are kept.

use drumlin_crd::Retention;
use k8s_openapi::jiff::{Timestamp, Zoned, tz::TimeZone};

/// A period of the calendar, as numbers that differ from those of any other period of its kind.
type Period = [i64; 4];

/// The snapshots that no rule keeps, of those that are ready, each with its slot. Each rule keeps the newest snapshot of
/// each of the newest periods that have one.
pub(crate) fn superfluous<T: Clone>(
    ready: &[(Timestamp, T)],
    retention: &Retention,
    zone: &TimeZone,
) -> Vec<T> {
    let mut newest_first: Vec<&(Timestamp, T)> = ready.iter().collect();
    newest_first.sort_by_key(|(slot, _)| std::cmp::Reverse(*slot));
    let mut rules = rules(retention);
    let mut superfluous = Vec::new();
    for (index, (slot, snapshot)) in newest_first.into_iter().enumerate() {
        let slot = slot.to_zoned(zone.clone());
        let mut is_kept = index == 0;
        for rule in &mut rules {
            // Every rule counts it, whether another one keeps it or not.
            is_kept |= rule.keeps(&slot);
        }
        if !is_kept {
            superfluous.push(snapshot.clone());
        }
    }
    superfluous
}

struct Rule {
    left: u32,
    period: fn(&Zoned) -> Period,
    last: Option<Period>,
}

impl Rule {
    fn keeps(&mut self, slot: &Zoned) -> bool {
        let period = (self.period)(slot);
        if self.left == 0 || self.last == Some(period) {
            return false;
        }
        self.last = Some(period);
        self.left -= 1;
        true
    }
}

fn rules(retention: &Retention) -> [Rule; 6] {
    let rule = |left, period| Rule {
        left,
        period,
        last: None,
    };
    [
        rule(retention.keep_last, |slot| {
            [slot.timestamp().as_second(), 0, 0, 0]
        }),
        // The hour that a clock repeats is two.
        rule(retention.hourly, |slot| {
            let [year, day, ..] = day(slot);
            let offset = slot.offset().seconds();
            [year, day, i64::from(slot.hour()), i64::from(offset)]
        }),
        rule(retention.daily, day),
        rule(retention.weekly, |slot| {
            let week = slot.date().iso_week_date();
            [i64::from(week.year()), i64::from(week.week()), 0, 0]
        }),
        rule(retention.monthly, |slot| {
            [i64::from(slot.year()), i64::from(slot.month()), 0, 0]
        }),
        rule(retention.yearly, |slot| [i64::from(slot.year()), 0, 0, 0]),
    ]
}

fn day(slot: &Zoned) -> Period {
    [i64::from(slot.year()), i64::from(slot.day_of_year()), 0, 0]
}

#[cfg(test)]
mod tests {
    use drumlin_crd::cron::time_zone;

    use super::*;

    fn kept(slots: &[&str], retention: &Retention, zone: &str) -> Vec<String> {
        let ready: Vec<(Timestamp, String)> = slots
            .iter()
            .map(|slot| (slot.parse().unwrap(), (*slot).to_owned()))
            .collect();
        let gone = superfluous(&ready, retention, &time_zone(zone).unwrap());
        let kept = slots
            .iter()
            .filter(|slot| !gone.iter().any(|one| one == *slot));
        kept.map(|slot| (*slot).to_owned()).collect()
    }

    const NONE: Retention = Retention {
        keep_last: 1,
        hourly: 0,
        daily: 0,
        weekly: 0,
        monthly: 0,
        yearly: 0,
    };

    #[test]
    fn the_newest_of_each_period_is_kept_and_the_newest_of_all() {
        let slots = [
            "2025-12-31T23:00:00Z",
            "2026-01-01T00:00:00Z",
            "2026-01-31T12:00:00Z",
            "2026-02-01T00:30:00Z",
            "2026-02-01T00:45:00Z",
        ];
        assert_eq!(kept(&slots, &NONE, "UTC"), slots[4..]);
        let rule = Retention { hourly: 2, ..NONE };
        assert_eq!(kept(&slots, &rule, "UTC"), [slots[2], slots[4]]);
        let rule = Retention { monthly: 2, ..NONE };
        assert_eq!(kept(&slots, &rule, "UTC"), [slots[2], slots[4]]);
        let rule = Retention { yearly: 9, ..NONE };
        assert_eq!(kept(&slots, &rule, "UTC"), [slots[0], slots[4]]);
        // Weeks begin on Monday: 31 January and 1 February 2026 are one.
        let rule = Retention { weekly: 2, ..NONE };
        assert_eq!(kept(&slots, &rule, "UTC"), [slots[1], slots[4]]);
        let rule = Retention {
            keep_last: 3,
            yearly: 2,
            ..NONE
        };
        assert_eq!(
            kept(&slots, &rule, "UTC"),
            [slots[0], slots[2], slots[3], slots[4]]
        );
    }

    #[test]
    fn days_are_those_of_the_time_zone_and_a_repeated_hour_is_two() {
        let slots = ["2026-11-26T22:30:00Z", "2026-11-26T23:30:00Z"];
        let rule = Retention { daily: 2, ..NONE };
        assert_eq!(kept(&slots, &rule, "UTC"), slots[1..]);
        assert_eq!(kept(&slots, &rule, "Europe/Berlin"), slots);
        let slots = ["2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z"];
        let rule = Retention { hourly: 2, ..NONE };
        assert_eq!(kept(&slots, &rule, "Europe/Berlin"), slots);
    }

    #[test]
    fn the_order_of_the_list_does_not_matter_and_an_empty_one_is_none() {
        let slots = [
            "2026-02-03T00:00:00Z",
            "2026-02-01T00:00:00Z",
            "2026-02-02T00:00:00Z",
        ];
        assert_eq!(kept(&slots, &NONE, "UTC"), slots[..1]);
        assert!(kept(&[], &NONE, "UTC").is_empty());
    }
}
