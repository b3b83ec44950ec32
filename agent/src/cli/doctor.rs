//! Arguments of `drumlin doctor`.

use std::path::PathBuf;

use clap::Args;

use super::DataOutput;
use crate::commands::doctor::Part;

#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorArguments {
    /// Output format.
    #[arg(short, long, value_name = "FORM")]
    pub(crate) output: Option<DataOutput>,
    /// The configuration file of the agent [default: that of the running agent]
    #[arg(long, env = "DRUMLIN_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// CSI socket of the agent [default: that of the running agent or of the file, or `unix:///run/drumlin/csi.sock`]
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<String>,
    /// This node's name [default: that of the running agent or of the file, or the host's name]
    #[arg(long, env = "DRUMLIN_NODE", value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// State directory [default: that of the file, or `/var/lib/drumlin`]
    #[arg(long, env = "DRUMLIN_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Directory of manifests [default: that of the running agent or of the file]
    #[arg(long, env = "DRUMLIN_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
    /// Make only these checks, in this process, and print their findings as one line of JSON.
    #[arg(long, hide = true, value_name = "PART")]
    pub(crate) part: Option<Part>,
}
