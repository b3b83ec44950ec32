//! Duplicate disks: a disk copied together with its LVM metadata, or one reachable over two paths. LVM prefers one of
//! them by its own rules, and refuses to change or activate anything in the group until the other one is gone.

use std::{borrow::Cow, collections::HashMap};

use crate::{Error, Kind, Result};

/// The advice for the administrator.
const CURE: &str = "disconnect the copy, or hide it from LVM (lvmdevices --deldev, or devices/global_filter in lvm.conf)";

/// A disk that LVM ignores, and the disk with the same physical volume that it prefers.
#[derive(Debug, PartialEq, Eq)]
struct Duplicate<'a> {
    copy: &'a str,
    taken: &'a str,
    /// The reason, in LVM's words.
    why: &'a str,
}

impl Duplicate<'_> {
    /// Returns true if LVM knows which disk the group's volumes are on; every other reason is a guess.
    fn is_certain(&self) -> bool {
        ["device is used by LV", "device id"].contains(&self.why)
    }

    fn describe(&self) -> String {
        let Self { copy, taken, why } = self;
        format!("{copy} duplicates {taken}, which LVM prefers because {why}")
    }
}

/// The pairs in LVM's warnings: one line names the ignored disk, another one the preferred disk.
fn pairs(warnings: &str) -> Vec<Duplicate<'_>> {
    let lines = || warnings.lines().map(str::trim);
    let taken = lines().filter_map(|line| {
        let (uuid, choice) = line
            .strip_prefix("WARNING: PV ")?
            .split_once(" prefers device ")?;
        let choice = choice.strip_suffix('.').unwrap_or(choice);
        Some((uuid, choice.split_once(" because ")?))
    });
    let taken: HashMap<&str, (&str, &str)> = taken.collect();
    let copies = lines().filter_map(|line| {
        let copy = line.strip_prefix("WARNING: Not using device ")?;
        let (copy, uuid) = copy.rsplit_once(" for PV ")?;
        let (taken, why) = taken.get(uuid.trim_end_matches('.'))?;
        Some(Duplicate { copy, taken, why })
    });
    copies.collect()
}

/// Refuses a group if LVM has only guessed which of two disks, for `is_ours`, to use.
///
/// # Errors
/// [`Kind::Precondition`], naming both disks.
pub(crate) fn check(group: &str, warnings: &[u8], is_ours: impl Fn(&str) -> bool) -> Result<()> {
    let warnings = String::from_utf8_lossy(warnings);
    let guessed = pairs(&warnings)
        .into_iter()
        .find(|pair| is_ours(pair.taken) && !pair.is_certain());
    match guessed {
        None => Ok(()),
        Some(pair) => Err(Error::new(
            Kind::Precondition,
            format!(
                "volume group {group} has duplicate disks: {}, so either may be the right one; {CURE}",
                pair.describe()
            ),
        )),
    }
}

/// Adds the names of the duplicate disks to a refusal of LVM that does not name them.
pub(crate) fn named<'a>(refusal: &'a str, warnings: &str) -> Cow<'a, str> {
    // "Cannot update volume group x with duplicate PV devices.", "… while PVs appear on duplicate devices."
    if !["duplicate PV devices", "on duplicate devices"]
        .iter()
        .any(|words| refusal.contains(words))
    {
        return refusal.into();
    }
    let pairs = pairs(warnings).into_iter().map(|pair| pair.describe());
    let pairs = pairs.collect::<Vec<_>>().join("; ");
    format!("{refusal} {pairs}; {CURE}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As LVM 2.03.11 to 2.03.31 print it.
    const WARNINGS: &str = "  WARNING: Not using device /dev/loop2 for PV CzRbfi-2INj.
  WARNING: Not using device /dev/for PV for PV AOH0Lu-Q0YN.
  WARNING: PV CzRbfi-2INj prefers device /dev/loop0 because device is used by LV.
  WARNING: PV AOH0Lu-Q0YN prefers device /dev/loop1 because device was seen first.
  WARNING: Not using device /dev/loop9 for PV that-has-no-other.
";

    #[test]
    fn copies_are_told_with_the_disks_that_lvm_takes() {
        let found = pairs(WARNINGS);
        let pair = |copy, taken, why| Duplicate { copy, taken, why };
        assert_eq!(
            found,
            [
                pair("/dev/loop2", "/dev/loop0", "device is used by LV"),
                pair("/dev/for PV", "/dev/loop1", "device was seen first"),
            ]
        );
    }

    #[test]
    fn only_a_guess_about_our_own_disk_is_refused() {
        check("g", WARNINGS.as_bytes(), |disk| disk == "/dev/loop0").unwrap();
        check("g", b"", |_| true).unwrap();
        let error = check("g", WARNINGS.as_bytes(), |disk| disk == "/dev/loop1").unwrap_err();
        assert_eq!(error.kind(), Kind::Precondition);
        assert!(
            error
                .to_string()
                .contains("/dev/for PV duplicates /dev/loop1"),
            "{error}"
        );
    }

    #[test]
    fn a_refusal_names_the_copies_and_another_one_stays_as_it_is() {
        let other = "Insufficient free space";
        assert_eq!(named(other, WARNINGS), other);
        let refusal = "Cannot update volume group g with duplicate PV devices.";
        let text = named(refusal, WARNINGS);
        assert!(text.contains("/dev/loop2 duplicates /dev/loop0"), "{text}");
    }
}
