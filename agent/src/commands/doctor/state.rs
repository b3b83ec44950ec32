//! The state files of the reconciler, the manifests, and what no object refers to.

use std::{collections::BTreeSet, time::Duration};

use drumlin_core::{
    backend::directory,
    types::{ClassName, Handle, Key, NodeName},
};
use drumlin_reconciler::{
    Entry,
    kept::{self, Scope},
    manifest_scan,
    status::StatusTable,
};

use super::{
    check::Check,
    finding::{Finding, quoted},
    subject::Subject,
};

/// Time for the inventory of the agent.
const PATIENCE: Duration = Duration::from_secs(8);

/// Reads the state files and the manifests.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let mut found = manifests(subject);
    let table = match &subject.table {
        Ok(table) => table,
        Err(error) => {
            let object = subject.state_dir().join("reconciler");
            found.push(Finding::not_checked(object.display().to_string(), error));
            return found;
        }
    };
    if found.is_empty() {
        found.extend(not_used(subject, table));
    }
    for row in &table.objects {
        let object = format!("{}/{}/{}", row.kind, row.namespace, row.name);
        if row.orphan_since.is_some() {
            let fate = row.pruned.as_deref().unwrap_or("it is kept");
            let message = format!("no manifest has it any more, last {}; {fate}", row.file);
            let orphan = Finding::new(Check::Orphan, object, message);
            let advice = if row.handle.is_empty() {
                "put its manifest back".to_owned()
            } else {
                format!(
                    "put its manifest back; or, to delete it, run `drumlin delete {}`",
                    quoted(&row.handle)
                )
            };
            found.push(orphan.since(row.orphan_since.clone()).advice(advice));
        }
    }
    found.extend(table.unreadable.iter().map(|file| {
        let (path, why) = file.split_once(": ").unwrap_or((file, "cannot be read"));
        Finding::new(
            Check::UnreadableStateFile,
            path,
            format!("the state of an object cannot be read: {why}"),
        )
        .advice("restore it from a backup, or move it away: the object then finds what it has by its name")
    }));
    found.extend(lost(subject, table));
    found
}

/// A directory that can be read and that the reconciler does not use: it is empty, or on another file system than before.
fn not_used(subject: &Subject, table: &StatusTable) -> Option<Finding> {
    let (directory, why) = (subject.manifests()?, table.unavailable.as_ref()?);
    let found = Finding::at(Check::ManifestsUnavailable, directory, why.clone());
    Some(found.advice("until then no object is changed; do as the message says"))
}

/// The manifests as a reconciler would read them.
fn manifests(subject: &Subject) -> Vec<Finding> {
    let Some(directory) = subject.manifests() else {
        return Vec::new();
    };
    let owners = subject.manifest_owners();
    let scanned = match manifest_scan::scan(directory, owners) {
        Ok(scanned) => scanned,
        Err(why) => {
            let insecure = why.contains("InsecurePermissions: ");
            let check = if insecure {
                Check::InsecurePermissions
            } else {
                Check::ManifestsUnavailable
            };
            let advice =
                "until then no object is changed; do as the message says, or mount the directory";
            return vec![Finding::at(check, directory, why).advice(advice)];
        }
    };
    let ignored = scanned.ignored.iter().map(|name| {
        let why = Entry::why_ignored(name);
        let message = format!("it may be a manifest, and is ignored: {why}; nothing is pruned");
        Finding::at(Check::IgnoredFile, &directory.join(name), message)
            .advice("rename it, or move it out of the directory")
    });
    let problems = scanned.problems.into_iter().map(|problem| {
        let path = directory.join(&problem.file);
        let (line, message) = (problem.problem.line, &problem.problem.message);
        if let Some(why) = message.strip_prefix("InsecurePermissions: ") {
            return Finding::at(Check::InsecurePermissions, &path, why);
        }
        let object = format!("{}:{line}", path.display());
        Finding::new(Check::InvalidManifest, object, message.clone())
            .command(format!("drumlin validate {}", super::finding::shell(&path)))
    });
    problems.chain(ignored).collect()
}

