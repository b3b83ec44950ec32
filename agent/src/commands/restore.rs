//! `drumlin restore`: the manifests that restore a snapshot.

use anyhow::Context;
use serde_json::{Value, json};

use super::{
    object_name,
    print::{print, print_outcome},
};
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
    match arguments.output {
        None => print(&manifests),
        Some(_) => print_outcome(arguments.output, &list(&manifests)?, ""),
    }
    Ok(())
}

/// The manifests as one `List`.
fn list(manifests: &str) -> anyhow::Result<Value> {
    let items = drumlin_crd::from_yaml(manifests).context("manifests")?;
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
}
