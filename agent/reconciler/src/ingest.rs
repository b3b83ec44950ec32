//! Turns manifests of files into records. A missing manifest deletes nothing.

use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

use drumlin_crd::{Document, ObjectKey, Problem, names};
use k8s_openapi::jiff::Timestamp;

use crate::{
    Error,
    engine::Engine,
    known_directory::KnownDirectory,
    prune::{Absences, Prune, allowance},
    record::{Record, now},
    source::directory::{Content, Scan},
    store::SourceState,
};

/// Keeps the records in step with the manifests.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    shown: Option<SourceState>,
    owners: Vec<u32>,
    prune: Option<Prune>,
    absences: Absences,
}

/// What a scan of the manifests amounts to.
struct Taken {
    problems: BTreeMap<String, Vec<Problem>>,
    elsewhere: usize,
    /// The orphans.
    missing: Vec<ObjectKey>,
    /// Every file was read and is valid, and none is ignored.
    is_whole: bool,
}

impl Catalog {
    /// One that destroys nothing, of a directory whose files may belong to these users, too.
    pub(crate) fn trusting(owners: &[u32]) -> Self {
        Self {
            owners: owners.to_vec(),
            ..Self::default()
        }
    }

    /// The same, but it prunes objects whose manifests are gone, and knows those that its predecessor pruned.
    pub(crate) fn pruning(self, prune: Option<Prune>, before: Option<SourceState>) -> Self {
        let before = before.map(|before| SourceState {
            pruned: before.pruned,
            ..SourceState::default()
        });
        Self {
            shown: before,
            prune,
            ..self
        }
    }

    /// The result of the last scan.
    pub(crate) fn state(&self) -> Option<&SourceState> {
        self.shown.as_ref()
    }

    /// Applies a scan of the manifests: an unchanged manifest writes nothing and queues nothing.
    pub(crate) fn apply(
        &mut self,
        engine: &Engine,
        directory: &str,
        scan: Scan,
    ) -> Result<(), Error> {
        let mut state = SourceState {
            directory: directory.to_owned(),
            owners: self.owners.clone(),
            prune: self.prune.clone(),
            pruned: self
                .shown
                .iter()
                .flat_map(|shown| shown.pruned.clone())
                .collect(),
            ..SourceState::default()
        };
        match trusted(engine, directory, scan) {
            Scan::Unavailable(why) => {
                if self
                    .shown
                    .as_ref()
                    .is_none_or(|shown| shown.unavailable.as_ref() != Some(&why))
                {
                    tracing::warn!(source = directory, error = %why, "manifests cannot be read; no object is changed");
                }
                self.absences.stop();
                state.unavailable = Some(why);
                // The problems of the last readable scan remain the known ones.
                if let Some(shown) = &self.shown {
                    state.problems.clone_from(&shown.problems);
                    state.ignored.clone_from(&shown.ignored);
                }
            }
            Scan::Read(content) => {
                let (empty, may_prune) = (content.empty.clone(), content.may_prune);
                state.ignored.clone_from(&content.ignored);
                self.tell_ignored(&state.ignored);
                let Taken {
                    problems,
                    elsewhere,
                    missing,
                    is_whole,
                } = take_over(engine, content)?;
                self.tell_empty(engine, &empty, &missing);
                state.empty = empty;
                if is_whole {
                    self.prune(engine, &mut state, (may_prune, &missing))?;
                } else {
                    // What is missing may be in a file that cannot be read.
                    self.absences.stop();
                }
                for (file, problems) in &problems {
                    let is_new = self
                        .shown
                        .as_ref()
                        .is_none_or(|shown| shown.problems.get(file) != Some(problems));
                    if is_new && let Some(first) = problems.first() {
                        tracing::warn!(file, error = %first, problems = problems.len(), "manifest is invalid; its last valid version still applies");
                    }
                }
                state.problems = problems;
                state.elsewhere = elsewhere;
            }
        }
        if self.shown.as_ref() != Some(&state) {
            engine.shared.store().save_source(&state)?;
            self.shown = Some(state);
        }
        Ok(())
    }

    /// Tells of files that have lost all of their documents.
    fn tell_empty(&self, engine: &Engine, empty: &[String], missing: &[ObjectKey]) {
        for file in empty {
            let shown = self.shown.as_ref();
            let is_new = shown.is_none_or(|shown| !shown.empty.contains(file));
            let was_in_it = |record: &Record| record.drumlin.file == *file;
            let lost = missing
                .iter()
                .filter(|key| engine.shared.with(key, was_in_it) == Some(true));
            let lost = lost.count();
            if is_new && lost > 0 {
                tracing::warn!(
                    file,
                    reason = "SuspiciousEmpty",
                    objects = lost,
                    "manifest file is empty; its objects are retained, and not pruned"
                );
            }
        }
    }

