//! The names of objects, as a person gives them.

use anyhow::bail;
use clap::ValueEnum;
use drumlin_crd::ObjectKey;

use crate::cli::ObjectKind;

/// The namespace and the name of an object: `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
pub(super) fn split(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or(("default", name))
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
