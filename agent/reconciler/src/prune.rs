//! Objects whose manifests are gone are destroyed, where an administrator asked for that: after a while, a few at a time.
//!
//! **Invariant:** only what its last manifest lets be deleted is pruned, of kinds that were named, from a directory that
//! says by a file of its own that it is complete, of which every file is valid, and that has none that is ignored.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    time::{Duration, Instant},
};

use drumlin_crd::ObjectKey;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{record::Record, store::SourceState};

/// The file in a directory of manifests without which nothing is pruned.
pub(crate) const SENTINEL: &str = ".drumlin-prune";
/// The number of scans in a row in which a manifest is missing before its object is pruned.
const SCANS: u32 = 3;
/// Each object may be pruned alone, and of many a tenth within this time.
const RATE: (usize, SignedDuration) = (10, SignedDuration::from_hours(1));

/// Which objects are destroyed when their manifests are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prune {
    /// How long a manifest is missing before, in seconds; time in which the directory cannot be read does not count.
    pub grace_seconds: u64,
    /// Their kinds.
    pub kinds: BTreeSet<String>,
}

/// What is pruned of a directory.
#[derive(Debug)]
pub(crate) struct Pruning<'a> {
    prune: &'a Prune,
    /// The files that have lost all of their documents, as by an accident.
    empty: &'a [String],
}

impl<'a> Pruning<'a> {
    /// That of a directory, if it says by its file that it is complete, its files are valid, and none is ignored: what is
    /// missing may be in one that is not read.
    pub(crate) fn of(
        prune: Option<&'a Prune>,
        directory: &str,
        source: &'a SourceState,
    ) -> Option<Self> {
        let prune = prune?;
        let is_complete = Path::new(directory).join(SENTINEL).is_file();
        let is_whole = source.problems.is_empty() && source.ignored.is_empty();
        (is_complete && is_whole).then_some(Self {
            prune,
            empty: &source.empty,
        })
    }

    /// What becomes of an orphan that is destroyed when it was missing for long enough; none of any other object.
    pub(crate) fn told(&self, record: &Record) -> Option<String> {
        let is_destroyed = self.prune.destroys(record, self.empty);
        let grace = self.prune.grace_seconds;
        is_destroyed.then(|| format!("pruned when it was missing for {grace} s"))
    }
}

impl Prune {
    /// True if an orphan is destroyed when it was missing for long enough. `empty` are the files that have lost all of their
    /// documents.
    pub(crate) fn destroys(&self, record: &Record, empty: &[String]) -> bool {
        self.kinds.contains(&record.kind)
            && record.is_of_file()
            && record.deletion_policy().deletes()
            && record.drumlin.orphan_since.is_some()
            && !empty.contains(&record.drumlin.file)
            && !record.is_paused()
    }
}

/// How long the manifests of objects are missing already.
#[derive(Debug, Default)]
pub(crate) struct Absences {
    absences: HashMap<ObjectKey, Absence>,
    /// The last scan, unless the directory could not be read since.
    last: Option<Instant>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Absence {
    scans: u32,
    time: Duration,
}

impl Absences {
    /// The directory could not be read: the time until the next scan does not count.
    pub(crate) fn stop(&mut self) {
        self.last = None;
    }

    /// Notes the objects whose manifests a scan has missed.
    pub(crate) fn note(&mut self, missing: &[ObjectKey], now: Instant) {
        let passed = self.last.map_or(Duration::ZERO, |last| now - last);
        let mut before = std::mem::take(&mut self.absences);
        for key in missing {
            let absence = match before.remove(key) {
                Some(absence) => Absence {
                    scans: absence.scans.saturating_add(1),
                    time: absence.time + passed,
                },
                None => Absence {
                    scans: 1,
                    time: Duration::ZERO,
                },
            };
            self.absences.insert(key.clone(), absence);
        }
        self.last = Some(now);
    }

    /// The objects that were missing for long enough, those that were missed first before the others.
    pub(crate) fn due(&self, grace: Duration) -> Vec<ObjectKey> {
        let is_due = |absence: &Absence| absence.scans >= SCANS && absence.time >= grace;
        let absences = self.absences.iter();
        let mut due: Vec<_> = absences.filter(|(_, absence)| is_due(absence)).collect();
        due.sort_by(|a, b| (b.1.time, a.0).cmp(&(a.1.time, b.0)));
        due.into_iter().map(|(key, _)| key.clone()).collect()
    }

    /// Forgets an object.
    pub(crate) fn forget(&mut self, key: &ObjectKey) {
        self.absences.remove(key);
    }
}

/// How many objects may be pruned now: at most one, or a tenth of all, within an hour. Also drops the times of former ones
/// that no longer count.
pub(crate) fn allowance(pruned: &mut Vec<Timestamp>, objects: usize, now: Timestamp) -> usize {
    let (part, within) = RATE;
    // After the clock was set back, a time in the future counts as now.
    pruned.retain(|time| now.duration_since(*time) < within);
    (objects / part).max(1).saturating_sub(pruned.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey {
            kind: "Snapshot".to_owned(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn an_object_is_due_after_three_scans_and_the_grace_without_the_time_of_an_unreadable_directory()
     {
        let (begin, minute) = (Instant::now(), Duration::from_mins(1));
        let mut absences = Absences::default();
        let grace = minute * 15;
        absences.note(&[key("a")], begin);
        absences.note(&[key("a"), key("b")], begin + minute * 20);
        assert_eq!(absences.due(grace), [], "two scans");
        absences.stop();
        absences.note(&[key("a"), key("b")], begin + minute * 60);
        assert_eq!(
            absences.due(grace),
            [key("a")],
            "the time of b does not count"
        );
        absences.note(&[key("b")], begin + minute * 70);
        assert_eq!(absences.due(grace), [], "a is back");
        absences.note(&[key("a"), key("b")], begin + minute * 76);
        assert_eq!(absences.due(grace), [key("b")], "a begins anew");
        absences.forget(&key("b"));
        assert_eq!(absences.due(grace), []);
    }

    #[test]
    fn one_object_or_a_tenth_of_all_is_pruned_in_an_hour() {
        let now = Timestamp::now();
        let ago = |minutes| now - SignedDuration::from_mins(minutes);
        assert_eq!(allowance(&mut vec![], 3, now), 1);
        assert_eq!(allowance(&mut vec![ago(10)], 3, now), 0);
        assert_eq!(allowance(&mut vec![ago(61)], 3, now), 1);
        assert_eq!(allowance(&mut vec![ago(10), ago(70), ago(-5)], 40, now), 2);
    }
}
