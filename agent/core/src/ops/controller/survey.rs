//! What the labels of an image say to who looks at it from outside of the agent.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use crate::{
    backend::Labels,
    ops::{
        labels::{ADOPTED, Read},
        staging_record::StagingRecord,
    },
};

/// The time of creation, or of a snapshot its point in time; none if its record is lost.
pub fn created(labels: &Labels) -> Option<SystemTime> {
    let nanoseconds = labels.recorded_time()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(nanoseconds))
}

/// Returns true if the volume was staged last as a block device, for which the mount table has no line.
pub fn was_staged_raw(labels: &Labels) -> bool {
    StagingRecord::of(labels).is_raw()
}

/// The path that the file of an adopted image had.
pub fn adopted_from(labels: &Labels) -> Option<&Path> {
    labels.get(ADOPTED).map(Path::new)
}
