//! Configuration: flags override the environment, which overrides the file, which overrides defaults.

mod classes;
mod file;
mod invalid;
mod key;
mod kubelet;
mod manifests;
mod metrics;

pub(crate) use classes::{ClassPlan, FileClass, Labels, Storage};
pub(crate) use file::{
    Config, DRIVER, ENDPOINT, Fixed, OnGroup, PACKAGED, STATE_DIR, check_driver, configured,
    configured_endpoint, host_name, node_name,
};
pub(crate) use invalid::problems;
pub(crate) use kubelet::Kubelet;
pub(crate) use manifests::pruning;
pub(crate) use metrics::metrics_targets;