    /// Tells of what is ignored, when that has changed.
    fn tell_ignored(&self, ignored: &[String]) {
        let before = self.shown.as_ref().map(|shown| shown.ignored.as_slice());
        if !ignored.is_empty() && before != Some(ignored) {
            tracing::warn!(
                files = ignored.join(", "),
                "files that may be manifests are ignored; nothing is pruned"
            );
        }
    }

    /// Has objects destroyed whose manifests are gone for long enough.
    fn prune(
        &mut self,
        engine: &Engine,
        state: &mut SourceState,
        (may_prune, missing): (bool, &[ObjectKey]),
    ) -> Result<(), Error> {
        let Some(prune) = &self.prune else {
            return Ok(());
        };
        let is_meant = |record: &Record| prune.destroys(record, &state.empty);
        let missing = missing
            .iter()
            .filter(|key| engine.shared.with(key, is_meant) == Some(true));
        let missing: Vec<ObjectKey> = missing.cloned().collect();
        if !may_prune {
            // Its time begins when the directory says that it is complete.
            self.absences.note(&[], Instant::now());
            return Ok(());
        }
        self.absences.note(&missing, Instant::now());
        let mut due = self.absences.due(Duration::from_secs(prune.grace_seconds));
        if due.is_empty() {
            return Ok(());
        }
        let now = Timestamp::now();
        let objects = engine.shared.keys_of(Record::is_of_file).len();
        due.truncate(allowance(&mut state.pruned, objects, now));
        for key in due {
            // On disk before the object is destroyed: a restart does not begin to count anew.
            state.pruned.push(now);
            engine.shared.store().save_source(state)?;
            self.absences.forget(&key);
            if engine.shared.edit(&key, Record::prune)? {
                engine.shared.fail("ingest.pruned");
                tracing::warn!(object = %key, reason = "Pruned", "manifest is gone; object is destroyed, as --prune=auto asks");
                engine.reset(&key);
            }
        }
        Ok(())
    }
}

impl Catalog {
    /// Returns true if the last scan was used.
    pub(crate) fn is_followed(&self) -> bool {
        let shown = self.shown.as_ref();
        shown.is_some_and(|shown| shown.unavailable.is_none())
    }
}

/// A directory that became empty is treated as an accident, and so is one on another file system that lacks manifests: the
/// scan is rejected, and no object becomes an orphan.
fn trusted(engine: &Engine, directory: &str, scan: Scan) -> Scan {
    let Scan::Read(content) = scan else {
        return scan;
    };
    if content.files == 0 {
        return if engine.shared.has_anything() {
            Scan::Unavailable(format!("{directory} is empty, but objects from it exist"))
        } else {
            Scan::Read(content)
        };
    }
    if let Some(now) = &content.file_system {
        let store = engine.shared.store();
        let lost = || lost(engine, &content);
        match KnownDirectory::check(store, directory, now, lost) {
            Err(why) => return Scan::Unavailable(why),
            // The objects of a file that cannot be read yet may be missing in it.
            Ok(Some(new)) if content.silent.is_empty() => new.remember(store),
            Ok(_) => {}
        }
    }
    Scan::Read(content)
}

/// The objects that would become orphans.
fn lost(engine: &Engine, content: &Content) -> Vec<ObjectKey> {
    let documents = content.documents.iter();
    let named: HashSet<ObjectKey> = documents
        .map(|(_, document)| document.object.key())
        .collect();
    let mut lost = engine.shared.keys_of(|record| {
        record.has_manifest()
            && record.drumlin.orphan_since.is_none()
            && !record.drumlin.destroyed
            && !record.is_nothing()
            && !named.contains(&record.key())
            && !content.silent.contains(&record.drumlin.file)
    });
    lost.sort();
    lost
}

fn take_over(engine: &Engine, content: Content) -> Result<Taken, Error> {
    let Content {
        documents,
        mut problems,
        silent,
        ignored,
        ..
    } = content;
    let mut silent: HashSet<String> = silent.into_iter().collect();
    // One document with a forbidden change rejects its whole file.
    for (file, document) in &documents {
        let wrong = refused(engine, document);
        if !wrong.is_empty() {
            silent.insert(file.clone());
            problems.entry(file.clone()).or_default().extend(wrong);
        }
    }
    let mut named = HashSet::new();
    let mut elsewhere = 0;
    // Objects are queued as soon as they are ingested, and a group snapshot covers the members at that time, so group
    // snapshots come last.
    let (late, early): (Vec<_>, Vec<_>) = documents
        .iter()
        .partition(|(_, document)| document.object.key().kind == "GroupSnapshot");
    for (file, document) in early.into_iter().chain(late) {
        let key = document.object.key();
        named.insert(key.clone());
        if silent.contains(file) || is_anothers_tombstone(engine, document) {
            continue;
        }
        elsewhere += usize::from(!one(engine, file, document)?);
    }
    engine.shared.keep_elsewhere(|key| named.contains(key));
    let missing = engine.shared.keys_of(|record| {
        record.has_manifest()
            && !named.contains(&record.key())
            && !silent.contains(&record.drumlin.file)
    });
    for key in &missing {
        if engine.shared.with(key, Record::is_nothing) == Some(true) {
            engine.shared.forget(key)?;
            continue;
        }
        // It is being destroyed.
        if engine.shared.with(key, |record| record.drumlin.is_pruned) == Some(true) {
            continue;
        }
        let is_new = engine.shared.edit(key, |record| {
            let is_new = record.drumlin.orphan_since.is_none();
            record.drumlin.orphan_since.get_or_insert_with(now);
            is_new
        })?;
        if is_new {
            engine.shared.wake_groups(key);
            tracing::warn!(object = %key, "manifest removed; object retained as an orphan");
        }
    }
    Ok(Taken {
        problems,
        elsewhere,
        missing,
        is_whole: silent.is_empty() && ignored.is_empty(),
    })
}

