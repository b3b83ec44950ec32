//! Arguments about kubelet, of the agent.

use std::path::PathBuf;

use clap::{Args, builder::BoolishValueParser};

/// Registration with kubelet.
#[derive(Debug, Clone, Default, Args)]
#[expect(
    clippy::struct_field_names,
    reason = "the flags and their ids have these names"
)]
pub(crate) struct KubeletArguments {
    /// Register the driver with kubelet, without a sidecar; `false` removes the registration socket that an agent left
    /// [default: neither]
    #[arg(
        long,
        env = "DRUMLIN_KUBELET_REGISTER",
        num_args = 0..=1,
        default_missing_value = "true",
        require_equals = true,
        value_parser = BoolishValueParser::new(),
        value_name = "BOOL"
    )]
    pub(crate) kubelet_register: Option<bool>,
    /// Directory in which kubelet looks for registration sockets [default: `/var/lib/kubelet/plugins_registry`]
    #[arg(long, env = "DRUMLIN_KUBELET_REGISTRATION_DIR", value_name = "DIR")]
    pub(crate) kubelet_registration_dir: Option<PathBuf>,
    /// The CSI socket as kubelet sees it, where that is another path than the agent's [default: the CSI socket]
    #[arg(long, env = "DRUMLIN_KUBELET_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) kubelet_endpoint: Option<String>,
}
