//! The names of objects, as a person gives them.

use anyhow::bail;
use clap::ValueEnum;
use drumlin_crd::ObjectKey;

use crate::cli::{ObjectKind, ObjectWord};

/// The namespace and the name of an object: `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
pub(super) fn split(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or(("default", name))
}

/// The object that is named behind its kind or by a word of its own; none if only a kind is.
///
/// # Errors
/// If both name one.
pub(super) fn of(word: &ObjectWord, name: Option<&str>) -> anyhow::Result<Option<ObjectKey>> {
    let kind = word.kind.as_str();
    match (word.name.as_deref(), name) {
        (Some(one), Some(other)) => bail!("{kind}/{one} and {other} are two names; give one"),
        (one, other) => Ok(one.or(other).map(|name| of_kind(kind, name))),
    }
}

/// The object of a kind with such a name.
pub(super) fn of_kind(kind: &str, name: &str) -> ObjectKey {
    let (namespace, name) = split(name);
    ObjectKey {
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// The object `KIND/NAMESPACE/NAME`, or `KIND/NAME` in the namespace `default`.
///
/// # Errors
/// If the text is neither, or there is no such kind.
pub(super) fn with_kind(text: &str) -> anyhow::Result<ObjectKey> {
    let Some((kind, name)) = text.split_once('/') else {
        bail!(
            "{text:?} names no object; write KIND/NAMESPACE/NAME, or KIND/NAME, such as dv/db/data"
        );
    };
    match ObjectKind::from_str(kind, true) {
        Ok(kind) => Ok(of_kind(kind.as_str(), name)),
        Err(_) => bail!(
            "{text:?}: there is no kind {kind:?}; kinds are dv (Volume), dvg (VolumeGroup), dsnap (Snapshot), dgsnap \
             (GroupSnapshot) and dsched (SnapshotSchedule)"
        ),
    }
}
