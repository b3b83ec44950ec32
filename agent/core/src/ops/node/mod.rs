//! The node: staging, publishing, statistics and reclaiming of volumes on this host.

pub(crate) mod devices;
pub(crate) mod fs_group;
pub(crate) mod health;
pub(crate) mod io_limits;
pub(crate) mod node_publish;
pub(crate) mod publish_unstaged;
pub(crate) mod reclaim;
pub(crate) mod stage;
pub(crate) mod staging_record;
pub(crate) mod stats;
pub(crate) mod target_path;
