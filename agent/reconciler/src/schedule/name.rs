//! The names of the snapshots of a schedule: each is that of its slot.

use k8s_openapi::jiff::{Timestamp, civil::DateTime, fmt::strtime, tz::TimeZone};

/// A slot as a part of a name, in UTC.
const FORM: &str = "%Y%m%dt%H%M%Sz";

/// A slot as text, such as `20261127t130000z`.
pub(crate) fn slot_text(slot: Timestamp) -> String {
    let slot = slot.to_zoned(TimeZone::UTC);
    strtime::format(FORM, &slot).unwrap_or_default()
}

/// The name of the snapshot of a slot.
pub(crate) fn child_name(schedule: &str, slot: Timestamp) -> String {
    format!("{schedule}-{}", slot_text(slot))
}

/// The slot of a snapshot of a schedule, if its name is that of one.
pub(crate) fn slot_of(schedule: &str, name: &str) -> Option<Timestamp> {
    let text = name.strip_prefix(schedule)?.strip_prefix('-')?;
    let slot = DateTime::strptime(FORM, text).ok()?;
    let slot = slot.to_zoned(TimeZone::UTC).ok()?.timestamp();
    // Nothing but the one form of it.
    (slot_text(slot) == text).then_some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_snapshot_is_that_of_its_slot() {
        let slot: Timestamp = "2026-11-27T13:00:00Z".parse().unwrap();
        let name = child_name("pg-hourly", slot);
        assert_eq!(name, "pg-hourly-20261127t130000z");
        assert!(drumlin_crd::names::is_label(&name));
        assert_eq!(slot_of("pg-hourly", &name), Some(slot));
        for other in [
            "pg-hourly-20261127t130000",
            "pg-hourly-2026-11-27",
            "pg-hourly",
            "pg-hourly-20261327t130000z",
            "pg-hourly-20261127t130000zz",
            "pg-daily-20261127t130000z",
            "pg-hourly-old-20261127t130000z",
        ] {
            assert_eq!(slot_of("pg-hourly", other), None, "{other}");
        }
    }
}
