//! Whose the record of a name is.

use drumlin_crd::{Object, names};

use super::super::status_writer::refusal;
use crate::{
    kinds::retained,
    record::{Record, Served, Verdict},
};

/// Whether an object may take over the record of its name.
pub(super) enum Ownership {
    /// There is no record, or its object has no resources.
    Free,
    /// The record belongs to the object.
    Own,
    /// It may not, and why, unless an administrator permits it: the record is an orphan.
    Held(Verdict),
    /// It may not, and why.
    Taken(Verdict),
}

impl Ownership {
    /// Of an object that may have the retained resources of its name, if they are as it asks.
    pub(super) fn of_retained(object: &Object, before: &Record) -> Self {
        match object.wrong_after(&before.object()).first() {
            None => Self::Own,
            Some(wrong) => Self::Taken(refusal(
                "InvalidArgument",
                format!(
                    "retained resources of this name differ from the object: {}: {}",
                    wrong.field, wrong.message
                ),
            )),
        }
    }
}

/// Whether an object may take over the record of its name, of which `now` is known.
pub(super) fn standing(object: &Object, before: Option<&Record>, now: &Served) -> Ownership {
    let Some(before) = before else {
        return Ownership::Free;
    };
    let is_same = |was: &Served| was.uid == now.uid;
    if now.is_deleting && !before.served().is_some_and(is_same) {
        // Its deletion destroys no resource of another object.
        return Ownership::Taken(refusal(
            "OwnedByAnother",
            "resources of this name belong to another object, and are retained".to_owned(),
        ));
    }
    let Some(was) = before.served() else {
        let is_orphan = before.drumlin.orphan_since.is_some();
        if before.is_nothing() && (is_orphan || before.is_absent()) {
            return Ownership::Free;
        }
        if is_orphan {
            // A removed file may come back: its absence does not transfer the ownership.
            return Ownership::Held(refusal(
                "OwnedByDirectory",
                format!(
                    "{} is retained from manifest {} on this node, which was removed; {}",
                    before.handle().unwrap_or("an incomplete resource"),
                    before.drumlin.file,
                    ways(before)
                ),
            ));
        }
        return Ownership::Taken(refusal(
            "OwnedByDirectory",
            format!(
                "an object of this name is in {}:{} on this node; remove it from that file first",
                before.drumlin.file, before.drumlin.line
            ),
        ));
    };
    if was.uid == now.uid {
        return Ownership::Own;
    }
    if before.is_nothing() {
        return Ownership::Free;
    }
    if was.namespace_uid != now.namespace_uid {
        return Ownership::Held(refusal(
            retained(&before.kind),
            format!(
                "{} of this name is retained from a deleted namespace of the same name; {}",
                before.handle().unwrap_or("an incomplete resource"),
                ways(before)
            ),
        ));
    }
    match object {
        // A Volume or VolumeGroup of the same name means the same one; a snapshot means a new point in time.
        Object::Volume(_) | Object::Group(_) => Ownership::of_retained(object, before),
        Object::Snapshot(_) | Object::GroupSnapshot(_) | Object::Schedule(_) => Ownership::Free,
    }
}

/// The commands with which an administrator can transfer the resources of another object.
fn ways(record: &Record) -> String {
    let key = record.key();
    let adopt = match record.handle() {
        Some(handle) => format!(", or annotate this object with {}: {handle}", names::ADOPT),
        None => String::new(),
    };
    format!(
        "to adopt it, run `drumlin handover {} {}/{}` on its node{adopt}",
        key.kind, key.namespace, key.name
    )
}
