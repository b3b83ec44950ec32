//! Which manifests a command reads once.

use std::path::PathBuf;

use clap::Args;

use super::OwnerArguments;

#[derive(Debug, Clone, Args)]
pub(crate) struct ManifestsArguments {
    /// Directory of manifests [default: the one that the reconciler followed last, else `manifests` of the configuration file].
    #[arg(long, env = "DRUMLIN_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
    /// The configuration file, for a directory that is not known otherwise [default: /etc/drumlin/config.yaml, if there is one].
    #[arg(long, env = "DRUMLIN_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) owners: OwnerArguments,
}
