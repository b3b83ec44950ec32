//! Arguments about objects whose manifests are gone.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::ObjectKind;
use crate::duration::duration;

/// What becomes of objects whose manifests are gone.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PruneArguments {
    /// What becomes of objects whose manifests were removed from the directory. `auto` destroys those with `deletionPolicy: Delete`, and moves volumes with `Trash` to the trash, if the
    /// directory has the file `.drumlin-prune`: after --prune-grace and three scans, at most one of them, or a tenth of all objects, an hour [default: never]
    #[arg(long, env = "DRUMLIN_PRUNE", value_name = "WHEN")]
    pub(crate) prune: Option<PruneWhen>,
    /// Time for which a manifest must be missing before its object is pruned, such as `1h` [default: 15m]
    #[arg(
        long,
        env = "DRUMLIN_PRUNE_GRACE",
        value_name = "TIME",
        value_parser = duration
    )]
    pub(crate) prune_grace: Option<Duration>,
    /// Kinds whose objects are pruned [default: VolumeGroup,Snapshot,GroupSnapshot]
    #[arg(
        long,
        env = "DRUMLIN_PRUNE_KINDS",
        value_name = "KIND,...",
        value_delimiter = ','
    )]
    pub(crate) prune_kinds: Vec<ObjectKind>,
}

/// When objects without a manifest are destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(crate) enum PruneWhen {
    /// Never: they are orphans, and stay as they are.
    Never,
    /// As the options say.
    Auto,
}
