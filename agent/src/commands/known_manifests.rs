//! The directory of manifests of a command that reads one once.

use std::path::Path;

use anyhow::bail;
use drumlin_reconciler::manifest_scan::{Manifests, followed};

use crate::{
    cli::ManifestsArguments,
    config::{PACKAGED, configured},
};

/// The directory that is named, or that the reconciler has followed last, or that of the configuration file.
///
/// # Errors
/// If none is known, or the configuration file cannot be read.
pub(super) fn known(arguments: &ManifestsArguments, state_dir: &Path) -> anyhow::Result<Manifests> {
    let owners = &arguments.owners.manifest_owners;
    if let Some(directory) = &arguments.manifests {
        return Ok(Manifests {
            directory: directory.clone(),
            owners: owners.clone(),
        });
    }
    let packaged = Path::new(PACKAGED);
    let config = arguments.config.as_deref();
    let config = config.or_else(|| packaged.exists().then_some(packaged));
    let known = match (followed(state_dir), config) {
        (Some(followed), _) => Some(followed),
        (None, Some(config)) => configured(config)?,
        (None, None) => None,
    };
    let Some(mut known) = known else {
        bail!(
            "no directory of manifests is known: name it with --manifests DIR; the state in {} is of no reconciler that followed one, and {}",
            state_dir.display(),
            config.map_or_else(
                || "there is no configuration file".to_owned(),
                |config| format!("{} names none", config.display())
            )
        )
    };
    known.owners.extend(owners);
    Ok(known)
}
