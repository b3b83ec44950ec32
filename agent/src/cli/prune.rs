//! Arguments about objects whose manifests are gone.

use std::time::Duration;

use clap::{Args, ValueEnum};
use drumlin_reconciler::Prune;

use super::ObjectKind;
use crate::duration::duration;

/// What becomes of objects whose manifests are gone.
#[derive(Debug, Clone, Args)]
pub(crate) struct PruneArguments {
    /// What becomes of objects whose manifests were removed from the directory. `auto` destroys those with `deletionPolicy: Delete`, if the
    /// directory has the file `.drumlin-prune`: after --prune-grace and three scans, at most one of them, or a tenth of all objects, an hour.
    #[arg(
        long,
        env = "DRUMLIN_PRUNE",
        value_name = "WHEN",
        default_value = "never"
    )]
    pub(crate) prune: PruneWhen,
    /// Time for which a manifest must be missing before its object is pruned, such as `15m`.
    #[arg(
        long,
        env = "DRUMLIN_PRUNE_GRACE",
        value_name = "TIME",
        value_parser = duration,
        default_value = "15m"
    )]
    pub(crate) prune_grace: Duration,
    /// Kinds whose objects are pruned.
    #[arg(
        long,
        env = "DRUMLIN_PRUNE_KINDS",
        value_name = "KIND,...",
        value_delimiter = ',',
        default_value = "VolumeGroup,Snapshot,GroupSnapshot"
    )]
    pub(crate) prune_kinds: Vec<ObjectKind>,
}

/// When objects without a manifest are destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PruneWhen {
    /// Never: they are orphans, and stay as they are.
    Never,
    /// As the options say.
    Auto,
}

impl Default for PruneArguments {
    fn default() -> Self {
        Self {
            prune: PruneWhen::Never,
            prune_grace: Duration::from_mins(15),
            prune_kinds: Vec::new(),
        }
    }
}

impl PruneArguments {
    /// What is pruned, if anything is.
    pub(crate) fn prune(&self) -> Option<Prune> {
        let kinds = self.prune_kinds.iter();
        (self.prune == PruneWhen::Auto).then(|| Prune {
            grace_seconds: self.prune_grace.as_secs(),
            kinds: kinds.map(|kind| kind.as_str().to_owned()).collect(),
        })
    }
}
