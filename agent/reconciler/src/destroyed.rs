//! The last events of objects that are gone: whoever misses a snapshot finds when it was destroyed, and why.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use crate::{
    events::{self, ObjectEvent},
    record::{Record, now},
};

/// The file below the directory of the reconciler's state, an event in each line, the oldest first.
const FILE: &str = "destroyed.jsonl";
/// The size in bytes from which the older half of the file is dropped: some hundreds of events.
const LONGEST: u64 = 128 << 10;

/// Notes the end of an object, if anything of it was destroyed or released. A power cut may take the note.
pub(crate) fn note(root: &Path, record: &Record) -> io::Result<()> {
    let Some(event) = end_of(record) else {
        return Ok(());
    };
    let path = root.join(FILE);
    if fs::metadata(&path).is_ok_and(|file| file.len() > LONGEST) {
        drop_older_half(&path)?;
    }
    let mut line = serde_json::to_vec(&event)?;
    line.push(b'\n');
    let mut file = OpenOptions::new();
    file.append(true).create(true).mode(0o600);
    file.open(&path)?.write_all(&line)
}

fn drop_older_half(path: &Path) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    let lines: Vec<&str> = text.lines().collect();
    let newer = lines.get(lines.len() / 2..).unwrap_or_default();
    let passing = path.with_extension("new");
    let mut file = OpenOptions::new();
    file.write(true).create(true).truncate(true).mode(0o600);
    let mut file = file.open(&passing)?;
    for line in newer {
        writeln!(file, "{line}")?;
    }
    fs::rename(&passing, path)
}

/// The events of objects that are gone, oldest first. A line that is incomplete is left out.
pub(crate) fn read(root: &Path) -> Vec<ObjectEvent> {
    let text = fs::read_to_string(root.join(FILE)).unwrap_or_default();
    let lines = text.lines();
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// The last event of an object whose record is about to be removed; none if it never had a resource.
fn end_of(record: &Record) -> Option<ObjectEvent> {
    let had = record.handle().is_some() || record.is_destroyed();
    // The events of an object of an API server are there.
    if !had || record.served().is_some() {
        return None;
    }
    let last = events::of(record).last();
    let at = |time: String, reason: &str, message: String| ObjectEvent {
        time,
        reason: reason.to_owned(),
        message,
        count: 1,
        ..events::blank(&record.key())
    };
    let then = last.as_ref().map_or_else(now, |event| event.time.clone());
    if !record.is_destroyed() {
        return Some(at(
            now(),
            "Deleted",
            "deleted by `drumlin delete`".to_owned(),
        ));
    }
    if record.drumlin.is_pruned {
        let what = if record.drumlin.is_trashed {
            "moved to the trash"
        } else {
            "destroyed"
        };
        let message = format!("{what} because its manifest was gone (--prune=auto)");
        return Some(at(then, "Pruned", message));
    }
    if let Some(schedule) = &record.drumlin.schedule {
        let message = format!("no longer kept by the retention of SnapshotSchedule {schedule}");
        return Some(at(then, "Deleted", message));
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_incomplete_is_left_out_and_a_long_file_loses_its_older_half() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(FILE);
        let line = |number: usize| {
            format!(
                r#"{{"time":"2026-01-01T00:00:00Z","kind":"Snapshot","namespace":"db","name":"s{number}","reason":"Deleted","count":1,"message":"gone"}}"#
            )
        };
        let lines: Vec<String> = (0..10).map(line).collect();
        fs::write(&path, lines.join("\n") + "\n{\"time\":").unwrap();
        assert_eq!(read(root.path()).len(), 10);
        drop_older_half(&path).unwrap();
        let left = read(root.path());
        assert_eq!(left.first().unwrap().name, "s5");
        assert_eq!(left.last().unwrap().name, "s9");
    }
}
