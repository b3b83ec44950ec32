//! What the host itself mounts at its start, and a volume is.

use std::{collections::BTreeSet, path::Path};

use drumlin_core::{
    backend::directory,
    host::{Fstab, FstabEntry},
    ops::adopted_from,
};

use super::{check::Check, finding::Finding, own_mounts::OwnMount, subject::Subject};

/// Looks for volumes that `/etc/fstab` mounts, too.
pub(super) fn check(subject: &Subject, mounts: &[OwnMount]) -> Vec<Finding> {
    let fstab = match Fstab::read() {
        Ok(fstab) => fstab,
        Err(error) => return vec![Finding::not_checked("fstab", error.chain())],
    };
    let mounted = mounts.iter();
    let mounted = mounted.filter_map(|own| fstab.of_source(&own.device));
    let objects = subject.table.as_ref().map(|table| table.objects.as_slice());
    let objects = objects.unwrap_or_default().iter();
    // Where it shall be mounted; no other is an absolute path.
    let wanted = objects.filter_map(|row| fstab.at(Path::new(&row.mount)));
    let lines = mounted.chain(wanted).map(|entry| entry.line);
    let mut lines: BTreeSet<usize> = lines.collect();
    lines.extend(adopted(subject, &fstab));
    let entries = fstab.entries.iter();
    let entries = entries.filter(|entry| lines.contains(&entry.line));
    entries.map(|entry| twice(&fstab, entry)).collect()
}

/// The lines that mount image files which were adopted. What cannot be read is told by another check.
fn adopted(subject: &Subject, fstab: &Fstab) -> Vec<usize> {
    let surveys = subject.directories();
    let surveys = surveys.filter_map(|(_, settings)| directory::survey(&settings.path).ok());
    let images = surveys.flat_map(|survey| survey.images);
    let lines = images.filter_map(|found| {
        let source = adopted_from(&found.image.labels)?;
        Some(fstab.of_source(source)?.line)
    });
    lines.collect()
}

fn twice(fstab: &Fstab, entry: &FstabEntry) -> Finding {
    let (source, target) = (entry.source.display(), entry.target.display());
    // What is on a server or in memory has no path here.
    let is_there = !entry.source.is_absolute() || entry.source.exists();
    let why = match (is_there, entry.is_needed) {
        (true, _) => "both do so after a start of the host",
        (false, false) => "and there is nothing of this name any more",
        (false, true) => {
            "and there is nothing of this name any more: the host does not start with it"
        }
    };
    let message = format!("it mounts {source} at {target}, as the agent does; {why}");
    let object = format!("{}:{}", fstab.path.display(), entry.line);
    Finding::new(Check::MountedByHost, object, message).advice("remove that line")
}
