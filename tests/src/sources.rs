//! What tests read from the sources, so that it cannot be forgotten: files, fail points, whatever stands in quotes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::programs::workspace;

/// All files below a folder of the workspace whose names end so, sorted.
///
/// # Panics
/// When the folder cannot be read.
pub fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    fn collect(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder)
            .expect("a folder of the sources")
            .flatten()
        {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, ending, found);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(&workspace().join(folder), ending, &mut found);
    found.sort();
    found
}

/// The text of a file of the workspace.
///
/// # Panics
/// When it cannot be read.
pub fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(workspace().join(path)).expect("a file of the sources")
}

/// What stands in quotes behind one of `calls` in the Rust files below `folders`.
pub fn quoted_behind(folders: &[&str], calls: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in folders.iter().flat_map(|folder| files(folder, ".rs")) {
        let source = read(path);
        for call in calls {
            for rest in source.split(call).skip(1) {
                let quoted = rest.trim_start().strip_prefix('"');
                let name = quoted.and_then(|rest| rest.split('"').next());
                found.extend(name.map(str::to_owned));
            }
        }
    }
    found
}

/// The names of the agent's fail points.
pub fn agent_points() -> BTreeSet<String> {
    points(
        &["agent/core/src", "agent/host/src", "agent/lvm/src"],
        &["fail::point("],
    )
}

/// The names of the fail points of the operations alone.
pub fn operation_points() -> BTreeSet<String> {
    points(&["agent/core/src/ops"], &["fail::point("])
}

/// The names of the reconciler's fail points.
pub fn reconciler_points() -> BTreeSet<String> {
    points(&["agent/reconciler/src"], &[".save(", ".point(", ".fail("])
}

fn points(folders: &[&str], calls: &[&str]) -> BTreeSet<String> {
    let mut found = quoted_behind(folders, calls);
    found.retain(|name| name.contains('.'));
    found
}
