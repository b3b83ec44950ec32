//! `drumlin restore`: the manifests that restore a snapshot.

use super::{object_name, print::print};
use crate::cli::{RestoreArguments, SnapshotKind};

/// Prints the manifests.
pub(crate) fn run(arguments: &RestoreArguments) -> anyhow::Result<()> {
    let kind = match arguments.kind {
        SnapshotKind::Group => "GroupSnapshot",
        SnapshotKind::One => "Snapshot",
    };
    let key = object_name::in_namespace(kind, &arguments.name, &arguments.namespace)?;
    let state_dir = &arguments.state_dir;
    let manifests = drumlin_reconciler::restore::manifests(state_dir, &key, &arguments.suffix)?;
    print(&manifests);
    Ok(())
}