/// Returns true if a document is the tombstone of an object that now belongs to the API server, where its deletion has
/// to be requested.
fn is_anothers_tombstone(engine: &Engine, document: &Document) -> bool {
    let is_served =
        |record: &Record| record.served().is_some() && record.drumlin.orphan_since.is_none();
    document.object.annotation(names::STATE) == Some("absent")
        && engine.shared.with(&document.object.key(), is_served) == Some(true)
}

/// Returns why a document may not take over the record of its name from an API server object. That the object was
/// removed there does not transfer the ownership.
fn anothers(engine: &Engine, record: &Record, document: &Document) -> Option<String> {
    record.served()?;
    if record.drumlin.orphan_since.is_none() {
        return Some(
            "an object of this name comes from the API server on this node; delete it there, or remove it from this file"
                .to_owned(),
        );
    }
    let (key, handle) = (record.key(), record.handle());
    let is_asked = handle.is_some() && document.object.annotation(names::ADOPT) == handle;
    if is_asked || engine.shared.requests.allow(&key, handle) {
        return None;
    }
    Some(format!(
        "{} is retained from an API server object that no longer exists; to adopt it, run `drumlin handover {} {}/{}`",
        handle.unwrap_or("an incomplete resource"),
        key.kind,
        key.namespace,
        key.name
    ))
}

/// The forbidden changes of a document.
fn refused(engine: &Engine, document: &Document) -> Vec<Problem> {
    let key = document.object.key();
    if is_anothers_tombstone(engine, document) {
        return Vec::new();
    }
    let anothers = engine
        .shared
        .with(&key, |record| anothers(engine, record, document));
    if let Some(message) = anothers.flatten() {
        let place = document.place_of("metadata.name");
        return vec![Problem {
            line: place.line,
            column: place.column,
            object: Some(key),
            message,
        }];
    }
    // A destroyed object, or one without resources, restricts no change.
    let here = engine.known_agent().map(|agent| &*agent.node);
    let wrong = engine.shared.with(&key, |record| {
        let is_binding = record.is_begun() && !record.drumlin.destroyed;
        // The volume does not move when only its node is renamed.
        let now = document.object.node();
        let is_renamed = now.is_some() && now == here && record.node() != here;
        let mut wrong = document.object.wrong_after(&record.object());
        wrong.retain(|wrong| !(is_renamed && wrong.field == "spec.nodeName"));
        is_binding.then_some(wrong)
    });
    let wrong = wrong.flatten().unwrap_or_default();
    wrong
        .into_iter()
        .map(|wrong| {
            let place = document.place_of(&wrong.field);
            Problem {
                line: place.line,
                column: place.column,
                object: Some(key.clone()),
                message: format!("{}: {}", wrong.field, wrong.message),
            }
        })
        .collect()
}

/// Ingests one document; returns true if its object belongs to this node.
fn one(engine: &Engine, file: &str, document: &Document) -> Result<bool, Error> {
    let key = document.object.key();
    let shared = &engine.shared;
    let place = (file, document.line);
    if shared.with(&key, |record| record.says(&document.object, place)) == Some(true) {
        return Ok(true);
    }
    let is_known = shared.with(&key, |_| ()).is_some();
    if !is_known {
        let record = Record::new(&document.object, file, document.line);
        let node = engine.known_agent().map(|agent| agent.node.as_str());
        if let (Some(node), Some(wanted)) = (node, record.node())
            && node != wanted
        {
            shared.note_elsewhere(&key, wanted);
            return Ok(false);
        }
        // The record is on disk before the first call, which its intent syncs: the equivalent of a finalizer.
        shared.put_ingested(&record)?;
        shared.fail("ingest.finalizer-added");
        engine.reset(&key);
        shared.wake_groups(&key);
        return Ok(true);
    }
    let asked = document.object.annotation(names::RECONCILE_AT);
    let mut is_asked = false;
    let is_new = shared.edit(&key, |record| {
        is_asked = asked != record.annotation(names::RECONCILE_AT);
        record.adopt(&document.object, place)
    })?;
    if is_asked {
        shared.doubt(&key);
    }
    if is_new {
        shared.fail("ingest.followed");
        engine.forget_taken_over(&key);
        engine.reset(&key);
        shared.wake_groups(&key);
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
