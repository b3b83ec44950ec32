//! Times in the future: the clock was set back, or runs behind since the last start.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use drumlin_core::{backend::directory, ops::created};

use super::{check::Check, finding::Finding, subject::Subject};

/// Clocks of a host and of a network file system may differ so much.
const TOLERANCE: Duration = Duration::from_mins(2);
/// How deep the files of the state directory are: `reconciler/objects/KIND/NAMESPACE/NAME.json`.
const DEPTH: usize = 5;

/// Looks at the times of state files and images.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let now = SystemTime::now();
    let mut found = Vec::new();
    let ahead = |time: SystemTime| {
        let ahead = time.duration_since(now).unwrap_or_default();
        (ahead > TOLERANCE).then_some(ahead.as_secs())
    };
    let advice = "correct the clock of this host (`timedatectl`); ages and backoffs are wrong until that time has come";
    let state = subject.state_dir();
    let classes: Vec<PathBuf> = subject
        .directories()
        .map(|(_, settings)| settings.path.clone())
        .collect();
    if let Some((path, seconds)) =
        newest(&state, &classes, DEPTH).and_then(|(time, path)| Some((path, ahead(time)?)))
    {
        let message =
            format!("it was written {seconds} s in the future: the clock was set back since");
        found.push(Finding::at(Check::ClockJump, &path, message).advice(advice));
    }
    for (name, settings) in subject.directories() {
        let Ok(survey) = directory::survey(&settings.path) else {
            continue;
        };
        let times = survey.images.iter().filter_map(|one| {
            let seconds = ahead(created(&one.image.labels)?)?;
            Some((seconds, one))
        });
        if let Some((seconds, one)) = times.max_by_key(|(seconds, _)| *seconds) {
            let message = format!(
                "{} of class {name} was created {seconds} s in the future: the clock was set back since",
                one.image.id
            );
            found.push(Finding::at(Check::ClockJump, &one.home, message).advice(advice));
        }
    }
    found
}

/// The file that was changed last below a directory, without the images of classes.
fn newest(directory: &Path, without: &[PathBuf], depth: usize) -> Option<(SystemTime, PathBuf)> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let times = entries.filter_map(|entry| {
        let (path, file) = (entry.path(), entry.metadata().ok()?);
        if file.is_dir() && depth > 0 && !without.contains(&path) {
            return newest(&path, without, depth - 1);
        }
        file.is_file()
            .then(|| Some((file.modified().ok()?, path)))?
    });
    times.max()
}
