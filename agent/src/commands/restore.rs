//! `drumlin restore`: the manifests that restore a snapshot.

use drumlin_crd::ObjectKey;

use super::print::print;
use crate::cli::{RestoreArguments, SnapshotKind};

/// Prints the manifests.
pub(crate) fn run(arguments: &RestoreArguments) -> anyhow::Result<()> {
    let kind = match arguments.kind {
        SnapshotKind::Group => "GroupSnapshot",
        SnapshotKind::One => "Snapshot",
    };
    let (namespace, name) = match arguments.name.split_once('/') {
        Some(parts) => parts,
        None => ("default", arguments.name.as_str()),
    };
    let key = ObjectKey {
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let state_dir = &arguments.state_dir;
    let manifests = drumlin_reconciler::restore::manifests(state_dir, &key, &arguments.suffix)?;
    print(&manifests);
    Ok(())
}
