//! The handle of an object that a person names.

use std::path::Path;

use anyhow::bail;
use drumlin_crd::ObjectKey;
use drumlin_reconciler::status;

use super::object_name;
use crate::cli::NamespaceArguments;

/// The handle: given as such (`NODE/CLASS/KEY`), or looked up in the state files by the name of an object of this kind
/// (`NAMESPACE/NAME`, or `NAME` in the namespace that is asked for).
///
/// # Errors
/// If there is no such object, it is not ready, or the state files cannot be read.
pub(super) fn handle(
    state_dir: &Path,
    kind: &str,
    (which, namespace): (&str, &NamespaceArguments),
) -> anyhow::Result<String> {
    if which.matches('/').count() == 2 {
        return Ok(which.to_owned());
    }
    let ObjectKey {
        namespace, name, ..
    } = object_name::in_namespace(kind, which, namespace)?;
    let table = status::load(state_dir)?;
    let mut rows = table.objects.iter();
    let row = rows.find(|row| (&*row.kind, &row.namespace, &row.name) == (kind, &namespace, &name));
    match row {
        None => {
            bail!("{kind}/{namespace}/{name} does not exist; `drumlin status` lists all objects")
        }
        Some(row) if row.handle.is_empty() => bail!(
            "{kind}/{namespace}/{name} is not ready: {}: {}",
            row.reason,
            row.message
        ),
        Some(row) => Ok(row.handle.clone()),
    }
}
