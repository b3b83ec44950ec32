//! Other agents over the same storage: by their processes, and by their locks.

use std::collections::BTreeSet;

use drumlin_core::host::file_locks;

use super::{
    check::Check,
    finding::Finding,
    processes::{Daemon, holder},
    subject::Subject,
};
use crate::config::{Config, Storage};

/// What the classes of an agent use.
fn storage<'a>(storage: impl Iterator<Item = &'a Storage>) -> BTreeSet<String> {
    let names = storage.map(|storage| match storage {
        Storage::Directory(settings) => format!("directory {}", settings.path.display()),
        Storage::Lvm(settings) => format!("volume group {}", settings.volume_group),
    });
    names.collect()
}

/// Looks for agents whose classes use what ours use.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let ours = storage(subject.classes.iter().map(|class| &class.storage));
    let us = subject.agent.as_ref().map(|agent| agent.pid);
    let mut found = Vec::new();
    let mut pids = BTreeSet::new();
    for other in Daemon::agents() {
        if Some(other.pid) == us {
            continue;
        }
        let Some((theirs, node)) = classes_of(&other, subject) else {
            continue;
        };
        for shared in ours.intersection(&theirs) {
            pids.insert(other.pid);
            found.push(
                Finding::new(
                    Check::OtherAgent,
                    shared,
                    format!(
                        "process {} (node {node}: {}) has a class over it, too; each may undo what the other one does",
                        other.pid,
                        other.command()
                    ),
                )
                .advice("stop one of the two agents, or give each its own volume group or directory"),
            );
        }
    }
    for (_, settings) in subject.directories() {
        match holder_of(&settings.path) {
            Ok(Some(other)) if Some(other.pid) != us && !pids.contains(&other.pid) => found.push(
                Finding::new(
                    Check::OtherAgent,
                    format!("directory {}", settings.path.display()),
                    format!(
                        "process {} ({}) has locked it, and is not the agent of the state directory {}",
                        other.pid,
                        other.command,
                        subject.state_dir().display()
                    ),
                )
                .advice("stop one of the two agents, or give each its own directory"),
            ),
            Ok(_) => {}
            Err(why) => found.push(Finding::not_checked(settings.path.display().to_string(), why)),
        }
    }
    found
}

fn holder_of(path: &std::path::Path) -> Result<Option<super::report::AgentProcess>, String> {
    let locked = file_locks::holder(path).map_err(|error| error.chain())?;
    locked.map_or(Ok(None), |_| holder(path))
}

/// The storage of another agent, and its node; none if it is not known, or it has our state directory and will end.
fn classes_of(other: &Daemon, subject: &Subject) -> Option<(BTreeSet<String>, String)> {
    let config = Config::load(&other.arguments().ok()?).ok()?;
    if config.state_dir == subject.state_dir() {
        return None;
    }
    let classes = config.classes.classes().iter();
    let classes: Vec<Storage> = classes
        .filter_map(|class| config.classes.storage(class).ok())
        .collect();
    let node = config.settings.node.as_str().to_owned();
    Some((storage(classes.iter()), node))
}