/// The images of a class.
pub(super) struct Known<'a> {
    pub(super) node: &'a NodeName,
    pub(super) class: &'a ClassName,
    pub(super) keys: &'a BTreeSet<Key>,
    /// Where they are, for people.
    pub(super) place: &'a str,
}

/// Objects of directory classes whose volume or snapshot does not exist any more.
fn lost(subject: &Subject, table: &StatusTable) -> Vec<Finding> {
    let Some(node) = subject.node() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (class, settings) in subject.directories() {
        // Where it cannot be read, the checks of the class say so.
        let Ok(survey) = directory::survey(&settings.path) else {
            continue;
        };
        let keys: BTreeSet<_> = survey.images.iter().map(|one| one.image.id.key).collect();
        let place = format!("directory {}", settings.path.display());
        let known = Known {
            node,
            class,
            keys: &keys,
            place: &place,
        };
        found.extend(lost_in(table, &known));
    }
    if subject.has_no_configuration() {
        let advice = "name the configuration of the agent with --config: none runs here that says where its classes are; then look again";
        found = found.into_iter().map(|one| one.advice(advice)).collect();
    }
    found
}

/// Volumes and snapshots of a class that have an object and do not exist any more.
pub(super) fn lost_in(table: &StatusTable, known: &Known<'_>) -> Vec<Finding> {
    let is_lost = |handle: Handle| {
        handle.node == *known.node
            && handle.class == *known.class
            && !known.keys.contains(&handle.key)
    };
    // Groups are records of another kind. What is being deleted may be gone before its record says so.
    let objects = table.objects.iter().filter(|row| {
        let is_gone = matches!(row.reason.as_str(), "Deleted" | "Released");
        matches!(row.kind.as_str(), "Volume" | "Snapshot") && !is_gone && !row.is_absent
    });
    let lost = objects.filter(|row| Handle::parse(&row.handle).is_some_and(is_lost));
    lost.map(|row| {
        Finding::new(
            Check::LostVolume,
            format!("{}/{}/{}", row.kind, row.namespace, row.name),
            format!(
                "{} is not in class {} any more ({})",
                row.handle, known.class, known.place
            ),
        )
        .advice("reconnect its disk or mount its file system; `drumlin explain VolumeLost` says what else can be done")
    })
    .collect()
}

/// What the agent has and no object refers to. It is asked only if it runs.
pub(super) async fn check_inventory(subject: &Subject) -> Vec<Finding> {
    let socket = subject.socket();
    if subject.agent.is_none() || !socket.exists() {
        return Vec::new();
    }
    let state_dir = subject.state_dir();
    let asked = kept::list(&socket, &state_dir, Scope::Manifests);
    let listed = match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(listed)) => listed,
        Ok(Err(error)) => return vec![Finding::not_checked("inventory", error)],
        Err(_) => {
            let why = format!("the agent has not answered for {} s", PATIENCE.as_secs());
            return vec![Finding::not_checked("inventory", why)];
        }
    };
    // An orphan is found by its state file.
    let rows = listed
        .objects
        .into_iter()
        .filter(|row| row.state != "Orphan");
    let mut found: Vec<Finding> = rows
        .map(|row| {
            let of = if row.owner.is_empty() { String::new() } else { format!(" of {}", row.owner) };
            Finding::new(
                Check::KeptResource,
                &row.handle,
                format!("{}{of} is kept, and no object refers to it ({})", row.kind, row.state),
            )
            .since((!row.created.is_empty()).then_some(row.created))
            .advice(format!(
                "adopt it (`drumlin adopt {0} NAMESPACE/NAME`), or destroy its data (`drumlin delete {0}`)",
                quoted(&row.handle)
            ))
        })
        .collect();
    // State files are looked at without the agent.
    let classes = listed
        .unreadable
        .iter()
        .filter(|one| one.starts_with("class "));
    found.extend(classes.map(|why| Finding::not_checked("inventory", why)));
    found
}
